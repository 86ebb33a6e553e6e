"""The version, in one place, and those of what the numbers depend on."""

import sys

import numpy as np
import scipy

__version__ = "0.1.0"


def versions() -> dict[str, str]:
    """Return the versions of bestpolicy, NumPy, SciPy and Python."""
    own = {"bestpolicy": __version__, "numpy": np.__version__, "scipy": scipy.__version__}
    return own | {"python": sys.version.split()[0]}


__all__ = ["__version__", "versions"]
