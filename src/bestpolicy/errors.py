"""The exceptions of bestpolicy.

::

    BestPolicyError
    ├── InvalidInput (ValueError)       what was given cannot be right; the message says what to do
    │   └── TooLarge                    a file asks for more memory or work than it may (`limit_gb`)
    ├── ConvergenceError                a numerical method could not reach the precision that was asked of it
    ├── StoreError                      a file of studies cannot be read or written
    └── SimulatorError                  the user's simulator or its workers failed; `partial` keeps what was measured

A spent budget is an outcome of a run, not an exception.
"""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING

LIMIT_GB = 1.0  # what a stranger's file may ask for; about a minute of work comes with each GB

if TYPE_CHECKING:
    from collections.abc import Iterable

    from bestpolicy.samples import Tally
    from bestpolicy.study import Study


class BestPolicyError(Exception):
    """Root of every exception that bestpolicy raises on purpose."""


class InvalidInput(BestPolicyError, ValueError):
    """The input cannot be right. The message says what was expected, what came, and what to do."""


class TooLarge(InvalidInput):
    """A file asks for more memory or work than files may. Whoever trusts it raises `limit_gb`."""


class ConvergenceError(BestPolicyError):
    """A numerical method could not reach the precision that was asked of it."""


class StoreError(BestPolicyError):
    """A file of studies cannot be read or written. What it held before is still there."""


class SimulatorError(BestPolicyError):
    """The simulator failed at a (state, action) pair, or the workers that it runs on did.

    Attributes
    ----------
    partial : Tally or None
        What the failed call had measured before it failed. `Study.tell` accepts it, so nothing is lost.
    study : Study or None
        The study that was running, with everything measured so far (what `partial` holds included).
    final : bool
        Whether the simulator broke a promise that the guarantee rests on, such as the range of its rewards: what it
        said is not to be had by trying again.
    """

    def __init__(self, message: str, partial: Tally | None = None) -> None:
        super().__init__(message)
        self.partial = partial
        self.study: Study | None = None
        self.final = False


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return ``" Did you mean 'x'?"`` for the closest known name, or an empty string."""
    close = get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f" Did you mean {close[0]!r}?" if close else ""


def one_line(error: BaseException) -> str:
    """Return the exception of a simulator as one line of text."""
    try:
        said = str(error)
    except Exception:  # a stranger's exception may do anything
        said = "(it cannot say what)"
    text = said if isinstance(error, BestPolicyError) else f"the simulator raised {type(error).__name__}: {said}"
    return " ".join(text.split())


def plain(text: object) -> str:
    """Return someone's text so that it can be shown: what would steer a terminal, or hide, becomes its escape."""
    shown = (c if c.isprintable() or c == "\xa0" else c.encode("unicode_escape").decode("ascii") for c in str(text))
    return "".join(shown)


__all__ = ["BestPolicyError", "ConvergenceError", "InvalidInput", "SimulatorError", "StoreError", "TooLarge"]
