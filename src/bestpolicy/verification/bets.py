"""Batches of a certificate of Theorem I or UD as a policy sees them: what was bet, and what came of it.

For a policy π and a parameter ξ of its values V_ξ(s) = φ(s,π(s))ᵀξ a sample (pair k, reward r, next state s') has
the noise η(ξ) = r + γV_ξ(s') - φ_kᵀξ (V of the next stage; γ = 1 in episodes), of mean 0 at the true ξ. Before a
batch were fixed: θ̃, K̃ (for μ̃ᵀΦ_π, a d×d matrix a stage), variances ṽ and shares w of pairs, counts n. From these
follow

- the response y = J̃ᵀc to a difference c of features, J̃ = (I - γK̃)⁻¹, or the products of the K̃ of later stages;
- G = Σ_k w_k φ_kφ_kᵀ/ṽ_k; stakes per unit (yᵀG⁻¹φ_k/ṽ_k)/(yᵀG⁻¹y), only at pairs with a share;
- centres m_k(ξ) = r̃_k + γf_kᵀξ, r̃ = φᵀθ̃ within [0, 1], f_k = K̃ᵀφ_k; ζ(ξ) = r + γV_ξ(s') - m_k(ξ).

*What the policy's surroundings say.* Theorem P's ellipsoids confine ξ - ξ̂ to {Jx: xᵀM⁻¹x ≤ 1}; A is a root of the
smallest of them for functionals of ξ at the next stage: V(s) - f_kᵀξ is known up to ‖(φ(s,π(s)) - f_k)ᵀA‖, and up to
‖(φ(s,π(s)) - f_k)ᵀB‖₁ by a box (`boxes`). Ranges of ζ follow, over all states; and Σζ(ξ)² is Σζ(ξ̂)² plus a
gradient times
Jx plus at most γ²λ_max(AᵀSA), S = Σ(φ_π(s') - f)(…)ᵀ, or the sum of squared widths at the states that were seen."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from bestpolicy.verification.case import Case, Samples
from bestpolicy.verification.reading import Floats, Ints, Node, Rejected
from bestpolicy.verification.regression import Response
from bestpolicy.verification.rounding import dominating
from bestpolicy.verification.tight import Rounds

FIELDS = "theta links variances shares weights planned cells counts rewards squares"
_FIXED = ("theta", "links", "variances", "shares", "weights")
_SUMS = ("planned", "counts", "rewards", "squares")
EIGENVALUES = 40  # dimension up to which largest eigenvalues are computed
_WORST = 1e9
_TOGETHER = 2_000_000  # numbers up to which all states are compared with all pairs


@dataclass(frozen=True, eq=False)
class Around:
    """Where the parameter of the policy's values lies."""

    response: Response
    matrices: Floats  # (m, stages, d, d)
    root: Floats  # (stages, d, d), for functionals of ξ at the next stage
    room: Floats  # (stages,), what rounding adds to such widths
    block: Floats | None = None  # (stages, d, d), of a box, for functionals of x
    box: Floats | None = None  # (stages, d, stages·d), of a box, for functionals of ξ at the next stage

    @classmethod
    def of(cls, rounds: Rounds) -> Around:
        """Take the last ellipsoids of Theorem P."""
        response, case = rounds.response, rounds.case
        matrices = dominating(rounds.ellipsoids, response.r)
        carried = response.carried(matrices)
        seen = response.links[0] @ carried @ response.links[0].T if case.horizon is None else carried
        spread = response.played - response.played.mean(axis=1, keepdims=True)
        sizes = np.einsum("hsd,mhde,hse->m", spread, seen, spread, optimize=True)
        values, vectors = np.linalg.eigh(carried[int(sizes.argmin())])
        root = vectors * np.sqrt(np.maximum(values, 0.0))[:, None, :]
        if case.horizon is None:
            root = response.links[0] @ root
        return cls(response, matrices, case.following(root), 2 * case.following(rounds.value_errors))

    @property
    def roots(self) -> list[tuple[Floats, int]]:
        """What widths are measured with, and in which norm."""
        return [(self.root, 2)] + ([] if self.box is None else [(self.box, 1)])


@dataclass(frozen=True, eq=False)
class Batch:
    """One batch: what was fixed before it, and sums over its samples by stage and pair."""

    case: Case
    rows: Floats  # (K, d)
    played: Floats  # (stages, S, d) of the next stage
    theta: Floats
    links: Floats
    variances: Floats
    shares: Floats
    weights: Floats
    planned: Ints
    counts: Floats  # (stages, K, S)
    rewards: Floats
    squares: Floats

    @classmethod
    def read(cls, node: Node, case: Case, samples: Samples, rows: Floats, played: Floats) -> Batch:
        """Read a batch; its sums are checked by those of all batches together."""
        node.only(*FIELDS.split())
        stages, pairs, dimension = case.stages, len(samples.pairs), rows.shape[1]
        shape = (stages, pairs, len(case.features))
        theta, links = (
            node.array("theta", "f", (stages, dimension)),
            node.array("links", "f", (stages, *[dimension] * 2)),
        )
        variances, shares, weights = (node.array(name, "f", shape[:2]) for name in ("variances", "shares", "weights"))
        planned = node.array("planned", "i", shape[:2])
        positive = (variances > 0).all() and (weights > 0).all()
        if not positive or (shares < 0).any() or (planned < 0).any():
            raise Rejected("variances and weights of a batch must be positive, shares and counts must not be negative")
        cells, number = node.array("cells", "i", (None,)), node.array("counts", "i", (None,))
        earned = node.array("rewards", "f", (len(cells),))
        size = shape[0] * shape[1] * shape[2]
        if len(number) != len(cells) or (np.diff(cells) <= 0).any() or (cells < 0).any() or (cells >= size).any():
            raise Rejected("the cells of a batch are not strictly increasing indices")
        if (number < 1).any():
            raise Rejected("a count of a batch is not positive")
        counts, rewards = np.zeros(size), np.zeros(size)
        counts[cells], rewards[cells] = number, earned
        squares = node.array("squares", "f", shape[:2])
        return cls(
            case,
            rows,
            played,
            theta,
            links,
            variances,
            shares,
            weights,
            planned,
            counts.reshape(shape),
            rewards.reshape(shape),
            squares,
        )

    @cached_property
    def pulls(self) -> Floats:
        """Samples by stage and pair."""
        found: Floats = self.counts.sum(axis=2)
        return found

    @cached_property
    def precision(self) -> Floats | None:
        """G⁻¹, (stages, d, d); None if the plan does not determine it."""
        grams = np.array(
            [(self.rows.T * (w / v)) @ self.rows for w, v in zip(self.shares, self.variances, strict=True)]
        )
        values = np.linalg.eigvalsh(grams)
        if not (values[:, 0] * _WORST > values[:, -1]).all():
            return None
        found: Floats = np.linalg.inv(grams)
        return found

    @cached_property
    def system(self) -> Floats | None:
        """J̃ of a discounted problem; None if it is not determined."""
        matrix = np.eye(len(self.links[0])) - self.case.gamma * self.links[0]
        if not np.linalg.cond(matrix) < 1e10:
            return None
        found: Floats = np.linalg.inv(matrix)
        return found

    @property
    def usable(self) -> bool:
        """Whether there are bets on it: a matter of what was fixed, not of what came."""
        return self.precision is not None and (self.case.horizon is not None or self.system is not None)

    def answers(self, stage: Ints, differences: Floats) -> Floats:
        """Responses y (J, stages, d) to differences of features (J, d) at stages (J,)."""
        found = np.zeros((len(stage), self.case.stages, self.rows.shape[1]))
        found[np.arange(len(stage)), stage] = differences
        return self.answered(found)

    @cached_property
    def centres(self) -> tuple[Floats, Floats]:
        """r̃ (stages, K) and f (stages, K, d)."""
        return np.clip(self.theta @ self.rows.T, 0.0, 1.0), self.rows[None] @ self.links

    def reach(self, rise: Floats, fall: Floats) -> tuple[Floats, Floats]:
        """How far ζ may go up and down, if V(s) - f_kᵀξ is at most `rise` and at least -`fall` (stages, K)."""
        rewards, gamma = self.centres[0], self.case.gamma
        return 1 - rewards + gamma * np.maximum(rise, 0.0), rewards + gamma * np.maximum(fall, 0.0)

    @cached_property
    def parameters(self) -> Floats:
        """ξ of the policy as the batch's own estimate has it, (stages, d)."""
        if self.case.horizon is None:
            assert self.system is not None
            solved: Floats = (self.system @ self.theta[0])[None]
            return solved
        found = self.theta.copy()
        for stage in reversed(range(self.case.stages - 1)):
            found[stage] = self.theta[stage] + self.links[stage] @ found[stage + 1]
        return found

    @property
    def following_parameters(self) -> Floats:
        """The same of the stages that follow."""
        return self.case.following(self.parameters)

    def gaps(self, stage: Ints, differences: Floats) -> Floats:
        """What rivals are behind by the batch's own estimate, (J,)."""
        found: Floats = -(differences * self.parameters[stage]).sum(axis=1)
        return found

    def answered(self, functional: Floats) -> Floats:
        """Functionals of ξ, (J, stages, d), as functionals of the reward parameters."""
        if self.case.horizon is None:
            assert self.system is not None
            moved: Floats = functional @ self.system
            return moved
        found = functional.copy()
        for step in range(self.case.stages - 1):
            found[:, step + 1] += found[:, step] @ self.links[step]
        return found

    def functional(self, stakes: Floats) -> Floats:
        """Σ τ(φ - gφ(S',π(S'))) over the samples, each in the block of its ξ, (J, stages, d)."""
        own = np.einsum("jhk,hk,kd->jhd", stakes, self.pulls, self.rows, optimize=True)
        ahead = np.einsum("jhk,hkd->jhd", stakes, self.counts @ self.played, optimize=True)
        found: Floats = own - self.case.gamma * self.case.placed(ahead)
        return found

    def expected_reach(self) -> tuple[Floats, Floats]:
        """The same as the batch's own estimate has it."""
        after = self.following_parameters
        values, middle = np.einsum("hsd,hd->hs", self.played, after), np.einsum("hkd,hd->hk", self.centres[1], after)
        return self.reach(values.max(axis=1)[:, None] - middle, middle - values.min(axis=1)[:, None])

    def seen(self, around: Around) -> tuple[Floats, Floats, Floats, Floats, Floats]:
        """Σζ(ξ̂)², its gradient, ranges up and down, and the drift by widths; by stage and pair."""
        case, f = self.case, self.centres[1]
        gamma = case.gamma
        values, after = case.following(around.response.values), case.following(around.response.parameters)
        middle = np.einsum("hkd,hd->hk", f, after)
        rise, fall, drift = (np.full(middle.shape, np.inf) for _ in range(3))
        stage, pair, state = np.nonzero(self.counts)
        for root, power in around.roots:
            high, low = self._farthest(root, power, values, middle)
            rise, fall = np.minimum(rise, high), np.minimum(fall, low)
            ahead, own = self.played @ root, f @ root
            widths = np.linalg.norm(ahead[stage, state] - own[stage, pair], power, axis=1) + around.room[stage]
            here = np.zeros(self.pulls.shape)
            np.add.at(here, (stage, pair), self.counts[stage, pair, state] * widths**2)
            drift = np.minimum(drift, gamma**2 * here)
        rise, fall = rise + around.room[:, None], fall + around.room[:, None]
        up, down = self.reach(rise, fall)
        squares, gradient = self.squares_at(after)
        length = 1 + gamma * (rise + fall)
        squares = np.maximum(squares, 0.0) + 2e-14 * self.pulls * length**2
        return squares, gradient, np.maximum(up, 0.05), np.maximum(down, 0.05), drift

    def squares_at(self, after: Floats) -> tuple[Floats, Floats]:
        """Σζ(ξ)² and its gradient, by stage and pair, given the ξ of the stages that follow."""
        gamma, (reward, f) = self.case.gamma, self.centres
        values, middle = np.einsum("hsd,hd->hs", self.played, after), np.einsum("hkd,hd->hk", f, after)
        moved = gamma * (values[:, None, :] - middle[:, :, None]) - reward[:, :, None]  # ζ without the reward
        squares = self.squares + (2 * self.rewards * moved + self.counts * moved**2).sum(axis=2)
        noise = self.rewards + self.counts * moved
        return squares, 2 * gamma * (noise @ self.played - noise.sum(axis=2)[:, :, None] * f)

    def _farthest(self, root: Floats, power: int, values: Floats, middle: Floats) -> tuple[Floats, Floats]:
        """Bounds on V(s) - f_kᵀξ and its negative over all states, (stages, K) each."""
        mean = self.played.mean(axis=1, keepdims=True)
        states, pairs = (self.played - mean) @ root, (self.centres[1] - mean) @ root
        if states.shape[1] * pairs.size > _TOGETHER:
            own, other = np.linalg.norm(states, power, axis=2), np.linalg.norm(pairs, power, axis=2)
            high, low = (values + own).max(axis=1)[:, None], (values - own).min(axis=1)[:, None]
            return high - middle + other, middle + other - low
        rise, fall = np.empty(middle.shape), np.empty(middle.shape)
        for pair in range(middle.shape[1]):
            widths = np.linalg.norm(states - pairs[:, pair, None], power, axis=2)
            rise[:, pair] = (values + widths).max(axis=1) - middle[:, pair]
            fall[:, pair] = middle[:, pair] - (values - widths).min(axis=1)
        return rise, fall

    def moments(self) -> Floats:
        """S, (stages, K, d, d)."""
        found = np.zeros((*self.pulls.shape, *[self.rows.shape[1]] * 2))
        for stage, pair in np.argwhere(self.pulls > 0):
            law = self.counts[stage, pair]
            some = np.flatnonzero(law)
            rows = self.played[stage][some] - self.centres[1][stage, pair]
            found[stage, pair] = (rows.T * law[some]) @ rows
        return found


def merged(batches: list[Batch]) -> list[Batch]:
    """Batches in a row for which the same was fixed, as one: it was known before each of them."""
    found: list[Batch] = []
    for batch in batches:
        if found and all(np.array_equal(getattr(batch, name), getattr(found[-1], name)) for name in _FIXED):
            sums = {name: getattr(found[-1], name) + getattr(batch, name) for name in _SUMS}
            found[-1] = replace(found[-1], **sums)
        else:
            found.append(batch)
    return found


def require_sum(batches: list[Batch], samples: Samples) -> None:
    """The batches are all samples of the proof, and no others."""
    if not batches:
        raise Rejected("there are no batches")
    if not np.array_equal(sum(batch.counts for batch in batches), samples.counts):
        raise Rejected("the batches are not the samples of the proof")
    for name in ("rewards", "squares"):
        mine, theirs = sum(getattr(batch, name) for batch in batches), getattr(samples, name)
        if (np.abs(mine - theirs) > 1e-9 * (1 + np.abs(theirs))).any():
            raise Rejected(f"the {name} of the batches do not add up to those of the proof")
        if any((getattr(batch, name) < 0).any() for batch in batches):
            raise Rejected(f"the {name} of a batch are negative")
    for batch in batches:
        if not np.array_equal(batch.pulls, batch.planned):
            raise Rejected("a batch is not what was planned")
        sums = batch.rewards.sum(axis=2)
        least = (batch.rewards**2 / np.maximum(batch.counts, 1)).sum(axis=2)
        slack = 1e-9 * (1 + batch.pulls)
        possible = (batch.rewards <= batch.counts * (1 + 1e-9) + 1e-9).all()
        if not possible or (batch.squares > sums + slack).any() or (batch.squares < least - slack).any():
            raise Rejected("the rewards of a batch are no sums of rewards in [0, 1]")
