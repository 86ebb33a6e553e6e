"""Bounds: what the paper predicts, what the literature says, and what no algorithm can beat on a given model.

>>> import bestpolicy as bp
>>> from bestpolicy.bounds import lower_bound, predicted_samples
>>> mdp = bp.instances.load("two-state")
>>> bound = lower_bound(mdp, epsilon=0.0, delta=0.05)
>>> bound.samples_lower_bound < predicted_samples(mdp.problem, mdp.gap, 0.0, 0.05)
True

The numeric lower bound goes through these files: `search` finds models that are hard to tell from the truth (one family
per entry of `targets`, with the convex solver of `nearest`), `alternatives` and `membership` verify them on the plain
tables of `tables`, `programme` weighs what was found, `exploration` and `cutting` decide where to look next, `lower`
reports (`certified`), with what groups of right answers add to it if ε > 0 (`groups`).
`paper`, `literature` and `budgets` are calculators; `summary` shows it all. `price` counts what being right takes
without a proof.
"""

from bestpolicy.bounds.alternatives import Alternative
from bestpolicy.bounds.budgets import lsvi_ucb_episodes, rflin_episodes
from bestpolicy.bounds.certified import LowerBound, VerificationFloor, Weighing
from bestpolicy.bounds.divergence import (
    PAPER_CONSTANT,
    PINSKER_CONSTANT,
    bernoulli_kl,
    confidence_divergence,
    model_divergence,
    refined_divergence,
)
from bestpolicy.bounds.groups import Grouping
from bestpolicy.bounds.literature import LITERATURE, LiteratureBound, applicable_bounds
from bestpolicy.bounds.lower import Progress, lower_bound, lower_bounds, verification_floor
from bestpolicy.bounds.membership import Certificate
from bestpolicy.bounds.paper import (
    concentration_rounds,
    design_phase,
    expected_rounds_bound,
    expected_samples_bound,
    predicted_rounds,
    predicted_samples,
    stopping_phase,
    time_upper_bound,
)
from bestpolicy.bounds.price import PlugInSamples, plug_in_samples
from bestpolicy.bounds.summary import Row, summarise, table_rows

__all__ = [
    "LITERATURE",
    "PAPER_CONSTANT",
    "PINSKER_CONSTANT",
    "Alternative",
    "Certificate",
    "Grouping",
    "LiteratureBound",
    "LowerBound",
    "PlugInSamples",
    "Progress",
    "Row",
    "VerificationFloor",
    "Weighing",
    "applicable_bounds",
    "bernoulli_kl",
    "concentration_rounds",
    "confidence_divergence",
    "design_phase",
    "expected_rounds_bound",
    "expected_samples_bound",
    "lower_bound",
    "lower_bounds",
    "lsvi_ucb_episodes",
    "model_divergence",
    "plug_in_samples",
    "predicted_rounds",
    "predicted_samples",
    "refined_divergence",
    "rflin_episodes",
    "stopping_phase",
    "summarise",
    "table_rows",
    "time_upper_bound",
    "verification_floor",
]
