"""The learner cannot see the truth, imports point one way, and public names are what they say."""

from __future__ import annotations

import ast
import doctest
import importlib
import pkgutil
from pathlib import Path

import pytest

import bestpolicy as bp

ROOT = Path(bp.__file__).parent
HIDDEN = ("bestpolicy.mdp", "bestpolicy.simulators", "bestpolicy.instances", "bestpolicy.problem.files")


def imports_of(file: Path) -> set[str]:
    """Modules of the package that a file imports at run time (imports for type checkers alone do not count)."""
    found: set[str] = set()

    def visit(node: ast.AST) -> None:
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            return
        if isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
            found.update(f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        for child in ast.iter_child_nodes(node):
            visit(child)

    visit(ast.parse(file.read_text()))
    return {name for name in found if name.startswith("bestpolicy")}


def module_file(name: str) -> Path | None:
    path = ROOT.joinpath(*name.split(".")[1:])
    if path.with_suffix(".py").is_file():
        return path.with_suffix(".py")
    return path / "__init__.py" if (path / "__init__.py").is_file() else None


def reachable(folder: str) -> set[str]:
    """Everything that the files of a folder import, directly or not."""
    waiting = list((ROOT / folder).glob("*.py"))
    seen: set[str] = set()
    while waiting:
        for name in imports_of(waiting.pop()):
            file = module_file(name)
            if file is not None and name not in seen:
                seen.add(name)
                waiting.append(file)
    return seen


@pytest.mark.parametrize("folder", ["algorithms", "stopping"])
def test_the_learner_cannot_see_the_truth(folder):
    seen = reachable(folder)
    assert "bestpolicy.problem.problem" in seen  # the walk works
    assert not [name for name in seen if name.startswith(HIDDEN)]


def test_the_walk_would_notice():
    assert [name for name in reachable("cli") if name.startswith(HIDDEN)]


def test_only_the_command_line_draws_on_the_terminal():
    for file in ROOT.rglob("*.py"):
        inside = {part.split(".")[0] for part in _all_imports(file)}
        if file.relative_to(ROOT).parts[0] != "cli":
            assert not inside & {"click", "rich"}, file


def _all_imports(file: Path) -> set[str]:
    tree = ast.parse(file.read_text())
    names = {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    return names | {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}


def test_public_names_are_listed_and_documented():
    for name in bp.__all__:
        assert hasattr(bp, name)
    for name in vars(bp):
        thing = getattr(bp, name)
        if not name.startswith("_") and not isinstance(thing, type(bp)):
            assert name in bp.__all__, f"{name} is public but not in __all__"
            assert thing.__doc__


def test_every_module_says_what_it_is_for():
    for module in pkgutil.walk_packages([str(ROOT)], "bestpolicy."):
        assert importlib.import_module(module.name).__doc__, module.name


def test_the_tour_in_the_package_docstring():
    assert doctest.testmod(bp).failed == 0


def test_no_pickles_anywhere():
    for file in ROOT.rglob("*.py"):
        assert "pickle" not in _all_imports(file)
        assert "allow_pickle=True" not in file.read_text()
