"""What is printed, and that nothing in it can steer a terminal.

Everything on its way to a terminal goes through `say`, or a console of `output` or `notes`: all of them make text
`plain`, and none reads markup in it. Letters that a terminal does not have are spelled out.
"""

from __future__ import annotations

import codecs
import io
import json
import os
import sys
import unicodedata
from contextlib import suppress
from math import isfinite
from typing import Any, TextIO

from rich.console import Console
from rich.text import Text

from bestpolicy.errors import plain

# Exit codes besides 0.
NOT_VALID, BAD_INPUT, UNCERTIFIED, INTERRUPTED = 1, 2, 3, 130

_SPELLED = {
    **{"≤": "<=", "≥": ">=", "÷": "/", "–": "-", "…": "...", "·": "*", "×": "x", "█": "#", "░": ".", "Σ": "sum"},
    **{"√": "sqrt", "∞": "inf", "−": "-", "←": "<-", "→": "->", "‖": "||", "∈": "in", "≈": "~"},
}


class _PlainConsole(Console):
    """A console for which text is text: in lines, in cells and headings of tables."""

    def render_str(self, text: str, **how: Any) -> Text:
        """Return text as it is, whatever looks like markup in it."""
        kept = {name: how[name] for name in ("style", "justify", "overflow") if name in how}
        return Text(plain(text), **kept)

    def on_broken_pipe(self) -> None:
        """Go on in silence: the exit code still counts."""
        silence(sys.stdout)


def output(width: int = 120) -> Console:
    """Return a console on stdout that does not fold tables when its output is piped."""
    console = _PlainConsole()
    return console if console.is_terminal else _PlainConsole(width=width)


def notes() -> Console:
    """Return a console on stderr, whose lines are folded on terminals only."""
    console = _PlainConsole(stderr=True)
    return console if console.is_terminal else _PlainConsole(stderr=True, width=10_000)


def styled(*parts: tuple[object, str]) -> Text:
    """Return text in which each part, given as (text, style), has its own style."""
    return Text.assemble(*((plain(text), style) for text, style in parts))


def say(text: object, *, err: bool = False) -> None:
    """Print one line as it is, however long."""
    stream = sys.stderr if err else sys.stdout
    try:
        print(plain(text), file=stream, flush=True)
    except BrokenPipeError:
        silence(stream)


def echo_json(answer: Any) -> None:
    """Print an answer as JSON that every reader accepts: numbers that are not finite become null."""
    say(json.dumps(_finite(answer), allow_nan=False))


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not isfinite(value) else value


def prepare_streams() -> None:
    """Let no letter be too much for stdout and stderr, whatever their encoding."""
    codecs.register_error("spelled", _spell)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="spelled")


def silence(stream: TextIO) -> None:
    """Let what is still written to a stream vanish: nobody can read it."""
    with suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)


def _spell(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeEncodeError)
    return "".join(map(_in_ascii, error.object[error.start : error.end])).replace("^-^", "^-"), error.end


def _in_ascii(letter: str) -> str:
    name, simpler = unicodedata.name(letter, ""), unicodedata.normalize("NFKC", letter).replace("−", "-")
    if letter in _SPELLED:
        return _SPELLED[letter]
    if name.startswith("GREEK ") and " LETTER " in name:
        word = name.split(" LETTER ")[1].split()[0]
        return word.capitalize() if "CAPITAL" in name else word.lower()
    if simpler.isascii():
        return "^" * name.startswith("SUPERSCRIPT ") + simpler
    return letter.encode("unicode_escape").decode("ascii")
