"""Bad command lines, hostile files, streams that fail: one `Error:` line, exit code 2, no trace.

Nothing that somebody else has written may steer a terminal or break a page.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

import bestpolicy as bp
from bestpolicy.cli.console import notes, prepare_streams
from bestpolicy.cli.progress import work_progress
from bestpolicy.comparison import Skipped, Trial
from bestpolicy.errors import plain
from bestpolicy.verification.reading import digest
from tests.test_cli import assert_one_error_line, run
from tests.test_report_page import Outline

HUGE = "1" + "0" * 400
NUL, SURROGATE = "a\0b", "a\udcff"
ASKED = ("--epsilon", "0.5", "--delta", "0.1")
IDENTIFY = ("identify", "two-state", *ASKED)
COMPARE = ("compare", "two-state", *ASKED, "--algorithms", "tight", "--no-bounds")
ATTACK = (
    "[/bold][red]\x1b[2J\x1b]0;owned\x07\r\x9b2J\u202egnp.exe\u2066\u200b\x7f\n</script><img src=x onerror=alert(1)>"
)

NO_NUMBER = ("nan", "inf", "-inf", "1e400", "-1", "", "x", "0x10", HUGE, NUL, SURROGATE)
NO_FRACTION = (*NO_NUMBER, "0", "1", "1e-400", "2")
NO_COUNT = (*NO_NUMBER, "0", "1.5", "1e-320", "½")
NO_NEW_FILE = ("", " ", "folder", "none/x", "text/x", NUL, ":memory:", "file:x", "file::memory:", "x" * 300)
NO_MODEL = ("", "folder", "none.npz", "text", "zeros", "empty", "no-such", NUL, f"{NUL}.npz", SURROGATE, "/dev/null")
NO_STORE = ("", "folder", "none", "text", "zeros", "empty", "list.json", "deep.json", NUL, SURROGATE, "/dev/null")
NO_NAME = ("", " ", NUL, SURROGATE, "\x1b[2J", "\u202egnp", "a\nb", "no-such")


def typed(option: str, values: tuple[str, ...], *command: str) -> list[tuple[str, ...]]:
    """The command with each of the values for an option, in place of that which it has."""
    if option in command:
        at = command.index(option)
        return [(*command[: at + 1], value, *command[at + 2 :]) for value in values]
    return [(*command, option, value) for value in values]


def named(values: tuple[str, ...], before: tuple[str, ...], *after: str) -> list[tuple[str, ...]]:
    """The command with each of the values as its argument."""
    return [(*before, value, *after) for value in values]


REFUSED = [
    *typed("--epsilon", NO_NUMBER, *IDENTIFY),
    *typed("--delta", NO_FRACTION, *IDENTIFY),
    *typed("--max-seconds", (*NO_NUMBER, "0"), *IDENTIFY),
    *typed("--max-samples", NO_COUNT, *IDENTIFY),
    *typed("--workers", (*NO_COUNT, "1e9", "1001"), *IDENTIFY),
    *typed("--seed", (*NO_NUMBER, "1.5"), *IDENTIFY),
    *typed("--certificate", NO_NEW_FILE, *IDENTIFY),
    *typed("--name", NO_NAME[:-1], *IDENTIFY),
    *typed("--rewards", ("", NUL, "[/bold]"), *IDENTIFY),
    *typed("--algorithm", ("", NUL, SURROGATE, "[/bold]", "gsss"), *IDENTIFY),
    ("identify", "two-state", *ASKED, "--certificate", "c.json", "--algorithm", "plug-in-no-guarantee"),
    *named(NO_MODEL, ("identify",), *ASKED),
    *named(("\x1b[2J", ""), IDENTIFY),
    *typed("--store", (*NO_NEW_FILE, "text", "zeros", "ledger.db"), "identify", "two-state", *ASKED),
    *typed("--max-samples", NO_COUNT, "resume", "short.db"),
    *typed("--max-seconds", NO_NUMBER, "resume", "short.db", "--max-samples", "9"),
    *typed("--workers", NO_COUNT, "resume", "short.db", "--max-samples", "9"),
    *typed("--certificate", NO_NEW_FILE, "resume", "short.db", "--max-samples", "9"),
    *typed("--model", (*NO_MODEL, "grid"), "resume", "short.db", "--max-samples", "9"),
    *typed("--name", NO_NAME, "resume", "short.db"),
    *named(NO_STORE, ("resume",)),
    *named(NO_STORE, ("studies",)),
    *named(NO_STORE, ("rescue",), "rescued.db"),
    *named(NO_NEW_FILE, ("rescue", "short.db")),
    *typed("--limit-gb", (*NO_NUMBER, "0"), "verify", "certificate.json"),
    *named((*NO_STORE, "short.db"), ("verify",)),
    *typed("--model", NO_MODEL, "verify", "certificate.json"),
    *named(NO_STORE, ("report",)),
    *typed("--output", NO_NEW_FILE, "report", "short.db"),
    *typed("--model", (*NO_MODEL, "grid"), "report", "short.db"),
    *typed("--name", NO_NAME, "report", "short.db"),
    *typed("--name", ("study",), "report", "certificate.json"),
    *typed("--grid", ("", "x", "0x0", "9999x9999", "4x", "٤x٤", NUL), "report", "short.db"),
    *named(NO_STORE, ("watch", "--no-open")),
    *typed("--port", ("-1", "99999", "x", "", HUGE, "1.5"), "watch", "short.db", "--no-open"),
    *named(NO_MODEL, ("compare",), *ASKED),
    *typed("--epsilon", NO_NUMBER, *COMPARE),
    *typed("--delta", NO_FRACTION, *COMPARE),
    *typed("--runs", (*NO_COUNT, "1e9"), *COMPARE),
    *typed("--workers", (*NO_COUNT, "1e9"), *COMPARE),
    *typed("--algorithms", ("", ",", NUL, "[/bold]", "gss,gss"), *COMPARE),
    *typed("--output", (*NO_NEW_FILE, "x.txt", "x"), *COMPARE, "--runs", "1"),
    *typed("--store", (*NO_NEW_FILE, "text", "zeros", "short.db"), *COMPARE, "--runs", "1"),
    (*COMPARE, "--json", "--csv"),
    *named(NO_MODEL, ("bounds",), *ASKED),
    *typed("--delta", NO_FRACTION, "bounds", "two-state", *ASKED),
    *typed("--max-seconds", (*NO_NUMBER, "0"), "bounds", "two-state", *ASKED),
    *typed("--tolerance", (*NO_NUMBER, "0"), "bounds", "two-state", *ASKED),
    *typed("--figure", (*NO_NEW_FILE, "x.txt", "x"), "bounds", "two-state", *ASKED),
    *named(NO_MODEL, ("design",)),
    *typed("--tolerance", (*NO_NUMBER, "0"), "design", "two-state"),
    *named(NO_MODEL, ("check",)),
    *typed("--samples", (*NO_COUNT, "1e300"), "check", "two-state"),
    *typed("--seed", NO_NUMBER, "check", "two-state"),
    *typed("--delta", NO_FRACTION, "demo"),
    *typed("--seed", NO_NUMBER, "demo"),
    *typed("--output", ("", "text", NUL, "text/x"), "demo"),
    *named(("", NUL, SURROGATE, "[/bold]", "gsss"), ("algorithms",)),
    *named(("", NUL, SURROGATE, "[/bold]", "identfy", "--nothing"), ()),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder to work in, with files of all kinds."""
    path, before = tmp_path_factory.mktemp("abuse"), Path.cwd()
    os.chdir(path)
    (path / "folder").mkdir()
    for name, content in {"text": b"hello", "zeros": bytes(100), "empty": b"", "list.json": b"[1]"}.items():
        (path / name).write_bytes(content)
    (path / "deep.json").write_text("[" * 100_000)
    assert run(*IDENTIFY, "--seed", 1, "--algorithm", "tight", "--certificate", "certificate.json").returncode == 0
    assert run(*IDENTIFY, "--seed", 1, "--store", "short.db", "--max-samples", 3).returncode == 3
    assert run(*COMPARE, "--runs", 1, "--store", "ledger.db").returncode == 0
    yield path
    os.chdir(before)


def contents(folder: Path) -> dict[str, bytes]:
    """All files, but those that SQLite makes to read another."""
    names = [name for name in os.listdir(folder) if not name.endswith(("-shm", "-wal"))]
    return {name: (folder / name).read_bytes() for name in names if (folder / name).is_file()}


def test_refused_commands_say_why_and_leave_no_trace(folder):
    assert len(set(REFUSED)) == len(REFUSED) > 400
    before = contents(folder)
    for command in REFUSED:
        stored = ("--store", "new.db") if command[:1] == ("identify",) and "--store" not in command else ()
        done = run(*command, *stored)
        try:
            assert_one_error_line(done)
            assert is_harmless(done.stderr)
            assert done.stdout == ""
            assert contents(folder) == before, "a trace"
        except AssertionError as error:
            raise AssertionError(f"{command}: {done.returncode} {done.stdout}{done.stderr} {error}") from error
    assert run(*IDENTIFY, "--store", "new.db").returncode == 0  # the name is free


def test_odd_but_lawful_commands_go_through(folder):
    for options, status in (
        (("--delta", "1e-300", "--max-samples", "1e4"), 3),
        (("--epsilon", "-0", "--max-samples", "100"), 3),
        (("--epsilon", "1e300", "--max-samples", "1e300"), 0),
        (("--epsilon", "1e-320", "--max-samples", "100"), 3),
        (("--epsilon", "1e-320", "--max-samples", "100", "--seed", "74"), 3),  # with two actions that seem equally good
        (("--max-samples", "1e300", "--seed", "1e300"), 0),
        (("--max-seconds", "1e300"), 0),
        (("--max-seconds", "1e-320"), 3),
    ):
        assert run(*IDENTIFY, *options).returncode == status, options
    assert run(*COMPARE, "--runs", "1", "--epsilon", "1e300").returncode == 0
    assert run("bounds", "two-state", "--epsilon", "1e300", "--delta", "1e-320").returncode == 0


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_seconds": -1},
        {"max_samples": 0},
        {"executor": 3},
        {"calls_per_query": 0},
        {"query_seconds": 0},
        {"linearity": 1},
        {"progress": 3},
        {"own_data": 3},
        {"seed": -1},
        {"algorithm": "gsss"},
        {"name": "\x1b[2J"},
        *({"store": path} for path in (":memory:", "file:x.db", "", NUL)),
    ],
)
def test_refused_calls_leave_no_trace(tmp_path, monkeypatch, wrong):
    monkeypatch.chdir(tmp_path)
    model = bp.ExactSimulator(bp.instances.load("two-state"))
    with pytest.raises(bp.InvalidInput):
        bp.identify(model, **({"epsilon": 0.5, "delta": 0.1, "store": "run.db"} | wrong))
    if "store" in wrong:
        with pytest.raises(bp.InvalidInput):
            bp.compare("two-state", "tight", epsilon=0.5, delta=0.1, runs=1, **wrong)
    assert os.listdir(tmp_path) == []


def is_harmless(text: str) -> bool:
    """Whether a terminal would obey or hide nothing of a text but the ends of its lines."""
    return all(letter.isprintable() or letter in "\n\xa0" for letter in text)


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a file of each kind, whose every name is an attack."""
    path = tmp_path_factory.mktemp("hostile")
    mdp, name = bp.instances.load("two-state"), ATTACK.replace("/", "|") + "\udcff"
    mdp.save(path / f"{name}.npz")
    origin = {"model": str(path / f"{name}.npz"), "fingerprint": bp.LinearMDP.load(path / f"{name}.npz").fingerprint}
    units = bp.Units(environment=ATTACK, states=[ATTACK, "b"], actions=["a", ATTACK])
    with mock.patch("bestpolicy.study.study.word", lambda _, text: text):  # as whoever writes a file by hand may do
        for algorithm, epsilon in (("tight", 0.5), ("gss", 0.001)):
            study = bp.Study(
                mdp.problem,
                epsilon=epsilon,
                delta=0.1,
                algorithm=algorithm,
                seed=0,
                max_samples=5000,
                store=path / f"{algorithm}.db",
                name=ATTACK,
                units=units,
                origin=origin | {"rewards": "bernoulli"},
            )
            study.warn(ATTACK)
            result = bp.drive(study, bp.ExactSimulator(mdp))
            if result.certified:
                result.save(path / "certificate.json")
    trial = Trial(ATTACK, ATTACK, 0, 0.1, 0.1, 10, 0.01, True, 0.09, ATTACK, 0.1)
    settings = {ATTACK: ATTACK, "version": ATTACK}
    bp.Comparison(settings, (trial,), (Skipped(ATTACK, ATTACK, ATTACK),)).save(path / "comparison.json")
    return path


def commands_about(folder: Path) -> list[tuple[object, ...]]:
    model = next(folder.glob("*.npz"))
    return [
        ("studies", folder / "tight.db"),
        ("resume", folder / "tight.db"),
        ("resume", folder / "gss.db", "--max-samples", 6000),
        ("verify", folder / "certificate.json"),
        ("identify", model, *ASKED, "--algorithm", "tight"),
        ("identify", model, *ASKED, "--max-samples", 5, "--store", folder / f"{ATTACK[:60]}.db".replace("/", "|")),
        ("compare", model, *ASKED, "--algorithms", "tight,gss-e", "--runs", 1, "--no-bounds"),
        ("compare", model, *ASKED, "--algorithms", "tight", "--runs", 1, "--no-bounds", "--csv"),
        ("check", model),
        ("design", model),
        ("bounds", model, *ASKED, "--tolerance", 0.5),
        ("report", folder / "gss.db", "--output", folder / f"{ATTACK[:60]}.html".replace("/", "|")),
        ("studies", ATTACK),
        ("verify", ATTACK),
        ("report", ATTACK),
        ("watch", ATTACK, "--no-open"),
        ("algorithms", ATTACK),
        ("identify", ATTACK, *ASKED),
        ("resume", folder / "tight.db", "--name", ATTACK + "!"),
        (ATTACK,),
        ("studies", folder / "tight.db", ATTACK),
    ]


def test_nothing_in_a_file_steers_a_terminal(hostile):
    for command in commands_about(hostile):
        done = run(*command)
        assert done.returncode in (0, 2, 3), done.stderr
        assert is_harmless(done.stdout + done.stderr), command
    table = run("studies", hostile / "tight.db").stdout
    assert "[/bold][red]" in table.replace("\n", "").replace(" ", "")
    assert json.loads(run("studies", hostile / "tight.db", "--json").stdout)[0]["name"] == ATTACK


def test_nothing_in_a_file_steers_a_terminal_with_colours(hostile, monkeypatch):
    """There the styles and the lines that change are ours, and nothing else is."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    for command in commands_about(hostile)[:8]:
        done = run(*command)
        printed = done.stdout + done.stderr
        assert not any(
            attack in printed for attack in ("\x1b[2J", "\x1b]", "\x07", "\x9b", "\u202e", "\u2066", "\u200b")
        )
    with work_progress(notes()) as show:
        show(1, 2, ATTACK)


def test_a_certificate_cannot_print_its_own_verdict(hostile, tmp_path):
    """Every text of a certificate in turn, with a checksum that fits."""
    document = json.loads((hostile / "certificate.json").read_text())
    places = list(texts(document))
    assert len(places) > 8
    for holder, key in places:
        holder[key], kept = ATTACK, holder[key]
        document["sha256"] = digest(document)
        (tmp_path / "forged.json").write_text(json.dumps(document))
        holder[key] = kept
        done = run("verify", tmp_path / "forged.json")
        assert done.returncode in (0, 1, 2)
        assert is_harmless(done.stdout + done.stderr)
        assert sum(line.startswith(("valid", "NOT valid")) for line in done.stdout.splitlines()) <= 1


def texts(part: Any) -> Iterator[tuple[Any, Any]]:
    """Every place of a document that holds a text, as (what holds it, its key there)."""
    for key, value in list(part.items() if isinstance(part, dict) else enumerate(part)):
        if isinstance(value, str) and key not in ("data", "dtype"):  # of arrays
            yield part, key
        elif isinstance(value, dict | list):
            yield from texts(value)


def test_hostile_text_is_text_on_every_page(hostile):
    for source in ("tight.db", "gss.db", "certificate.json", "comparison.json"):
        page = bp.report.report_page(hostile / source)
        outline = Outline(page)
        assert len(outline.named("script")) == 1
        assert not outline.named("img")
        body = page.split("</style>")[1].split("<script>")[0]
        assert is_harmless(body), source
        assert "onerror" in body
        assert page.encode()


def test_plain():
    assert plain("ε ≤ 0.1, 95\xa0%, 中文, [red]") == "ε ≤ 0.1, 95\xa0%, 中文, [red]"
    assert plain("a\x1b[2J\r\n\t\x7f\x9b\u202e\u200b\ufeff\udcff") == r"a\x1b[2J\r\n\t\x7f\x9b\u202e\u200b\ufeff\udcff"


def test_letters_that_a_terminal_lacks_are_spelled():
    prepare_streams()
    assert "ε ≤ γ⁻¹², Δ – é".encode("ascii", "spelled") == rb"epsilon <= gamma^-1^2, Delta - \xe9"
    assert "ε – é".encode("latin-1", "spelled") == b"epsilon - \xe9"


def in_shell(line: str, folder: Path, **environment: str) -> subprocess.CompletedProcess[bytes]:
    program = f"'{sys.executable}' -c 'import bestpolicy_command; bestpolicy_command.main()'"
    source = {"PYTHONPATH": str(Path(bp.__file__).parents[1])}
    return subprocess.run(
        ["bash", "-c", f'bestpolicy() {{ {program} "$@"; }}\n{line}'],
        cwd=folder,
        env=os.environ | source | environment,
        capture_output=True,
        timeout=600,
        check=False,
    )


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no device that is always full")
def test_streams_that_fail(tmp_path):
    """A full disk is an error, a closed pipe is none and leaves the exit code as it is; closed streams lead nowhere."""
    short = "identify two-state --epsilon 0.01 --delta 0.1 --max-samples 9"
    done = in_shell(
        f"bestpolicy {short} --json 2>/dev/null | true; echo ${{PIPESTATUS[0]}}; "
        "bestpolicy algorithms | head -1 | wc -l; bestpolicy --help > /dev/full; echo $?; "
        f"bestpolicy {short} --store run.db <&- >&- 2>&-; echo $?; bestpolicy studies run.db --json | wc -l",
        tmp_path,
    )
    assert done.stdout.decode().split() == ["3", "1", "2", "3", "1"]
    assert done.stderr.decode().startswith("Error: the output cannot be written: No space left on device.")
    assert done.stderr.count(b"\n") == 1


COMMANDS = """
import sys
from bestpolicy_command import main
asked = ["two-state", "--epsilon", "0.5", "--delta", "0.1"]
for command in (
    ["identify", *asked, "--store", "é ε.db", "--certificate", "c.json"],
    ["studies", "é ε.db"],
    ["algorithms"],
    ["verify", "c.json"],
    ["check", "two-state"],
    ["algorithms", "--help"],
    ["compare", *asked, "--runs", "1", "--no-bounds", "--algorithms", "tight"],
    ["report", "é ε.db", "--no-bounds"],
    ["studies", "ä"],
):
    typed = [part.encode().decode(sys.getfilesystemencoding(), "surrogateescape") for part in command]
    sys.argv = ["bestpolicy", *typed]
    try:
        main()
    except SystemExit as ended:
        assert ended.code == (2 if command[-1] == "ä" else 0), command
"""


@pytest.mark.parametrize("environment", [{"PYTHONIOENCODING": "ascii"}, {"LC_ALL": "C", "PYTHONUTF8": "0"}])
def test_terminals_without_greek(tmp_path, environment):
    (tmp_path / "commands.py").write_text(COMMANDS, encoding="utf-8")
    done = in_shell(f"'{sys.executable}' commands.py", tmp_path, PYTHONCOERCECLOCALE="0", **environment)
    assert done.returncode == 0, done.stderr
    assert b"certified epsilon" in done.stdout
    assert done.stdout.isascii()
    assert done.stderr.startswith(b"Error: no such file: \\")
    assert done.stderr.count(b"\n") == 1
