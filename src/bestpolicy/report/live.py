"""A page that follows a running study, for this machine alone.

The server listens on 127.0.0.1 and answers two questions: the page, and the version of what it shows, which a small
script in the page asks for once a second. A request under another host name is refused, so that no web site can read
the page by pointing its own name here (DNS rebinding). The file of studies is only ever read, so whoever writes it
is not disturbed.
"""

from __future__ import annotations

import socketserver
import sys
import threading
import time
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from os import PathLike
from typing import Any

from bestpolicy.errors import BestPolicyError, InvalidInput
from bestpolicy.report import describe_study, read_source, study_title
from bestpolicy.report.accounts import Account
from bestpolicy.report.page import render
from bestpolicy.study.store import Store

ADDRESS = "127.0.0.1"
_OVER = "over"
_LONGEST_REST = 1.5  # seconds until a page may be drawn again; less if drawing took less


class LivePage:
    """The page of a study, drawn anew when checks have arrived, but not too often.

    Parameters
    ----------
    path : path
        A file of studies.
    name : str, optional
        Of the study, if there are several.
    """

    def __init__(self, path: str | PathLike[str], name: str | None = None) -> None:
        self._path, self._name = path, name
        self._lock = threading.Lock()
        self._not_before = 0.0
        self._version, self._text = "", ""
        self.look()

    def look(self) -> tuple[str, str]:
        """Return (version, page) of the study as it is now, or as it was a moment ago."""
        with self._lock:
            try:
                self._refresh()
            except BestPolicyError:
                if not self._text:
                    raise
                # Busy or gone for now: the last page stays.
            return self._version, self._text

    def _refresh(self) -> None:
        version, began = study_version(self._path, self._name), time.monotonic()
        resting = began < self._not_before and not version.endswith(_OVER)  # the end is shown at once
        if version == self._version or resting:
            return
        account = read_source(self._path, self._name)
        assert isinstance(account, Account)
        part = describe_study(account, bounds=False)
        self._text = render(title=study_title(account), study=part, live=version)
        self._version = version
        ended = time.monotonic()
        self._not_before = ended + min(ended - began, _LONGEST_REST)


def study_version(path: str | PathLike[str], name: str | None) -> str:
    """Text that changes when a study has something new to show."""
    with Store(path) as store:
        record = store.read(store.find(name))
    looks = len(record.checks)
    return f"{looks}-{record.answers if not looks else 0}-{_OVER if record.result else 'running'}"


class Server(ThreadingHTTPServer):
    """Serves one live page on 127.0.0.1."""

    daemon_threads = True

    def __init__(self, page: LivePage, port: int = 0) -> None:
        self.page = page
        try:
            super().__init__((ADDRESS, port), _Handler)
        except (OSError, OverflowError) as error:
            why = error.strerror if isinstance(error, OSError) else "there is no such port"
            raise InvalidInput(f"cannot listen on port {port}: {why}. Give another one, or 0 for any.") from None

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of readers who have gone: a closed tab, a phone that sleeps."""
        if not isinstance(sys.exception(), ConnectionError | TimeoutError):
            super().handle_error(request, client_address)

    def server_bind(self) -> None:
        """Bind without asking the network for this machine's name."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = ADDRESS, int(self.server_address[1])

    @property
    def url(self) -> str:
        """Where the page is."""
        return f"http://{ADDRESS}:{self.server_port}/"


class _Handler(BaseHTTPRequestHandler):
    server: Server
    server_version, sys_version = "bestpolicy", ""
    timeout = 30

    def do_GET(self) -> None:
        """Answer with the page or its version."""
        hosts = {f"{host}:{self.server.server_port}" for host in (ADDRESS, "localhost")}
        if self.headers.get("Host", "").lower() not in hosts:
            return self._answer(HTTPStatus.FORBIDDEN, "This server answers to 127.0.0.1 only.\n")
        try:
            version, page = self.server.page.look()
        except BestPolicyError as error:
            return self._answer(HTTPStatus.SERVICE_UNAVAILABLE, f"{error}\n")
        if self.path == "/":
            return self._answer(HTTPStatus.OK, page, "text/html")
        if self.path == "/version":
            return self._answer(HTTPStatus.OK, version)
        return self._answer(HTTPStatus.NOT_FOUND, "There is only one page here: /\n")

    do_HEAD = do_GET

    def _answer(self, status: HTTPStatus, text: str, kind: str = "text/plain") -> None:
        content = text.encode(errors="backslashreplace")
        self.send_response(status)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Content-Security-Policy", "frame-ancestors 'none'")
        self.send_header("Cross-Origin-Resource-Policy", "same-origin")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        """Keep the terminal quiet."""
