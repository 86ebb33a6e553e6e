"""What will it cost? A short pilot, and then calls, time and memory, before anybody pays for them.

The pilot is the beginning of the run itself, with the algorithm that `identify` would take: with a ``store`` nothing of
it is lost, as `identify` with the same arguments goes on from there. It ends at the first look at the data after which
an end is in sight, and before it would make more than `pilot` calls or take longer than `max_seconds`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from math import inf, isfinite, nan
from os import PathLike
from typing import Any

from bestpolicy._numerics.inputs import file_path, number, whole
from bestpolicy.algorithms import Algorithm, find_algorithm
from bestpolicy.problem import Problem, Truncated
from bestpolicy.problem.units import Units
from bestpolicy.run.arguments import as_simulator, check_arguments, numbered_start, suited, tested_share
from bestpolicy.run.identify import drive
from bestpolicy.simulators import Model
from bestpolicy.study import Outcome, Study
from bestpolicy.study.again import resume_same
from bestpolicy.study.forecast import in_calls, in_time
from bestpolicy.study.linearity import MOST

_CALLS_A_PAIR, _LEAST, _MOST = 64, 1000, 10**6  # of a pilot: for each pair or dimension, at least, at most
_LEAST_TESTED = 5000  # of a pilot with features: the first calls test whether they fit
_WIDE = 5.0  # times the low end: a range that is worth a word


@dataclass(frozen=True)
class CostEstimate:
    """What a run should cost.

    Attributes
    ----------
    algorithm, why : str
        The one that fits, and why (empty if it was named).
    epsilon, delta : float
        What is asked, in the user's units.
    low, high : float
        Simulator calls in all; `high` is inf if the pilot says too little.
    seconds : (float, float)
        Clock time of the whole run on this machine, in this process; nan if nothing was simulated.
    seconds_per_call, seconds_per_look : float
        As measured in the pilot.
    memory : int
        Bytes that this process has taken at most, looks of the pilot included; 0 if the system does not tell.
    paper_algorithm, paper_calls : str, float
        What the paper's algorithm, `gss` or `gss-e`, would need, by its formula at the gap that was seen.
    pilot_calls : int
        Calls that were made for this.
    test_calls : int
        Calls that testing whether the features fit may take at most, or as many as the algorithm if that is more; they
        are in `high`. 0 if nothing is tested.
    certified : float
        The ε that is certified already.
    """

    algorithm: str
    why: str
    epsilon: float
    delta: float
    low: float
    high: float
    seconds: tuple[float, float]
    seconds_per_call: float
    seconds_per_look: float
    memory: int
    paper_algorithm: str
    paper_calls: float
    pilot_calls: int
    certified: float = inf
    test_calls: int = 0

    def to_dict(self) -> dict[str, Any]:
        """Return everything, ready for JSON (numbers that are not finite become None)."""
        plain = asdict(self) | {"seconds": list(self.seconds)}
        return {name: _finite(value) for name, value in plain.items()}

    def __str__(self) -> str:
        why = f" ({self.why})" if self.why else ""
        lines = [
            f"within {self.epsilon:.4g} of optimal, with probability {1 - self.delta:g}, by {self.algorithm}{why}:"
        ]
        if self.low == self.high:
            lines.append(f"  simulator calls   {self.low:,.0f}, all of them made: it is certified")
        elif isfinite(self.high):
            lines.append(
                f"  simulator calls   {in_calls(self.low)} to {in_calls(self.high)} in most runs; this is no bound"
            )
            lines.append(f"  time              {in_time(self.seconds[0])} to {in_time(self.seconds[1])}")
        else:
            lines.append(f"  simulator calls   more than {in_calls(self.low)}; the pilot says no more: make it longer")
        if self.test_calls:
            most = in_calls(max(float(self.test_calls), self.high / 2)) if self.high < inf else "as many again"
            lines.append(f"  of these up to    {most} to test whether the features fit (linearity=0 leaves it out)")
        if self.pilot_calls:
            lines.append(f"  a call, a look    {_short(self.seconds_per_call)}, {_short(self.seconds_per_look)}")
        if self.memory:
            lines.append(f"  memory            {self.memory / 2**20:,.0f} MB")
        if isfinite(self.paper_calls):
            lines.append(
                f"  the paper's       {self.paper_algorithm} would need about {in_calls(self.paper_calls)} calls"
            )
        lines.append(f"  from a pilot of {self.pilot_calls:,} calls")
        if isfinite(self.high) and self.high > _WIDE * self.low:
            lines.append("The range is wide: a longer pilot (pilot=) narrows it.")
        return "\n".join(lines)


def estimate(
    model: Model | Callable[..., tuple[Any, Any]],
    *,
    epsilon: float | str,
    delta: float,
    states: Iterable[Any] | None = None,
    actions: Iterable[Any] | Callable[[Any], Iterable[Any]] | None = None,
    discount: float | None = None,
    horizon: int | None = None,
    reward_range: tuple[float, float] | Truncated | None = None,
    ends: Iterable[Any] | None = None,
    algorithm: str | Algorithm | None = None,
    seed: int | None = None,
    start: Any = None,
    pilot: int | None = None,
    max_seconds: float = 30.0,
    store: str | PathLike[str] | None = None,
    name: str = "study",
) -> CostEstimate:
    """Say what `identify` would cost, after a short pilot.

    >>> import bestpolicy as bp
    >>> cost = bp.estimate(bp.ExactSimulator(bp.instances.load("riverswim")), epsilon="5%", delta=0.05, seed=0)
    >>> cost.algorithm, cost.pilot_calls
    ('sharp', 384)
    >>> cost.low < 10_000 < cost.high < 20_000
    True

    Parameters
    ----------
    model, epsilon, delta, states, actions, discount, horizon, reward_range, ends, algorithm, seed, start
        As for `identify`.
    pilot : int, optional
        Make at most so many simulator calls: by default 64 for each pair of a table (for each dimension of features)
        and step, at least 1,000 and at most 10⁶. If the algorithm's first batch is larger, none are made.
    max_seconds : float
        Take no longer.
    store, name : optional
        File in which the pilot is kept, as the beginning of a study: `identify` with the same arguments goes on.
    """
    told = {
        "states": states,
        "actions": actions,
        "discount": discount,
        "horizon": horizon,
        "reward_range": reward_range,
        "ends": ends,
    }
    model = as_simulator(model, {key: value for key, value in told.items() if value is not None})
    check_arguments(model, None, number("max_seconds", max_seconds, above=0), None, None)
    problem, units = model.problem, Units.of(model)
    choice = suited(algorithm, model, start=start is not None)
    store = None if store is None else file_path("store", store)
    how: dict[str, Any] = {
        "epsilon": epsilon,
        "delta": delta,
        "algorithm": choice,
        "seed": seed,
        "max_samples": None,
        "calls_per_query": None,
        "store": store,
        "name": name,
        "units": units,
        "own_data": None,
        "start": numbered_start(model, start),
        "linearity": tested_share(model, None),
    }
    known = resume_same(problem, **how) if store is not None and os.path.isfile(store) else None
    study = known or Study(problem, **how)
    return pilot_of(study, model, pilot=pilot, max_seconds=max_seconds)


def pilot_of(study: Study, model: Model, *, pilot: int | None, max_seconds: float) -> CostEstimate:
    """Begin a study, and say what all of it should cost."""
    problem, units = study.problem, study.units
    most = usual_pilot(problem) if pilot is None else whole("pilot", pilot, 1)

    def enough(study: Study) -> None:
        ahead = study.outlook()
        in_sight = pilot is None and ahead.high <= _WIDE * ahead.low
        if in_sight or study.samples + study.asked_calls > most:
            study.request_stop()

    if study.asked_calls <= most and not study.done:
        drive(study, model, max_seconds=max_seconds, progress=enough)
    study.close()
    ahead, pace, last = study.outlook(), study.pace, study.checks[-1] if study.checks else None
    low = max(ahead.low, float(study.samples + study.asked_calls if not study.samples else study.samples))
    # The test of the features has calls of its own, which the algorithm's checks know nothing of.
    tested = MOST if study.settings.linearity > 0 and study.outcome is not Outcome.CERTIFIED else 0
    high = max(low, ahead.high + max(float(tested), ahead.high) if tested else ahead.high)
    paper = find_algorithm("gss", problem)
    gap = nan if last is None else last.gap / units.reward_scale
    spent = pace.simulating + pace.looking
    return CostEstimate(
        algorithm=study.algorithm.name,
        why=study.settings.chosen,
        epsilon=study.asked_epsilon,
        delta=study.delta,
        low=low,
        high=high,
        seconds=(spent + pace.seconds(study.checks, low), spent + pace.seconds(study.checks, high)),
        seconds_per_call=pace.simulating / pace.calls if pace.calls else nan,
        seconds_per_look=max(pace.last, pace.looking / pace.looks) if pace.looks else nan,
        memory=_peak(),
        paper_algorithm=paper.name,
        paper_calls=paper.predicted_samples(problem, gap, study.settings.epsilon, study.delta) if gap < inf else nan,
        pilot_calls=study.samples,
        certified=inf if last is None else last.epsilon,
        test_calls=tested,
    )


def usual_pilot(problem: Problem) -> int:
    """Return how many calls a pilot makes at most, unless told otherwise."""
    size = len(problem.open_pairs) if problem.is_tabular else problem.dimension
    return min(max(_CALLS_A_PAIR * problem.stages * size, _LEAST if problem.is_tabular else _LEAST_TESTED), _MOST)


def _peak() -> int:
    """Bytes that this process has taken at most."""
    try:
        import resource
    except ImportError:  # not on Windows
        return 0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return int(peak) * (1 if sys.platform == "darwin" else 1024)


def _short(seconds: float) -> str:
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return "less than 1 µs"


def _finite(value: Any) -> Any:
    if isinstance(value, list):
        return [_finite(part) for part in value]
    return None if isinstance(value, float) and not isfinite(value) else value
