"""Interim (to be replaced)."""

from bestpolicy.design.g_optimal import Design, g_optimal_design
from bestpolicy.design.whitening import Whitening, leverages, rank_reduction, rounded_counts, whiten

__all__ = ["Design", "Whitening", "g_optimal_design", "leverages", "rank_reduction", "rounded_counts", "whiten"]
