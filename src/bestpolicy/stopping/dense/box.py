"""Lemma N: where the parameter of a policy's values lies, by bets on as many directions as it has dimensions.

Letters are those of `bets`. The samples since a lag, with b_i = φ_i/u_i (in the block of their stage), have the noise
S = Σ b_iη_i(ξ^π), and x = G⁻¹S is the error vector of `propagation`: ξ^π = ξ̂ - Jx. Theorem P confines S to an
ellipsoid, from bounds on the variance of each pair: with few samples of many pairs these are crude, and one pair that
is hardly known widens all directions. Bets use squares that were seen, and each direction pays for itself.

**Fixed by the lag**: vectors a_1, …, a_D, D = stages·d, each in the block of one stage, and sizes s_1, …, s_m
> 0 of each.

**Lemma N.** Let α ∈ (0, 1), and let R_i ≥ |ζ_i(ξ^π)| be bounds that may be known later only. With probability
at least 1 - α, at all times, for all directions a and for those of its sizes s with s|aᵀb_i|R_i < 1 for all i,

    |aᵀS| ≤ l/s + s Σ_i ψ(s|aᵀb_i|R_i)(aᵀb_i)² ζ_i(ξ^π)²,        l = log(2Dm/α).

*Proof.* Lemma E (`theorem_i`) with τ = ∓s·aᵀb_i, a predictable number, and the true range of ζ_i in the place of R_i:
the product over the samples of exp(±s·aᵀb_iη_i - ψτ²ζ_i²), bets being 0 from the first sample on at which s|aᵀb|R ≥
1, is a non-negative supermartingale that starts at 1. By Ville's inequality it exceeds 2Dm/α at some time with
probability at most α/(2Dm); there are 2Dm of these. ψ increases, so larger R_i only weaken the bound, and if
s|aᵀb_i|R_i < 1 with these no bet was set to 0. ∎

**In use.** Given a set C that holds ξ^π (Theorem P's, or what this lemma has said before: all on the same events),
ranges R̄ and Σζ(ξ)² ≤ (√Σζ(ξ̂)² + √drift)² by batch and pair follow (`nuisance`), and Lemma N gives |a_iᵀS| ≤
h_i: a box of S, and so a parallelepiped of ξ^π. Then vᵀξ^π is known up to ‖vᵀB‖₁, B = JG⁻¹A⁻ᵀdiag(h), A with the
columns a_i. What has become smaller makes the next round's box smaller. ψ(x) = 1/2 + x/3 + x²/4 + x³/5 + Σ_{n≥4}
xⁿ/(n+2) ≤ … + x⁴/(6(1 - x̄)) for x ≤ x̄ < 1: as |aᵀφ_k| is the same in all batches, powers of it times sums by pair say
what all batches together cost.

**The least functional.** min {ℓᵀz: |z_i| ≤ 1, yᵀz ≥ t} = max over μ ≥ 0 of μt - ‖ℓ - μy‖₁ (duality of linear
programmes; each μ gives a lower bound: ℓᵀz ≥ ℓᵀz - μ(yᵀz - t) ≥ μt - ‖ℓ - μy‖₁). The right side is concave, piecewise
linear in μ, with kinks at 0 and ℓ_i/y_i, so it suffices to look there; there is no such z if t > ‖y‖₁.

**Rounding.** aᵀS is never formed: h bounds it from sums of squares, with relative room. What keeps Gx = S from holding
exactly is the `rounding` of Theorem P, which moves advantages and values by its margins. G⁻¹ and directions y have
relative errors of at most ε' in norm; for z in the unit cube ‖Bz‖ ≤ √D‖B‖, and ‖yᵀB‖₁ ≥ ‖y‖/‖B⁻¹‖, so what
that adds to |yᵀBz| is at most ε'√D‖B‖‖B⁻¹‖ of ‖yᵀB‖₁, by which B is enlarged.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, log
from typing import TYPE_CHECKING

import numpy as np

from bestpolicy._numerics.arrays import FloatArray, IntArray, by_stage

if TYPE_CHECKING:
    from bestpolicy.stopping.dense.nuisance import Spread, Surroundings

BOLDEST = 0.9  # of |τ|R̄
LARGEST = 400  # stages·d up to which there is a box
_ROOM = 1e-12  # relative, for the rounding of sums of positive numbers
_SERIES = (1 / 2, 1 / 3, 1 / 4, 1 / 5)  # of ψ
_KINKS = 64  # that are looked at
_LARGEST_GROWTH = 1.05  # for rounding; beyond it there is no box


@dataclass(frozen=True, eq=False)
class Frame:
    """What a lag fixes for Lemma N.

    Attributes
    ----------
    vectors : array (stages, d, d)
        a_i of each stage, in columns; none if stages·d is too large.
    sizes : array (m, stages, d)
        s of each.
    """

    vectors: FloatArray
    sizes: FloatArray

    def half_widths(self, spreads: list[Spread], failure: float) -> FloatArray:
        """h, (stages, d): what |aᵀS| is at most; inf where every size is too bold."""
        nats = log(2 * self.sizes.size / failure)
        first = spreads[0].entry.tally
        pairs = np.unique(np.concatenate([spread.entry.tally.pairs for spread in spreads]))
        sampled = np.empty((len(pairs), self.vectors.shape[1]))
        reach, sums = np.zeros((first.shape[0], len(pairs))), np.zeros((len(_SERIES) + 1, first.shape[0], len(pairs)))
        for spread in spreads:
            entry = spread.entry
            place = np.searchsorted(pairs, entry.tally.pairs)
            sampled[place] = entry.bets.sampled
            own = np.where(entry.tally.pulls > 0, np.maximum(spread.up, spread.down), 0.0) / entry.weights
            reach[:, place] = np.maximum(reach[:, place], own)
            squares = (np.sqrt(spread.squares) + np.sqrt(spread.drifts)) ** 2 / entry.weights**2
            for total in sums:  # Σζ²(R/u)ⁿ/u², n = 0, 1, …
                total[:, place] += squares
                squares = squares * own
        along = np.abs(sampled @ self.vectors)  # |aᵀφ|, (stages, K, d)
        bold = self.sizes * (along * reach[:, :, None]).max(axis=1)
        inside = np.minimum(bold, BOLDEST)
        factors = [*(self.sizes**power * term for power, term in enumerate(_SERIES)), self.sizes ** len(_SERIES)]
        factors[-1] = factors[-1] / ((len(_SERIES) + 2) * (1 - inside))
        costs, power = np.zeros(self.sizes.shape), along**2
        for factor, total in zip(factors, sums, strict=True):
            costs += factor * (total[:, None, :] @ power)[:, 0]
            power *= along
        costs = np.where(bold < BOLDEST, costs, inf)
        widths: FloatArray = (nats / self.sizes + self.sizes * costs).min(axis=0) * (1 + _ROOM)
        return widths


@dataclass(frozen=True, eq=False)
class Box:
    """Where ξ^π lies by Lemma N.

    Attributes
    ----------
    pulled : array (stages, d, d)
        G⁻¹A⁻ᵀdiag(h) of each stage.
    root : array (stages, d, stages·d)
        B for functionals of the ξ of the stage that follows.
    """

    pulled: FloatArray
    root: FloatArray

    @classmethod
    def of(cls, around: Surroundings, frame: Frame, spreads: list[Spread], failure: float) -> Box | None:
        """Make the box that a set around ξ^π allows; None if there is no frame, or too much rounding."""
        if not frame.vectors.size:
            return None
        model = around.model
        widths = np.minimum(frame.half_widths(spreads, failure), around.widths(model.gram @ frame.vectors))
        pulled = model.gram_inverse @ np.linalg.inv(frame.vectors).swapaxes(1, 2) * widths[:, None, :]
        back = (frame.vectors / widths[:, None, :]).swapaxes(1, 2) @ model.gram
        condition = float(np.linalg.norm(pulled) * np.linalg.norm(back, axis=(1, 2)).max()) * np.sqrt(widths.size)
        growth = 1 + (around.rounding.response + model.defect + _ROOM) * condition
        if not growth < _LARGEST_GROWTH:
            return None
        pulled *= growth
        return cls(pulled, around.propagation.following(around.propagation.spread_out(pulled)))

    def answered(self, functionals: FloatArray) -> FloatArray:
        """Functionals of x, (n, stages, d), as functionals of a unit cube, (n, stages·d)."""
        found: FloatArray = by_stage(functionals, self.pulled)
        return found.reshape(len(found), -1)


class LeastInBox:
    """The least ℓᵀz over |z_i| ≤ 1 and yᵀz ≥ t, for many (y, ℓ) (n, D) at once."""

    def __init__(self, directions: FloatArray, functionals: FloatArray) -> None:
        with np.errstate(divide="ignore", invalid="ignore"):
            kinks = functionals / directions
        kinks = np.sort(np.where(np.isfinite(kinks) & (kinks > 0), kinks, 0.0), axis=1)
        if kinks.shape[1] > _KINKS:
            kinks = kinks[:, np.linspace(0, kinks.shape[1] - 1, _KINKS).astype(int)]
        self.slopes = np.concatenate([np.zeros((len(kinks), 1)), kinks], axis=1)
        self.norms = np.empty(self.slopes.shape)
        for place, slope in enumerate(self.slopes.T):
            self.norms[:, place] = np.abs(functionals - slope[:, None] * directions).sum(axis=1)
        self.norms *= 1 + _ROOM
        self.width = np.abs(directions).sum(axis=1) * (1 + _ROOM)

    def over(self, start: FloatArray, some: IntArray | slice = slice(None)) -> FloatArray:
        """For t (n,), of some of them; +inf where no z has yᵀz ≥ t."""
        bound: FloatArray = (self.slopes[some] * start[:, None] - self.norms[some]).max(axis=1)
        return np.where(start > self.width[some], inf, bound)

    def with_more(self, other: LeastInBox) -> LeastInBox:
        """Return these and then those of another one."""
        both: LeastInBox = object.__new__(LeastInBox)
        for name, mine in vars(self).items():
            setattr(both, name, np.concatenate([mine, getattr(other, name)]))
        return both
