"""Audits: rollouts agree where features are exact, refute where they are not, and misfits are found and priced."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import binomtest

import bestpolicy as bp
from bestpolicy.run.audit import mean_limits
from tests.hull_models import simulator, truth

STARTS = np.array([[0.0], [3.3], [8.0]])


def slider(bend, **time):
    """Sliding towards 1, where it pays; rewards between the nodes fall short of their interpolation by `bend`."""
    hats = bp.features.Blocks([bp.features.Hats([[0.0, 0.5, 1.0]])] * 2)
    known = bp.FeatureProblem(hats, actions=2, **time or {"discount": 0.6})

    def step(states, actions, rng):
        noise, position = rng.random(len(states)), states[:, 0]
        between = 1.0 - np.abs(np.cos(2 * np.pi * position))  # 0 at the nodes
        paid = (noise < 0.2 + 0.6 * position * (1 - bend * between)).astype(float)
        moved = position + np.where(actions == 1, 0.2, -0.2) * rng.random(len(states))
        return paid, np.clip(moved, 0.0, 1.0)[:, None]

    return bp.CallableSimulator(known, step, vectorized=True)


def test_rollouts_agree_where_features_are_exact():
    model = simulator()
    result = bp.identify(model, epsilon="8%", delta=0.1, seed=1)
    found = bp.audit(result, model, STARTS, rollouts=400, seed=2)
    assert found.passed
    own = truth(model, result, STARTS)[:, 0]
    assert (found.measured[:, 0] <= own).all()
    assert (own <= found.measured[:, 1]).all()
    assert "agree" in str(found)
    assert (found.loss >= 0).all()


def test_rollouts_refute_features_that_do_not_fit():
    """The interpolated model is certified, and the true one is worse: an outcome, not a footnote."""
    model = slider(bend=1.0)
    result = bp.identify(model, epsilon="5%", delta=0.1, seed=0, linearity=0)
    assert result.certified
    assert "not tested" in result.explanation
    found = bp.audit(result, model, [[0.25], [0.75]], rollouts=4000, seed=1)
    assert not found.passed
    assert "REFUTED" in str(found)
    measured = bp.misfit(result, model, np.linspace(0, 1, 9)[:, None])
    assert measured.zeta > 0.15
    assert measured.at_zeta > measured.epsilon + 2 * measured.zeta / 0.4 - 1e-9
    assert f"at {measured.pairs} tested pairs" in str(measured)
    for state, limits, certified in zip(found.starts, found.measured, found.certified, strict=True):
        assert certified[0] - measured.at_zeta <= limits[1], state  # with its ζ the claim holds


def test_limits_by_rollouts_are_wrong_as_rarely_as_they_say():
    rng, runs, wrong = np.random.default_rng(0), 300, 0
    for _ in range(runs):
        low, high = mean_limits(rng.beta(2, 5, 60) * 3.0, 3.0, np.log(2 / 0.3))
        wrong += not low <= 3.0 * 2 / 7 <= high
    assert binomtest(wrong, runs, 0.3, alternative="greater").pvalue > 1e-6
    broken = 0
    for _ in range(runs):
        low, high = mean_limits(rng.beta(2, 5, 60) * 3.0, 3.0, -0.3)
        broken += not low <= 3.0 * 2 / 7 <= high
    assert broken > 0.3 * runs  # a level that is too small would be noticed


def test_what_cannot_be_audited():
    model = simulator()
    result = bp.identify(model, epsilon="20%", delta=0.1, seed=1)
    with pytest.raises(bp.InvalidInput, match="belongs to another problem"):
        bp.audit(result, simulator(discount=0.7), STARTS)
    with pytest.raises(bp.InvalidInput, match="must be finite"):
        bp.audit(result, model, [[np.nan]])
    with pytest.raises(bp.InvalidInput, match="one of a FeatureProblem"):
        bp.audit(None, model, STARTS)


def test_the_interpolated_model_fits_its_features():
    """With no assumption: what refutes the certificate of the system does not refute it there."""
    model = slider(bend=1.0)
    interpolated = model.interpolated()
    result = bp.identify(interpolated, epsilon="5%", delta=0.1, seed=0)
    assert bp.audit(result, interpolated, [[0.25], [0.75]], rollouts=4000, seed=1).passed
    assert bp.misfit(result, interpolated, np.linspace(0, 1, 5)[:, None]).zeta < 0.1
