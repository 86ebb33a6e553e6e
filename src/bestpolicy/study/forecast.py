"""How many simulator calls will a run need in all?

An algorithm that plans says it with its checks. One with a formula (`predicted_samples`) is asked for it, at the gap
that the last check has estimated. The others, whose cost depends on how errors cancel along trajectories, are judged by
their trace: the statistic grows like a power of the number of samples, so the line through the last few checks on
doubly logarithmic paper says where it will reach the threshold. Before some ε is certified the statistic says next to
nothing, and neither do we.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, isfinite, isnan, log, nan

import numpy as np

from bestpolicy.algorithms import Algorithm, make_algorithm
from bestpolicy.errors import InvalidInput
from bestpolicy.problem import Problem
from bestpolicy.stopping import Check
from bestpolicy.study.settings import Settings

_NEEDED, _WINDOW = 4, 6  # checks with a certified ε: before a forecast is ventured, and to draw the line through
_STUCK, _SLOWEST, _FASTEST = 0.1, 0.5, 3.0  # powers: widths shrink like the root of the number of samples in the end


def forecast(settings: Settings, algorithm: Algorithm, problem: Problem, checks: Sequence[Check]) -> float:
    """Simulator calls that the whole run should need; nan if it is too early to tell.

    Parameters
    ----------
    settings : Settings
    algorithm : Algorithm
    problem : Problem
    checks : sequence of Check
        The trace so far, with ε and gaps in the user's units of reward.
    """
    if not checks:
        return nan
    last = checks[-1]
    if last.passed:
        return float(last.samples)
    if isfinite(last.forecast):
        return max(last.forecast, float(last.samples))
    gap = last.gap / settings.units.reward_scale
    predicted = algorithm.predicted_samples(problem, gap, settings.epsilon, settings.delta)
    if not isnan(predicted):
        return max(float(predicted), float(last.samples))
    return max(_extrapolated(checks[-_WINDOW:]), float(last.samples))


def stored_forecast(settings: Settings, problem: Problem, checks: Sequence[Check]) -> float | None:
    """What `forecast` says of a study that was stored with these settings; None if it is too early to tell."""
    try:
        algorithm = make_algorithm(settings.algorithm, settings.parameters)
    except InvalidInput:  # somebody's own algorithm
        return None
    needed = forecast(settings, algorithm, problem, checks)
    return needed if 0 < needed < inf else None


def _extrapolated(checks: Sequence[Check]) -> float:
    """Where the line through the checks that certify something reaches the threshold."""
    known = [c for c in checks if c.epsilon < inf and c.statistic > 0 and isfinite(c.threshold) and c.samples > 0]
    if len(known) < _NEEDED:
        return nan
    samples, reached = np.array([(log(c.samples), log(c.statistic / c.threshold)) for c in known]).T
    centred = samples - samples.mean()
    if not centred.any():
        return nan
    power = float(centred @ reached / (centred @ centred))
    if power < _STUCK:  # what certifies is not what will decide in the end
        return nan
    return float(np.exp(samples[-1] - reached[-1] / min(max(power, _SLOWEST), _FASTEST)))
