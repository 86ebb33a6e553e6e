"""Stopping rules: when may a run end, and what is certified then. One file a rule."""

from bestpolicy.stopping.check import Check
from bestpolicy.stopping.paper import PaperRule

__all__ = ["Check", "PaperRule"]
