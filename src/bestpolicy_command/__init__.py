"""Where the command `bestpolicy` begins: outside the package, so that Ctrl-C is quiet while that is being loaded."""

from __future__ import annotations

import os
import signal
import sys
from typing import NoReturn


def main() -> None:
    """Load the commands and run one."""
    _open_streams()
    # While libraries are loaded Ctrl-C ends the process where it is: an exception may come up inside one that makes
    # something else of it.
    interruptible = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if interruptible:
        signal.signal(signal.SIGINT, _leave)
    from bestpolicy.cli import main as run

    try:
        if interruptible:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        run()
    except KeyboardInterrupt:
        _leave()


def _open_streams() -> None:
    """Let closed streams lead nowhere: else the next file that is opened would be taken for one of them."""
    while (opened := os.open(os.devnull, os.O_RDWR)) < 3:
        pass
    os.close(opened)
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115


def _leave(*_: object) -> NoReturn:
    os.write(2, b"Interrupted.\n")
    os._exit(130)  # at once: what is loaded half must not clean up
