"""How one error vector moves the values of the estimated model.

The truth solves the estimated model with another reward: with x_h = θ̂_h - θ_h + γ(μ̂_h - μ_h)ᵀV*_{h+1},

    Q*_h = Φ(θ̂_h - x_h) + γP̂_h V*_{h+1}        (exactly; discounted: one stage that follows itself).

So for a policy π everything is linear in x. Discounted: with K = μ̂ᵀΦ_π and J = (I - γK)⁻¹, the value of π in
(θ̂ - x, P̂) is V_x = Φ_πJ(θ̂ - x), and V_x - Q_x(s,a) = Δ̂(s,a) + yᵀx, y(s,a) = Jᵀ(φ(s,a) - φ(s,π(s))). A
bound |vᵀx| ≤ √(vᵀMv) for all v therefore becomes √(cᵀM̃c) for c = φ(s,a) - φ(s,π(s)), with the *pulled-back*
metric

    M̃ = J M Jᵀ,        episodic: M̃_h = M_h + K_h M̃_{h+1} K_hᵀ,   K_h = μ̂_hᵀΦ_{π_{h+1}},

a d×d matrix a stage, whatever the number of states.

Along the constant functions J is as large as 1/(1-γ), which differences of features do not see, but products with M̃
would: their squares cancel. So where there is one stage, directions y are formed one by one and measured in M itself.

What is not linear, ω = V* - V_x, obeys ω(s) = max_a{adv(s,a) + γ p̂ω} with adv ≤ ρ, hence |ω| ≤ W for the
fixed point W of the monotone map F(v) = max_a{ρ + γ|P̂|v}. P̂ may have negative entries; F is a contraction
if γ max_a|P̂|h < h for some h > 0. Iteration approaches W from below, which proves nothing, so what is
returned is a *super-solution*, F(W) ≤ W checked elementwise in floating point, with room for the rounding of that
check: it lies above the fixed point.

Size. |P̂|v = P̂v + 2P̂⁻v, and P̂v = Φ(μ̂ᵀv) is d-dimensional. |P̂| is formed only while it is small; else one
pass over the rows measures the negative mass n(s,a) = ‖p̂⁻‖₁, and |P̂|v ≤ Φ(μ̂ᵀv) + 2n·max v serves (an upper
bound on F keeps super-solutions valid).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import inf

import numpy as np

from bestpolicy._numerics.arrays import FloatArray, IntArray
from bestpolicy._numerics.reproducible import EPS
from bestpolicy.problem import Problem
from bestpolicy.stopping.rounding import coordinates_of

_DENSE_STATES = 200  # states up to which |P̂| is kept and systems of that size are solved
_CHUNK = 1_000_000  # entries at a time: they stay in the cache
_RUN = 64  # numbers that are added up in single precision
_SAFETY = 1e-9  # relative distance that strict inequalities have to keep from rounding
_MAX_IMPROVEMENTS = 30
_HOPELESS = 1e150  # bounds on values beyond it say nothing, and their squares would overflow


class EstimatedKernel:
    """Products with P̂ and |P̂|.

    Parameters
    ----------
    problem : Problem
    mu : array (stages, S, d)
        μ̂.
    """

    def __init__(self, problem: Problem, mu: FloatArray) -> None:
        self.problem = problem
        self.mu = mu
        self._features = problem.features.reshape(-1, problem.dimension)
        stages, pairs = problem.stages, len(self._features)
        # A product of d terms is off by less than (d+1)ε|φ|ᵀ|μ̂(s')|, and a sum over s' by as much again.
        sizes = np.linalg.norm(np.abs(mu).sum(axis=1), axis=1)
        self._unit = (problem.states + problem.dimension + 8) * EPS * (1 + coordinates_of(problem).longest * sizes)
        signed = self._features @ mu.swapaxes(1, 2) if problem.states <= _DENSE_STATES else None
        self._dense = None if signed is None else np.abs(signed)
        if (self._features >= 0).all() and (mu >= 0).all():
            mass = np.zeros((stages, pairs))
        elif signed is not None:
            mass = np.clip(-signed, 0.0, None).sum(axis=2) + self._unit[:, None]
        else:
            mass = self._measured_mass()
        self.negative_mass = np.where(problem.mask, mass.reshape(stages, *problem.mask.shape), 0.0)

    def _measured_mass(self) -> FloatArray:
        """Negative mass of every row or a little more, in one pass that keeps no row.

        It is half of what Σ|p̂| exceeds Σp̂ by. Single precision takes half the time, and its errors are bounded: a
        product of d terms is off by less than (d+3)·u·|φ|ᵀ|μ̂(s')| (rounding of the factors included), and a sum of
        `_RUN` numbers by less than `_RUN`·u of itself; runs are added up in double precision.

        A discounted problem with γn ≥ 1 in one row does not contract, as γ(p̂h + 2n·max h) ≥ γn·max h ≥ h(s) for all h
        > 0: then the rest is not measured, and infinite.
        """
        stages, pairs, states = self.problem.stages, len(self._features), self.problem.states
        unit = float(np.finfo(np.float32).eps)
        features, ones = self._features.astype(np.float32), np.ones(_RUN, np.float32)
        runs = -(-states // _RUN)
        mu = np.zeros((self.problem.dimension, runs * _RUN), np.float32)
        mass = np.empty((stages, pairs))
        step = max(1, _CHUNK // mu.shape[1])
        room = np.empty((step, mu.shape[1]), np.float32)  # asking for memory again and again would take as long
        for stage in range(stages):
            mu[:, :states] = self.mu[stage].T
            errors = np.abs(self._features) @ np.abs(self.mu[stage]).sum(axis=0)
            sums = self._features @ self.mu[stage].sum(axis=0) - self._unit[stage]
            beyond = (self.problem.dimension + 3) * unit * errors - sums
            for start in range(0, pairs, step):
                some = slice(start, start + step)
                rows = np.matmul(features[some], mu, out=room[: len(features[some])])
                np.abs(rows, out=rows)
                sizes = (rows.reshape(-1, _RUN) @ ones).reshape(-1, runs).sum(axis=1, dtype=np.float64)
                mass[stage, some] = np.maximum((1 + _RUN * unit) * sizes + beyond[some], 0.0) / 2
                if self.problem.horizon is None and self._hopeless(mass[stage, some], some):
                    return np.full((stages, pairs), inf)
        return mass

    def _hopeless(self, mass: FloatArray, some: slice) -> bool:
        """Whether one of some pairs, if it is allowed, has too much negative mass for a contraction."""
        largest = np.where(self.problem.mask.ravel()[some], mass, 0.0).max()
        return bool(self.problem.continuation * largest >= 1)

    def expected(self, stage: int, values: FloatArray) -> FloatArray:
        """P̂v, (S, A)."""
        expected: FloatArray = self._features @ (self.mu[stage].T @ values)
        return expected.reshape(self.problem.mask.shape)

    def absolute(self, stage: int, values: FloatArray) -> FloatArray:
        """|P̂|v or an upper bound on it, (S, A), for v ≥ 0."""
        if self._dense is not None:
            product: FloatArray = self._dense[stage] @ values
            return product.reshape(self.problem.mask.shape)
        bound: FloatArray = self.expected(stage, values) + 2 * self.negative_mass[stage] * values.max()
        return bound

    def _solved(self, actions: IntArray, gains: FloatArray) -> FloatArray:
        """v = gain + γ|P̂|v along one action per state (discounted), roughly; any answer is checked by the caller.

        Raises
        ------
        numpy.linalg.LinAlgError
            If there is none, as far as can be seen.
        """
        gamma, states = self.problem.continuation, np.arange(self.problem.states)
        if self._dense is not None:
            rows = self._dense[0].reshape(*self.problem.mask.shape, -1)[states, actions]
            return np.linalg.solve(np.eye(len(states)) - gamma * rows, gains)
        chosen = self.problem.features[states, actions]
        columns = np.column_stack([gains, 2 * gamma * self.negative_mass[0, states, actions]])
        system = np.eye(self.problem.dimension) - gamma * (self.mu[0].T @ chosen)
        response = columns + gamma * chosen @ np.linalg.solve(system, self.mu[0].T @ columns)
        if not response[:, 1].max() < 1:  # what follows would only grow
            raise np.linalg.LinAlgError("negative mass feeds on itself")
        largest = 0.0
        for _ in range(20):
            largest = float((response[:, 0] + largest * response[:, 1]).max())
        return response[:, 0] + largest * response[:, 1]

    def backup(self, stage: int, gains: FloatArray, values: FloatArray) -> FloatArray:
        """Gains + γ|P̂|v per pair, (S, A); -inf where the action is not allowed."""
        total = gains + self.problem.continuation * self.absolute(stage, values)
        return np.where(self.problem.mask, total, -np.inf)

    def _rounding(self, stage: int, gain: float, values: FloatArray) -> float:
        """By how much a backup of values may be off, if no gain is larger than `gain`."""
        return float(self._unit[stage] * values.max() + 4 * EPS * gain)

    @property
    def contracts(self) -> bool:
        """Whether super-solutions are sure to exist: always if episodic."""
        return self.problem.horizon is not None or self.contraction is not None

    @cached_property
    def contraction(self) -> tuple[FloatArray, FloatArray] | None:
        """h > 0 and h - γ max_a|P̂|h > 0 or less, (S,) each, of a discounted problem; None if none is found."""
        if not np.isfinite(self.negative_mass).all():
            return None
        nothing = np.zeros(self.problem.mask.shape)
        weights = np.ones(self.problem.states)
        for _ in range(_MAX_IMPROVEMENTS):
            q_values = self.backup(0, nothing, weights)
            shrunk = q_values.max(axis=1) + self._rounding(0, 0.0, weights)
            if (shrunk < (1 - _SAFETY) * weights).all():
                return weights, weights - shrunk
            try:
                improved = self._solved(q_values.argmax(axis=1), np.ones(self.problem.states))
            except np.linalg.LinAlgError:
                return None
            if not (np.isfinite(improved).all() and improved.min() > 0):
                return None
            weights = improved
        return None

    def super_solution(self, gains: FloatArray) -> FloatArray | None:
        """V ≥ 0, (stages, S), with V ≥ max_a{gains (stages, S, A) + γ|P̂|V of the next stage}, checked; else None."""
        largest = float(np.abs(gains[:, self.problem.mask]).max())
        if self.problem.horizon is not None:
            values = np.zeros((self.problem.stages + 1, self.problem.states))
            allowed = np.where(self.problem.mask, gains, -np.inf)
            after = values[-1]
            for stage in reversed(range(self.problem.stages)):
                top = float(after.max())
                if not top < _HOPELESS:  # the next products might overflow; nobody is helped by such a bound
                    return None
                best = (allowed[stage] + self.absolute(stage, after)).max(axis=1)
                room = float(self._unit[stage]) * top + 4 * EPS * largest if top > 0 else 0.0
                after = values[stage]
                np.multiply(np.maximum(best + room, 0.0), 1 + _SAFETY, out=after)
            return values[:-1]
        if not np.isfinite(largest) or self.contraction is None:
            return None
        weights, shrinkage = self.contraction
        values = self._improved(gains[0])
        for _ in range(3):
            missing = self.backup(0, gains[0], values).max(axis=1) - values
            room = self._rounding(0, largest, values) if values.max() > 0 else 0.0  # with zeros there is no rounding
            if (missing + room <= 0).all():
                return values[None]
            # F(v + c·h) ≤ F(v) + c·γ max|P̂|h, so this c closes what is missing at every state, and as much room again.
            room = self._rounding(0, largest, values)
            values = values + float(((missing + 2 * room) / shrinkage).max()) * (1 + _SAFETY) * weights
        return None

    def negative_parts(self, policy: IntArray, largest: FloatArray, rows: FloatArray) -> FloatArray:
        """Bounds on max(-ω) at each stage, (stages,), given |ω| ≤ `largest` and row sums of P̂ within `rows` of 1.

        ω(s) ≥ γp̂(s,π)ω, so ω⁻ ≤ γ|p̂|ω⁻ + γp̂⁻|ω|: zero if P̂ ≥ 0, and small with the negative mass of the played rows.
        """
        mass = self.played_mass(policy)
        if self.problem.horizon is None:
            assert self.contraction is not None
            weights, shrinkage = self.contraction
            ratio = float((mass[0] / shrinkage).max()) * float(weights.max())
            return np.minimum(largest, (1 + _SAFETY) * self.problem.continuation * ratio * largest)
        parts = np.zeros(self.problem.stages)
        added, total = mass[:-1] * largest[1:, None], 1 + 2 * mass + rows[:, None]
        for stage in reversed(range(self.problem.stages - 1)):
            # Larger ones than `largest` are of no use, and might overflow.
            parts[stage] = min((added[stage] + total[stage] * parts[stage + 1]).max(), _HOPELESS)
        return np.minimum(largest, (1 + _SAFETY) * parts)

    def played_mass(self, policy: IntArray) -> FloatArray:
        """Negative mass of the rows that a policy plays, (stages, S)."""
        mass: FloatArray = np.take_along_axis(self.negative_mass, policy[:, :, None], axis=2)[:, :, 0]
        return mass

    def _improved(self, gains: FloatArray) -> FloatArray:
        """Approximate fixed point of v = max_a{gains + γ|P̂|v}, clipped at 0, by policy iteration (discounted)."""
        everywhere = np.arange(self.problem.states)
        values = np.zeros(self.problem.states)
        actions = self.backup(0, gains, values).argmax(axis=1)
        for _ in range(_MAX_IMPROVEMENTS):
            try:
                values = np.clip(self._solved(actions, gains[everywhere, actions]), 0.0, None)
            except np.linalg.LinAlgError:
                break
            better = self.backup(0, gains, values).argmax(axis=1)
            if (better == actions).all():
                break
            actions = better
        return values


@dataclass(frozen=True, eq=False)
class Propagation:
    """A policy's linear response to the error vector, in the estimated model.

    Attributes
    ----------
    policy : int array (stages, S)
    values : array (stages, S)
        V̂ = Φ_πξ̂ of the policy, not clipped.
    q_values : array (stages, S, A)
        Q̂ = Φξ̂.
    played : array (stages, S, d)
        φ(s, π(s)).
    parameters : array (stages, d)
        ξ̂.
    """

    problem: Problem
    policy: IntArray
    values: FloatArray
    q_values: FloatArray
    played: FloatArray
    parameters: FloatArray
    _links: FloatArray  # J (1, d, d), or K_h (H, d, d)
    _system: FloatArray | None  # I - γK (d, d) if discounted

    def following(self, staged: FloatArray) -> FloatArray:
        """Shift an array (stages, …) to the stage that follows: zeros after an episode, itself if discounted."""
        if self.problem.horizon is None:
            return staged
        return np.concatenate([staged[1:], np.zeros_like(staged[:1])])

    def directions(self, stages: IntArray, vectors: FloatArray) -> FloatArray:
        """What the values of vectors (n, d) at their stages (n,), in order, depend on: y, (n, stages, d)."""
        if self.problem.horizon is None:
            response: FloatArray = vectors @ self._links[0]
            return response[:, None, :]
        found = np.zeros((len(vectors), self.problem.stages, self.problem.dimension))
        before = 0
        for stage, begun in enumerate(np.searchsorted(stages, np.arange(self.problem.stages), side="right")):
            found[before:begun, stage] = vectors[before:begun]
            if begun and stage + 1 < self.problem.stages:  # all that have begun go on together
                found[:begun, stage + 1] = found[:begun, stage] @ self._links[stage]
            before = begun
        return found

    def moved(self, root: FloatArray) -> FloatArray:
        """What a root A of carried metrics, (stages, d, d), is for vectors that stand for functionals of ξ."""
        moved: FloatArray = self._links @ root if self.problem.horizon is None else root
        return moved

    def spread_out(self, blocks: FloatArray) -> FloatArray:
        """What blocks (stages, d, n) of the reward parameters do to ξ, stage by stage, (stages, d, stages·n)."""
        stages, dimension, width = blocks.shape
        if self.problem.horizon is None:
            moved: FloatArray = self._links @ blocks
            return moved
        found = np.zeros((stages, dimension, stages, width))
        for stage in reversed(range(stages)):
            found[stage, :, stage] = blocks[stage]
            if stage + 1 < stages:
                found[stage] += np.tensordot(self._links[stage], found[stage + 1], 1)
        return found.reshape(stages, dimension, stages * width)

    def preceding(self, functionals: FloatArray) -> FloatArray:
        """Put functionals of the ξ of the stage that follows, (n, stages, d), where that ξ is."""
        if self.problem.horizon is None:
            return functionals
        return np.concatenate([np.zeros_like(functionals[:, :1]), functionals[:, :-1]], axis=1)

    def answered(self, functionals: FloatArray) -> FloatArray:
        """What functionals of ξ, (n, stages, d), are as functionals of the reward parameters: Jᵀb, (n, stages, d)."""
        if self.problem.horizon is None:
            flat: FloatArray = functionals.reshape(-1, functionals.shape[2]) @ self._links[0]
            return flat.reshape(functionals.shape)
        found = functionals.copy()
        for stage in range(self.problem.stages - 1):
            found[:, stage + 1] += found[:, stage] @ self._links[stage]
        return found

    @cached_property
    def gap_directions(self) -> FloatArray:
        """Differences φ(s,a) - φ(s,π(s)), (stages, S, A, d), as `carried` metrics want them: y if discounted."""
        return self._moved(self.problem.features[None] - self.played[:, :, None, :])

    @cached_property
    def value_directions(self) -> FloatArray:
        """φ(s,π(s)) minus its mean over the states, (stages, S, d), as `carried` metrics want them."""
        return self._moved(self.played - self.played.mean(axis=1, keepdims=True))

    def as_directions(self, moments: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Second moments (stages, n, d, d) of features of the stage that follows, as those of directions.

        With what their sizes are multiplied by on the way, (stages,), squared: rounding is relative to that.
        """
        if self.problem.horizon is not None:
            return moments, np.ones(len(moments))
        found: FloatArray = self._links[0].T @ moments @ self._links[0]
        return found, np.array([self._response_size**2])

    def _moved(self, vectors: FloatArray) -> FloatArray:
        return vectors @ self._links[0] if self.problem.horizon is None else vectors

    def carried(self, metrics: FloatArray) -> FloatArray:
        """Metrics (m, stages, d, d) that measure what x does along directions of this class, the same shape.

        Discounted: M itself, for directions y. Episodic: M̃, for differences of features, with room for its rounding.
        """
        if self.problem.horizon is None:
            return metrics
        pulled = self.pulled_back(metrics)
        dimension = metrics.shape[-1]
        growth = 1 + self._response_size**2 * max(1.0, float((self._links**2).sum(axis=(1, 2)).max()))
        room = (4 * dimension + 8) * EPS * growth * np.trace(pulled, axis1=2, axis2=3).max(axis=1)
        safe: FloatArray = pulled + room[:, None, None, None] * np.eye(dimension)
        return safe

    @cached_property
    def _response_size(self) -> float:
        """‖J‖ over all stages, in the Frobenius norm."""
        if self.problem.horizon is None:
            return float(np.linalg.norm(self._links[0]))
        identity = np.broadcast_to(np.eye(self.problem.dimension), self._links.shape)[None]
        return float(np.sqrt(np.trace(self.pulled_back(identity), axis1=2, axis2=3).sum()))

    def residuals(self, theta: FloatArray, mu: FloatArray, sizes: FloatArray) -> FloatArray:
        """Bounds on ‖θ̂ + γμ̂ᵀV̂ - ξ̂‖, (stages,), for V̂ as it was computed; `sizes` are ‖Σ_s|μ̂(s)|‖."""
        gamma, ahead = self.problem.continuation, self.following(self.values)
        rest = theta + gamma * (ahead[:, None, :] @ mu)[:, 0] - self.parameters
        lengths = np.linalg.norm(theta, axis=1) + np.linalg.norm(self.parameters, axis=1)
        lengths = lengths + gamma * sizes * np.abs(ahead).max(axis=1)
        bounds: FloatArray = np.linalg.norm(rest, axis=1) + (self.problem.states + 6) * EPS * lengths
        return bounds

    def response_error(self, sizes: FloatArray) -> float:
        """r ≥ ‖y - y'‖/‖y'‖ for the exact directions y and those of this object, y'."""
        problem, unit = self.problem, (self.problem.states + 4) * EPS
        # K is a product of S terms; the largest entry of each feature bounds what they can be off by.
        products = unit * sizes * self.following(np.linalg.norm(np.abs(self.played).max(axis=1), axis=1))
        defect = problem.continuation * float(products.max()) * self._response_size
        if self._system is not None:
            rest = np.eye(problem.dimension) - self._system @ self._links[0]
            solved = (2 * problem.dimension + 6) * EPS * float(np.linalg.norm(self._system)) * self._response_size
            defect += float(np.linalg.norm(rest)) + solved
        return defect / (1 - defect) if defect < 1 else inf

    def pulled_back(self, metrics: FloatArray) -> FloatArray:
        """M̃ for metrics M (m, stages, d, d), same shape."""
        links = self._links
        if self.problem.horizon is None:
            pulled: FloatArray = links @ metrics @ links.swapaxes(1, 2)
            return pulled
        result = metrics.copy()
        for stage in reversed(range(self.problem.stages - 1)):
            result[:, stage] += links[stage] @ result[:, stage + 1] @ links[stage].T
        return result


def propagate(problem: Problem, theta: FloatArray, mu: FloatArray, policy: IntArray) -> Propagation | None:
    """Evaluate a policy (stages, S) in the model (θ̂, μ̂); None if I - γK is singular."""
    played = problem.features[np.arange(problem.states), policy]
    parameters = np.empty((problem.stages, problem.dimension))
    system = None
    if problem.horizon is None:
        system = np.eye(problem.dimension) - problem.continuation * (mu[0].T @ played[0])
        if not np.linalg.cond(system) < 1e10:
            return None
        links = np.linalg.inv(system)[None]
        parameters[0] = np.linalg.solve(system, theta[0])
    else:
        links = np.zeros((problem.stages, problem.dimension, problem.dimension))
        links[:-1] = mu[:-1].swapaxes(1, 2) @ played[1:]
        parameters[-1] = theta[-1]
        for stage in reversed(range(problem.stages - 1)):
            parameters[stage] = theta[stage] + links[stage] @ parameters[stage + 1]
    return Propagation(
        problem=problem,
        policy=policy,
        values=np.einsum("hsd,hd->hs", played, parameters),
        q_values=(parameters @ problem.features.reshape(-1, problem.dimension).T).reshape(-1, *problem.mask.shape),
        played=played,
        parameters=parameters,
        _links=links,
        _system=system,
    )
