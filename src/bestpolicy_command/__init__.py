"""Where the command `bestpolicy` begins: outside the package, so that Ctrl-C is quiet while that is being loaded."""

from __future__ import annotations

import os


def main() -> None:
    """Load the commands and run one."""
    try:
        from bestpolicy.cli import main as run

        run()
    except KeyboardInterrupt:
        os.write(2, b"Interrupted.\n")
        os._exit(130)  # at once: what is loaded half must not clean up
