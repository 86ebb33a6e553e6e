"""Pictures of policies and values where states cannot be listed: ``python -m benchmarks.huge_pictures [folder]``."""

from __future__ import annotations

import sys
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

import bestpolicy as bp
from benchmarks.huge_families import inventory, queues

FINE = 81


def draw(folder: Path) -> None:
    """Write one picture: above the policies, below the values in the middle of their limits."""
    figure, axes = plt.subplots(2, 2, figsize=(8, 6.4), layout="constrained")
    stock = _result(inventory(7))
    _panel(
        axes[:, 0], stock, np.linspace(0, 10, FINE), lambda x, y: np.stack([x, y], 1), "inventory", "stock of product"
    )
    network = _result(queues(4))
    line = np.rint(np.linspace(0, 99, FINE))
    _panel(
        axes[:, 1], network, line, lambda x, y: np.stack([x, y, 20 + 0 * x], 1), "queues, third at 20", "jobs in queue"
    )
    figure.savefig(folder / "unlisted-states.svg")


def _result(model):
    return bp.identify(model, epsilon="3%", delta=0.05, seed=0)


def _panel(axes, result, line, states, title, label) -> None:
    x, y = (each.reshape(-1) for each in np.meshgrid(line, line))
    some = states(x, y)
    extent = [line[0], line[-1], line[0], line[-1]]
    values = result.values(some)
    for axis, numbers, name in (
        (axes[0], result.policy(some), "action"),
        (axes[1], values.mean(axis=1), f"value ± {np.ptp(values, axis=1).max() / 2:.3g}"),
    ):
        shown = axis.imshow(
            numbers.reshape(FINE, FINE), origin="lower", extent=extent, aspect="auto", interpolation="none"
        )
        axis.set(xlabel=f"{label} 1", ylabel=f"{label} 2", title=f"{title}: {name}")
        axis.figure.colorbar(shown, ax=axis)


if __name__ == "__main__":
    draw(Path(sys.argv[1] if len(sys.argv) > 1 else "docs/how-to"))
