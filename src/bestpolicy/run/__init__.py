"""From a simulator to a certified policy: the loop, in this process or on workers; what it will cost; and audits."""

from bestpolicy.run.audit import Audit, audit
from bestpolicy.run.estimate import CostEstimate, estimate
from bestpolicy.run.identify import drive, identify
from bestpolicy.run.misfit import misfit
from bestpolicy.study.misfit import FeatureMisfit

__all__ = ["Audit", "CostEstimate", "FeatureMisfit", "audit", "drive", "estimate", "identify", "misfit"]
