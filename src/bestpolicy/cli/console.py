"""The terminal, or a file of decent width where there is none."""

from __future__ import annotations

from rich.console import Console


def output(width: int = 120) -> Console:
    """Return a console on stdout that does not fold tables when its output is piped."""
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=width)


def notes() -> Console:
    """Return a console on stderr."""
    return Console(stderr=True, highlight=False)
