"""How much can be gained along a path, if what is gained in one step is known up to one vector?

Letters are those of `theorem_ud`: pairs k with differences c_k, a kernel m̃ that is known up to W. Let occ ≥ 0 be the
discounted visits of some policy from a state s0 under the true kernel, u = Σ occ_k c_k, and

    loss ≤ Σ occ_k centre_k + |u|_Σ,        Σ occ_k (p_k - φ_kᵀm̃ᵀ)Z ≤ Σ occ_k W_k(Z)  for all Z.

**The net.** Let e_k ∈ R^r be such that |Σ o_k c_k|_Σ ≤ |Σ o_k e_k| for all o ≥ 0, and V_1, …, V_I points whose
convex hull holds the unit ball of R^r. For every i let Z_i be any function and res_i its residual for the gains
centre_k + e_kᵀV_i:  res_i = max_k [centre_k + e_kᵀV_i + g(φ_kᵀm̃ᵀZ_i + W_k(Z_i)) - Z_i(s_k)]. Then

    loss ≤ max_i [max_s Z_i(s) + res_i/(1-g)].

*Proof.* |u|_Σ ≤ |Σ occ_k e_k| = vᵀΣ occ_k e_k for a unit vector v = Σ λ_iV_i, λ_i ≥ 0, Σ λ_i = 1. So the loss is at
most Σ_i λ_i Σ_k occ_k [centre_k + e_kᵀV_i], and each inner sum is at most Σ_k occ_k [Z_i(s_k) - g p_kZ_i + res_i] =
Z_i(s0) + res_i/(1-g), as occ telescopes under the true kernel and sums to 1/(1-g). ∎

**Two nets.** r = 1: e_k = |c_k|_Σ and V = 1, as if widths of a path added up. r = 4: with y_k = Σ^½c_k in an
orthogonal basis, which may be chosen after the look, three coordinates of y_k and the length of the rest of it: |Σ
o_ky_k|² is the squares of three coordinates of the sum, plus the square of the length of the rest of it, which is at
most Σ o_k(length of the rest of y_k). If d ≤ 4 the fourth coordinate takes the place of that length. The points are the
120 vertices of the 600-cell (Coxeter 1963, Regular Polytopes) over its inradius φ²/√8 ≈ 0.926, φ = (1 + √5)/2: here
widths of a path add up as vectors do. Some directions are 8 % longer than they need to be, so the better of both nets
counts. Where the fourth coordinates of all e_k are ≥ 0 points with a negative one are not needed: the points are
symmetric, and reflected ones give larger gains, to which larger bounds belong.

**Ties.** The basis are eigenvectors, those of the three largest eigenvalues first. Whoever computes them again finds
the same ones but where eigenvalues are (nearly) equal. If the third is close to the fourth, there is no second net. If
two of the first three are close, points are taken √8/φ² times as far away: the hull of these holds a ball with all
points of the net turned in any way, and as bounds are convex in the points what others find is not larger.
"""

from __future__ import annotations

from itertools import permutations, product
from math import inf, sqrt

import numpy as np

from bestpolicy._numerics.arrays import FloatArray, IntArray
from bestpolicy.problem import Problem
from bestpolicy.stopping.dense.kernel import Doubt

_GOLDEN = (1 + sqrt(5)) / 2
_IMPROVEMENTS = 12
_TIED = 0.02  # eigenvalues that are closer than that, relatively, might be in another order for somebody else
_GROWTH = sqrt(8) / _GOLDEN**2  # of the points: then they hold all points of the same net in any position
_ENTRIES = 1_000_000  # of points, states and actions, up to which there is a net
_NEARER = 1.4  # times what is enough: within that a net is tried that takes long
_WORK = 300_000_000  # products of numbers after which planning ends


def _vertices() -> FloatArray:
    """Return the vertices of the 600-cell over its inradius, (120, 4)."""
    found = [sign * row for row in np.eye(4) for sign in (1.0, -1.0)]
    found += [np.array(signs) / 2 for signs in product((1.0, -1.0), repeat=4)]
    for order in permutations(range(4)):
        if np.linalg.det(np.eye(4)[list(order)]) > 0:  # even ones only
            rows = [np.array([a * _GOLDEN, b, c / _GOLDEN, 0]) / 2 for a, b, c in product((1, -1), repeat=3)]
            found += [row[list(order)] for row in rows]
    return np.array(found) / (_GOLDEN**2 / sqrt(8))


VERTICES = _vertices()


def path_bound(
    problem: Problem,
    centre: FloatArray,
    form: FloatArray,
    differences: FloatArray,
    place: tuple[IntArray, IntArray],
    law: FloatArray,
    doubt: Doubt,
    enough: float,
) -> float:
    """Return the better bound of both nets on what is gained along a path.

    Parameters
    ----------
    problem : Problem
    centre : array (J,)
        Gains of the rivals but for |u|_Σ; those of π's own pairs are 0.
    form : array (d, d)
        Σ.
    differences : array (J, d)
    place : (states, actions) of the rivals
    law : array (S, d)
        m̃.
    doubt : Doubt
        W.
    enough : float
        If the first net is within this, or at more than twice this (less where it takes long), the second is not
        looked at.
    """
    values, vectors = np.linalg.eigh(form)
    rows = differences @ (vectors * np.sqrt(np.clip(values, 0.0, None)))  # y, up to a rotation
    lengths = np.sqrt((rows**2).sum(axis=1)) * (1 + 1e-9)
    planning = Planning(problem, law, doubt)
    simple = planning.largest(_gains(problem, place, (centre + lengths)[None]))
    # What one step for all points takes says how near the first net has to be for the second to be worth it.
    step = len(VERTICES) * problem.states * problem.dimension**2
    near = enough * (2.0 if step <= _WORK / 10 else _NEARER if step <= 10 * _WORK else 1.0)
    if not enough < simple <= near or len(VERTICES) * problem.mask.size > _ENTRIES:
        return simple
    points, reduced = VERTICES, np.zeros((len(rows), 4))
    if rows.shape[1] <= 4:
        reduced[:, : rows.shape[1]] = rows
    else:
        weights = np.maximum(centre + lengths, 0.0) / np.maximum(lengths, 1e-300)
        sizes, basis = np.linalg.eigh((rows.T * weights) @ rows)
        largest = sizes[::-1]
        apart = largest[:3] > (1 + _TIED) * largest[1:4]
        if not apart[2]:
            return simple
        turned = rows @ basis[:, ::-1]
        reduced[:, :3] = turned[:, :3]
        reduced[:, 3] = np.sqrt((turned[:, 3:] ** 2).sum(axis=1))
        points = points[points[:, 3] >= 0] * (1.0 if apart[:2].all() else _GROWTH)
    gains = _gains(problem, place, centre + (points @ reduced.T) + 1e-9 * lengths)
    return min(simple, planning.largest(gains, enough))


def _gains(problem: Problem, place: tuple[IntArray, IntArray], rivals: FloatArray) -> FloatArray:
    """Gains of rivals (I, J) as tables (I, S, A), -inf where an action is not allowed."""
    table = np.where(problem.mask, 0.0, -inf)[None].repeat(len(rivals), axis=0)
    table[:, place[0], place[1]] = rivals
    return table


class Planning:
    """Functions Z for a kernel that is in doubt; those of the last tables of gains are where the next begin.

    Parameters
    ----------
    problem : Problem
    law : array (S, d)
    doubt : Doubt
    """

    def __init__(self, problem: Problem, law: FloatArray, doubt: Doubt) -> None:
        self.problem, self.law, self.doubt = problem, law, doubt
        self.values = np.zeros((1, problem.states))

    def largest(self, gains: FloatArray, enough: float = 0.0) -> float:
        """The largest over tables of gains (I, S, A) of the least max Z + res/(1-g) that it finds; not below 0.

        Tables for which that is not more than `enough` are not looked at any further.
        """
        problem, law, shape = self.problem, self.law, self.problem.mask.shape
        gains = gains[gains.max(axis=(1, 2)) > 0]
        if not len(gains):
            return 0.0
        gamma, states = problem.continuation, np.arange(problem.states)
        limit = float(problem.value_limits[0])
        features, link = problem.features, np.eye(problem.dimension)
        flat = features.reshape(-1, problem.dimension)
        values = np.repeat(self.values, len(gains), axis=0) if len(self.values) == 1 else np.zeros(gains.shape[:2])
        best, left = np.full(len(gains), inf), np.arange(len(gains))
        done = 0
        for _ in range(_IMPROVEMENTS):
            high, low = values.max(axis=1), values.min(axis=1)
            middle, doubted = (high + low) / 2, self.doubt.of(values)
            ahead = (((values - middle[:, None]) @ law) @ flat.T).reshape(-1, *shape) + middle[:, None, None]
            backed_up = gains[left] + gamma * (ahead + doubted)
            residual = (backed_up - values[:, :, None]).max(axis=(1, 2)) + 1e-12 * limit
            best[left] = np.minimum(best[left], high + residual / (1 - gamma))
            go_on = best[left] > enough
            work = int(go_on.sum()) * problem.states * problem.dimension**2
            if not work or (done and done + work > _WORK):
                break
            done += work
            left, values, doubted, backed_up = left[go_on], values[go_on], doubted[go_on], backed_up[go_on]
            actions = backed_up.argmax(axis=2)
            chosen = features[states, actions]  # (I, S, d)
            fixed = gains[left[:, None], states, actions]
            fixed = fixed + gamma * np.take_along_axis(doubted, actions[:, :, None], axis=2)[:, :, 0]
            try:
                linked = np.linalg.solve(link - gamma * (law.T @ chosen), (fixed @ law)[:, :, None])
            except np.linalg.LinAlgError:
                break
            improved = fixed + gamma * (chosen @ linked)[:, :, 0]
            usable = np.isfinite(improved).all(axis=1) & (np.abs(improved).max(axis=1) <= 10 * limit)
            if not usable.any() or np.abs(improved - values)[usable].max() <= 1e-9 * limit:
                break
            values = np.where(usable[:, None], improved, values)
        if len(gains) == 1:
            self.values = values
        return max(float(best.max()), 0.0) * (1 + 1e-9)
