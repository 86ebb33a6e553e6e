"""On which machines a test computes: two that are as far apart as can be each day, all of them in the studies.

What hangs on the order of additions shows between the newest kernel and one without vector instructions; those between
them run the same code of ours once more each.
"""

from __future__ import annotations

import pytest

from tests.kernels import extreme_machines, other_machines

MACHINES = [extreme_machines, pytest.param(other_machines, marks=pytest.mark.study)]
NAMES = ["extremes", "all"]
on_machines = pytest.mark.parametrize("machines", MACHINES, ids=NAMES)
