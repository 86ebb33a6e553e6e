"""Optimal designs: which pairs to sample, how often, and in which coordinates to think of them.

`g_optimal_design` finds weights with a certificate of their optimality, `rounded_counts` turns weights into
numbers of pulls, `whiten` gives coordinates in which every norm that the theorems ask for holds, and
`rank_reduction` mends features that are linearly dependent.
"""

from bestpolicy.design.g_optimal import Design, g_optimal_design
from bestpolicy.design.rounding import rounded_counts
from bestpolicy.design.whitening import Whitening, leverages, rank_reduction, whiten

__all__ = [
    "Design",
    "Whitening",
    "g_optimal_design",
    "leverages",
    "rank_reduction",
    "rounded_counts",
    "whiten",
]
