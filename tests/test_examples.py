"""Every example runs as it is (dask_cluster in test_dask.py)."""

from __future__ import annotations

import pytest

from tests.examples import EXAMPLES, run_example


@pytest.mark.parametrize("name", [path.stem for path in EXAMPLES if path.stem != "dask_cluster"])
def test_runs(name):
    _, printed = run_example(name)
    assert printed.strip()
