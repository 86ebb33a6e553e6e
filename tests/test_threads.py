"""BLAS computes in one thread where it matters, whatever it is allowed elsewhere."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
from threadpoolctl import OpenBLASController, threadpool_info, threadpool_limits

import bestpolicy as bp
from bestpolicy._numerics.reproducible import one_thread


def threads() -> set[int]:
    """Threads of the libraries that NumPy and SciPy compute with; others may have brought their own."""
    libraries = (each for each in threadpool_info() if each["user_api"] == "blas")
    return {each["num_threads"] for each in libraries if re.search("numpy|scipy", each["filepath"])}


@contextmanager
def allowed(number: int) -> Iterator[None]:
    """Let BLAS use so many threads, whichever thread has set it before."""
    if hasattr(OpenBLASController, "clear_controlling_thread"):
        OpenBLASController.clear_controlling_thread(force=True)
    with threadpool_limits(number, user_api="blas"):
        yield


pytestmark = pytest.mark.skipif(not threads(), reason="no BLAS whose threads can be counted")


def test_one_thread_inside_and_as_many_as_before_outside():
    with allowed(2):
        assert threads() == {2}
        with one_thread():
            assert threads() == {1}
            with one_thread():
                assert threads() == {1}
            assert threads() == {1}
        assert threads() == {2}
        with pytest.raises(ValueError, match="inside"), one_thread():
            raise ValueError("inside")
        assert threads() == {2}


def test_the_last_of_several_lets_it_go():
    entered, leave = threading.Event(), threading.Event()

    def stay():
        with one_thread():
            entered.set()
            leave.wait()

    other = threading.Thread(target=stay)
    with allowed(2):
        with one_thread():
            other.start()
            entered.wait()
        assert threads() == {1}
        leave.set()
        other.join()
        assert threads() == {2}


@pytest.mark.parametrize("algorithm", ["gss", "tight"])
def test_answers_do_not_depend_on_the_threads_that_are_allowed(algorithm):
    mdp = bp.instances.simplex(states=60, actions=5, dimension=16, seed=1)
    seen, results = [], []

    def note(_):
        seen.append(threads())

    for number in (1, 2):
        with allowed(number):
            simulator = bp.ExactSimulator(mdp)
            results.append(bp.identify(simulator, epsilon=3, delta=0.1, algorithm=algorithm, seed=0, progress=note))
    assert all(each == {1} for each in seen)
    assert results[0].statistic == results[1].statistic
    assert results[0].epsilon == results[1].epsilon
    np.testing.assert_array_equal(results[0].policy, results[1].policy)
