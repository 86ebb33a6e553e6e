"""Theorem F± once more: two known functions bracket all values, from sums over samples alone.

What is needed of the problem are d, γ or H, the limits of R' at each simulated pair and of max_a g, and, where pairs
are no anchors, coefficients that turn their means into those of the unit vectors. States and features do not occur. The
functions are V = clip(f(·, ξ), a, b) with a = max(0, low + min ξ), b = min(L, high + max ξ); Y = R' + γV(S').

Sums are tied to each other, so that invented ones rarely fit: with x_i = ±λ(u - Y_i) ≥ -ρ, ρ = λ·(range of Y) < 1,

    Σx - ψ(ρ)Σx² ≤ Σ log(1 + x) ≤ n·log(1 + Σx/n),       ψ(ρ) = (-log(1-ρ) - ρ)/ρ²,

where Σx and Σx² follow from n, ΣY and ΣY². Limits are read off chords of the concave gains, one pair after the other.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, log
from typing import Any

import numpy as np

from bestpolicy.errors import InvalidInput
from bestpolicy.verification.claim import CHECKED, Claim, reached, rule_name
from bestpolicy.verification.reading import Floats, Ints, Node, Rejected

ROUNDING = 1e-11
SPANNED = 1e-8
_SLACK = 1e-9
_SHARES = (0.7, 0.2, 0.07)
_PROBLEM = (
    "description fingerprint dimension places actions discount horizon best remainder coefficients pair_features labels"
)
_LAG = "number started delta vectors low high stakes grid unit directions centres"
LAG_ARRAYS = dict.fromkeys(("vectors", "low", "high", "stakes", "grid", "directions", "centres"), "f") | {"unit": "i"}


@dataclass(frozen=True, eq=False)
class Setting:
    """What a certificate says of its problem."""

    dimension: int
    places: int
    discount: float | None
    horizon: int | None
    best: tuple[float, float] | None
    remainder: Floats
    coefficients: Floats | None

    @classmethod
    def read(cls, node: Node) -> Setting:
        """Read the problem and check it."""
        node.only(*_PROBLEM.split())
        d, places = node.whole("dimension", 1, 10**6), node.whole("places", 1, 10**6)
        node.whole("actions", 1, 10**6)
        if node.has("discount") == node.has("horizon"):
            raise InvalidInput(f"{node.name} must have either a discount or a horizon.")
        discount = node.number("discount", 0.0, 1.0) if node.has("discount") else None
        if discount in (0.0, 1.0):
            raise InvalidInput(f"{node.name}: the discount must lie strictly between 0 and 1.")
        horizon = node.whole("horizon", 1, 10**6) if node.has("horizon") else None
        best = None
        if node.has("best"):
            low, high = node.array("best", "f", (2,)).tolist()
            best = low, high
        remainder = node.array("remainder", "f", (2, places))
        if not (remainder[0] <= remainder[1]).all() or (best is not None and not best[0] <= best[1]):
            raise Rejected("limits of rewards are the wrong way round")
        coefficients = None
        if node.has("coefficients"):
            coefficients = node.array("coefficients", "f", (d, places))
            rows = node.array("pair_features", "f", (places, d))
            node.budget.work(d * d * places, "the features of the pairs")
            if rows.min() < -_SLACK or (np.abs(rows.sum(axis=1) - 1) > _SLACK).any():
                raise Rejected("the features of the simulated pairs are no convex combinations")
            if np.abs(coefficients @ rows - np.eye(d)).max() > SPANNED:
                raise Rejected("the coefficients do not turn the pairs' features into the unit vectors")
        elif places != d:
            raise Rejected("there is not one simulated pair for each dimension")
        return cls(d, places, discount, horizon, best, remainder, coefficients)

    @property
    def stages(self) -> int:
        """1 if discounted, H if episodic."""
        return 1 if self.horizon is None else self.horizon

    def limit(self, stage: int) -> float:
        """Largest value at a stage."""
        return 1.0 / (1.0 - self.discount) if self.discount is not None else float(self.stages - stage)


def certified(document: Node, claim: Claim) -> tuple[float, int, list[str]]:
    """Return the ε that is certified in the problem's units, the samples used for it, and what is trusted."""
    setting, proof = Setting.read(document.child("problem")), document.child("proof")
    if not 0 < claim.delta < 1:
        raise Rejected("δ does not lie strictly between 0 and 1")
    proof.only("lag", "counts", "sums", "squares", "gains", "candidate")
    lag = proof.child("lag")
    lag.only(*_LAG.split())
    functions = _functions(lag, setting)
    m = len(functions) // 2
    number, spent = lag.whole("number", 1, 40), lag.number("delta", 0.0, 1.0)
    if spent > share(number) * claim.delta * (1 + 1e-9):
        raise Rejected(f"lag {number} spends {spent:.3g}, more than its share of δ")
    level = log(2 * setting.dimension * m * setting.stages / spent)
    shape = (2 * m, setting.stages, setting.places)
    counts = proof.array("counts", "i", shape[1:])
    sums, squares = proof.array("sums", "f", shape), proof.array("squares", "f", shape)
    if (counts < 0).any():
        raise Rejected("a number of samples is negative")
    found = np.empty((2 * m, setting.stages, setting.dimension))
    for index, each in enumerate(functions):
        for stage in range(setting.stages):
            low, high = each.outcomes(stage)
            _require_sums(counts[stage], sums[index, stage], squares[index, stage], low, high)
            told = counts[stage], sums[index, stage], squares[index, stage]
            if setting.coefficients is None:
                gains = proof.array("gains", "f", (*shape, None))[index, stage]
                found[index, stage] = _betting(lag, index, stage, index < m, told, gains, low, high, level)
            else:
                found[index, stage] = _directions(lag, setting, index, stage, index < m, told, low, high, level)
    best = proof.whole("candidate", 0, m - 1)
    epsilon, slack = _bracket(setting, functions[best], functions[best + m], found[best], found[best + m])
    _require_vectors(document.child("claim"), functions[best], functions[best + m], slack)
    trusted = [
        "the sums are those of samples of the functions that the lag names, and the lag was chosen from the first "
        f"{lag.whole('started', 0):,} samples only",
        "features are convex combinations in every state, and rewards and limits of known rewards are as stated",
        f"if the features misfit the two functions by ζ, ε grows by {per_misfit(document):.6g}·ζ",
    ]
    return epsilon, int(counts.sum()), trusted


def per_misfit(document: Node) -> float:
    """Return by how much ε grows with the misfit ζ of the two functions."""
    return 2 * Setting.read(document.child("problem")).limit(0)


def contradictions(document: Node, claim: Claim) -> list[str]:
    """Return the fields that contradict others, in words."""
    setting, run, stated = Setting.read(document.child("problem")), document.child("run"), document.child("claim")
    agreements = [
        ("rounds", run.whole("rounds", 0) == claim.samples // setting.stages),
        ("algorithm", run.text("algorithm") == "hull"),
        ("own_data", claim.own_data == 0),
        ("start", claim.start is None),
        ("asked_was_certified", stated.flag("asked_was_certified") == reached(claim.epsilon, claim.asked)),
        ("rule", stated.text("rule") == rule_name(claim.theorem, setting.horizon is not None, claim.epsilon)),
    ]
    described = document.child("problem").child("description")
    for name in ("discount", "horizon", "dimension", "actions"):
        same = described.fields.get(name) == document.child("problem").fields.get(name)
        agreements.append((f"description: {name}", same))
    for node in document.children("assumptions"):
        node.only("assumption", "checked")
        agreements.append(("assumptions", node.text("assumption") in CHECKED or not node.flag("checked")))
    return [f"the field {name!r} contradicts what was found" for name, agrees in agreements if not agrees]


@dataclass(frozen=True, eq=False)
class _Function:
    """ξ (stages, d) of one known function, with the limits of its values."""

    setting: Setting
    vectors: Floats
    low: Floats
    high: Floats

    def cut(self, stage: int) -> tuple[bool, bool]:
        """Whether values are cut below and above."""
        if self.setting.best is None:
            return True, True
        low, high = self.setting.best
        vector = self.vectors[stage]
        return bool(vector.min() + low < 0), bool(vector.max() + high > self.setting.limit(stage))

    def limits(self, stage: int) -> tuple[float, float]:
        """Limits of the function's values."""
        below, above = self.cut(stage)
        least, most = self.setting.best or (0.0, 0.0)
        top = self.setting.limit(stage)
        low = 0.0 if below else min(float(self.vectors[stage].min()) + least, top)
        high = top if above else max(float(self.vectors[stage].max()) + most, 0.0)
        return low, max(low, high)

    def outcomes(self, stage: int) -> tuple[Floats, Floats]:
        """Limits of Y at each simulated pair."""
        setting = self.setting
        following = 0 if setting.horizon is None else stage + 1
        low, high = self.limits(following) if following < setting.stages else (0.0, 0.0)
        gamma = 1.0 if setting.discount is None else setting.discount
        return setting.remainder[0] + gamma * low, setting.remainder[1] + gamma * high


def _functions(lag: Node, setting: Setting) -> list[_Function]:
    vectors = lag.array("vectors", "f", (None, setting.stages, setting.dimension))
    if not len(vectors) or len(vectors) % 2:
        raise Rejected("the lag does not have two functions for each candidate")
    low, high = (lag.array(name, "f", vectors.shape[:2]) for name in ("low", "high"))
    found = [_Function(setting, *each) for each in zip(vectors, low, high, strict=True)]
    for each in found:
        mine = np.array([each.limits(stage) for stage in range(setting.stages)])
        if np.abs(mine - np.stack([each.low, each.high], axis=1)).max() > _SLACK * (1 + setting.limit(0)):
            raise Rejected("the limits of a function are not those of its vector")
    return found


def share(number: int) -> float:
    """Share of δ of a lag; all of them together sum to 1."""
    if number <= len(_SHARES):
        return _SHARES[number - 1]
    return (1.0 - sum(_SHARES)) * 0.7 * 0.3 ** (number - len(_SHARES) - 1)


def _require_sums(counts: Ints, sums: Floats, squares: Floats, low: Floats, high: Floats) -> None:
    """Refuse ΣY and ΣY² that no samples in their range have."""
    n = counts.astype(np.float64)
    size = np.maximum(np.abs(low), np.abs(high)) + 1.0
    slack = _SLACK * (1 + n) * size**2
    inside = (sums >= n * low - slack) & (sums <= n * high + slack)
    fits = (squares * n >= sums**2 - slack * (1 + n)) & (squares <= (low + high) * sums - n * low * high + slack)
    if not (inside & fits).all():
        raise Rejected("sums of outcomes and of their squares do not fit to their range")


def _betting(
    lag: Node,
    index: int,
    stage: int,
    upper: bool,
    told: tuple[Ints, Floats, Floats],
    gains: Floats,
    low: Floats,
    high: Floats,
    level: float,
) -> Floats:
    """Limits by Lemma W, pair by pair."""
    counts, sums, squares = told
    places, points = gains.shape
    grid = lag.array("grid", "f", (None, None, places, points))[index, stage]
    stakes = lag.array("stakes", "f", (None, None, places))[index, stage]
    slack = _SLACK * (1 + np.abs(low) + np.abs(high))
    reach = stakes * (high - low + 2 * slack)
    if (stakes < 0).any() or (reach >= 1).any():
        raise Rejected("a stake is not between 0 and 1 over the range of its outcomes")
    if (grid < (low - slack)[:, None]).any() or (grid > (high + slack)[:, None]).any() or (np.diff(grid) < 0).any():
        raise Rejected("a grid is not in order, or leaves the range of its outcomes")
    side = 1.0 if upper else -1.0
    found = np.where(upper, high, low)
    for k in range(places):
        n = int(counts[k])
        first = side * stakes[k] * (n * grid[k] - sums[k])
        second = stakes[k] ** 2 * (n * grid[k] ** 2 - 2 * grid[k] * sums[k] + squares[k])
        rho = float(reach[k])
        psi = 0.5 if rho < 1e-6 else (-np.log1p(-rho) - rho) / rho**2
        allowance = 1e-7 * (1 + n)
        with np.errstate(invalid="ignore", divide="ignore"):
            most = n * np.log1p(first / n) if n else np.zeros(points)
        if (gains[k] > most + allowance).any() or (gains[k] < first - psi * second - allowance).any():
            raise Rejected("gains do not fit to the sums of outcomes")
        needed = level + n * n * 2.0**-50 * -np.log1p(-rho)
        order = range(points) if upper else range(points - 1, -1, -1)
        before: tuple[float, float] | None = None
        for place in order:
            u, gain = float(grid[k, place]), float(gains[k, place])
            if gain >= needed:
                if before is not None and gain > before[1]:
                    u = before[0] + (u - before[0]) * (needed - before[1]) / (gain - before[1])
                found[k] = u
                break
            before = u, gain
    return found


def _directions(
    lag: Node,
    setting: Setting,
    index: int,
    stage: int,
    upper: bool,
    told: tuple[Ints, Floats, Floats],
    low: Floats,
    high: Floats,
    level: float,
) -> Floats:
    """Limits by Lemma E, from combinations of all pairs."""
    counts, sums, squares = told
    c, side = setting.coefficients, 1.0 if upper else -1.0
    assert c is not None
    unit = lag.array("unit", "i", (None, setting.places))[stage]
    bets = lag.array("directions", "f", (None, None, setting.dimension))[index, stage]
    centres = lag.array("centres", "f", (None, None, setting.places))[index, stage]
    if (unit < 1).any() or (bets <= 0).any() or (centres < low).any() or (centres > high).any():
        raise Rejected("counts, bets or centres of the lag are not possible")
    rounds = int(counts[0] // unit[0])
    if rounds < 1 or (counts != rounds * unit).any():
        return np.full(setting.dimension, side * inf)
    means = sums / counts
    spread = np.maximum(squares / counts - 2 * centres * means + centres**2, 0.0)
    reach = (np.abs(c) * ((high - low) / unit)).max(axis=1)
    total = (c**2) @ (spread / unit)
    x = bets * reach
    allowed = np.where(x < 1, x, 0.5)
    psi = np.where(allowed < 1e-6, 0.5, (-np.log1p(-allowed) - allowed) / np.maximum(allowed, 1e-6) ** 2)
    wide = np.where(x < 1, level / rounds / bets + bets * psi * total, inf)
    return np.asarray(c @ means + side * wide)


def _bracket(setting: Setting, plus: _Function, minus: _Function, upper: Floats, lower: Floats) -> tuple[float, Floats]:
    """Return ε, and what is added to V⁺ and subtracted from V⁻ at each stage, (2, stages): below first."""
    slack = np.empty((2, setting.stages))
    for stage in range(setting.stages):
        above = float((upper[stage] - plus.vectors[stage]).max())
        below = float((minus.vectors[stage] - lower[stage]).max())
        if plus.cut(stage)[1]:
            above = max(above, 0.0)
        if minus.cut(stage)[0]:
            below = max(below, 0.0)
        slack[:, stage] = np.array([below, above]) + ROUNDING * (1.0 + setting.limit(stage))
    slack = slack * setting.limit(0) if setting.discount is not None else np.cumsum(slack[:, ::-1], axis=1)[:, ::-1]
    apart = max(0.0, float((plus.vectors[0] - minus.vectors[0]).max()))
    return max(0.0, apart + float(slack[:, 0].sum())), slack


def _require_vectors(claim: Node, plus: _Function, minus: _Function, slack: Floats) -> None:
    """The policy and the bounds of the claim are those of the candidate."""
    shape = (2, plus.setting.stages, plus.setting.dimension + 1)
    stated = claim.array("vectors", "f", shape)
    if not (np.array_equal(stated[0, :, :-1], minus.vectors) and np.array_equal(stated[1, :, :-1], plus.vectors)):
        raise Rejected("the policy of the claim is not the one that the lag has fixed")
    if (stated[:, :, -1] < slack - 1e-6 * (1 + np.abs(slack))).any():
        raise Rejected("the bounds on values are narrower than what the samples certify")


def check_order(
    requests: list[tuple[int, dict[str, Any]]], answers: list[tuple[int, dict[str, Any]]], proof: Node
) -> None:
    """Raise `Rejected` unless the study's file shows that the lag was fixed before its samples, and has these sums.

    Parameters
    ----------
    requests, answers : lists of (place, content)
        Rows of the journal, in their order.
    proof : Node
    """
    lag = proof.child("lag")
    number, started = lag.whole("number", 1), lag.whole("started", 0)
    decided = {one["decided"]["lag"]["number"]: (place, one) for place, one in requests if "lag" in one["decided"]}
    if number not in decided:
        raise Rejected(f"lag {number} was not decided on in the study's file")
    begin, past = decided[number][0], decided[number][1]["decided"]["lag"]
    told = sum(int(one["counts"].sum()) for place, one in answers if place < begin)
    if told != started or past["started"] != started:
        raise Rejected(f"lag {number} began after {told:,} samples, not after {started:,}")
    fixed = {**past["bets"], "unit": past["unit"], "directions": past["stakes"], "centres": past["centres"]}
    same = past["delta"] == lag.fields["delta"]
    for name, kind in LAG_ARRAYS.items():
        same = same and np.array_equal(fixed[name], lag.array(name, kind, np.shape(fixed[name])))
    if not same:
        raise Rejected(f"what lag {number} rests on is not what was decided when it began")
    end = min((place for place, _ in decided.values() if place > begin), default=inf)
    wanted = int(proof.array("counts", "i", (None, None)).sum())
    totals: dict[str, Any] = {}
    for place, one in answers:
        if begin < place < end and sum(int(part.sum()) for part in [totals.get("counts", np.zeros(1))]) < wanted:
            for name in ("counts", "sums", "squares", "gains"):
                totals[name] = one[name] + totals.get(name, 0)
    for name, kind in (("counts", "i"), ("sums", "f"), ("squares", "f"), ("gains", "f")):
        if name not in totals:
            raise Rejected("the study was told nothing since the lag")
        stated = proof.array(name, kind, np.shape(totals[name]))
        if (np.abs(stated - totals[name]) > _SLACK * (1 + np.abs(totals[name]))).any():
            raise Rejected(f"{name} of the proof are not those that the study was told since the lag")
