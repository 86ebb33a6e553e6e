"""The terminal, or a file of decent width where there is none."""

from __future__ import annotations

import json
from math import isfinite
from typing import Any

import click
from rich.console import Console
from rich.markup import escape

JSON_HELP = "Print one JSON value and nothing else on stdout; errors go to stderr."


def output(width: int = 120) -> Console:
    """Return a console on stdout that does not fold tables when its output is piped."""
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=width)


def notes() -> Console:
    """Return a console on stderr."""
    return Console(stderr=True, highlight=False)


def plain(text: str) -> str:
    """Return a stranger's text as it may be printed: what a terminal would obey or hide becomes a visible escape."""
    return escape("".join(char if char.isprintable() else ascii(char)[1:-1] for char in text))


def echo_json(answer: Any) -> None:
    """Print an answer as JSON that every reader accepts: numbers that are not finite become null."""
    click.echo(json.dumps(_plain(answer), allow_nan=False))


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return None if isinstance(value, float) and not isfinite(value) else value
