"""Where the command `bestpolicy` begins: outside the package, so that Ctrl-C is quiet while that is being loaded."""

from __future__ import annotations

import os
import signal
from typing import NoReturn


def main() -> None:
    """Load the commands and run one."""
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


def _leave(*_: object) -> NoReturn:
    os.write(2, b"Interrupted.\n")
    os._exit(130)  # at once: what is loaded half must not clean up
