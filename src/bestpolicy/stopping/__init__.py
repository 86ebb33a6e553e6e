"""Stopping rules: when may a run end, and what is certified then. One file a rule."""

from bestpolicy.stopping.evidence import Evidence
from bestpolicy.stopping.paper import PaperRule
from bestpolicy.stopping.rule import Check, Past, Terms, Verdict

__all__ = ["Check", "Evidence", "PaperRule", "Past", "Terms", "Verdict"]
