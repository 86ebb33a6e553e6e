"""Imports point one way, the learner cannot see the truth, and public names are what they say.

The order of the rooms is drawn in ``docs/explanation/architecture.md``; what is compared with it are the imports in the
code, those inside functions and those of parent packages included (importing a.b runs a/__init__.py). Imports for type
checkers alone are excepted, and so is the root package, which offers everything and is run by any import of a part.
"""

from __future__ import annotations

import ast
import doctest
import gc
import importlib
import inspect
import pkgutil
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import pytest

import bestpolicy as bp

ROOT = Path(bp.__file__).parent
DOCS = Path(__file__).parent.parent / "docs"
FILES = {
    ".".join(part for part in file.relative_to(ROOT.parent).with_suffix("").parts if part != "__init__"): file
    for file in ROOT.rglob("*.py")
}
ROOMS = sorted({name.split(".")[1] for name in FILES if "." in name})
HIDDEN = ("bestpolicy.mdp", "bestpolicy.simulators", "bestpolicy.instances", "bestpolicy.problem.files")
NOT_FOR_USERS = ("_numerics", "_version", "cli")  # the command line is documented by its own pages


# --- the walk


def imports_of(code: str) -> set[str]:
    """Modules of the package that are run when this code is, their parent packages included."""
    found: set[str] = set()

    def visit(node: ast.AST) -> None:
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            return
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports name the whole path"
            found.update({node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)})
        elif isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        for child in ast.iter_child_nodes(node):
            visit(child)

    visit(ast.parse(code))
    with_parents = {".".join(name.split(".")[:end]) for name in found for end in range(1, name.count(".") + 2)}
    return with_parents & set(FILES) - {"bestpolicy"}


@cache
def imports() -> dict[str, set[str]]:
    """What each module imports; read when it is first asked for, since every worker collects every test."""
    return {name: imports_of(file.read_text()) for name, file in FILES.items() if name != "bestpolicy"}


def reachable(start: Iterable[str]) -> set[str]:
    """All modules that are run when these are imported or used."""
    waiting, seen = list(start), set[str]()
    while waiting:
        name = waiting.pop()
        if name not in seen:
            seen.add(name)
            waiting.extend(imports()[name])
    return seen


def modules_in(*rooms: str) -> list[str]:
    return [name for name in imports() if name.split(".")[1] in rooms]


def imported_rooms(room: str) -> set[str]:
    """Other rooms that the modules of a room import."""
    return {name.split(".")[1] for module in modules_in(room) for name in imports()[module]} - {room}


def drawn_floors() -> tuple[dict[str, int], set[str]]:
    """Rooms with their floors, and those on the side of the truth, as the page draws them."""
    page = (DOCS / "explanation" / "architecture.md").read_text()
    floors: dict[str, int] = {}
    truth: set[str] = set()
    for number, learner, other in re.findall(r"^ *(\d+)  (.{24}).*?│(.*)$", page, re.M):
        assert not floors.keys() & {*learner.split(), *other.split()}
        floors |= dict.fromkeys([*learner.split(), *other.split()], int(number))
        truth |= set(other.split())
    return floors, truth


def test_the_page_draws_every_room():
    assert sorted(drawn_floors()[0]) == ROOMS


@pytest.mark.parametrize("room", ROOMS)
def test_imports_point_downwards(room):
    floors, _ = drawn_floors()
    assert {other for other in imported_rooms(room) if floors[other] >= floors[room]} == set()


def test_the_two_sides_meet_where_it_is_drawn():
    floors, truth = drawn_floors()
    assert truth == {"mdp", "simulators", "instances", "bounds"}
    for room in set(ROOMS) - truth:
        if floors[room] <= floors["study"]:
            assert not imported_rooms(room) & truth, room
    assert imported_rooms("run") & truth == {"simulators"}


@pytest.mark.parametrize("room", ["algorithms", "stopping"])
def test_the_learner_cannot_see_the_truth(room):
    seen = reachable(modules_in(room))
    assert "bestpolicy.problem.problem" in seen  # the walk works
    assert not [name for name in seen if name.startswith(HIDDEN)]


def test_the_checker_of_certificates_shares_only_errors():
    assert imported_rooms("verification") == {"errors"}


def test_what_is_really_imported_is_what_the_walk_finds():
    """Without the root package, which imports everything."""
    modules = modules_in("algorithms", "stopping")
    program = f"""
import importlib, sys, types
root = sys.modules["bestpolicy"] = types.ModuleType("bestpolicy")
root.__path__ = [{str(ROOT)!r}]
for name in {modules!r}:
    importlib.import_module(name)
print(*(name for name in sys.modules if name.startswith("bestpolicy.")))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=True)
    assert set(done.stdout.split()) == reachable(modules)


def test_the_walk_would_notice():
    assert [name for name in reachable(modules_in("cli")) if name.startswith(HIDDEN)]
    lazy = "def f():\n    from bestpolicy.bounds.paper import crossing\nif TYPE_CHECKING:\n    import bestpolicy.mdp\n"
    assert imports_of(lazy) == {"bestpolicy.bounds", "bestpolicy.bounds.paper"}
    assert "bestpolicy.mdp" in reachable(["bestpolicy.bounds"])


# --- the way of one run


def test_the_way_of_a_run_is_short(tmp_path):
    """Files whose code runs between `identify` and its result, as the page counts them."""
    model, seen = bp.ExactSimulator(bp.instances.load("simplex")), set[str]()

    def note(frame, event, argument):
        if event == "call":
            seen.add(frame.f_code.co_filename)

    gc.collect()  # what other tests have left would end, and be noted, in the midst of this run
    sys.setprofile(note)
    try:
        bp.identify(model, epsilon=0.5, delta=0.1, seed=1, algorithm="tight", store=tmp_path / "run.db")
    finally:
        sys.setprofile(None)
    walked = {str(path.relative_to(ROOT)) for path in map(Path, seen) if path.is_relative_to(ROOT)}
    mathematics = {name for name in walked if name.split("/")[0] in MATHEMATICS}
    page = (DOCS / "explanation" / "architecture.md").read_text()
    section = page.split("## The way of one run")[1].split("\n## ")[0]
    assert walked == set(re.findall(r"`([\w/]+\.py)`", section))
    assert len(walked) <= 45
    assert len(mathematics) <= 19


MATHEMATICS = {"algorithms", "stopping", "design", "planning.py", "estimation.py", "_numerics"}


# --- what is public


def room_module(room: str):
    return importlib.import_module(f"bestpolicy.{room}")


@pytest.mark.parametrize("room", ROOMS)
def test_every_room_says_what_is_public(room):
    module = room_module(room)
    assert module.__all__ == list(dict.fromkeys(module.__all__))
    for name in module.__all__:
        assert hasattr(module, name)


def test_public_names_are_listed_and_documented():
    for name in bp.__all__:
        assert hasattr(bp, name)
    for name in vars(bp):
        thing = getattr(bp, name)
        if not name.startswith("_") and not isinstance(thing, type(bp)):
            assert name in bp.__all__, f"{name} is public but not in __all__"
            assert thing.__doc__


def test_no_function_hides_a_room():
    for room in ROOMS:
        assert inspect.ismodule(getattr(bp, room)), room


@pytest.mark.parametrize("room", [room for room in ROOMS if room not in NOT_FOR_USERS])
def test_the_reference_has_what_a_room_offers(room):
    pages = "".join(page.read_text() for page in (DOCS / "reference").glob("*.md"))
    listed = set(re.findall(r"^\.\. auto(?:class|function|exception|data):: bestpolicy\.([\w.]+)", pages, re.M))
    for module, members in re.findall(r"^\.\. automodule:: bestpolicy\.([\w.]+)\n   :members:(.*)$", pages, re.M):
        names = members.replace(",", " ").split() or importlib.import_module(f"bestpolicy.{module}").__all__
        listed |= {f"{module}.{name}" for name in names}
    for name in room_module(room).__all__:
        thing = getattr(room_module(room), name)
        kind = getattr(thing, "about", None)  # algorithms have a page that is generated
        assert f"{room}.{name}" in listed or (name in bp.__all__ and name in listed) or kind, name


def test_one_version():
    repository = ROOT.parent.parent
    assert tomllib.loads((repository / "pyproject.toml").read_text())["project"]["version"] == bp.__version__
    assert f"\nversion: {bp.__version__}\n" in (repository / "CITATION.cff").read_text()
    assert f"## {bp.__version__}" in (repository / "CHANGELOG.md").read_text()


def test_only_the_command_line_draws_on_the_terminal():
    for file in ROOT.rglob("*.py"):
        inside = {part.split(".")[0] for part in _all_imports(file)}
        if file.relative_to(ROOT).parts[0] != "cli":
            assert not inside & {"click", "rich"}, file


def _all_imports(file: Path) -> set[str]:
    tree = ast.parse(file.read_text())
    names = {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    return names | {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}


def test_every_module_says_what_it_is_for():
    for module in pkgutil.walk_packages([str(ROOT)], "bestpolicy."):
        assert importlib.import_module(module.name).__doc__, module.name


def test_the_tour_in_the_package_docstring():
    assert doctest.testmod(bp).failed == 0


def test_no_pickles_anywhere():
    for file in ROOT.rglob("*.py"):
        assert "pickle" not in _all_imports(file)
        assert "allow_pickle=True" not in file.read_text()
