"""Own the loop: ask what to simulate, tell what came out.

::

    study = Study(problem, epsilon=0.1, delta=0.05)
    while not study.done:
        for query in study.ask():
            study.tell(query, my_lab.measure(query.pulls, query.rng()))
    result = study.result()

A study is deterministic: the same answers to the same queries give the same result. The random stream of a query
depends on the seed and the query's index alone, whoever answers it and when.
"""

from __future__ import annotations

import secrets
import time
from dataclasses import dataclass, field, replace
from enum import StrEnum
from math import floor, inf, isnan
from os import PathLike
from typing import Any

import numpy as np

from bestpolicy._version import __version__
from bestpolicy.algorithms import Algorithm, find_algorithm, make_algorithm, parameters_of
from bestpolicy.assumptions import check_features, require
from bestpolicy.certificate import Origin, write_certificate
from bestpolicy.errors import InvalidInput, StoreError
from bestpolicy.estimation import Pulls, Tally
from bestpolicy.problem import IntArray, Problem
from bestpolicy.stopping import Check
from bestpolicy.store import StudyFile


class Outcome(StrEnum):
    """Why a run ended."""

    CERTIFIED = "certified"
    BUDGET = "sample budget spent"
    TIME = "time budget spent"
    INTERRUPTED = "interrupted"
    GAVE_UP = "gave up"
    NO_GUARANTEE = "finished without a guarantee"
    RUNNING = "still running"


@dataclass(frozen=True)
class Query:
    """Pairs to simulate.

    Attributes
    ----------
    index : int
        Position of the query in the study.
    pulls : Pulls
        How often to simulate which pairs, per stage.
    seed : int
        The study's seed.
    attempt : int
        Grows when the rest of a query is asked again after a partial answer.
    """

    index: int
    pulls: Pulls
    seed: int
    attempt: int = 0

    def rng(self) -> np.random.Generator:
        """Return the random stream that belongs to this query."""
        key = (1, self.index, self.attempt)
        return np.random.default_rng(np.random.SeedSequence(self.seed, spawn_key=key))


@dataclass(frozen=True, eq=False)
class Result:
    """What a run found and what is certified of it.

    Attributes
    ----------
    algorithm : str
    asked_epsilon, delta : float
    policy : int array (S,) or (H, S)
    certified : bool
        Whether the policy is within `epsilon` of optimal with probability at least 1 - delta, as asked.
    epsilon : float
        What is certified (may be better than asked; inf if nothing is).
    outcome : Outcome
    explanation : str
        Why the run ended and what to do, in a sentence.
    rounds, samples : int
        Rounds, and simulator calls (H per round if episodic).
    statistic, threshold, gap : float
        Of the last check.
    seed : int
    seconds : float
    checks : tuple of Check
        The trace of the run.
    warnings : tuple of str
        What casts doubt on the guarantee, such as data that are not linear in the features.
    origin : Origin, optional
        The problem, the settings and the file of the study, for `save`.
    """

    algorithm: str
    asked_epsilon: float
    delta: float
    policy: IntArray
    certified: bool
    epsilon: float
    outcome: Outcome
    explanation: str
    rounds: int
    samples: int
    statistic: float
    threshold: float
    gap: float
    rule: str
    seed: int
    seconds: float
    checks: tuple[Check, ...]
    warnings: tuple[str, ...] = ()
    origin: Origin | None = field(default=None, repr=False)

    def save(self, path: str | PathLike[str]) -> None:
        """Write a certificate, one JSON file from which anyone can check what is certified (`bestpolicy verify`).

        It holds the policy (in the problem's states and actions), its ε and δ, and the samples that prove it. The
        rules of `tight` and `adaptive` certify some ε at any time: that can be saved, asked for or not.

        Raises
        ------
        InvalidInput
            If nothing is certified.
        """
        write_certificate(self, path)

    def to_dict(self, model: str = "") -> dict[str, Any]:
        """Return what is worth printing, ready for JSON (numbers that are not finite become None)."""
        return {
            "algorithm": self.algorithm,
            "model": model,
            "epsilon": self.asked_epsilon,
            "delta": self.delta,
            "certified": self.certified,
            "certified_epsilon": _finite(self.epsilon),
            "outcome": str(self.outcome),
            "explanation": self.explanation,
            "policy": self.policy.tolist(),
            "rounds": self.rounds,
            "samples": self.samples,
            "statistic": _finite(self.statistic),
            "threshold": _finite(self.threshold),
            "gap": _finite(self.gap),
            "rule": self.rule,
            "seed": self.seed,
            "seconds": round(self.seconds, 3),
            "warnings": list(self.warnings),
            "version": __version__,
        }


class Study:
    """A run whose loop belongs to the caller.

    Parameters
    ----------
    problem : Problem
    epsilon : float
        The policy shall be within `epsilon` ≥ 0 of optimal; 0 asks for an optimal policy.
    delta : float
        Allowed probability of error, in (0, 1).
    algorithm : str or Algorithm, optional
        "gss" if discounted and "gss-e" if episodic by default.
    seed : int, optional
        Drawn and recorded if not given.
    max_samples : int, optional
        Budget of simulator calls.
    calls_per_query : int, optional
        Split what is to be simulated between two looks at the data into queries of at most this many simulator
        calls, to be answered in any order. One query by default.
    store : path, optional
        SQLite file in which the study survives; `resume` goes on with it.
    name : str
        Name of the study in that file.
    origin : dict of str, optional
        What the file shall remember of the simulator.
    reward_scale : float
        Your unit of reward in the problem's: if rewards were mapped from [low, high] into [0, 1], high - low. Then
        epsilon, and all that is reported of ε and gaps, is in your own units.
    own_data : Tally, optional
        Samples from elsewhere, of pairs that were chosen without regard to outcomes (a log of transitions, say:
        `Tally.from_samples`). They help to certify, where the algorithm's rule allows it, and cost no samples.
    """

    def __init__(
        self,
        problem: Problem,
        *,
        epsilon: float,
        delta: float,
        algorithm: str | Algorithm | None = None,
        seed: int | None = None,
        max_samples: int | None = None,
        calls_per_query: int | None = None,
        store: str | PathLike[str] | None = None,
        name: str = "study",
        origin: dict[str, str] | None = None,
        reward_scale: float = 1.0,
        own_data: Tally | None = None,
    ) -> None:
        if not isinstance(problem, Problem):
            raise InvalidInput(f"problem must be a Problem. Got {type(problem).__name__} instead.")
        self.problem = problem
        self.epsilon = _number("epsilon", epsilon, 0 <= _float(epsilon) < inf, "a finite number ≥ 0")
        self.delta = _number("delta", delta, 0 < _float(delta) < 1, "strictly between 0 and 1")
        self.max_samples = _whole("max_samples", max_samples, 1)
        self.calls_per_query = _whole("calls_per_query", calls_per_query, 1)
        self.seed = secrets.randbits(63) if seed is None else _whole("seed", seed, 0) or 0
        self.reward_scale = _number("reward_scale", reward_scale, 0 < _float(reward_scale) < inf, "a number > 0")
        self.algorithm = find_algorithm(algorithm, problem)
        if own_data is not None and not self.algorithm.takes_own_data:
            raise InvalidInput(f"algorithm {self.algorithm.name!r} cannot use own data. Use 'gss' or 'gss-e'.")
        require(check_features(problem))

        self._own_samples = 0 if own_data is None else own_data.samples
        self.checks: list[Check] = []
        self.samples = 0
        self.outcome = Outcome.RUNNING
        self.stop_requested = False
        self._started = time.monotonic()
        self._seconds: float | None = None
        self._waiting: dict[int, Query] = {}
        self._parts: dict[int, Tally] = {}
        self._asked = 0
        self._file: StudyFile | None = None
        self._saved = 0
        self._store = store
        self.name = name
        self.origin = origin or {}
        stream = np.random.SeedSequence(self.seed, spawn_key=(0,))
        asked = self.epsilon / self.reward_scale
        self._run = self.algorithm.run(problem, asked, self.delta, np.random.default_rng(stream), own_data)
        if not (problem.distinct.sum(axis=1) > 1).any():
            self._record(_nothing_to_choose(problem))
            self.stop(Outcome.CERTIFIED)
        else:
            self._advance(None)
        if store is not None:  # last of all: a study that could not begin leaves no trace
            self._file = StudyFile.create(store, name, problem, self.settings, own_data)
            self._save_checks()

    @classmethod
    def resume(
        cls,
        store: str | PathLike[str],
        name: str | None = None,
        *,
        algorithm: Algorithm | None = None,
        max_samples: int | None = None,
    ) -> Study:
        """Go on with a study from its file, exactly where it was.

        Parameters
        ----------
        store : path
        name : str, optional
            Needed if the file has several studies.
        algorithm : Algorithm, optional
            Needed if the study's algorithm is not one of ours.
        max_samples : int, optional
            A new budget; the old one by default.
        """
        file, problem, settings = StudyFile.open(store, name)
        try:
            study = cls(
                problem,
                epsilon=settings["epsilon"],
                delta=settings["delta"],
                algorithm=algorithm or make_algorithm(settings["algorithm"], settings["parameters"]),
                seed=settings["seed"],
                max_samples=settings["max_samples"] if max_samples is None else max_samples,
                calls_per_query=settings["calls_per_query"],
                name=file.name,
                origin=settings["origin"],
                reward_scale=settings["reward_scale"],
                own_data=file.own_data(),
            )
            for query, attempt, tally in file.answers():
                study._replay(query, attempt, tally)
        except BaseException:
            file.close()
            raise
        if study.settings != settings:
            file.change_settings(study.settings)
        study._file = file
        study._store = store
        study._save_checks()
        return study

    @property
    def settings(self) -> dict[str, Any]:
        """Everything that decides the run but the problem and the answers."""
        return {
            "epsilon": self.epsilon,
            "delta": self.delta,
            "algorithm": self.algorithm.name,
            "parameters": parameters_of(self.algorithm),
            "seed": self.seed,
            "max_samples": self.max_samples,
            "calls_per_query": self.calls_per_query,
            "origin": self.origin,
            "reward_scale": self.reward_scale,
        }

    def __repr__(self) -> str:
        return f"Study({self.algorithm.name} on {self.problem!r}: {self.samples} samples, {self.outcome})"

    @property
    def done(self) -> bool:
        """Whether there is nothing more to ask."""
        return self.outcome is not Outcome.RUNNING

    def ask(self) -> list[Query]:
        """Return the queries whose answers are awaited (the same ones until they are told)."""
        return [] if self.done else list(self._waiting.values())

    def tell(self, query: Query, tally: Tally, *, partial: bool = False) -> None:
        """Hand in what was measured for a query.

        Parameters
        ----------
        query : Query
            One of those that `ask` returned. Telling a query again that was already told changes nothing.
        tally : Tally
            Exactly the pulls that were asked for.
        partial : bool
            Accept fewer: they are kept, and `ask` then returns the rest of the query.
        """
        if not 0 <= query.index < self._asked:
            raise InvalidInput(f"query {query.index} was never asked. Tell only what Study.ask returned.")
        current = self._waiting.get(query.index)
        if current is None or query.attempt < current.attempt or self.done:
            return
        rest = current.pulls.minus(tally)
        if rest.total and not partial:
            raise InvalidInput(
                f"query {query.index} asked for {current.pulls.total} samples, the tally has {tally.samples}. "
                "Tell all of them, or pass partial=True to be asked for the rest."
            )
        if self._file is not None:  # first of all: if that fails, nothing has happened
            self._file.append(query.index, query.attempt, tally)
        self._accept(current, tally, rest)
        self._save_checks()

    def _replay(self, index: int, attempt: int, tally: Tally) -> None:
        current = self._waiting.get(index)
        if current is None or attempt != current.attempt:
            raise StoreError(f"the stored answer to query {index} does not fit: other versions may have written it.")
        self._accept(current, tally, current.pulls.minus(tally))

    def _accept(self, query: Query, tally: Tally, rest: Pulls) -> None:
        self.samples += tally.samples
        known = self._parts.get(query.index)
        self._parts[query.index] = tally if known is None else known + tally
        if rest.total:
            self._waiting[query.index] = replace(query, pulls=rest, attempt=query.attempt + 1)
            return
        del self._waiting[query.index]
        if not self._waiting:
            # Summed in the order of the queries, whatever the order of the answers: the same bits each time.
            parts = [part for _, part in sorted(self._parts.items())]
            self._parts = {}
            self._advance(sum(parts[1:], start=parts[0]))

    def request_stop(self) -> None:
        """Ask whoever drives the study to stop it once the query in flight is answered; safe in a signal handler."""
        self.stop_requested = True

    def stop(self, outcome: Outcome = Outcome.INTERRUPTED) -> None:
        """End the study now; `result` then says what is certified so far."""
        if not self.done:
            self.outcome = outcome
            self._seconds = time.monotonic() - self._started
            self._run.close()
            self._save_checks()

    def result(self) -> Result:
        """Return what is known now, certified or not."""
        last = self.checks[-1] if self.checks else None
        policy = last.policy if last else np.tile(self.problem.mask.argmax(axis=1), (self.problem.stages, 1))
        seconds = time.monotonic() - self._started if self._seconds is None else self._seconds
        return Result(
            algorithm=self.algorithm.name,
            asked_epsilon=self.epsilon,
            delta=self.delta,
            policy=policy[0] if self.problem.horizon is None else policy,
            certified=self.outcome is Outcome.CERTIFIED,
            epsilon=last.epsilon if last else inf,
            outcome=self.outcome,
            explanation=self._explanation(last),
            rounds=self.samples // self.problem.stages,
            samples=self.samples,
            statistic=last.statistic if last else 0.0,
            threshold=last.threshold if last else inf,
            gap=last.gap if last else inf,
            rule=last.rule if last else "",
            seed=self.seed,
            seconds=seconds,
            checks=tuple(self.checks),
            origin=Origin(self.problem, self.settings, self._store, self._own_samples),
        )

    def forecast(self) -> float:
        """Simulator calls that the whole run should need, judged by the last check; nan before the first."""
        if not self.checks:
            return float("nan")
        last = self.checks[-1]
        gap, epsilon = last.gap / self.reward_scale, self.epsilon / self.reward_scale
        predicted = self.algorithm.predicted_samples(self.problem, gap, epsilon, self.delta)
        if isnan(predicted) and 0 < last.statistic < last.threshold:
            # Widths shrink like the root of the number of samples.
            return last.samples * (last.threshold / last.statistic) ** 2
        return predicted

    def _advance(self, tally: Tally | None) -> None:
        """Give the algorithm its tally and see what it wants next."""
        try:
            request = next(self._run) if tally is None else self._run.send(tally)
        except StopIteration as end:
            check: Check = end.value
            self._record(check)
            self.stop(self._end(check))
            return
        if request.check is not None:
            self._record(request.check)
        pulls = self._within_budget(request.pulls)
        if pulls.total == 0:
            self.stop(Outcome.BUDGET)
        else:
            for part in pulls.split(self.calls_per_query):
                self._waiting[self._asked] = Query(self._asked, part, self.seed)
                self._asked += 1

    def _end(self, check: Check) -> Outcome:
        if self.algorithm.about.guarantee == "none":
            return Outcome.NO_GUARANTEE
        return Outcome.CERTIFIED if check.passed else Outcome.GAVE_UP

    def _within_budget(self, pulls: Pulls) -> Pulls:
        left = inf if self.max_samples is None else self.max_samples - self.samples
        if pulls.total <= left:
            return pulls
        share = left / pulls.total if self.algorithm.anytime else 0.0
        return Pulls(pulls.pairs, np.floor(pulls.counts * share).astype(np.int64))

    def _save_checks(self) -> None:
        """Store new checks, and the result if the study is over."""
        if self._file is not None and (self.done or self._saved < len(self.checks)):
            records = {i: self.checks[i].to_dict() for i in range(self._saved, len(self.checks))}
            self._saved = len(self.checks)
            self._file.record(records, self.result().to_dict() if self.done else None)
            if self.done:
                self.close()

    def close(self) -> None:
        """Let go of the file, if there is one; the study in it can be resumed."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def __del__(self) -> None:
        if getattr(self, "_file", None) is not None:
            self.close()

    def _record(self, check: Check) -> None:
        check = replace(check, epsilon=check.epsilon * self.reward_scale, gap=check.gap * self.reward_scale)
        if self.checks:
            if np.array_equal(self.checks[-1].policy, check.policy):
                check = replace(check, policy=self.checks[-1].policy)  # most policies of a trace are one and the same
            # A check carries over what was certified before it, so only the last one needs its proof.
            self.checks[-1] = replace(self.checks[-1], proof=None)
        self.checks.append(check)

    def _explanation(self, last: Check | None) -> str:
        if self.outcome is Outcome.CERTIFIED and last is not None:
            quality = "optimal" if last.epsilon == 0 else f"within {last.epsilon:g} of optimal"
            return f"The policy is {quality} with probability at least {1 - self.delta:g} ({last.rule})."
        if self.outcome is Outcome.NO_GUARANTEE:
            return (
                f"All samples are made, but {self.algorithm.name!r} proves nothing of its policy: nothing is certified."
            )
        why = {
            Outcome.BUDGET: f"The budget of {self.max_samples} simulator calls is spent",
            Outcome.TIME: "The time is up",
            Outcome.INTERRUPTED: "The run was interrupted",
            Outcome.GAVE_UP: "The largest number of samples was reached; two actions may be tied (try epsilon > 0)",
            Outcome.RUNNING: "The run is not over",
        }.get(self.outcome, "")
        known = inf if last is None else last.epsilon
        certified = "nothing is certified" if known == inf else f"the policy is certified within {known:g}"
        forecast = self.forecast()
        outlook = f"; about {forecast:.2g} calls would be needed in all" if 0 < forecast < inf else ""
        return f"{why}: {certified} yet{outlook}."


def _nothing_to_choose(problem: Problem) -> Check:
    """Without a state that has two distinct actions every policy is optimal, and no sample is needed."""
    policy = np.tile(problem.mask.argmax(axis=1), (problem.stages, 1))
    return Check(0, 0, policy, inf, 0.0, True, 0.0, inf, "no state has two distinct actions", {"theorem": "no choice"})


def _finite(number: float) -> float | None:
    return float(number) if np.isfinite(number) else None


def _float(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        return float("nan")


def _number(name: str, value: Any, good: bool, expected: str) -> float:
    if not good:
        raise InvalidInput(f"{name} must be {expected}. Got {value!r} instead.")
    return float(value)


def _whole(name: str, value: Any, least: int) -> int | None:
    if value is None:
        return None
    number = _float(value)
    if isinstance(value, bool) or not np.isfinite(number) or number != floor(number) or number < least:
        raise InvalidInput(f"{name} must be a whole number of at least {least}. Got {value!r} instead.")
    return int(value)
