"""Pages that are made at each build: the gallery, the command line, the algorithms. They are never committed.

An example's page shows its code and what it really printed, in a process of its own; pictures that it left in its
working directory are shown too. The build fails if an example does.
"""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import click

from bestpolicy.algorithms import ALGORITHMS, Algorithm
from bestpolicy.cli import commands

EXAMPLES = Path(__file__).parent.parent / "examples"


def write_all(source: Path) -> None:
    """Write every generated page below the source directory of the documentation."""
    reference, gallery = (source / name / "generated" for name in ("reference", "gallery"))
    for folder in (reference, gallery):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
    (reference / "command-line.md").write_text(command_line())
    (reference / "algorithms.md").write_text(algorithms())
    (reference / "changelog.md").write_text(changelog())
    with ThreadPoolExecutor(2) as pool:
        for path, page in pool.map(lambda path: (path, example(path, gallery)), sorted(EXAMPLES.glob("*.py"))):
            (gallery / f"{path.stem}.md").write_text(page)
    (gallery / "cards.txt").write_text(cards(gallery))


def changelog() -> str:
    """Return the changelog with links that hold on the site."""
    return (EXAMPLES.parent / "CHANGELOG.md").read_text().replace("](docs/", "](../../")


def cards(folder: Path) -> str:
    """Return the table of contents of the gallery: pictures first, where there are any."""
    with_pictures, others = [], []
    for path in sorted(EXAMPLES.glob("*.py")):
        title, _ = heading(ast.get_docstring(ast.parse(path.read_text())) or path.stem)
        link = f"generated/{path.stem}.md"
        picture = next(iter(sorted(folder.glob(f"{path.stem}-*.svg"))), None)
        if picture is None:
            others.append(f"- [{title}]({link})")
        else:
            with_pictures.append(f"[![{title}](generated/{picture.name})]({link})\n\n[{title}]({link})")
    drawn = "\n\n</div><div>\n\n".join(with_pictures)
    return f'<div class="gallery"><div>\n\n{drawn}\n\n</div></div>\n\n' + "\n".join(others) + "\n"


def example(path: Path, folder: Path) -> str:
    """Run an example; return its page. Pictures go into the folder of the page."""
    code = path.read_text()
    title, text = heading(ast.get_docstring(ast.parse(code)) or path.stem)
    body = code.split('"""', 2)[2].strip() if code.startswith('"""') else code
    with tempfile.TemporaryDirectory() as work:
        done = subprocess.run(
            [sys.executable, str(path)], capture_output=True, text=True, timeout=900, check=False, cwd=work
        )
        if done.returncode:
            raise RuntimeError(f"{path.name} failed:\n{done.stderr}")
        pictures = sorted(p for p in Path(work).iterdir() if p.suffix in (".svg", ".png"))
        for picture in pictures:
            shutil.copy(picture, folder / f"{path.stem}-{picture.name}")
    parts = [f"# {title}", text, f"```python\n{body}\n```"]
    if done.stdout.strip():
        parts += ["It prints:", f"```text\n{done.stdout.strip()}\n```"]
    parts += [f"![{picture.stem}]({path.stem}-{picture.name})" for picture in pictures]
    return "\n\n".join([*(part for part in parts if part), f"This is `examples/{path.name}`.\n"])


def heading(docstring: str) -> tuple[str, str]:
    """Split a docstring into a title, up to a colon, a question mark or a bracket, and the rest."""
    title, *rest = re.split(r": | (?=\()|(?<=\?) ", docstring, maxsplit=1)
    text = "".join(rest)
    if text.startswith("("):
        text = text[1:].replace(")", "", 1)
    return title.strip().rstrip("."), text[:1].upper() + text[1:]


def command_line() -> str:
    """Return what `--help` says, for every command."""
    parts = ["# The command line"]
    context = click.Context(commands, info_name="bestpolicy", max_content_width=88)
    parts.append(f"```text\n{commands.get_help(context)}\n```")
    for name, command in sorted(commands.commands.items()):
        inner = click.Context(command, info_name=name, parent=context, max_content_width=88)
        parts += [f"## bestpolicy {name}", f"```text\n{command.get_help(inner)}\n```"]
    return "\n\n".join(parts) + "\n"


def algorithms() -> str:
    """Return a page on every algorithm: what it is for, then its lecture note and parameters."""
    parts = [
        "# Algorithms",
        "What each asks of the problem and promises of the policy. "
        "How to choose: [Choose ε, δ and the algorithm](../../how-to/choose.md).",
        "| name | setting | features | simulates | assumption | order of samples | constants |\n"
        "|---|---|---|---|---|---|---|",
    ]
    for name, kind in ALGORITHMS.items():
        about = kind.about
        needs = (about.setting, about.features, about.sampling, about.assumption or "none")
        cells = (*needs, about.complexity, about.constants)
        parts[-1] += f"\n| [`{name}`](#{name}) | " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
    for name, kind in ALGORITHMS.items():
        parts += [f"## {name}", f"*{kind.about.reference}.* It promises: {kind.about.guarantee}.", _documented(kind)]
    return "\n\n".join(parts) + "\n"


def _documented(kind: type[Algorithm]) -> str:
    note = "\n".join(_as_rst((sys.modules[kind.__module__].__doc__ or "").strip().split("\n")))
    return f"```{{eval-rst}}\n{note}\n\n.. autoclass:: {kind.__module__}.{kind.__name__}\n```"


def readable_docstring(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Make a docstring safe for reStructuredText, in place: docstrings are written for people."""
    underlines = (i for i in range(1, len(lines)) if re.fullmatch(r"-{3,}", lines[i].strip()))
    sections = next(underlines, len(lines) + 1) - 1  # numpydoc's, in which indentation has a meaning
    lines[:] = [*_as_rst(lines[:sections]), *map(_without_bars, lines[sections:])]


def readable_signature(
    app: Any, what: str, name: str, obj: Any, options: Any, signature: str | None, returns: str | None
) -> tuple[str | None, str | None]:
    """Print names of types as they are written: a union would show how Sphinx keeps them."""
    plain = re.compile(r"TypeAliasForwardRef\('(\w+)'\)")
    return signature and plain.sub(r"\1", signature), returns and plain.sub(r"\1", returns)


def _as_rst(lines: list[str]) -> Iterator[str]:
    """Set indented formulas and pseudo-code as they are, and take bars for bars."""
    literal, paragraph = False, ""
    for i, line in enumerate(lines):
        if line.strip() and not line.startswith("    "):
            literal = False
        elif line.strip() and not literal and not (i and lines[i - 1].strip()):
            literal = True
            if not paragraph.endswith("::"):
                yield from ("::", "")
        yield line if literal else _without_bars(line)
        paragraph = line.strip() or paragraph


def _without_bars(line: str) -> str:
    """|x| would be a substitution, outside of ``code``."""
    return "".join(part if part.startswith("``") else part.replace("|", "\\|") for part in re.split("(``.*?``)", line))
