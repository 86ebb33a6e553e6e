"""Were the bets of Theorems I and UD fixed before their batches? What the study's file shows of it.

The first request since the lag holds a snapshot: θ̃, μ̃, variances, shares, and the weights of samples in the
regression. So do later ones where it was renewed; the others go on with the last one before them. It
stands before the answers to the request, so the chain of rows proves the order. A certificate has K̃ = μ̃ᵀΦ_π in
the place of μ̃: that is compared up to rounding, all the rest number by number.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from bestpolicy.verification.case import Case
from bestpolicy.verification.coordinates import Coordinates
from bestpolicy.verification.reading import Floats, Node, Rejected

if TYPE_CHECKING:
    from bestpolicy.verification.journal import Told

_ROUNDING = 1e-9
_ARRAYS = ("sigma", "gamma", "size_shares")
_NUMBERS = ("delta", "bet", "caution", "soonest", "above", "steering")


def require_lag(past: dict[str, Any], document: Node) -> None:
    """All that the certificate's lag has fixed is what was decided when it began."""
    lag, policies = document.child("proof").child("lag"), past["policies"]
    same = past["theorem"] == document.child("claim").fields["theorem"]
    same = same and all(past.get(name, 0.0) == lag.fields.get(name, 0.0) for name in _NUMBERS)
    odds = policies["log_odds"]
    same = same and np.array_equal(policies["favourite"], lag.array("favourite", "i", np.shape(odds)[:2]))
    for name, value in {"log_odds": odds, **{name: past[name] for name in _ARRAYS if name in past}}.items():
        same = same and lag.has(name) and np.array_equal(value, lag.array(name, "f", np.shape(value)))
    spikes, portions = past.get("spikes", np.zeros(0)), past.get("portions", np.ones(1))  # not of older lags
    for name, value, kept in (("spikes", spikes, spikes.size > 0), ("portions", portions, (portions != 1).any())):
        same = same and lag.has(name) == bool(kept)
        if same and kept:
            same = np.array_equal(value, lag.array(name, "f", np.shape(value)))
    for name, kind in (("drawn", "i"), ("frequencies", "f")):
        value = policies.get(name, np.zeros(0))
        same = same and lag.has(name) == (value.size > 0)
        if same and value.size:
            same = np.array_equal(value, lag.array(name, kind, np.shape(value)))
    for name, value in past["frame"].items():
        same = same and np.array_equal(value, lag.child("frame").array(name, "f", np.shape(value)))
    if not same:
        raise Rejected(f"what lag {past['number']} rests on is not what was decided when it began")


def require_batches(document: Node, asked: list[tuple[dict[str, Any], list[Told]]]) -> None:
    """The batches are those that were asked since the lag, each with what had been fixed before it.

    Parameters
    ----------
    document : Node
        The certificate.
    asked : list of (request, answers to it)
        Since the lag was decided, in their order.
    """
    proof = document.child("proof")
    case = Case.read(document.child("problem"))
    policy, features = case.policy(document.child("claim")), Coordinates.read(proof, case).features
    ahead = case.following(features[np.arange(len(features)), policy])
    samples, batches = proof.child("samples"), proof.children("batches")
    pairs = samples.array("pairs", "i", (None,))
    shape = (case.stages, len(pairs))
    if len(asked) < len(batches):
        raise Rejected("the proof has more batches than the study asked for since the lag")
    weighted, squared = np.zeros(shape), np.zeros(shape)
    fixed: dict[str, Any] | None = None
    for batch, (request, answers) in zip(batches, asked, strict=False):
        fixed = request["decided"].get("snapshot", fixed)
        if fixed is None:
            raise Rejected("the file of studies does not show what was fixed before a batch")
        planned, plan = batch.array("planned", "i", shape), request["pulls"]
        same = np.array_equal(plan["pairs"], pairs) and np.array_equal(plan["counts"], planned)
        for name in ("theta", "variances", "shares", "weights"):
            same = same and np.array_equal(fixed[name], batch.array(name, "f", np.shape(fixed[name])))
        links: Floats = fixed["mu"].swapaxes(1, 2) @ ahead
        off = np.abs(batch.array("links", "f", links.shape) - links)
        if not same or (off > _ROUNDING * (1 + np.abs(fixed["mu"]).swapaxes(1, 2) @ np.abs(ahead))).any():
            raise Rejected("what is said to be fixed before a batch is not what the study had fixed")
        _require_answers(batch, answers, pairs, case)
        weighted += planned / fixed["weights"]
        squared += planned / fixed["weights"] ** 2
    if samples.has("weighted"):
        for name, mine in (("weights", weighted), ("weights_squared", squared)):
            stated = samples.child("weighted").array(name, "f", shape)
            if not np.allclose(stated, mine, rtol=_ROUNDING, atol=_ROUNDING):
                raise Rejected("the weights of the samples are not those that were decided on before they were drawn")


def _require_answers(batch: Node, answers: list[Told], pairs: Any, case: Case) -> None:
    """What the batch holds is what was told."""
    states = len(case.features)
    cells, counts = batch.array("cells", "i", (None,)), batch.array("counts", "i", (None,))
    rewards = batch.array("rewards", "f", (len(cells),))
    squares = np.zeros((case.stages, len(pairs)))
    keys = [np.zeros(0, np.int64)]
    for told in answers:
        if not np.isin(told.pairs, pairs).all():
            raise Rejected("the study was told of pairs that the proof does not list")
        keys.append((told.stage * len(pairs) + np.searchsorted(pairs, told.pair)) * states + told.state)
        squares[:, np.searchsorted(pairs, told.pairs)] += told.squares
    known, place = np.unique(np.concatenate(keys), return_inverse=True)
    mine = np.bincount(place, np.concatenate([np.zeros(0), *(told.counts for told in answers)]), len(known))
    if not (np.array_equal(known, cells) and np.array_equal(mine, counts)):
        raise Rejected("a batch of the proof is not what the study was told")
    earned = np.bincount(place, np.concatenate([np.zeros(0), *(told.rewards for told in answers)]), len(known))
    for here, there in ((earned, rewards), (squares, batch.array("squares", "f", squares.shape))):
        if (np.abs(here - there) > _ROUNDING * (1 + np.abs(there))).any():
            raise Rejected("the rewards of a batch are not those that the study was told")
