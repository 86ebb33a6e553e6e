"""The family of the scaling study is what it says it is."""

from __future__ import annotations

import numpy as np
import pytest
from benchmarks.scaling import SWEEPS, halves, slope


@pytest.mark.parametrize("settings", [{}, {"discount": 0.9, "leave": 0.1}, {"discount": None, "horizon": 4}])
@pytest.mark.parametrize("copies", [1, 3])
def test_every_state_has_the_same_gap(settings, copies):
    mdp = halves(clusters=4, copies=copies, gap=0.07, **settings)
    gaps = np.diff(np.sort(mdp.q_values, axis=-1), axis=-1)
    np.testing.assert_allclose(gaps, 0.07, rtol=1e-9)
    assert mdp.problem.dimension == 8
    assert mdp.problem.states == 4 * copies


@pytest.mark.parametrize("sweep", SWEEPS, ids=[sweep.name for sweep in SWEEPS])
def test_one_quantity_varies_and_the_others_stay(sweep):
    names = ("dimension", "time", "gap", "epsilon", "delta", "states")
    seen = []
    for value in (sweep.points[0], sweep.points[-1]):
        mdp, epsilon, delta = sweep.setting(value)
        problem = mdp.problem
        time = problem.discount if problem.horizon is None else problem.horizon
        seen.append((problem.dimension, time, round(mdp.gap, 9), epsilon, delta, problem.states))
    changed = {name for name, first, last in zip(names, *seen, strict=True) if first != last}
    quantity = sweep.name.split(",")[0]
    expected = {"d": "dimension", "1/(1-γ)": "time", "Δ": "gap", "Δ+ε": "epsilon", "log 1/δ": "delta", "H": "time"}
    # States are kinds of states times copies: they grow with d, and nothing depends on them.
    assert changed - {"states"} == ({expected[quantity]} if quantity in expected else set())
    assert ("states" in changed) == (quantity in ("d", "states"))


def test_slope_of_a_power():
    points = np.array([1.0, 3.0, 10.0])
    assert slope(points, 5 * points**-2.5) == pytest.approx(-2.5)
