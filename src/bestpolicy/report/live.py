"""A page that follows a running study, for this machine alone.

The server listens on 127.0.0.1 and answers two questions: the page, and what there is now: the version of the page and
a line with time and speed. A small script in the page asks for the latter once a second, and puts a new page in the
place of the old one, so that nothing flickers and what was opened stays open. A request under another host name is
refused, so that no web site can read the page by pointing its own name here (DNS rebinding). The file of studies is
only ever read, so whoever writes it is not disturbed.
"""

from __future__ import annotations

import json
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
from bestpolicy.report.clock import Clock
from bestpolicy.report.page import render
from bestpolicy.study import Record
from bestpolicy.study.store import Store

ADDRESS = "127.0.0.1"
_OVER = "over"
_LONGEST_REST = 10.0  # seconds until a file may be read and a page be drawn again; less if that took less


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
        self._head = b""
        self._version, self._text = "", ""
        self._clock = Clock()
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

    def now(self) -> dict[str, str]:
        """Return the version, and a line on time and speed."""
        version, _ = self.look()
        return {"version": version, "clock": self._clock.line(time.monotonic())}

    def _refresh(self) -> None:
        began = time.monotonic()
        with Store(self._path) as store:
            study = store.find(self._name)
            head, kind = store.head(study)
            resting = began < self._not_before and kind != "ended"  # the end is shown at once
            if head == self._head or resting:
                return
            record = store.read(study)
        version = version_of(record)
        self._clock.observe(began, record)
        if version != self._version:
            account = read_source(self._path, self._name)
            assert isinstance(account, Account)
            self._clock.outlook = account.outlook
            part = describe_study(account, bounds=False)
            self._text = render(title=study_title(account), study=part, live=version)
        self._version, self._head = version, head
        ended = time.monotonic()
        self._not_before = ended + min(ended - began, _LONGEST_REST)


def study_version(path: str | PathLike[str], name: str | None) -> str:
    """Text that changes when a study has something new to show."""
    with Store(path) as store:
        return version_of(store.read(store.find(name)))


def version_of(record: Record) -> str:
    """Text that changes when there is something new to show."""
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
        """Answer with the page, or with what there is now."""
        hosts = {f"{host}:{self.server.server_port}" for host in (ADDRESS, "localhost")}
        if self.headers.get("Host", "").lower() not in hosts:
            return self._answer(HTTPStatus.FORBIDDEN, "This server answers to 127.0.0.1 only.\n")
        try:
            if self.path == "/":
                return self._answer(HTTPStatus.OK, self.server.page.look()[1], "text/html")
            if self.path == "/now":
                return self._answer(HTTPStatus.OK, json.dumps(self.server.page.now()), "application/json")
        except BestPolicyError as error:
            return self._answer(HTTPStatus.SERVICE_UNAVAILABLE, f"{error}\n")
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
