"""The same examples each time: a test that fails today failed yesterday. And one BLAS thread, before NumPy is loaded.

Small matrices are multiplied in no time by one thread, while several of them that wait for each other on a busy machine
may take ten times as long. What the package does about threads is tested in test_threads.py.
"""

import os
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

# Hundreds of programs are started: they need not compile the package anew each time, whatever the environment says.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
os.environ.setdefault("PYTHONPYCACHEPREFIX", str(Path(__file__).parent.parent / ".pytest_cache" / "bytecode"))

import signal

from hypothesis import settings

settings.register_profile("fixed", derandomize=True, deadline=None)
settings.load_profile("fixed")

# A suite in the background may have been told to ignore Ctrl-C; the commands that it starts must not inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)
