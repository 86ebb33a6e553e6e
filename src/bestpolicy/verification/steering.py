"""How bets of Theorem I were turned, recomputed batch by batch: files of version 6 on. `intersection` says by what."""

from __future__ import annotations

import numpy as np

from bestpolicy.verification.bets import Batch
from bestpolicy.verification.reading import Floats

USUAL = 2  # size that bets are turned for
_AHEAD = 0.2  # share of all samples so far that is expected to rest on a batch's bets
_STEERED = 200_000  # stakes of all rivals on all pairs up to which they are turned


class Steering:
    """What bets of earlier batches have left across the rivals' directions, and how the next ones take it back.

    Parameters
    ----------
    most : float
        How far bets may be turned, in terms of their own length.
    started : int
        Samples before the lag.
    stakes : int
        How many there are, of all rivals on all pairs of all stages.
    """

    def __init__(self, most: float, started: int, stakes: int) -> None:
        self.most, self.total = most if stakes <= _STEERED else 0.0, float(started)
        self.left: Floats | None = None
        self.last: tuple[Batch, Floats, Floats] | None = None

    def turned(self, batch: Batch, y: Floats, pulled: Floats, spread: Floats) -> Floats:
        """Return yᵀG⁻¹ of the rivals, (J, stages, d), as it is to be used for a batch."""
        if not self.most or self.last is None:
            return pulled
        before, stakes, sizes = self.last
        own = before.functional(stakes)
        slopes = before.squares_at(batch.following_parameters)[1]
        own -= 0.5 * sizes[:, None, None] * batch.case.placed(np.einsum("jhk,hkd->jhd", stakes**2, slopes))
        self.left = own if self.left is None else self.left + own
        assert batch.precision is not None
        left = batch.answered(self.left)
        moved = np.einsum("jhd,hde->jhe", left, batch.precision)
        along = (moved * y).sum(axis=(1, 2)) / spread
        across = moved - along[:, None, None] * pulled
        square = (across * (left - along[:, None, None] * y)).sum(axis=(1, 2))
        count = _AHEAD * self.total
        length = np.sqrt(np.maximum(square, 0.0) * spread) / count
        found: Floats = pulled - across * (spread * self.most / np.maximum(length, self.most) / count)[:, None, None]
        return found

    def add(self, batch: Batch, stakes: Floats, sizes: Floats) -> None:
        """Take in the stakes (J, stages, K) that a batch had, for size 1, and the usual sizes (J,)."""
        if self.most:
            self.last = batch, stakes.copy(), sizes
            self.total += float(batch.pulls.sum())
