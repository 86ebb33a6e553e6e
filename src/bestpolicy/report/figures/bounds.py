"""The closest alternative and the optimal allocation, in one picture. Needs matplotlib (extra `report`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from bestpolicy._numerics.arrays import FloatArray
from bestpolicy.bounds.alternatives import Alternative
from bestpolicy.bounds.certified import LowerBound
from bestpolicy.pictures.drawing import INK, SERIES, new_figure, plain, style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from bestpolicy.mdp import LinearMDP


def bounds_figure(mdp: LinearMDP, bound: LowerBound, *, alternative: Alternative | None = None) -> Figure:
    """Draw where an optimal algorithm samples, and the model that is hardest to tell from this one.

    Parameters
    ----------
    mdp : LinearMDP
    bound : LowerBound
    alternative : Alternative, optional
        By default the closest one.

    Returns
    -------
    matplotlib.figure.Figure
        Three panels: share of the samples per state and action (summed over steps); changes of the mean rewards; and
        distances of the next-state distributions, of the alternative, per state and action.
    """
    chosen = bound.closest if alternative is None else alternative
    panels = 1 if chosen is None else 3
    figure, axes = new_figure(9.0, 2.6 * panels, panels, sharex=True)
    with style():
        allocation = np.reshape(bound.allocation, (-1, *mdp.problem.mask.shape))
        _bars(axes[0], mdp, allocation.sum(axis=0), "share of samples")
        axes[0].set_title(
            f"{plain(mdp.name)}: any algorithm needs at least {bound.samples_lower_bound:,.0f} samples on average "
            f"(ε = {bound.epsilon:g}, δ = {bound.delta:g})"
        )
        if chosen is not None:
            rewards, rows = _changes(mdp, chosen)
            _bars(axes[1], mdp, rewards, "change of reward")
            _bars(axes[2], mdp, rows, "Σ |p' - p|")
            step = f", step {chosen.stage}" if mdp.problem.horizon is not None else ""
            axes[1].set_title(
                f"the closest alternative makes action {chosen.action} in state {chosen.state}{step} attractive"
            )
        if mdp.problem.actions <= len(SERIES):
            axes[0].legend(ncols=mdp.problem.actions)
        axes[-1].set_xlabel("state (bars: actions)")
    return figure


def _changes(mdp: LinearMDP, alternative: Alternative) -> tuple[FloatArray, FloatArray]:
    """Largest changes over the steps, (S, A): of mean rewards with their sign, and of rows in L1."""
    features, mask = mdp.problem.features, mdp.problem.mask
    rewards = np.einsum("sad,hd->hsa", features, alternative.theta_change)
    steps = np.abs(rewards).argmax(axis=0)
    largest = np.take_along_axis(rewards, steps[None], axis=0)[0]
    rows = np.stack([np.abs(features @ change.T).sum(axis=2) for change in alternative.mu_change]).max(axis=0)
    return np.where(mask, largest, 0.0), np.where(mask, rows, 0.0)


def _bars(axis: Axes, mdp: LinearMDP, values: FloatArray, label: str) -> None:
    states, actions = values.shape
    width = 0.8 / actions
    for action in range(actions):
        positions = np.arange(states) - 0.4 + width * (action + 0.5)
        shown = mdp.problem.mask[:, action]
        colour = SERIES[action % len(SERIES)]
        axis.bar(positions[shown], values[shown, action], 0.9 * width, color=colour, label=f"action {action}")
    axis.axhline(0.0, color=INK, linewidth=0.6)
    axis.set_ylabel(label)
    axis.margins(x=0.01)
    if states <= 30:
        axis.set_xticks(range(states))
