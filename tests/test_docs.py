"""All code on all pages runs, and prints what the page says it prints.

The blocks of a page run in order, in one temporary directory: ``python`` blocks share a namespace, ``console`` blocks
have commands after ``$`` and may show output, ``sh`` blocks have one command a line. A ``text`` block right after a
``python`` block is what that prints. In shown output ``…`` stands for anything within a line, or for any lines if it
is alone on one. A command ends with exit code 0, unless it says ``# exit code 3``. A block that is not run has a
comment ``<!-- not run: why -->`` on the line before it. (README.md is run by test_readme.py.)
"""

from __future__ import annotations

import io
import os
import re
import shlex
import subprocess
import sys
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from unittest import mock

import pytest

import bestpolicy as bp
from tests.test_cli import run

DOCS = Path(__file__).parent.parent / "docs"
PAGES = sorted(path for path in DOCS.rglob("*.md") if "generated" not in path.parts)
NAMES = [path.relative_to(DOCS).as_posix() for path in PAGES]
KINDS = ("python", "console", "sh", "text", "json")


@dataclass(frozen=True)
class Block:
    """A fenced block: its kind, first line, text, what the page says it prints, and why it is not run."""

    kind: str
    line: int
    code: str
    shown: str | None = None
    not_run: str = ""


def blocks_of(text: str) -> list[Block]:
    """Return the blocks of a page that are not directives of the documentation builder."""
    found: list[Block] = []
    lines = text.split("\n")
    number = 0
    while number < len(lines):
        fence = re.fullmatch(r"(`{3,})(.*)", lines[number])
        number += 1
        if fence is None:
            continue
        begin = number
        while lines[number] != fence[1]:
            number += 1
        code, kind, number = "\n".join(lines[begin:number]), fence[2], number + 1
        if kind.startswith("{"):
            continue
        reason = re.fullmatch(r"<!-- not run: (.+) -->", lines[begin - 2]) if begin > 1 else None
        between = lines[found[-1].line + found[-1].code.count("\n") + 2 : begin - 1] if found else [""]
        if kind == "text" and found and found[-1].kind == "python" and not any(map(str.strip, between)):
            last = found.pop()
            found.append(Block(last.kind, last.line, last.code, code, last.not_run))
        else:
            found.append(Block(kind, begin, code, not_run=reason[1] if reason else ""))
    return found


def assert_printed(printed: str, shown: str, where: str) -> None:
    """Compare up to marked elisions and white space at the ends of lines."""
    pattern = ""
    for line in shown.strip().split("\n"):
        alone = line.strip() == "…"
        pattern += r"(?:.*\n)*" if alone else re.escape(line.rstrip()).replace("…", ".*") + r"[ \t]*\n"
    text = "\n".join(line.rstrip() for line in printed.strip().split("\n")) + "\n"
    assert re.fullmatch(pattern, text), f"{where} shows\n{shown}\nbut what is printed is\n{printed}"


def commands_of(block: Block) -> list[tuple[str, str]]:
    """Return the commands of a block with the output that is shown for each."""
    if block.kind == "sh":
        return [(line, "") for line in block.code.split("\n") if line.strip()]
    parts = re.split(r"^\$ ", block.code, flags=re.MULTILINE)
    assert not parts[0].strip(), f"line {block.line}: a console block begins with a command after $"
    ends = (re.search(r"(?<!\\)\n|$", part) for part in parts[1:])  # a command may go on after a backslash
    return [(part[: end.start()], part[end.end() :]) for part, end in zip(parts[1:], ends, strict=True) if end]


def run_command(command: str, shown: str, where: str) -> None:
    """Run one command of a page in the working directory: in this process, if it is ours and needs no shell."""
    expected = re.search(r"# exit code (\d+)$", command)
    words = shlex.split(command.replace("\\\n", " "), comments=True)
    if words[0] == "bestpolicy" and not re.search(r"[|&;<>$`*]|--workers", command):
        with mock.patch.dict(os.environ, COLUMNS="100"):
            done = run(*words[1:])
    else:
        environment = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "COLUMNS": "100"}
        done = subprocess.run(
            ["bash", "-c", command], capture_output=True, text=True, timeout=600, check=False, env=environment
        )
    assert done.returncode == (int(expected[1]) if expected else 0), f"{where}: {command}\n{done.stdout}{done.stderr}"
    if shown.strip():
        assert_printed(done.stdout + done.stderr, shown, where)


def run_page(text: str, name: str) -> None:
    """Run all blocks of a page in the working directory."""
    module = sys.modules["page"] = ModuleType("page")  # dataclasses look their module up
    for block in blocks_of(text):
        where = f"{name}, line {block.line}"
        if block.not_run or block.kind in ("text", "json"):
            continue
        if block.kind == "python":
            printed = io.StringIO()
            with redirect_stdout(printed):
                exec(compile("\n" * block.line + block.code, name, "exec", dont_inherit=True), module.__dict__)
            if block.shown is not None:
                assert_printed(printed.getvalue(), block.shown, where)
        else:
            for command, shown in commands_of(block):
                run_command(command, shown, where)


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_code_runs(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run_page(page.read_text(), page.relative_to(DOCS).as_posix())


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_no_code_hides(page):
    """A block of an unknown kind would be taken for code by readers and skipped here."""
    for block in blocks_of(page.read_text()):
        assert block.kind in KINDS, f"line {block.line}: call it one of {', '.join(KINDS)}"


@pytest.mark.parametrize(
    "page",
    [
        "```python\nraise ValueError\n```\n",
        "```python\nprint(1)\n```\n\n```text\n2\n```\n",
        "```console\n$ bestpolicy identify no-such-model --epsilon 1 --delta 0.1\n```\n",
        "```console\n$ echo one\ntwo\n```\n",
        "```console\n$ true # exit code 3\n```\n",
        "```sh\nfalse\n```\n",
    ],
)
def test_what_is_wrong_fails(page):
    with pytest.raises((AssertionError, ValueError)):
        run_page(page, "page")


def test_elisions_and_reasons():
    run_page("```python\nprint('a', 1.25)\nprint('b')\nprint('c')\n```\n\n```text\na …\n…\nc\n```\n", "page")
    run_page("<!-- not run: it cannot work -->\n```python\nraise ValueError\n```\n", "page")


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_local_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text()):
        if "://" not in target and "generated/" not in target:
            assert (page.parent / target).exists(), target


def test_the_tests_that_pages_name_exist():
    named = {name for page in PAGES for name in re.findall(r"(test_\w+\.py)::(\w+)", page.read_text())}
    assert named
    for file, function in named:
        assert re.search(rf"^def {function}\(", (DOCS.parent / "tests" / file).read_text(), re.M), (file, function)


def test_every_page_is_in_a_table_of_contents():
    listed = set()
    for page in PAGES:
        for tree in re.findall(r"```\{toctree\}\n(.*?)```", page.read_text(), re.DOTALL):
            entries = [entry for entry in tree.split("\n") if entry and not entry.startswith(":")]
            listed |= {(page.parent / f"{entry}.md").resolve() for entry in entries}
    assert {page.resolve() for page in PAGES} - listed == {(DOCS / "index.md").resolve()}


def test_the_reference_has_every_public_name():
    reference = "".join(page.read_text() for page in (DOCS / "reference").glob("*.md"))
    documented = set(re.findall(r"^\.\. auto(?:class|function|exception|module):: bestpolicy\.(\w+)", reference, re.M))
    assert documented >= set(bp.__all__) - {"__version__"}


def test_the_bibliography_has_what_the_paper_map_names():
    cited = (DOCS / "paper-map.md").read_text().split("## The systems that the paper cites")[1]
    keys = set(re.findall(r"^\| (\w[\w-]*\d\w*|[A-Z]\w+) \|", cited, re.M))
    keys |= set(re.findall(r"\b(\w+\d{4}\w*)\b", cited.split("Cited for a theorem")[1]))
    assert len(keys) > 25
    bibliography = (DOCS / "bibliography.md").read_text()
    assert [key for key in sorted(keys) if not re.search(rf"[\[ ]{re.escape(key)}[\],]", bibliography)] == []


def test_the_front_page_has_the_lines_of_the_readme():
    """Whoever reads one of them has read the other: a simulator, a call, a claim."""
    front, readme = ((DOCS / name).read_text() for name in ("index.md", "../README.md"))
    program = next(block.code for block in blocks_of(front) if block.kind == "python")
    simulator = program.split("result = ")[0]
    assert simulator.strip() in readme
    assert len([line for line in program.splitlines() if line.strip()]) <= 12
