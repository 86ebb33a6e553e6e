"""Pictures of policies and values where states cannot be listed: ``python -m benchmarks.huge_pictures [folder]``."""

from __future__ import annotations

import sys
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

import bestpolicy as bp
from benchmarks.huge_families import hill, inventory, queues

FINE = 81


def draw(folder: Path) -> None:
    """Write one picture: above the policies, below the values in the middle of their limits."""
    figure, axes = plt.subplots(2, 3, figsize=(12, 6.4), layout="constrained")
    stock = _result(inventory(7))
    _panel(
        axes[:, 0], stock, np.linspace(0, 10, FINE), lambda x, y: np.stack([x, y], 1), "inventory", "stock of product"
    )
    network = _result(queues(4))
    line = np.rint(np.linspace(0, 99, FINE))
    _panel(
        axes[:, 1], network, line, lambda x, y: np.stack([x, y, 20 + 0 * x], 1), "queues, third at 20", "jobs in queue"
    )
    found = bp.identify(hill(), epsilon="10%", delta=0.05, seed=0)
    box = np.linspace(-1.2, 0.6, FINE), np.linspace(-0.07, 0.07, FINE)
    title = f"car ({found.outcome})"
    _panel(axes[:, 2], found, box, lambda x, y: np.stack([x, y], 1), title, ("position", "velocity"))
    figure.savefig(folder / "unlisted-states.svg")


def _result(model):
    return bp.identify(model, epsilon="3%", delta=0.05, seed=0)


def _panel(axes, result, lines, states, title, labels) -> None:
    lines = lines if isinstance(lines, tuple) else (lines, lines)
    labels = labels if isinstance(labels, tuple) else (f"{labels} 1", f"{labels} 2")
    x, y = (each.reshape(-1) for each in np.meshgrid(*lines))
    some = states(x, y)
    extent = [end for line in lines for end in (line[0], line[-1])]
    values = result.values(some)
    for axis, numbers, name in (
        (axes[0], result.policy(some), "action"),
        (axes[1], values.mean(axis=1), f"value ± {np.ptp(values, axis=1).max() / 2:.3g}"),
    ):
        shown = axis.imshow(
            numbers.reshape(FINE, FINE), origin="lower", extent=extent, aspect="auto", interpolation="none"
        )
        axis.set(xlabel=labels[0], ylabel=labels[1], title=f"{title}: {name}")
        axis.figure.colorbar(shown, ax=axis)


if __name__ == "__main__":
    draw(Path(sys.argv[1] if len(sys.argv) > 1 else "docs/how-to"))
