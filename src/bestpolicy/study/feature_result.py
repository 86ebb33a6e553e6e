"""What a run found where states cannot be listed: the policy is a function, and so are limits of its values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from bestpolicy._numerics.arrays import FloatArray
from bestpolicy._numerics.inputs import number, whole
from bestpolicy.errors import InvalidInput
from bestpolicy.problem import FeatureProblem
from bestpolicy.problem.feature_policy import FeaturePolicy
from bestpolicy.stopping.hull import bracket, per_misfit
from bestpolicy.study.misfit import FeatureMisfit
from bestpolicy.study.result import Result, at_most


@dataclass(frozen=True, eq=False, repr=False)
class FeatureResult(Result):
    """What a run found of a `FeatureProblem`; all else is as in `Result`.

    Attributes
    ----------
    policy : FeaturePolicy
        ``result.policy(states)`` returns actions (n,).
    misfit : FeatureMisfit, optional
        What the run found of the fit of its features, on which all that is certified rests; None if it did not test it.
    untested : str
        Why not, if it was to.
    """

    policy: FeaturePolicy  # type: ignore[assignment]
    misfit: FeatureMisfit | None = None
    untested: str = ""

    @property
    def _problem(self) -> FeatureProblem:
        return self.policy.problem

    @property
    def _vectors(self) -> FloatArray:
        if self.checks:
            vectors: FloatArray = np.asarray(self.checks[-1].policy)
            return vectors
        slack = np.broadcast_to(self._problem.value_limits[:, None], (2, self._problem.stages, 1))
        return np.concatenate([np.stack([self.policy.vectors] * 2), slack], axis=2)

    def values(self, states: ArrayLike, step: int = 0) -> FloatArray:  # type: ignore[override]
        """Return limits (n, 2) in your units: lower ≤ V^π(s) ≤ V*(s) ≤ upper in all states, with probability 1 - δ.

        Parameters
        ----------
        states : array (n, k)
        step : int
            Of an episodic problem, counted from 0.
        """
        problem = self._problem
        if not whole("step", step, 0) < problem.stages:
            raise InvalidInput(f"step must be below {problem.stages}. Got {step} instead.")
        found = bracket(problem, self._vectors, problem.states_of(states), step)
        units = self._units
        limits: FloatArray = found * units.reward_scale + units.reward_offset * problem.value_limits[step]
        return limits

    @property
    def q_values(self) -> FloatArray:
        """There is no table of values: ask `values(states)`."""
        raise InvalidInput("states cannot be listed, so there is no table of values. Ask result.values(states).")

    def epsilon_at(self, zeta: float) -> float:
        """Return what is certified if the features misfit by at most ζ, in your units of reward (Theorem M1).

        ζ bounds, in all states, the interpolation error of one step's mean reward and value for the two functions of
        the certificate. `epsilon` is the same for ζ = 0.
        """
        return self.epsilon + per_misfit(self._problem) * number("zeta", zeta)

    def action(self, state: Any, step: int = 0) -> Any:
        """Return what the policy does in one state (k,)."""
        one = np.atleast_2d(state) if self._problem.feature_map.objects is None else [state]
        return int(self.policy(one, step)[0])

    def rows(self) -> list[dict[str, Any]]:
        """Return the policy at the nodes of the feature map, with limits of values."""
        feature_map = self._problem.feature_map
        states = feature_map.nodes if feature_map.pairs is None else feature_map.pairs[0]
        if states is None or states.shape[1] != feature_map.state_dimension:
            return []
        try:
            actions, limits = self.policy(states), self.values(states)
        except InvalidInput:
            return []
        return [
            {"state": state.tolist(), "action": int(action), "lower": float(low), "upper": float(high)}
            for state, action, (low, high) in zip(states, actions, limits, strict=True)
        ]

    def __repr__(self) -> str:
        known = f"ε = {at_most(self.epsilon)}" if self.epsilon < float("inf") else "no ε"
        said = f"{self.outcome}: {known} certified if the features fit"
        return f"FeatureResult({said}, {self.samples} samples, {self.policy!r})"

    def _policy_in_words(self) -> str:
        return "policy: a function of states, result.policy(states)"

    def to_dict(self, model: str | None = None) -> dict[str, Any]:
        """Return what is worth printing, ready for JSON; ε grows by `epsilon_per_misfit` times the misfit ζ."""
        found: dict[str, Any] = {"untested": self.untested} if self.untested else {}
        found |= {} if self.misfit is None else {"misfit": self.misfit.to_dict()}
        return super().to_dict(model) | {"epsilon_per_misfit": per_misfit(self._problem)} | found

    def _json_policy(self) -> Any:
        return self.policy.vectors.tolist()
