"""From a simulator to a certified policy: the loop, in this process or on workers; and what it will cost."""

from bestpolicy.run.estimate import CostEstimate, estimate
from bestpolicy.run.identify import drive, identify

__all__ = ["CostEstimate", "drive", "estimate", "identify"]
