"""Alternative models, verified.

An alternative M' of M may enter a lower bound if (4 conditions, each with a margin for rounding errors)

* it is a linear MDP with the same features: it is stored as a change (dθ, dμ) of the parameters with Σ_s' dμ(s') = 0,
  so rows φᵀμ' sum to 1 and rewards are φᵀθ' by construction, and every probability is verified to be positive;
* M is absolutely continuous with respect to M' with a finite divergence: *all* entries of M' are strictly positive and
  all rewards lie strictly between 0 and 1, so this holds whichever tiny entries of M are taken for zeros. An entry that
  comes out too small is lifted by mixing a trace of the uniform model into M', which keeps it linear;
* no policy is ε-optimal in both (see `membership`);
* its divergences are those of the joint law of reward and next state; they are rounded up.

The class in which the algorithm has to be correct is therefore: linear MDPs with these features and rewards in [0, 1],
Bernoulli and independent of the next state. The norms that the paper's class asks for besides are reported for each
alternative, not imposed.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from bestpolicy._numerics.arrays import BoolArray, FloatArray, IntArray, frozen
from bestpolicy.bounds.membership import Certificate, Reference, certify
from bestpolicy.bounds.nearest import Change, NearestModel
from bestpolicy.bounds.tables import Table, Truth, evaluate, following_values, occupancy, solve
from bestpolicy.mdp import LinearMDP

_ROUNDED_UP = 1 + 1e-9
_FLOOR = 1e-14  # least probability of an alternative, beyond the rounding errors of its computation


@dataclass(frozen=True, eq=False)
class Alternative:
    """A verified alternative of a model.

    Attributes
    ----------
    theta_change : array (stages, d)
    mu_change : array (stages, S, d)
        dθ and dμ, in the coordinates of the model's features.
    divergences : array (stages, S, A)
        KL_{M|M'} of one sample, rounded up; 0 where not allowed.
    certificate : Certificate
        Why no policy is ε-optimal in both.
    stage, state, action : int
        The choice that the alternative makes attractive.
    loss : float
        What the optimal policy of M loses in M' (episodic: from the first step).
    reward_distance, row_distance : float
        max |r' - r| and max over pairs of Σ_s' |p' - p|.
    within_norms : bool
        Whether ‖θ'‖ ≤ √d and ‖Σ|μ'|‖ ≤ √d hold in the given coordinates.
    """

    theta_change: FloatArray
    mu_change: FloatArray
    divergences: FloatArray
    certificate: Certificate
    stage: int
    state: int
    action: int
    loss: float
    reward_distance: float
    row_distance: float
    within_norms: bool
    fingerprint: str = field(repr=False)

    def model(self, mdp: LinearMDP) -> LinearMDP:
        """Return M' as a model of its own."""
        theta, mu = mdp.theta + self.theta_change, mdp.mu + self.mu_change
        if mdp.problem.horizon is None:
            theta, mu = theta[0], mu[0]
        return LinearMDP(mdp.problem, theta=theta, mu=mu, name=f"alternative of {mdp.name}")

    def describe(self, episodic: bool = False) -> str:
        """One sentence."""
        step = f" at step {self.stage}" if episodic else ""
        return (
            f"makes action {self.action} in state {self.state}{step} better than every policy that is good now, "
            f"by moving mean rewards by at most {self.reward_distance:.2g} "
            f"and next-state distributions by at most {self.row_distance:.2g} (L1)"
        )


class Verifier:
    """Turns changes of a model into verified alternatives.

    Parameters
    ----------
    mdp : LinearMDP
    epsilon : float
    rewards_known : bool
        Whether rewards are observed without noise; alternatives then keep them.
    within : bool array (stages, S, A), optional
        Only policies that use these actions have to be bad in an alternative.
    """

    def __init__(
        self, mdp: LinearMDP, epsilon: float, *, rewards_known: bool = False, within: BoolArray | None = None
    ) -> None:
        self.truth = Truth(mdp)
        self.reference = Reference(self.truth.table, epsilon, within)
        self.nearest = NearestModel(self.truth, rewards_known=rewards_known)
        # What is an alternative for all policies is one for some of them, but not the other way round.
        self._general = f"{mdp.fingerprint} {rewards_known}"
        self.fingerprint = self._general if within is None else f"{self._general} {within.tobytes().hex()}"
        self._theta, self._mu = mdp.theta, mdp.mu

    def lifted(self, change: Change) -> Change | None:
        """Mix in as much of the uniform model as makes all entries safely positive; None if that is a lot."""
        for trace in (0.0, 1e-14, 1e-13, 1e-12, 1e-11, 1e-10):
            mixture = trace * self.truth.problem.states
            lifted = self._mixed(change, mixture) if trace else change
            if self.is_model(lifted):
                return lifted
        return None

    def is_model(self, change: Change) -> bool:
        """Whether M + change has only positive probabilities and rewards inside (0, 1), beyond rounding errors."""
        truth, (theta_change, mu_change) = self.truth, change
        if not (np.isfinite(theta_change).all() and np.isfinite(mu_change).all()):
            return False
        features, size = truth.features, np.abs(truth.features)
        eps = (truth.problem.dimension + 4) * np.finfo(np.float64).eps
        rows = truth.rows + features @ mu_change.transpose(0, 2, 1)
        change_error = eps * (size @ np.abs(mu_change).transpose(0, 2, 1))
        if (rows <= change_error + eps * truth.rows + _FLOOR).any():
            return False
        # Rows still sum to 1: what is left of Σ dμ must be rounding errors.
        if (np.abs(features @ mu_change.sum(axis=1).T) > 10 * change_error.sum(axis=2).T).any():
            return False
        if not theta_change.any():
            return True
        rewards = truth.rewards + theta_change @ features.T
        reward_error = eps * (np.abs(theta_change) @ size.T + 1) + _FLOOR
        return bool(((rewards > reward_error) & (rewards < 1 - reward_error)).all())

    def alternative(
        self,
        change: Change,
        choice: tuple[int, int, int],
        *,
        node_limit: int = 0,
        deadline: float = np.inf,
        certificate: Certificate | None = None,
    ) -> Alternative | None:
        """Verify M + change; None if it is not proved to be an alternative.

        Parameters
        ----------
        change : Change
        choice : tuple of int
            (stage, state, action) that it is about.
        node_limit, deadline
            Of the test of disjointness.
        certificate : Certificate, optional
            An earlier proof for this very change and an ε that is not smaller.
        """
        lifted = self.lifted(change)
        if lifted is None:
            return None
        table = self.truth.changed(*lifted)
        if certificate is None:
            certificate = certify(self.reference, table, node_limit=node_limit, deadline=deadline)
        if certificate is None:
            return None
        divergences = self.nearest.divergences(lifted) * _ROUNDED_UP
        if not np.isfinite(divergences).all():
            return None
        problem = self.truth.problem
        policy = self.reference.optimum.policy
        loss = solve(table, table.everything, policy).values[0] - evaluate(table, policy).values[0]
        theta, mu = self._theta + lifted[0], self._mu + lifted[1]
        norms = [np.linalg.norm(part, axis=1).max() for part in (theta, np.abs(mu).sum(axis=1))]
        limit = np.sqrt(problem.dimension) + 1e-9
        return Alternative(
            theta_change=frozen(lifted[0]),
            mu_change=frozen(lifted[1]),
            divergences=frozen(self.truth.on_pairs(divergences)),
            certificate=certificate,
            stage=choice[0],
            state=choice[1],
            action=choice[2],
            loss=float(loss.max()),
            reward_distance=float(np.abs(table.rewards - self.truth.table.rewards).max()),
            row_distance=float(np.abs(table.rows - self.truth.table.rows).sum(axis=3).max()),
            within_norms=bool(max(norms) <= limit),
            fingerprint=self.fingerprint,
        )

    def adopt(self, alternative: Alternative) -> Alternative | None:
        """Verify an alternative that was found for this model, perhaps with another ε."""
        if alternative.fingerprint not in (self.fingerprint, self._general):
            return None
        # Π_ε grows with ε: sets that are disjoint for a larger ε are disjoint for a smaller one.
        kept = alternative.certificate if alternative.certificate.epsilon >= self.reference.epsilon else None
        return self.alternative(
            (alternative.theta_change, alternative.mu_change),
            (alternative.stage, alternative.state, alternative.action),
            certificate=kept,
        )

    def _mixed(self, change: Change, mixture: float) -> Change:
        theta, mu = (
            (1 - mixture) * old + mixture * new for old, new in zip(change, self.truth.toward_uniform, strict=True)
        )
        return (theta if change[0].any() else change[0]), mu


def value_gradient(
    truth: Truth, table: Table, policy: IntArray, stage: int, state: int
) -> tuple[float, FloatArray, FloatArray]:
    """Value of a policy at (stage, state) and its gradient in (θ, μ): V, (stages, d), (stages, S, d).

    A change of the model changes the value by Σ_h Σ_s m_h(s) (dr + γ dp·V) to first order, m the expected visits: with
    y_h = Σ_s m_h(s) φ(s, π_h(s)) the gradient is y_h in θ_h and γ V_{h+1}(s') y_h in μ_h(s').
    """
    problem = truth.problem
    values = evaluate(table, policy).values
    visits = occupancy(table, policy, stage, state)
    played = problem.features[np.arange(problem.states)[None], policy]
    theta_gradient = np.einsum("hs,hsd->hd", visits, played)
    after = problem.continuation * following_values(problem, values)
    return float(values[stage, state]), theta_gradient, after[:, :, None] * theta_gradient[:, None, :]
