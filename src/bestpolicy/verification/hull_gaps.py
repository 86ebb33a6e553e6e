"""Theorem H once more: what gaps between actions certify where states cannot be listed, from sums over samples alone.

What is needed of the samples at each anchor: n, the mean θ̂ of R' + γg_π(S'), that of the policy's features K̂, the mean
square of R' + γ(V̂ - κ)(S') - c, and for each round the mean of max_a{U(S', a) + γφ_aᵀt̄}. The last two are tied to the
others: no square is below the square of its mean, and a maximum over actions is not below what π itself gives, γK̂t̄.

Noise is bounded anchor by anchor with x = ξ̂ - ξ^π propagated by linear systems; nothing is taken from the rule.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, log
from typing import Any

import numpy as np

from bestpolicy.verification.claim import Claim
from bestpolicy.verification.hull import ROUNDING, Setting, per_misfit, share
from bestpolicy.verification.reading import Floats, Ints, Node, Rejected

_SLACK = 1e-9
_ARRAYS = {"vector": 1, "kernel": 2, "weights": 1, "centres": 1, "box": 2, "directions": 3}
_PASSES = 40


@dataclass(frozen=True, eq=False)
class _Test:
    """One look: what was fixed, and what the samples say."""

    setting: Setting
    lag: dict[str, Floats]
    counts: Ints
    level: float
    means: Floats
    kernel: Floats
    squares: Floats
    box: Floats
    directions: Floats

    @property
    def gamma(self) -> float:
        """The discount."""
        assert self.setting.discount is not None
        return self.setting.discount

    def solved(self, kernel: Floats, right: Floats) -> Floats:
        """Solve (I - γK)y = right."""
        return np.asarray(np.linalg.solve(np.eye(len(kernel)) - self.gamma * kernel, right))

    def noise(self, moved: Floats) -> tuple[Floats, Floats]:
        """Bounds on the centred noise of ξ̂, and on that of each anchor, for ξ̂ - ξ̃."""
        d, n, gamma, tau = len(self.means), self.counts.astype(float), self.gamma, self.lag["weights"]
        low, high = self.setting.remainder
        span = high - low
        assert self.setting.best is not None
        vector = self.lag["vector"]
        known = span + gamma * (vector.max() - vector.min() + self.setting.best[1] - self.setting.best[0])
        identity = np.eye(d)
        now, before = self.solved(self.kernel, identity), self.solved(self.lag["kernel"], identity)
        now, before = np.abs(now - tau @ now), before - tau @ before
        off = np.abs(moved - tau @ moved)
        change = np.abs(self.kernel - self.lag["kernel"])
        single = (span + gamma * self.setting.limit(0)) * np.sqrt(self.level / (2 * n))
        bound = now @ single
        for _ in range(_PASSES):
            reach = known + gamma * float(np.max(off + bound))
            root = np.sqrt(self.squares) + gamma * float(bound.max())
            for j in range(d):
                single[j] = min(single[j], _lemma_e(self.level, self.box[j], root[j] ** 2 / n[j], reach[j] / n[j]))
            ahead = np.empty(d)
            for i in range(d):
                spread, far = float(before[i] ** 2 @ (root**2 / n)), float((np.abs(before[i]) * reach / n).max())
                ahead[i] = min(_lemma_e(self.level, float(bet), spread, far) for bet in self.directions[:, i])
            smaller = np.minimum(bound, now @ single)
            if np.isfinite(ahead).all():
                smaller = np.minimum(smaller, ahead + gamma * now @ (change @ ahead))
            if (smaller > bound * (1 - 1e-12)).all():
                break
            bound = smaller
        return bound, single


def _lemma_e(level: float, bet: float, spread: float, reach: float) -> float:
    x = bet * reach
    if not 0 <= x < 1:
        return inf
    psi = 0.5 + x / 3 if x < 1e-5 else float(-np.log1p(-x) - x) / x**2
    return level / bet + bet * psi * spread


def certified(document: Node, claim: Claim) -> tuple[float, int, list[str]]:
    """Return the ε that is certified in the problem's units, the samples used for it, and what is trusted."""
    setting, proof = Setting.read(document.child("problem")), document.child("proof")
    if not 0 < claim.delta < 1:
        raise Rejected("δ does not lie strictly between 0 and 1")
    if setting.discount is None or setting.coefficients is not None or setting.best is None:
        raise Rejected("Theorem H is about discounted problems with anchors and known limits of known rewards")
    proof.only("lag", "look", "counts", "means", "kernel", "squares", "omegas", "bounds", "reached")
    test = _read(setting, proof, claim.delta)
    found = test.solved(test.kernel, test.means)
    moved = found - test.lag["vector"]
    _require_squares(test, moved)
    bound, single = test.noise(moved)
    epsilon = _rounds(test, proof, bound, moved)
    _require_vectors(document.child("claim"), test, moved, single, epsilon)
    trusted = [
        "the sums are those of samples under the policy that the lag names, and the lag was chosen from the first "
        f"{proof.child('lag').whole('started', 0):,} samples only",
        "features are convex combinations in every state, and rewards and limits of known rewards are as stated",
        f"if the features misfit the two value functions by ζ, ε grows by {per_misfit(document):.6g}·ζ",
    ]
    return epsilon, int(test.counts.sum()), trusted


def _read(setting: Setting, proof: Node, delta: float) -> _Test:
    """Read what was fixed, and what was found, and check their form."""
    d, lag = setting.dimension, proof.child("lag")
    lag.only("number", "started", "delta", "counts", *_ARRAYS)
    proof.budget.work(_PASSES * d * d, "the noise of the test")
    shapes = {1: (d,), 2: (d, d), 3: (None, None, d)}
    fixed = {name: lag.array(name, "f", shapes[wide] if name != "box" else (None, d)) for name, wide in _ARRAYS.items()}
    counts = lag.array("counts", "i", (None, d))
    looks, number = len(counts), lag.whole("number", 1, 40)
    if lag.number("delta", 0.0, 1.0) > share(number) * delta * (1 + 1e-9):
        raise Rejected(f"lag {number} spends more than its share of δ")
    if not looks or len(fixed["box"]) != looks or len(fixed["directions"]) != looks or not fixed["directions"].size:
        raise Rejected("the lag does not have bets for each of its looks")
    look = proof.whole("look", 0, looks - 1)
    if (counts < 1).any() or (fixed["box"] <= 0).any() or (fixed["directions"] <= 0).any():
        raise Rejected("counts or bets of the lag are not possible")
    if not np.array_equal(proof.array("counts", "i", (d,)), counts[look]):
        raise Rejected("the counts are not those that were fixed for this look")
    kernel = proof.array("kernel", "f", (d, d))
    for each in (kernel, fixed["kernel"], fixed["weights"][None]):
        if each.min() < -_SLACK or (np.abs(each.sum(axis=1) - 1) > _SLACK).any():
            raise Rejected("a row of a kernel, or the law over anchors, is no law")
    low, high = setting.remainder
    assert setting.best is not None
    assert setting.discount is not None
    least = low + setting.discount * (fixed["vector"].min() + setting.best[0])
    most = high + setting.discount * (fixed["vector"].max() + setting.best[1])
    if (fixed["centres"] < least - _SLACK).any() or (fixed["centres"] > most + _SLACK).any():
        raise Rejected("a centre is outside of the range of its outcomes")
    bets = fixed["directions"].shape[1]
    level = log((5 + 2 * bets) * d * looks / lag.number("delta", 0.0, 1.0))
    found = proof.array("means", "f", (d,)), kernel, proof.array("squares", "f", (d,))
    return _Test(setting, fixed, counts[look], level, *found, fixed["box"][look], fixed["directions"][look])


def _require_squares(test: _Test, moved: Floats) -> None:
    """Refuse mean squares that are below the squares of their means."""
    ahead = test.lag["vector"] + moved - test.lag["weights"] @ moved
    mean = test.means + test.gamma * (test.kernel @ ahead) - test.lag["centres"]
    if (test.squares < mean**2 - _SLACK * (1 + mean**2)).any():
        raise Rejected("mean squares do not fit to the means of outcomes")


def _rounds(test: _Test, proof: Node, bound: Floats, moved: Floats) -> float:
    """Follow the rounds from the first Ω to the last ε."""
    d, gamma, limit = len(moved), test.gamma, test.setting.limit(0)
    rounding = ROUNDING * (1 + limit) * limit
    omegas = proof.array("omegas", "f", (None,))
    bounds, reached = (proof.array(name, "f", (len(omegas), d)) for name in ("bounds", "reached"))
    deviation = np.sqrt(test.level / (2 * test.counts))
    behind = float((bound - moved).max())
    least = min(limit, limit * (max(0.0, float((moved + bound).max()) + behind) + rounding))
    for omega, t, mean in zip(omegas, bounds, reached, strict=True):
        slack = _SLACK * omega + ROUNDING
        if omega < least * (1 - _SLACK):
            raise Rejected("a round begins with less than what the round before it certifies")
        if (t < -slack).any() or (t > omega + slack).any():
            raise Rejected("bounds on what is lost on average are not between 0 and Ω")
        if (mean < gamma * (test.kernel @ t) - slack).any():
            raise Rejected("what is propagated is less than what the policy itself gives")
        if ((mean + omega * deviation > t + slack) & (t < omega - slack)).any():
            raise Rejected("a bound on what is lost on average is no super-solution")
        everywhere = max(gamma * float(t.max()), float((moved + bound + gamma * t).max()) + behind, 0.0) + rounding
        least = min(float(omega), everywhere)
    return least


def _require_vectors(claim: Node, test: _Test, moved: Floats, single: Floats, epsilon: float) -> None:
    """The policy and the bounds of the claim are those of the lag."""
    stated = claim.array("vectors", "f", (2, 1, len(moved) + 1))
    if not (stated[:, 0, :-1] == test.lag["vector"]).all():
        raise Rejected("the policy of the claim is not the one that the lag has fixed")
    wide = test.solved(test.kernel, single)
    below, above = max(0.0, float((wide - moved).max())), max(0.0, float((wide + moved).max())) + epsilon
    slack = np.array([below, above])
    if (stated[:, 0, -1] < slack - 1e-6 * (1 + slack)).any():
        raise Rejected("the bounds on values are narrower than what the samples certify")


def check_order(
    requests: list[tuple[int, dict[str, Any]]], answers: list[tuple[int, dict[str, Any]]], document: Node
) -> None:
    """Raise `Rejected` unless the study's file shows that the lag was fixed before its samples, and has as many."""
    proof = document.child("proof")
    lag = proof.child("lag")
    number, started = lag.whole("number", 1), lag.whole("started", 0)
    decided = {one["decided"]["lag"]["number"]: (place, one) for place, one in requests if "lag" in one["decided"]}
    if number not in decided or "vector" not in decided[number][1]["decided"]["lag"]:
        raise Rejected(f"lag {number} was not decided on in the study's file")
    begin, past = decided[number][0], decided[number][1]["decided"]["lag"]
    told = sum(int(one["counts"].sum()) for place, one in answers if place < begin)
    if told != started or past["started"] != started:
        raise Rejected(f"lag {number} began after {told:,} samples, not after {started:,}")
    same = past["delta"] == lag.fields["delta"]
    for name in (*_ARRAYS, "counts"):
        kind = "i" if name == "counts" else "f"
        same = same and np.array_equal(past[name], lag.array(name, kind, np.shape(past[name])))
    if not same:
        raise Rejected(f"what lag {number} rests on is not what was decided when it began")
    end = min((place for place, _ in decided.values() if place > begin), default=inf)
    wanted = proof.array("counts", "i", (None,))
    counts, rewards = np.zeros(len(wanted)), np.zeros(len(wanted))
    for place, one in answers:
        if begin < place < end and (counts < wanted).any():
            counts += one["counts"][0]
            rewards += np.bincount(one["place"], one["rewards"], len(wanted))
    if (counts != wanted).any():
        raise Rejected("the study was not told as many samples since the lag as the proof has")
    means = proof.array("means", "f", (len(wanted),))
    plain = not document.child("problem").child("description").child("functions").flag("known_reward")
    if plain and (np.abs(means - rewards / counts) > _SLACK).any():
        raise Rejected("the means of the proof are not those that the study was told since the lag")
