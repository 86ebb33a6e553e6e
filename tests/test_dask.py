"""Dask: a real scheduler with two worker processes on the loopback."""

from __future__ import annotations

import numpy as np
import pytest

import bestpolicy as bp
from tests.models import near_tie

distributed = pytest.importorskip("distributed")


@pytest.mark.filterwarnings("ignore")
def test_a_cluster_gives_the_same_answer():
    mdp = near_tie(0.3)
    settings = {"epsilon": 0.6, "delta": 0.1, "seed": 2, "calls_per_query": 2000}
    simulator = bp.ExactSimulator(mdp)
    here = bp.identify(simulator, **settings)
    with (
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, processes=True, host="127.0.0.1", dashboard_address=None
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        assert len(client.scheduler_info()["workers"]) == 2
        there = bp.identify(simulator, **settings, executor=client.get_executor())
    assert there.statistic == here.statistic
    assert there.samples == here.samples
    np.testing.assert_array_equal(there.policy, here.policy)
