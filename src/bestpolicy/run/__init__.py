"""From a simulator to a certified policy: the loop, in this process or on workers; what it will cost; and audits."""

from bestpolicy.run.audit import Audit, Misfit, audit, misfit
from bestpolicy.run.estimate import CostEstimate, estimate
from bestpolicy.run.identify import drive, identify

__all__ = ["Audit", "CostEstimate", "Misfit", "audit", "drive", "estimate", "identify", "misfit"]
