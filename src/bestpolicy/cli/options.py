"""Options that commands share, and what can be typed there: all of it is checked before a command begins."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from bestpolicy._numerics.inputs import file_path, number, whole, word
from bestpolicy.errors import InvalidInput

MOST_WORKERS = 1000
Command = TypeVar("Command", bound=Callable[..., Any])


class Number(click.ParamType[float]):
    """A finite number within limits, which are those of `inputs.number`."""

    name = "float"

    def __init__(self, **limits: Any) -> None:
        self.limits = limits

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Read the number."""
        return number(_name(param), click.FLOAT.convert(value, param, ctx), **self.limits)


class Count(click.ParamType[int]):
    """A whole number, also written 1e6."""

    name = "integer"

    def __init__(self, least: int = 1, most: int | None = None) -> None:
        self.least, self.most = least, most

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Read the number."""
        try:
            as_float = float(value)
            count = int(value) if str(value).lstrip("-").isdigit() else int(as_float)
            if as_float != int(as_float):
                raise ValueError
        except (ValueError, OverflowError):
            self.fail(f"{str(value)[:40]!r} is not a whole number", param, ctx)
        if self.most is not None and count > self.most:
            raise InvalidInput(f"{_name(param)} must be at most {self.most}. Got {count} instead.")
        return whole(_name(param), count, self.least)


class Word(click.ParamType[str]):
    """A text of one line that is not empty."""

    name = "text"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Check the text."""
        return word(_name(param), value)


class NewFile(click.ParamType[str]):
    """The path of a file that can be written."""

    name = "file"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Check the path without leaving a trace."""
        path = os.fspath(file_path(_name(param), value))
        why = _why_not_writable(path)
        if why:
            raise InvalidInput(f"cannot write {path}: {why}. Give the path of a file, in a folder that exists.")
        return path


class NewFolder(click.ParamType[Path]):
    """The path of a folder, which may not exist yet."""

    name = "folder"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        """Check the path without leaving a trace."""
        folder = Path(file_path(_name(param), value))
        if folder.exists() and not folder.is_dir():
            raise InvalidInput(f"{folder} is not a folder. Give the path of one, or of a new one.")
        return folder


def _why_not_writable(path: str) -> str:
    try:
        os.stat(path)
    except FileNotFoundError:
        folder = os.path.dirname(path) or "."
        if not os.path.isdir(folder):
            return "there is no such folder"
        return "" if os.access(folder, os.W_OK) else "its folder may not be written"
    except OSError as error:
        return str(error.strerror)
    return "it is a folder" if os.path.isdir(path) else "" if os.access(path, os.W_OK) else "it may not be written"


def _name(param: click.Parameter | None) -> str:
    return (param.name if param is not None else None) or "the value"


as_json = click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON value and nothing else on stdout; errors go to stderr."
)
certificate = click.option("--certificate", type=NewFile(), help="Write a certificate for `bestpolicy verify`.")
delta = click.option(
    "--delta", type=Number(above=0, below=1), required=True, help="Allowed probability of error, between 0 and 1."
)
epsilon = click.option(
    "--epsilon", type=Number(least=0), required=True, help="How far from optimal a policy may be; 0 for optimal."
)
max_samples = click.option("--max-samples", type=Count(), help="Budget of simulator calls of a run, e.g. 1e8.")
max_seconds = click.option("--max-seconds", type=Number(above=0), help="Budget of time of a run.")
model = click.option("--model", help="The true model, if it is known.")
name = click.option("--name", help="Name of the study, if the file has several.")
rewards = click.option(
    "--rewards",
    type=click.Choice(["bernoulli", "deterministic"]),
    default="bernoulli",
    show_default=True,
    help="Law of the rewards around their means.",
)


def workers(explanation: str) -> Callable[[Command], Command]:
    """Return the option --workers with its explanation."""
    return click.option("--workers", type=Count(1, MOST_WORKERS), help=explanation)
