"""Dask: a real scheduler with two worker processes on the loopback, as in the example."""

from __future__ import annotations

import numpy as np
import pytest

import bestpolicy as bp
from tests.examples import run_example

distributed = pytest.importorskip("distributed")


@pytest.mark.filterwarnings("ignore")
def test_a_cluster_gives_the_same_answer(monkeypatch):
    workers = []

    def get_executor(client, **options):
        workers.extend(client.scheduler_info()["workers"])
        return original(client, **options)

    original = distributed.Client.get_executor
    monkeypatch.setattr(distributed.Client, "get_executor", get_executor)
    found = run_example("dask_cluster")[0]
    there = found["result"]
    here = bp.identify(found["simulator"], epsilon=0.1, delta=0.1, algorithm="tight", seed=0, calls_per_query=50)
    assert len(workers) == 2
    assert here.certified
    assert there.epsilon == here.epsilon
    assert there.statistic == here.statistic
    assert there.samples == here.samples
    np.testing.assert_array_equal(there.policy, here.policy)
