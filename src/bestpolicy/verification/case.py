"""What a certificate is about: the decision problem and the samples, with everything that must be true of them.

Samples are kept as sums per stage and sampled pair: how often each next state followed, the rewards that came with
it, the squared rewards; and, if samples were weighted (weight 1/u with 1 ≤ u ≤ 16), the same sums with 1/u. Rewards in
[0, 1] and Cauchy–Schwarz tie these sums to each other, so invented numbers rarely fit together. That weights were fixed
before their samples is nothing that sums can show.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from hashlib import sha256
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bestpolicy.errors import InvalidInput
from bestpolicy.verification.reading import Budget, Floats, Ints, Node, Rejected

ONES_TOLERANCE = 1e-8  # how far the all-ones function may be from linear in the features
_ROUNDING = 1e-9  # relative error that long sums of floating-point numbers may have
_LARGEST_U = 16.0  # u of a weight 1/u
_LARGE_TABLE = 2**27  # one-hot features of a table that are not hashed
_HASH = 2.0  # steps for hashing a number


def _no_features(node: Node) -> Floats:
    """Return the features, none, of a table of which only the size is given."""
    size = node.child("tabular")
    size.only("states", "actions")
    states, actions = size.whole("states", 1, 2**27), size.whole("actions", 1, 2**27)
    node.budget.hold(3 * states * actions, f"a table of {states:,} states and {actions:,} actions")
    if node.has("features"):
        raise InvalidInput(f"{node.name} must have either features or the size of a table.")
    return np.zeros((states, actions, 0))


def _ends(node: Node, mask: NDArray[np.bool_]) -> dict[str, Any]:
    """Read the states in which the process is over."""
    node.only("states", "reward")
    states, reward = node.array("states", "i", (None,)), node.number("reward", 0.0, 1.0)
    if not 0 < len(states) < len(mask) or states.min() < 0 or states.max() >= len(mask) or (np.diff(states) <= 0).any():
        raise InvalidInput(f"{node.name}: 'states' must be some of the states, strictly increasing.")
    if not mask[states, 0].all() or mask[states, 1:].any():
        raise Rejected("the mask has an end at which there is something to decide")
    return {"ends": states, "end_reward": reward}


@dataclass(frozen=True, eq=False)
class Case:
    """The decision problem: features (S, A, d), allowed actions (S, A), γ or H.

    Of a table, whose pairs have a coordinate each, in order, the file may give the size alone: d is 0 then.

    `ends` are states in which the process is over, whatever is done: their mask allows the first action alone, every
    later step pays `end_reward`, and they share a coordinate, the last of a table.
    """

    features: Floats
    mask: NDArray[np.bool_]
    discount: float | None
    horizon: int | None
    budget: Budget = field(default_factory=Budget)
    ends: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    end_reward: float = 0.0

    @classmethod
    def read(cls, node: Node) -> Case:
        """Read the problem and check it."""
        node.only("features", "tabular", "mask", "discount", "horizon", "ends", "fingerprint", "labels")
        features = _no_features(node) if node.has("tabular") else node.array("features", "f", (None, None, None))
        if 0 in features.shape[: 2 if node.has("tabular") else 3]:
            raise InvalidInput(f"{node.name}: features must not be empty.")
        shape = features.shape[:2]
        mask = node.array("mask", "b", shape) if node.has("mask") else np.ones(shape, np.bool_)
        if node.has("discount") == node.has("horizon"):
            raise InvalidInput(f"{node.name} must have either a discount or a horizon.")
        discount = node.number("discount", 0.0, 1.0) if node.has("discount") else None
        if discount in (0.0, 1.0):
            raise InvalidInput(f"{node.name}: the discount must lie strictly between 0 and 1.")
        horizon = node.whole("horizon", 1) if node.has("horizon") else None
        ends = _ends(node.child("ends"), mask) if node.has("ends") else {}
        case = cls(features, mask, discount, horizon, node.budget, **ends)
        dimension = features.shape[2]
        node.budget.hold(14 * features.size, "the features")
        node.budget.work(20 * features.size * dimension + 100 * dimension**3, "the features")
        if not mask.any(axis=1).all():
            raise Rejected("some state has no allowed action")
        if not case.has_features:
            node.budget.work(_HASH * min(mask.size * int(mask.sum()), _LARGE_TABLE), "the fingerprint")
        if node.text("fingerprint") != case.fingerprint:
            raise Rejected(
                "the fingerprint is not that of the features, the mask, the ends and the discount or horizon"
            )
        if case.has_features:
            case._check_features()
        return case

    def _check_features(self) -> None:
        """Full rank, and all-ones in the span: without them there is no linear MDP, or more than one estimate."""
        rows = self.features[self.mask]
        scales = np.abs(rows).max(axis=0)
        if len(rows) < rows.shape[1] or not scales.all():
            raise Rejected("the features do not have full rank")
        rows = rows / scales
        rest = np.ones(len(rows))
        eigenvalues, vectors = np.linalg.eigh(rows.T @ rows)
        if eigenvalues[0] > 1e-8 * eigenvalues[-1]:  # far from singular, so that the Gram matrix tells; else QR has to
            for _ in range(3):
                rest = rest - rows @ (vectors @ ((vectors.T @ (rows.T @ rest)) / eigenvalues))
        else:
            basis, triangle = np.linalg.qr(rows)
            singular = np.linalg.svd(triangle, compute_uv=False)
            if singular[-1] <= 1e-14 * len(singular) * singular[0]:
                raise Rejected("the features do not have full rank")
            for _ in range(2):
                rest = rest - basis @ (basis.T @ rest)
        if np.abs(rest).max() > ONES_TOLERANCE:
            raise Rejected("the all-ones function is not linear in the features, so transition rows cannot sum to 1")

    @property
    def has_features(self) -> bool:
        """Whether the file gives the features."""
        return bool(self.features.shape[2] > 0)

    @cached_property
    def is_table(self) -> bool:
        """Whether each allowed pair has a coordinate of its own, and all ends together one."""
        if not self.has_features:
            return True
        rows = self.features[self.mask]
        ones = rows == 1.0
        if not (ones.sum(axis=1) == 1).all() or np.count_nonzero(rows) != len(rows):
            return False
        over = (self.mask & ~self.open)[self.mask]
        owners = ones[~over].sum(axis=0) + ones[over].any(axis=0)
        return bool((owners == 1).all())

    @cached_property
    def open(self) -> NDArray[np.bool_]:
        """The mask without ends, (S, A): pairs that may be sampled for Theorem U."""
        mask = self.mask.copy()
        mask[self.ends] = False
        return mask

    @property
    def fingerprint(self) -> str:
        """SHA-256 of everything that makes the problem; a table has that of its one-hot features, unless it is huge."""
        own = self.open.reshape(-1)
        dimension = self.features.shape[2] if self.has_features else int(own.sum()) + (len(self.ends) > 0)
        huge = not self.has_features and self.mask.size * dimension > _LARGE_TABLE
        shape = (*self.mask.shape, dimension)
        found = sha256(f"{'table ' * huge}{shape} {self.discount!r} {self.horizon!r} ".encode())
        if self.has_features:
            found.update(self.features.astype("<f8").tobytes())
        elif not huge:
            places = np.where(own, np.cumsum(own) - 1, dimension - 1)
            for place, allowed in zip(places.tolist(), self.mask.reshape(-1).tolist(), strict=True):
                row = np.zeros(dimension, "<f8")
                row[place] = 1.0 if allowed else 0.0
                found.update(row.data)
        found.update(self.mask.tobytes())
        if len(self.ends):
            found.update(f" ends {self.end_reward!r} ".encode() + self.ends.astype("<i8").tobytes())
        return found.hexdigest()

    @property
    def stages(self) -> int:
        """1 if discounted, H if episodic."""
        return self.horizon or 1

    @property
    def gamma(self) -> float:
        """Weight of the next value."""
        return 1.0 if self.discount is None else self.discount

    @property
    def limits(self) -> Floats:
        """Largest value at each stage, (stages,)."""
        if self.discount is not None:
            return np.array([1 / (1 - self.discount)])
        return np.arange(self.stages, 0, -1, dtype=np.float64)

    def policy(self, node: Node) -> Ints:
        """Read a policy, (stages, S)."""
        states = len(self.features)
        policy = node.array("policy", "i", (self.stages, states))
        if policy.min() < 0 or policy.max() >= self.mask.shape[1] or not self.mask[np.arange(states), policy].all():
            raise Rejected("the policy plays an action that is not allowed")
        return policy

    def pairs(self, node: Node, key: str) -> Ints:
        """Read flat indices s·A + a of allowed pairs."""
        pairs = node.array(key, "i", (None,))
        if not len(pairs) or pairs.min() < 0 or pairs.max() >= self.mask.size or (np.diff(pairs) <= 0).any():
            raise Rejected(f"the field {key!r} is not a list of strictly increasing indices of pairs")
        if not self.mask.reshape(-1)[pairs].all():
            raise Rejected(f"the field {key!r} has a pair that is not allowed")
        return pairs

    def rivals(self, policy: Ints) -> NDArray[np.bool_]:
        """Allowed actions that differ from the policy's in their features, (stages, S, A)."""
        if not self.has_features:
            self.budget.hold(self.stages * self.mask.size, "the policy")
            others: NDArray[np.bool_] = self.mask & (np.arange(self.mask.shape[1]) != policy[:, :, None])
            return others
        self.budget.hold(self.stages * (self.features.size + self.features[:, 0].size), "the policy")
        played = self.features[np.arange(len(self.features)), policy]
        differ: NDArray[np.bool_] = self.mask & (self.features[None] != played[:, :, None, :]).any(axis=3)
        return differ

    def following(self, staged: Floats) -> Floats:
        """Shift an array (stages, …) to the stage that follows; zeros after the last stage of an episode."""
        return staged if self.horizon is None else np.concatenate([staged[1:], np.zeros_like(staged[:1])])

    def placed(self, ahead: Floats) -> Floats:
        """Put functionals of the next stage's ξ, (J, stages, d), where that ξ is."""
        if self.horizon is None:
            return ahead
        return np.concatenate([np.zeros_like(ahead[:, :1]), ahead[:, :-1]], axis=1)


@dataclass(frozen=True, eq=False)
class Samples:
    """Sums over samples, by stage, sampled pair and, where it says so, next state.

    Attributes
    ----------
    pairs : (K,)
        Flat indices s·A + a of the pairs that might be sampled.
    counts, rewards : (stages, K, S)
        Samples, and Σr, by next state.
    squares : (stages, K)
        Σr².
    weights, weights_squared, weighted_rewards : (stages, K)
        Σ1/u, Σ1/u², Σr/u.
    weighted_counts : (stages, K, S)
        Σ1/u by next state.
    """

    pairs: Ints
    counts: Ints
    rewards: Floats
    squares: Floats
    weights: Floats
    weights_squared: Floats
    weighted_rewards: Floats
    weighted_counts: Floats

    @property
    def are_weighted(self) -> bool:
        """Whether some sample counts less than 1."""
        return not np.array_equal(self.weights, self.pulls)

    @cached_property
    def pulls(self) -> Ints:
        """Samples of each pair, (stages, K)."""
        pulls: Ints = self.counts.sum(axis=2)
        return pulls

    @classmethod
    def read(cls, node: Node, case: Case) -> Samples:
        """Read the sums and check that they can be sums of samples."""
        node.only("pairs", "cells", "counts", "rewards", "squares", "weighted")
        pairs = case.pairs(node, "pairs")
        shape = (case.stages, len(pairs), len(case.features))
        size = shape[0] * shape[1] * shape[2]
        case.budget.hold(14 * size, f"a table of {shape} counts")
        case.budget.work(300 * size, f"a table of {shape} counts")
        cells, counts = node.array("cells", "i", (None,)), node.array("counts", "i", (None,))
        if len(cells) != len(counts) or (np.diff(cells) <= 0).any() or (cells < 0).any() or (cells >= size).any():
            raise Rejected("the cells of the counts are not strictly increasing indices")
        if (counts < 1).any() or counts.sum(dtype=np.float64) > min(1e17 * case.stages, 2.0**62):
            raise Rejected("a count of samples is not positive, or too large")

        def spread(values: NDArray[np.generic]) -> Floats:
            table = np.zeros(size)
            table[cells] = values
            return table.reshape(shape)

        table = np.zeros(size, np.int64)
        table[cells] = counts
        table = table.reshape(shape)
        rewards, squares = spread(node.array("rewards", "f", (len(cells),))), node.array("squares", "f", shape[:2])
        pulls = table.sum(axis=2).astype(np.float64)
        if node.has("weighted"):
            own = node.child("weighted")
            own.only("weights", "weights_squared", "rewards", "counts")
            once, twice, earned = (own.array(key, "f", shape[:2]) for key in ("weights", "weights_squared", "rewards"))
            following = spread(own.array("counts", "f", (len(cells),)))
        else:
            once, twice, earned, following = pulls, pulls, rewards.sum(axis=2), table.astype(np.float64)
        samples = cls(pairs, table, rewards, squares, once, twice, earned, following)
        samples._check()
        return samples

    def _check(self) -> None:
        counts, pulls = self.counts.astype(np.float64), self.pulls.astype(np.float64)
        sums = self.rewards.sum(axis=2)
        with np.errstate(invalid="ignore"):
            least_squares = np.where(counts > 0, self.rewards**2 / np.maximum(counts, 1), 0).sum(axis=2)
        requirements = (
            ("a sum of rewards is negative", 0 * counts, self.rewards),
            ("a sum of rewards exceeds the number of samples", self.rewards, counts),
            ("a sum of squared rewards exceeds the sum of the rewards", self.squares, sums),
            ("a sum of squared rewards is smaller than the rewards allow", least_squares, self.squares),
            ("a weight is larger than 1", self.weights, pulls),
            ("a weight is smaller than 1/16", pulls / _LARGEST_U, self.weights),
            ("weights by next state exceed their counts", self.weighted_counts, counts),
            ("weights by next state are smaller than 1/16 each", counts / _LARGEST_U, self.weighted_counts),
            # (1/u - 1)(1/u - 1/16) ≤ 0 for every sample.
            (
                "squared weights exceed what the weights allow",
                self.weights_squared,
                self.weights * (1 + 1 / _LARGEST_U) - pulls / _LARGEST_U,
            ),
            ("squared weights are smaller than the weights allow", self.weights**2, pulls * self.weights_squared),
            ("weighted rewards are negative", 0 * pulls, self.weighted_rewards),
            ("weighted rewards exceed the weights", self.weighted_rewards, self.weights),
            ("weighted rewards exceed the rewards", self.weighted_rewards, sums),
            ("weighted rewards are smaller than the rewards allow", sums / _LARGEST_U, self.weighted_rewards),
            ("weights by next state do not add up", self.weights, self.weighted_counts.sum(axis=2)),
            ("weights by next state do not add up", self.weighted_counts.sum(axis=2), self.weights),
        )
        for complaint, smaller, larger in requirements:
            if (smaller > larger + _ROUNDING * (1 + np.abs(larger))).any():
                raise Rejected(f"the samples do not fit together: {complaint}")
