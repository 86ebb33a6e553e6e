"""How many simulator calls will a run need in all, and how long will that take?

An algorithm that plans says it with its checks. One with a formula (`predicted_samples`) is asked for it, at the gap
that the last check has estimated. The others, whose cost depends on how errors cancel along trajectories, are judged by
their trace: the statistic grows like a power of the number of samples, so the line through the last few checks on
doubly logarithmic paper says where it will reach the threshold.

Nobody knows the end of a run before it has come, so what is shown is a range (`outlook`). How wide it has to be was
measured on runs that are over: ``python -m benchmarks.forecasts`` says how many of them have ended within the range
that was stated when 10, 30 and 60 % of their calls were made. Where nothing is certified and nothing planned, the range
has no upper end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, inf, isfinite, isnan, log, nan

import numpy as np

from bestpolicy.algorithms import Algorithm, make_algorithm
from bestpolicy.errors import InvalidInput
from bestpolicy.problem import Problem
from bestpolicy.stopping import Check
from bestpolicy.study.settings import Settings

_NEEDED, _WINDOW = 4, 6  # checks with a certified ε: before a forecast is ventured, and to draw the line through
_STUCK, _SLOWEST, _FASTEST = 0.1, 0.5, 3.0  # powers: widths shrink like the root of the number of samples in the end
_TABLES = ("Theorem U", "Theorem U-E")
# Least and most of the calls in all, as multiples of what is planned, until a share of it is done.
_PLAN = ((0.08, (0.45, 2.2)), (0.25, (0.55, 1.5)), (inf, (0.72, 1.4)))
_FORMULA = (0.8, 1.5)
_LINE = (0.55, 2.5)  # around the line through the last checks
_GUESS = (0.3, 10.0)  # around what standard errors say before anything is certified
# With ε certified at ρ times what is asked, least and most of the calls in all, as a·ρ^b of those so far.
_PAIRS, _EPISODES = ((1.0, 0.2), (1.3, 1.3)), ((1.0, 0.3), (1.3, 2.0))
_AHEAD = 1.2  # of those so far, where nothing is known


@dataclass(frozen=True)
class Outlook:
    """What a whole run should cost, in simulator calls.

    Attributes
    ----------
    low, high : float
        The range; `high` is inf while there is nothing to go by.
    expected : float
        A number in between; nan if it is too early to tell.
    """

    low: float
    high: float
    expected: float = nan

    def __str__(self) -> str:
        if not self.low > 0 and not isfinite(self.high):
            return "too early to tell"
        if not isfinite(self.high):
            return f"more than {in_calls(self.low)}"
        low, high = in_calls(self.low), in_calls(self.high)
        return low if low == high else f"{low} to {high}"


@dataclass(frozen=True)
class Pace:
    """How fast a run is on this machine.

    Attributes
    ----------
    calls : int
        Simulator calls so far, by this process.
    simulating, looking : float
        Seconds spent on them, and on looks at the data.
    looks : int
    last : float
        Seconds of the last look.
    """

    calls: int = 0
    simulating: float = 0.0
    looks: int = 0
    looking: float = 0.0
    last: float = 0.0

    def seconds(self, checks: Sequence[Check], calls: float) -> float:
        """Seconds until there are so many calls in all; nan if nothing is known of the pace."""
        if not checks or not self.calls or not self.looks:
            return nan
        now = checks[-1].samples
        if not isfinite(calls) or calls <= now:
            return inf if calls > now else 0.0
        before = checks[-2].samples if len(checks) > 1 else 0
        growth = max(now / before, 1.05) if before else 2.0  # looks come at a geometric pace
        looks = max(1.0, log(calls / max(now, 1)) / log(growth))
        return self.simulating / self.calls * (calls - now) + max(self.last, self.looking / self.looks) * looks


def in_calls(number: float) -> str:
    """A number of calls, roughly: ``4,800``, ``2.5e+09``."""
    return f"{float(f'{number:.2g}'):,.0f}" if number < 1e7 else f"{number:.2g}"


def in_time(seconds: float) -> str:
    """A span of time for people: ``8 s``, ``3 min``, ``2.5 h``, ``11 days``."""
    for unit, size, until in (("s", 1, 100), ("min", 60, 6000), ("h", 3600, 48 * 3600), ("days", 86400, inf)):
        if seconds < until:
            number = seconds / size
            return f"{number:.0f} {unit}" if number >= 10 or unit == "s" else f"{number:.1f} {unit}"
    return "∞"


def outlook(settings: Settings, algorithm: Algorithm, problem: Problem, checks: Sequence[Check]) -> Outlook:
    """Range of the simulator calls that the whole run should need.

    Parameters
    ----------
    settings : Settings
    algorithm : Algorithm
    problem : Problem
    checks : sequence of Check
        The trace so far, with ε and gaps in the user's units of reward.
    """
    if not checks:
        return Outlook(0.0, inf)
    last, now = checks[-1], float(checks[-1].samples)
    if last.passed:
        return Outlook(now, now, now)
    formula = _by_formula(settings, algorithm, problem, last)
    if isfinite(last.forecast) and last.rule in _TABLES:
        expected = last.forecast
        factors = next(factors for share, factors in _PLAN if now < share * expected)
    elif not isnan(formula):
        expected, factors = formula, _FORMULA
    elif last.epsilon < inf and settings.asked_epsilon > 0:
        ratio, expected = max(1.0, last.epsilon / settings.asked_epsilon), _extrapolated(checks[-_WINDOW:])
        law = _EPISODES if algorithm.about.sampling == "episodes" else _PAIRS
        least, most = (now * scale * ratio**power for scale, power in law)
        return _within(now, least, most, expected)
    elif isfinite(last.forecast):
        expected, factors = last.forecast, _GUESS
    else:
        expected, factors = _extrapolated(checks[-_WINDOW:]), _LINE
    if isnan(expected):
        return Outlook(_AHEAD * now, inf)
    return _within(now, factors[0] * expected, factors[1] * max(expected, now), expected)


def _within(now: float, low: float, high: float, expected: float) -> Outlook:
    """Return a range that lies ahead, with something expected in it."""
    low, high = max(low, now), max(high, _AHEAD * now)
    if isnan(expected):
        expected = exp((log(max(low, 1.0)) + log(high)) / 2)
    return Outlook(low, high, min(max(expected, low), high))


def stored_forecast(settings: Settings, problem: Problem, checks: Sequence[Check]) -> float | None:
    """What `outlook` expects of a study that was stored with these settings; None if it is too early to tell."""
    found = stored_outlook(settings, problem, checks)
    return found.expected if found is not None and 0 < found.expected < inf else None


def stored_outlook(settings: Settings, problem: Problem, checks: Sequence[Check]) -> Outlook | None:
    """What `outlook` says of a study that was stored with these settings; None if its algorithm is not ours."""
    try:
        algorithm = make_algorithm(settings.algorithm, settings.parameters)
    except InvalidInput:  # somebody's own algorithm
        return None
    return outlook(settings, algorithm, problem, checks)


def _by_formula(settings: Settings, algorithm: Algorithm, problem: Problem, last: Check) -> float:
    """What the algorithm's formula says at the estimated gap; nan if it has none."""
    gap = last.gap / settings.units.reward_scale
    return float(algorithm.predicted_samples(problem, gap, settings.epsilon, settings.delta))


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
