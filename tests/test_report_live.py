"""The live page follows a run, for this machine alone, and disturbs nothing."""

from __future__ import annotations

import hashlib
import http.client
import json
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

import bestpolicy as bp
from bestpolicy.report.clock import Clock, duration
from bestpolicy.report.live import LivePage, Server
from bestpolicy.study.forecast import Outlook
from bestpolicy.study.store import Store
from tests.test_report_page import PROGRAM, advance, check_page, make_study, undrawn  # noqa: F401 (a fixture)


@contextmanager
def serving(path: Path) -> Iterator[Server]:
    with Server(LivePage(path)) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def get(server: Server, path: str = "/", host: str | None = None, method: str = "GET") -> tuple[int, str, dict]:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=30)
    try:
        connection.request(method, path, headers={"Host": host or f"127.0.0.1:{server.server_port}"})
        answer = connection.getresponse()
        return answer.status, answer.read().decode(), dict(answer.getheaders())
    finally:
        connection.close()


def version(server: Server) -> str:
    return str(json.loads(get(server, "/now")[1])["version"])


@pytest.mark.usefixtures("undrawn")
def test_only_this_machine_is_answered(tmp_path):
    make_study(tmp_path / "run.db", steps=2, epsilon=0.001)
    with serving(tmp_path / "run.db") as server:
        assert server.server_address[0] == "127.0.0.1"
        status, page, headers = get(server)
        assert status == 200
        check_page(page)
        assert headers["Cache-Control"] == "no-store"
        assert "connect-src &#39;self&#39;" in page or "connect-src 'self'" in page
        assert get(server, host=f"localhost:{server.server_port}")[0] == 200
        for stranger in ("evil.example", f"evil.example:{server.server_port}", "127.0.0.1", "[::1]"):
            status, text, _ = get(server, host=stranger)
            assert status == 403
            assert "simulator" not in text
        assert get(server, "/../run.db")[0] == 404
        assert get(server, "/run.db")[0] == 404
        assert get(server, method="POST")[0] == 501
        status, text, headers = get(server, method="HEAD")
        assert (status, text) == (200, "")
        assert int(headers["Content-Length"]) > 1000


@pytest.mark.usefixtures("undrawn")
def test_the_version_follows_the_run_and_the_file_is_not_touched(tmp_path):
    path = tmp_path / "run.db"
    make_study(path, steps=1, epsilon=0.001)
    content = hashlib.sha256(path.read_bytes()).hexdigest()
    with serving(path) as server:
        before = version(server)
        assert f'data-version="{before}"' in get(server)[1]
        assert hashlib.sha256(path.read_bytes()).hexdigest() == content
        study = bp.Study.resume(path)  # the writer's lock is free, though the page is being served
        advance(study, 2)
        deadline = time.monotonic() + 300
        while (now := version(server)) == before and time.monotonic() < deadline:
            time.sleep(0.1)
        assert now != before
        assert f"{study.samples:,}" in get(server)[1]
        study.close()
        path.rename(tmp_path / "gone.db")  # what was shown stays
        assert get(server)[0] == 200


@pytest.mark.usefixtures("undrawn")
def test_a_page_rests_but_shows_the_end_at_once(tmp_path):
    path = tmp_path / "run.db"
    make_study(path, steps=1, epsilon=0.001)
    page = LivePage(path)
    page._not_before = time.monotonic() + 1000
    version, text = page.look()
    study = bp.Study.resume(path)
    advance(study, 1)
    assert page.look() == (version, text)
    study.stop()
    assert "interrupted" in page.look()[1]


def test_a_port_that_is_taken(tmp_path):
    make_study(tmp_path / "run.db", steps=0)
    page = LivePage(tmp_path / "run.db")
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        with pytest.raises(bp.InvalidInput, match="cannot listen on port"):
            Server(page, other.getsockname()[1])


def test_the_command_serves_until_ctrl_c(tmp_path):
    make_study(tmp_path / "run.db", steps=0)
    process = subprocess.Popen(
        [PROGRAM, "watch", "run.db", "--no-open"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
    )
    try:
        line = process.stdout.readline()
        assert line.startswith("Watching run.db at http://127.0.0.1:")
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=300)
        assert process.returncode == 0
        assert "Stopped." in output
        assert errors == ""
    finally:
        process.kill()


def test_readers_who_go_leave_no_traceback(tmp_path, capsys):
    make_study(tmp_path / "run.db")
    with Server(LivePage(tmp_path / "run.db")) as server:
        for error in (BrokenPipeError(), ConnectionResetError(), TimeoutError(), ValueError("a mistake of ours")):
            try:
                raise error
            except Exception:
                server.handle_error(None, ("127.0.0.1", 1))
    said = capsys.readouterr().err
    assert "a mistake of ours" in said
    assert "Broken" not in said
    assert "Reset" not in said


class Watched:
    """What a file says of a study, as far as a clock looks at it."""

    def __init__(self, samples: int, seconds: float | None = None, created: str = "2026-01-02 03:00:00") -> None:
        self.samples, self.created = samples, created
        self.result = None if seconds is None else {"seconds": seconds}


def test_the_clock_says_how_long_how_fast_and_until_when():
    clock, today = Clock(), datetime(2026, 1, 2, 3, 2, 0, tzinfo=UTC)
    assert clock.line(0.0, today) == ""
    clock.observe(100.0, Watched(0))
    assert clock.line(101.0, today) == "Begun 2 min ago · too early to tell the end"
    clock.observe(102.0, Watched(6000))  # the average since it began, or what was seen: 6,000 calls in 2 s
    clock.outlook = Outlook(300_000.0, 906_000.0)
    soon, late = ((today + timedelta(seconds=left)).astimezone() for left in (98, 300))
    assert clock.line(102.0, today) == (
        f"Begun 2 min ago · 3,000 calls a second · 1 min 38 s to 5 min left, until {soon:%H:%M} to {late:%H:%M}"
    )
    late = clock.line(302.0, today)
    assert "nothing new for 3 min 20 s" in late
    assert "30 calls a second" in late
    clock.observe(303.0, Watched(6000, seconds=4.0))
    assert clock.line(303.0, today) == ("The run is over. Its last stretch took 4 s, 1,500 calls a second on average.")


def test_the_clock_before_anybody_watched_and_without_a_date():
    clock, today = Clock(), datetime(2026, 1, 2, 3, 0, 10, tzinfo=UTC)
    clock.observe(5.0, Watched(50))
    assert "5 calls a second" in clock.line(5.0, today)
    clock.observe(6.0, Watched(50, created="long ago"))
    assert clock.line(6.0, today) == "too early to tell the end"
    clock.observe(6.0, Watched(50, seconds=0.0))
    assert clock.line(6.0, today) == "The run is over. Its last stretch took 0 s."


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.4, "0 s"), (60, "1 min"), (200, "3 min 20 s"), (601, "10 min"), (7500, "2 h 5 min"), (1e6, "11 days")],
)
def test_durations(seconds, text):
    assert duration(seconds) == text


@pytest.mark.usefixtures("undrawn")
def test_a_file_that_has_not_changed_is_not_read_again(tmp_path, monkeypatch):
    make_study(tmp_path / "run.db", steps=1, epsilon=0.001)
    page = LivePage(tmp_path / "run.db")
    monkeypatch.setattr(Store, "read", lambda *_: pytest.fail("it was read"))
    assert page.now()["clock"].startswith("Begun ")
