"""Which algorithm is taken if none is named: the rule, in one place.

0. States that cannot be listed (a `FeatureProblem`): ``hull``.
1. An environment that can only be reset and stepped: ``forward``.
2. Samples from elsewhere, and a claim about every state: ``adaptive``, whose proof counts them, too.
3. Features of so many pairs that a look of ``sharp`` would not fit into memory: ``tight``.
4. All else: ``sharp``, by Theorem U for a table (each pair a coordinate of its own), by Theorems I and UD for features.

Each of them begins with a few samples of each pair or dimension and plans from what it sees. The paper's own, ``gss``
and ``gss-e``, whose first batch alone can be 10⁹ calls, are taken where they are named.
"""

from __future__ import annotations

from typing import NamedTuple

from bestpolicy.algorithms.protocol import Algorithm
from bestpolicy.problem import FeatureProblem, Problem

AUTO = "auto"  # the name that stands for this rule
_MOST_NUMBERS = 5e7  # in the directions of all rivals, which Theorems I and UD look at: 400 MB


class Choice(NamedTuple):
    """An algorithm, and why it was chosen, in words; empty if it was named."""

    algorithm: Algorithm
    why: str = ""


def default_name(problem: Problem, *, pairs: bool = True, own_data: bool = False, start: bool = False) -> Choosing:
    """Return the name of the algorithm for a problem, and why.

    Parameters
    ----------
    problem : Problem
    pairs : bool
        Whether single pairs can be simulated.
    own_data : bool
        Whether there are samples from elsewhere.
    start : bool
        Whether the claim is about a start only.
    """
    if isinstance(problem, FeatureProblem):
        return "hull", "the default where states cannot be listed"
    if not pairs:
        return "forward", "the default where an environment can only be reset and stepped"
    if own_data and not start:
        return "adaptive", "the default with samples from elsewhere, which count in its proof"
    if problem.is_tabular:
        return "sharp", "the default for a table"
    rivals = problem.stages * (len(problem.pairs) - problem.states)
    if rivals * problem.stages * problem.dimension > _MOST_NUMBERS and not start:
        return "tight", "the default for features of that many pairs"
    return "sharp", "the default for features"


Choosing = tuple[str, str]
