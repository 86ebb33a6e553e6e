"""The same examples each time: a test that fails today failed yesterday. And one BLAS thread, before NumPy is loaded.

Small matrices are multiplied in no time by one thread, while several of them that wait for each other on a busy machine
may take ten times as long. What the package does about threads is tested in test_threads.py.
"""

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import signal

from hypothesis import settings

settings.register_profile("fixed", derandomize=True, deadline=None)
settings.load_profile("fixed")

# A suite in the background may have been told to ignore Ctrl-C; the commands that it starts must not inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)
