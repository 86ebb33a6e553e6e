"""Options that commands share, and what can be typed there: all of it is checked before a command begins."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from bestpolicy._numerics.inputs import file_path, number, whole, word
from bestpolicy.algorithms import ALGORITHMS
from bestpolicy.errors import InvalidInput

Command = TypeVar("Command", bound=Callable[..., Any])


class Checked(click.ParamType[Any]):
    """What a function makes of (the option's name, the text that was typed), or refuses."""

    def __init__(self, name: str, check: Callable[[str, str], Any]) -> None:
        self.name, self.check = name, check

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Check what was typed; what is no number at all is told with the way to help."""
        try:
            return self.check((param and param.name) or "the value", str(value))
        except InvalidInput:
            raise
        except (ValueError, OverflowError):
            self.fail(f"{str(value)[:40]!r} is not a valid {self.name}", param, ctx)


def a_number(**limits: Any) -> Checked:
    """A finite number within limits, which are those of `inputs.number`."""
    return Checked("float", lambda name, text: number(name, float(text), **limits))


def a_count(least: int = 1, most: int | None = None) -> Checked:
    """A whole number, also written 1e6."""

    def check(name: str, text: str) -> int:
        if float(text) != int(float(text)):
            raise ValueError
        count = whole(name, int(text) if text.lstrip("-").isdecimal() else int(float(text)), least)
        if most is not None and count > most:
            raise InvalidInput(f"{name} must be at most {most}. Got {count} instead.")
        return count

    return Checked("integer", check)


def _new_file(name: str, text: str) -> str:
    path = os.fspath(file_path(name, text))
    why = _why_not_writable(path)
    if why:
        raise InvalidInput(f"cannot write {path}: {why}. Give the path of a file, in a folder that exists.")
    return path


def _new_folder(name: str, text: str) -> Path:
    folder = Path(file_path(name, text))
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


NEW_FILE, NEW_FOLDER, WORD = Checked("file", _new_file), Checked("folder", _new_folder), Checked("text", word)

algorithm = click.option(
    "--algorithm",
    help=f"One of {', '.join(ALGORITHMS)}.  [default: the one that fits, mostly sharp; the result says which]",
)
as_json = click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON value and nothing else on stdout; errors go to stderr."
)
certificate = click.option("--certificate", type=NEW_FILE, help="Write a certificate for `bestpolicy verify`.")
delta = click.option(
    "--delta", type=a_number(above=0, below=1), required=True, help="Allowed probability of error, between 0 and 1."
)
epsilon = click.option(
    "--epsilon", type=a_number(least=0), required=True, help="How far from optimal a policy may be; 0 for optimal."
)
epsilon_or_share = click.option(
    "--epsilon",
    type=Checked("float", lambda name, text: text if "%" in text else number(name, float(text))),
    required=True,
    help="How far from optimal a policy may be; 0 for optimal; 5% for that share of the range of values.",
)
max_samples = click.option("--max-samples", type=a_count(), help="Budget of simulator calls of a run, e.g. 1e8.")
max_seconds = click.option("--max-seconds", type=a_number(above=0), help="Budget of time of a run.")
name = click.option("--name", help="Name of the study, if the file has several.")
seed = click.option(
    "--seed", type=a_count(0), help="The same seed gives the same answer.  [default: drawn and printed]"
)
start = click.option(
    "--start",
    type=Checked("start", lambda name, text: whole(name, int(text), 0) if text.isdecimal() else word(name, text)),
    help="Claim something of this start state only, or of 'uniform' ones; for sharp, forward.  [default: every state]",
)
rewards = click.option(
    "--rewards",
    type=click.Choice(["bernoulli", "deterministic"]),
    default="bernoulli",
    show_default=True,
    help="Law of the rewards around their means.",
)


def workers(explanation: str) -> Callable[[Command], Command]:
    """Return the option --workers with its explanation."""
    return click.option("--workers", type=a_count(1, 1000), help=explanation)
