"""What was found of the fit of a feature map, and what that does to a claim (Theorem M1).

A certificate about states that nobody lists rests on features that are rarely exact: ε grows by 2ζ/(1-γ), or 2Hζ, with
a misfit of ζ. Tests at pairs give a largest error that was *found*, with limits. The upper one says what ε would be if
it were nowhere larger, which no number of pairs shows; the lower one is *shown*: the misfit is as large as that, with
probability 1 - `level`. If that alone moves ε by more than ε, then the claim is in doubt.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from bestpolicy._numerics.arrays import FloatArray
from bestpolicy.features.base import named
from bestpolicy.study.result import at_most
from bestpolicy.verification.claim import MISFIT

NO_TIME = "no time was left for it"  # why a map was not tested; the same call again does


@dataclass(frozen=True, eq=False)
class FeatureMisfit:
    """The largest interpolation error that was found, in your units of reward.

    Attributes
    ----------
    zeta, width : float
        The largest of the confirmed errors (0 if none is positive), and how far its upper limit is above.
    state, action
        Where it was found.
    pairs : int
        How many were tested.
    epsilon, at_zeta : float
        What is certified if features are exact, and if they misfit by no more than zeta + width anywhere.
    shown : float
        Lower limit of the misfit: it is at least as large, somewhere.
    at_shown : float
        What is certified if they misfit by no more than that, which is too little.
    level : float
        Probability, at most, that any of these limits is wrong. It is not part of δ.
    calls : int
        Simulator calls that it took.
    """

    zeta: float
    width: float
    state: FloatArray
    action: int
    pairs: int
    epsilon: float
    at_zeta: float
    shown: float = 0.0
    at_shown: float = 0.0
    level: float = 0.05
    calls: int = 0

    @property
    def in_doubt(self) -> bool:
        """Whether the misfit that is shown moves ε by more than ε."""
        return self.at_shown > 2 * self.epsilon

    def __str__(self) -> str:
        return f"ε = {at_most(self.epsilon)}. {self._grown}."

    @property
    def _grown(self) -> str:
        return (
            f"If the interpolation error is nowhere larger than the largest found at {self.pairs} tested pairs "
            f"(ζ = {self.zeta:.3g} ± {self.width:.2g}), ε = {at_most(self.at_zeta)}"
        )

    @property
    def sentence(self) -> str:
        """What a result says of it."""
        if not self.in_doubt:
            return f"{self._grown} ({self.calls:,} of the calls tested it)."
        where = named(np.asarray(self.state)[None], np.array([self.action]))
        return (
            f"{MISFIT}: at {where} the interpolation error is {self.shown:.3g} at least, with which ε is "
            f"{at_most(self.at_shown)}, not {at_most(self.epsilon)} (features that fit are doubted in "
            f"{100 * self.level:g} % of runs at most). Take a finer feature map; or, if the interpolated model is what "
            "you want, run without the test (linearity=0)."
        )

    def to_dict(self) -> dict[str, Any]:
        """Return everything, ready for JSON."""
        return dict(vars(self)) | {"state": np.asarray(self.state).tolist(), "in_doubt": self.in_doubt}

    @classmethod
    def from_dict(cls, known: dict[str, Any]) -> FeatureMisfit:
        """Read what `to_dict` wrote."""
        numbers = {name: value for name, value in known.items() if name != "in_doubt"}
        return cls(**numbers | {"state": np.array(known["state"], np.float64)})
