"""Finding alternatives that are hard to tell from the truth. Only the quality of a bound depends on this.

For weights ω on the pairs, the most confusing alternative minimises Σ ω KL. Alternatives fall into one family per
*target*, an action a of a state s that is not near-optimal in M: M' has to make some policy that plays it better, by
more than ε at (s), than every policy of the near-optimal actions. Values are not linear in the model, but

    d V^π(s) = Σ_h y_hᵀ (dθ_h + γ dμ_hᵀ V_{h+1}),      y_h = Σ_s m_h(s) φ(s, π_h(s)),

so each family is searched by sequential convex programming: linearise V^challenger - V^defender at the current model,
find the nearest model under that constraint (`nearest`), update the policies, repeat. One-state problems, changes of
rewards alone and changes that preserve V* are covered by the first step, which is exact for them. The result
is scaled along the ray from M, M + α(M' - M), to the smallest α that still passes; the set of linear models is convex.

Which targets are worth the effort is told by the quadratic approximation at M (`NearestModel.spreads`).
"""

from __future__ import annotations

from dataclasses import dataclass
from time import monotonic

import numpy as np

from bestpolicy._numerics.arrays import FloatArray, IntArray
from bestpolicy.bounds.alternatives import Alternative, Verifier, value_gradient
from bestpolicy.bounds.nearest import Change, Constraint
from bestpolicy.bounds.tables import Table, evaluate, following_values, solve
from bestpolicy.bounds.targets import Target, advantage_gradients, all_targets

_MAX_RELINEARISATIONS = 7
_GOOD_ENOUGH = 2e-3  # relative improvement below which re-linearising ends
_MAX_DEFENDERS = 6
_CLOSE = 1e-4  # relative precision of the scaling


@dataclass(frozen=True, eq=False)
class _Aim:
    """Who is to win, and where."""

    challenger: IntArray
    check: tuple[int, int]


class Search:
    """Search of alternatives of one model at one ε.

    Parameters
    ----------
    verifier : Verifier
    """

    def __init__(self, verifier: Verifier) -> None:
        self.verifier = verifier
        self.truth, self.reference, self.nearest = verifier.truth, verifier.reference, verifier.nearest
        self.targets = all_targets(self.truth, self.reference)
        self._gradients = advantage_gradients(self.truth, self.reference, self.targets)
        self._shifts = np.array([target.shift for target in self.targets])

    def estimates(self, weights: FloatArray) -> FloatArray:
        """Approximate cost Σ ω KL of each target's best alternative, (targets,)."""
        problem = self.truth.problem
        after = problem.continuation * following_values(problem, self.reference.incumbent.values)
        spread = self.nearest.spreads(weights, after, self._gradients)
        estimates: FloatArray = self._shifts**2 / (2 * np.maximum(spread, 1e-100))
        return estimates

    def find(
        self,
        weights: FloatArray,
        target: Target,
        start: Change | None = None,
        *,
        expected: float = 0.0,
        deadline: float = np.inf,
    ) -> Alternative | None:
        """Search the family of a target for an alternative with small Σ ω KL.

        Parameters
        ----------
        weights : array (stages, n)
            Positive weights of the allowed pairs.
        target : Target
        start : Change, optional
            An alternative of the same family, found with other weights.
        expected : float, optional
            A guess of the cost, for speed.
        deadline : float, optional
            `time.monotonic()` at which to return what there is.
        """
        aim = _Aim(self._switched_policy(target), (target.check_stage, target.check_state))
        change = start
        if change is None and target.seeded:
            change = self._seed(weights, target, aim, expected)
            if change is None:
                return None
        best, best_value, overshoot = None, np.inf, 0.0
        defenders: list[IntArray] = []
        for _ in range(_MAX_RELINEARISATIONS):
            if monotonic() > deadline:
                break
            table = self.truth.table if change is None else self.truth.changed(*change)
            if change is not None:
                aim = self._aim(table, aim)
            constraints = [
                self._constraint(table, change, aim, defender, 1e-5 * target.shift + overshoot)
                for defender in self._defenders(table, defenders, target)
            ]
            nearest = self.nearest.solve(weights, constraints, change, expected=expected)
            if nearest is None:
                break
            scaled = self._shortest(nearest, aim)
            if scaled is None and best is not None:
                scaled = self._nearer(nearest, (best.theta_change, best.mu_change), aim)
            alternative = None if scaled is None else self.verifier.alternative(scaled, _choice(target))
            value = np.inf if alternative is None else self.cost(weights, alternative)
            improved = value < (1 - _GOOD_ENOUGH) * best_value
            if value < best_value:
                best, best_value, expected = alternative, value, value
            if best is not None and not improved:
                break
            if alternative is None:
                # The linearisation promised too much: ask for more next time.
                overshoot += max(0.0, -1.5 * self._margin(self.truth.changed(*nearest), aim))
            change = nearest if alternative is None else (alternative.theta_change, alternative.mu_change)
        return best

    def shrunk(self, alternative: Alternative, node_limit: int, deadline: float = np.inf) -> Alternative:
        """Move an alternative towards M as far as branch and bound still proves it (ε > 0)."""
        best, low, high = alternative, 0.7, 1.0
        theta_change, mu_change = alternative.theta_change, alternative.mu_change
        middle = 0.97
        while high - low > 0.03 and monotonic() < deadline:
            shorter = self.verifier.alternative(
                (middle * theta_change, middle * mu_change),
                (alternative.stage, alternative.state, alternative.action),
                node_limit=node_limit,
                deadline=deadline,
            )
            if shorter is None and high == 1.0:
                break
            low, high = (middle, high) if shorter is None else (low, middle)
            best = best if shorter is None else shorter
            middle = (low + high) / 2
        return best

    def cost(self, weights: FloatArray, alternative: Alternative) -> float:
        """Σ ω KL."""
        flat = alternative.divergences.reshape(len(weights), -1)
        return float((weights * flat[:, self.truth.problem.pairs]).sum())

    def _seed(self, weights: FloatArray, target: Target, aim: _Aim, expected: float) -> Change | None:
        """Beat the best policy that is defended by ε, then go on in that direction until near-optimal policies lose."""
        defender, extra = self.reference.incumbent.policy, 1e-5 * target.shift
        constraint = self._constraint(self.truth.table, None, aim, defender, extra)
        nearest = self.nearest.solve(weights, [constraint], expected=expected)
        return None if nearest is None else self._shortest(nearest, aim)

    def _shortest(self, change: Change, aim: _Aim) -> Change | None:
        """Scale a change to the smallest multiple that separates with a margin."""
        lifted = self.verifier.lifted(change)
        if lifted is None:
            return None
        low, high, margin_low = 0.0, 1.0, self._margin(self.truth.table, aim)
        margin_high = self._margin(self.truth.changed(*lifted), aim)
        close = _CLOSE * abs(margin_low)
        while margin_high <= 0:
            stretch = high * (1.5 if margin_high < -0.1 * abs(margin_low) else 1.02)
            stretched = (stretch * lifted[0], stretch * lifted[1])
            if high > 20 or not self.verifier.is_model(stretched):
                return None
            low, margin_low, high = high, margin_high, stretch
            margin_high = self._margin(self.truth.changed(*stretched), aim)
        for _ in range(12):
            if margin_high <= close or high - low <= _CLOSE * high:
                break
            middle = high - (margin_high - 0.5 * close) * (high - low) / (margin_high - margin_low)
            middle = min(max(middle, low + 0.02 * (high - low)), high - 1e-5 * (high - low))
            margin = self._margin(self.truth.changed(middle * lifted[0], middle * lifted[1]), aim)
            if margin > 0:
                high, margin_high = middle, margin
            else:
                low, margin_low = middle, margin
        return high * lifted[0], high * lifted[1]

    def _nearer(self, change: Change, proved: Change, aim: _Aim) -> Change | None:
        """Go from a proved alternative towards a better model that is none, as far as it stays one."""
        low, high = 0.0, 1.0
        for _ in range(6):
            middle = (low + high) / 2
            mixture = _mixture(change, proved, middle)
            if self._margin(self.truth.changed(*mixture), aim) > 0:
                high = middle
            else:
                low = middle
        return _mixture(change, proved, high) if high < 1 else None

    def _margin(self, table: Table, aim: _Aim) -> float:
        """By how much the defenders lose beyond ε and the errors of the computation."""
        inside = solve(table, self.reference.actions, self.reference.incumbent.policy)
        if self.reference.epsilon > 0:
            ahead = solve(table, table.everything, aim.challenger)
            loss = float((ahead.values - inside.values)[self.reference.checkpoints].max())
        else:
            # At ε = 0 the loss is flat up to the boundary; the challenger's lead changes its sign there.
            ahead = evaluate(table, aim.challenger)
            loss = float((ahead.values - inside.values)[aim.check])
        return loss - self.reference.epsilon - 3 * (inside.error + ahead.error)

    def _aim(self, table: Table, aim: _Aim) -> _Aim:
        """At ε > 0 turn to the best policy of the current model, where near-optimal policies lose most."""
        if self.reference.epsilon == 0:
            return aim
        optimum = solve(table, table.everything, aim.challenger)
        inside = solve(table, self.reference.actions, self.reference.incumbent.policy)
        losses = np.where(self.reference.checkpoints, optimum.values - inside.values, -np.inf)
        if losses.max() <= 0.5 * self.reference.epsilon:
            return aim
        stage, state = np.unravel_index(losses.argmax(), losses.shape)
        return _Aim(optimum.policy, (int(stage), int(state)))

    def _defenders(self, table: Table, defenders: list[IntArray], target: Target) -> list[IntArray]:
        """Return the best near-optimal policies met so far, the newest with each near-optimal action at the target."""
        policy = solve(table, self.reference.actions, self.reference.incumbent.policy).policy
        if not any((policy == known).all() for known in defenders):
            defenders.append(policy)
        del defenders[:-_MAX_DEFENDERS]
        variants = []
        for action in np.flatnonzero(self.reference.actions[target.stage, target.state]):
            variant = policy.copy()
            variant[target.stage, target.state] = action
            if not any((variant == known).all() for known in defenders):
                variants.append(variant)
        return defenders + variants

    def _constraint(
        self, table: Table, change: Change | None, aim: _Aim, defender: IntArray, extra: float
    ) -> Constraint:
        """Linearise "the challenger beats the defender by ε, and a hair more" at the current model."""
        ahead = value_gradient(self.truth, table, aim.challenger, *aim.check)
        behind = value_gradient(self.truth, table, defender, *aim.check)
        theta_gradient, mu_gradient = ahead[1] - behind[1], ahead[2] - behind[2]
        reached = ahead[0] - behind[0]
        if change is not None:
            reached -= float((theta_gradient * change[0]).sum() + (mu_gradient * change[1]).sum())
        wanted = self.reference.epsilon + extra + 20 * self.reference.optimum.error
        return Constraint(theta_gradient, mu_gradient, wanted - reached)

    def _switched_policy(self, target: Target) -> IntArray:
        policy = self.reference.incumbent.policy.copy()
        policy[target.stage, target.state] = target.action
        return policy


def _mixture(first: Change, second: Change, share: float) -> Change:
    return (1 - share) * first[0] + share * second[0], (1 - share) * first[1] + share * second[1]


def _choice(target: Target) -> tuple[int, int, int]:
    return target.stage, target.state, target.action
