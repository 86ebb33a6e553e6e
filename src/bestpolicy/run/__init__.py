"""From a simulator to a certified policy: the loop, in this process or on workers."""

from bestpolicy.run.identify import drive, identify

__all__ = ["drive", "identify"]
