"""sharp with features that mix states: bets on the rivals of a policy (Theorem I) or along paths (Theorem UD).

    sample a G-optimal design until the hardest rival stands out a little
    repeat
        now and then begin a lag: fix a prior over policies and the sizes of bets (`stopping.dense`)
        now and then choose anew what to sample, so that the hardest rivals are refuted soonest
        now and then take a snapshot of what is known: the bets on the next batches
        sample a tenth more (near the end a twentieth), and look: which ε does each lag certify, for its own policy and
            for the most promising ones by now?
    until the certified ε is at most the asked one

Lag l spends 0.7·0.3^(l-1)·δ, which sums to δ. The last three are looked at (where looks take long, the one
that promises most; theorems take turns); those before stay spent. Every look states an ε that holds, all of them
together with probability 1 - δ, so a run that is stopped has the best of them."""

from __future__ import annotations

from dataclasses import replace
from math import ceil, inf, isfinite, log, nan, sqrt
from typing import Any

import numpy as np

from bestpolicy._numerics.arrays import FloatArray, IntArray
from bestpolicy._numerics.reproducible import one_thread, steady
from bestpolicy.algorithms.dense_lags import Focus, Running
from bestpolicy.algorithms.dense_plan import Knowledge
from bestpolicy.algorithms.protocol import MAX_ROUNDS, Task
from bestpolicy.algorithms.tight import whitened_problem, whole_counts, with_shares
from bestpolicy.design import Design, g_optimal_design
from bestpolicy.samples import Pulls, Tally
from bestpolicy.stopping import Check
from bestpolicy.stopping.dense.bets import Snapshot
from bestpolicy.stopping.dense.nuisance import is_large
from bestpolicy.stopping.dense.policies import LEAST_LOG_WEIGHT
from bestpolicy.stopping.dense.theorem_i import ABOVE, CAUTION, SIZE_SHARES, SOONEST, STEERING, Lag
from bestpolicy.stopping.dense.theorem_ud import SHARES
from bestpolicy.stopping.evidence import Evidence
from bestpolicy.stopping.rounding import coordinates_of
from bestpolicy.stopping.rule import Past, Proof

_FIRST_SHARE, _NEXT_SHARE = 0.7, 0.3  # of δ for the first lag, and of what is left for each later one
LEFT = 1 - _FIRST_SHARE  # of δ after the first lag, and of what was left then after each later one
_KEPT = 3  # lags that are looked at
_RATIO, _NEAR_RATIO = 1.1, 1.05  # look each time there are so many times the samples; near the end
_NEAR = 0.75  # of what has to be reached
_LAG_RATIO = 3.0  # a lag for so many times the samples
_LATE, _LATE_RATIO = 1_000_000, 10.0  # samples from which on a lag begins though the end is not in sight (ties)
# A new allocation for so many times the samples, and a new snapshot; where looks take long
_REDESIGN, _SLOW_REDESIGN = 1.12, 1.3
_EXPLORATION, _PATH_EXPLORATION = 0.1, 0.4  # share of the G-optimal design, for Theorems I and UD
_LOOSE_EXPLORATION = 0.2  # for Theorem I, while it is hampered by how little is known of all values together
_BETTER = 2.0  # by what factor squared standard deviations have to be more for Theorem UD, which has more events
_IN_SIGHT, _EXACT_IN_SIGHT = 0.45, 0.3  # of the standard deviations that are needed: for a first lag; if ε = 0
_GLIMPSE = 0.1  # of these: for a first allocation
_ALL_PAIRS = 2_000_000  # size of a tally up to which every pair may be sampled
_TOLERANCE = 1e-3  # of the G-optimal design
_FIRST = 4  # samples of each of its pairs to begin with
_WORK = 20_000_000  # numbers that policies of a look have in all, if there is more than one
_TINY = 1e-9  # of the largest value: what a policy loses counts for more
# Where looks take long: batches that are read with a look, and at a time before it
_AT_ONCE, _READ = 3, 12
_AHEAD = 0.85  # of what a bound should be: another lag or policy has to promise less than that to be looked at instead
_CLOSE = 0.5  # of ε: a policy that promises less than another by more than that is not tested


class DenseCourse:
    """How far a run is: all samples, the lags with the samples since, the best check."""

    def __init__(self, task: Task, first: int = _FIRST) -> None:
        self.problem, self.first = task.problem, first  # samples of each pair to begin with
        self.epsilon, self.delta = task.epsilon, task.delta
        self.own_data = task.own_data
        self.sight = _IN_SIGHT if task.epsilon > 0 else _EXACT_IN_SIGHT
        self.nats = log(1 / task.delta) + 2.5
        self.check: Check | None = None
        self.samples = self.lags = 0
        self.running = list[Running]()
        self.focus = dict[str, Focus]()  # of each theorem, where looks take long
        self.design: Design | None = None
        self._known: Knowledge | None = None

    def _set_up(self, design: Design) -> None:
        """Fix the coordinates, and the pairs that may be sampled."""
        problem, self.design = self.problem, design
        count = len(problem.pairs)
        every = problem.stages * count * problem.states <= _ALL_PAIRS
        candidates, shares = with_shares(problem, design, np.arange(count) if every else design.indices, self.own_data)
        self.used = coordinates_of(whitened_problem(problem, design)).problem
        self.pairs = problem.pairs[candidates]
        self.sampled = self.used.features.reshape(-1, problem.dimension)[self.pairs]
        self.everywhere = np.tile(shares / problem.stages, (problem.stages, 1))
        self.evidence = self._nothing = Evidence.empty(self.used, self.pairs)
        if self.own_data is not None:
            self.evidence = self.evidence.add(self.own_data)
        self.redesign = _SLOW_REDESIGN if is_large(self.used, count) else _REDESIGN
        self.shares, self.owed = self.everywhere, np.zeros(self.everywhere.shape)
        self.designed = self.taken = 0  # samples before the last allocation, and before the last snapshot
        self.snapshot: Snapshot | None = None
        self.price = nan  # samples for each nat, by the last allocation
        self.reached = 0.0  # of the standard deviations that are needed
        self.missing: FloatArray | None = None  # what bets on each rival have still to earn, if they are known
        self.loose = 1.0  # how far looks are hampered by how little is known of all values together, up to 1

    @property
    def over(self) -> bool:
        """Whether there is nothing more to ask."""
        return self.check is not None and (self.check.passed or self.samples >= MAX_ROUNDS)

    @property
    def in_sight(self) -> bool:
        """Whether the hardest rival stands out so much that a lag might begin."""
        return self.known.ready and self.known.resolved >= self.sight * sqrt(2 * self.nats)

    @property
    def known(self) -> Knowledge:
        """What the samples so far say."""
        if self._known is None:
            allowance = self.epsilon / float(self.problem.value_limits[0])
            self._known = Knowledge(self.used, self.evidence, self.shares, self.nats, allowance)
        return self._known

    @one_thread()
    def decide(self) -> dict[str, Any]:
        """Fix what the next samples are for."""
        if self.design is None:
            design = g_optimal_design(self.problem.pair_features, tolerance=_TOLERANCE)
            return {"design": vars(design), "first": self.first}
        known, decided = self.known, dict[str, Any]()
        if not known.ready:
            return decided
        if self.check is not None and self.check.statistic >= _NEAR:
            decided["growth"] = _NEAR_RATIO
        needed = sqrt(2 * self.nats)
        total = self.evidence.tally.samples
        recent = bool(self.running) and total < _LAG_RATIO * self.running[-1].lag.started
        resolved, paths = known.resolved, None
        delta = _FIRST_SHARE * _NEXT_SHARE**self.lags * self.delta
        if self.epsilon > 0 and self.problem.horizon is None and (not recent or total >= self.redesign * self.designed):
            mixed = _PATH_EXPLORATION * self.everywhere + (1 - _PATH_EXPLORATION) * self.shares
            paths = known.paths(mixed, SHARES[2] * delta)
            along = known.path_resolved(self.epsilon, paths)
            if along**2 > _BETTER * resolved**2:
                resolved = along
            else:
                paths = None
        self.reached = resolved / needed
        stale = total >= max(_LATE, _LATE_RATIO * (self.running[-1].lag.started if self.running else 0))
        if (resolved >= self.sight * needed and not recent) or stale:
            prior = known.ellipsoids(SHARES[1] * delta)
            lag = Lag(
                self.lags + 1,
                total,
                delta,
                prior,
                known.policies(),
                known.frame(self.shares, SHARES[1] * delta),
                self.epsilon,
                size_shares=np.array(SIZE_SHARES),
                caution=CAUTION,
                soonest=SOONEST,
                above=ABOVE,
                steering=STEERING,
                portions=known.portions,
            )
            if paths is not None:
                lag = replace(
                    lag, theorem="UD", sigma=paths.sigma, gamma=paths.gamma, bet=paths.bet, spikes=paths.spikes
                )
            decided["lag"] = lag.to_dict()
        if total >= self.redesign * self.designed and resolved >= _GLIMPSE * needed and len(known.gaps):
            focused, price = known.allocation(self.missing)
            exploration = _EXPLORATION + self.loose * (_LOOSE_EXPLORATION - _EXPLORATION)
            exploration = _PATH_EXPLORATION if paths is not None else exploration
            decided["shares"] = exploration * self.everywhere + (1 - exploration) * focused
            decided["price"] = price
        renewed = "lag" in decided or "shares" in decided or total >= self.redesign * self.taken
        if (self.running or "lag" in decided) and (renewed or self.snapshot is None):
            decided["renewed"] = True
        if self.focus:  # what a run that is resumed goes on with
            decided["focus"] = {theorem: vars(focus) for theorem, focus in self.focus.items()}
        return decided

    def expect(self, decided: dict[str, Any]) -> None:
        """Say with the check how many samples the run should need in all."""
        price = decided.get("price", nan if self.design is None else self.price)
        if self.check is None or self.over or self.design is None:
            return
        planned = price * self.nats * 1.5
        planned = self.samples / self.reached**2 if self.reached > 1e-100 else planned  # whose square is not 0
        if isfinite(planned):
            self.check = replace(self.check, forecast=float(ceil(max(planned, _RATIO * self.samples))))

    @one_thread()
    def begin(self, decided: dict[str, Any]) -> None:
        """Take up what was decided; what bets on the next batch rest on is added to it, where it is to be renewed."""
        if "design" in decided:
            self._set_up(Design(**decided["design"]))
        self.focus = {theorem: Focus(**focus) for theorem, focus in decided.get("focus", {}).items()}
        if "lag" in decided:
            lag = Lag.from_dict(decided["lag"])
            self.lags = lag.number
            self.running = [*self.running[1 - _KEPT :], Running(lag, self._nothing)]
        if "shares" in decided:
            self.shares, self.price = np.asarray(decided["shares"]), float(decided["price"])
            self.designed, self.owed = self.evidence.tally.samples, np.zeros(self.shares.shape)
            self._known = None  # quiet pairs are guessed for the shares that are sampled
        assert self.design is not None
        total = self.evidence.tally.samples
        least = self.problem.stages * (4 if not self.samples else 2) * max(self.problem.dimension, 1)
        if not self.samples:
            least = max(least, decided.get("first", _FIRST) * self.problem.stages * len(self.design.indices))
        owed = self.owed + self.shares * max(ceil((decided.get("growth", _RATIO) - 1) * total), least)
        self.counts = whole_counts(np.maximum(owed, 0.0))
        self.owed = owed - self.counts
        ready = self.samples > 0 and self.known.ready
        if decided.pop("renewed", False):
            fixed = self.known.snapshot(self.shares, self.counts)
            decided["snapshot"] = {name: value for name, value in vars(fixed).items() if name != "counts"}
        self.weights = self.known.weights if ready else np.ones(self.shares.shape)
        if "snapshot" in decided:
            self.snapshot, self.taken = Snapshot(**decided["snapshot"], counts=self.counts), total
        elif self.snapshot is not None:  # what was known before the last batch was known before this one, too
            self.snapshot = replace(self.snapshot, counts=self.counts)
        if self.snapshot is not None:
            self.weights = self.snapshot.weights

    def pulls(self) -> Pulls:
        """What to simulate next."""
        return Pulls(self.pairs, self.counts)

    @one_thread()
    def add(self, batch: Tally) -> None:
        """Take in what was simulated."""
        batch = batch.at(self.pairs)
        self.evidence, self._known = self.evidence.add(batch, self.weights), None
        self.samples += batch.samples
        kept = batch.compact()
        for running in self.running:
            assert self.snapshot is not None  # there is no lag without an estimate
            running.add(self.snapshot, kept)

    @one_thread()
    def look(self) -> None:
        """Let all lags look at the samples since."""
        if not self.samples:
            return
        problem = self.problem
        rounds, suffix = self.samples // problem.stages, "" if problem.horizon is None else "-E"
        policy = self.known.policy if self.known.ready else np.zeros((problem.stages, problem.states), np.int64)
        gap = self.known.gap if self.known.ready else 0.0
        check = Check(rounds, self.samples, policy, 0.0, 1.0, False, inf, gap, f"Theorem I{suffix}")
        if self.check is not None and self.check.epsilon < inf:
            check = replace(self.check, rounds=rounds, samples=self.samples, gap=gap, forecast=nan)
        tested_now = self._tested()
        # A look that only reads says nothing new of how far the run is.
        reached = self.check.statistic if tested_now is None and self.check is not None else 0.0
        self.loose, self.missing = 1.0, None
        for running, tested in tested_now or []:
            outcome = running.book(self.used, self.sampled, tested).look(running.evidence)
            if outcome.reached >= reached:
                reached, self.loose = outcome.reached, min(outcome.loose, 1.0)
                self.missing = outcome.missing if np.array_equal(tested, policy) else None
            if outcome.epsilon < check.epsilon:
                rule, proof = f"Theorem {running.lag.theorem}{suffix}", self._proof(running, tested)
                check = replace(
                    check, policy=tested, epsilon=outcome.epsilon, lag=running.lag.number, rule=rule, proof=proof
                )
        passed = check.epsilon <= self.epsilon
        self.check = replace(check, passed=passed, statistic=1.0 if passed else min(reached, 1 - 1e-9))

    def _tested(self) -> list[tuple[Running, IntArray]] | None:
        """Each lag with its own policy and the best one; if it has drawn some, with one or two that promise most.

        Where looks take long, one lag with one policy; None while its batches are read.
        """
        found = list[tuple[Running, IntArray]]()
        for running in self.running:
            prior = running.lag.policies
            tested = [prior.favourite]
            if self.known.ready and not np.array_equal(self.known.policy, prior.favourite):
                tested.append(self.known.policy)
            if self.known.ready and len(prior.drawn):
                tested = self._most_promising(running.lag, [*tested, *prior.drawn])
            found += [(running, policy) for policy in tested if prior.log_weight(policy) >= LEAST_LOG_WEIGHT]
        problem = self.problem
        pairs, states = len(self.pairs), problem.states
        work = problem.stages * ((pairs + problem.mask.size) * problem.dimension**2 + pairs * states)
        if len(found) * work <= _WORK or not self.known.ready:
            return found
        return self._focused(found)

    def _focused(self, found: list[tuple[Running, IntArray]]) -> list[tuple[Running, IntArray]] | None:
        """Look at the lag and policy whose bound should be least; theorems take turns.

        They stay the same until others are clearly better: others have all their batches to be read first, for which
        there is a look or two without an answer.
        """
        by_number = {running.lag.number: running for running in self.running}
        self.focus = {theorem: focus for theorem, focus in self.focus.items() if focus.lag in by_number}
        stayed = {theorem: (by_number[focus.lag], focus.policy) for theorem, focus in self.focus.items()}
        found = [*found, *stayed.values()]
        scores = self._promised(found)
        batches = self.evidence.batches
        theorems = sorted({running.lag.theorem for running, _ in found})
        for theorem in theorems:
            best = min(
                (place for place, each in enumerate(found) if each[0].lag.theorem == theorem), key=scores.__getitem__
            )
            if theorem in stayed:
                own = scores[len(found) - len(stayed) + list(stayed).index(theorem)]
                if scores[best] >= _AHEAD * own:
                    continue
            running, policy = found[best]
            turns = ceil(max(0, len(running.batches) - _AT_ONCE) / (_READ - len(theorems)))  # more come in meanwhile
            self.focus[theorem] = Focus(running.lag.number, policy, batches + turns * len(theorems))
        for running in self.running:
            running.keep([focus.policy for focus in self.focus.values() if focus.lag == running.lag.number])
        focus = self.focus[theorems[batches % len(theorems)]]
        running = by_number[focus.lag]
        if batches < focus.ready:
            running.book(self.used, self.sampled, focus.policy, _READ)
            return None
        return [(running, focus.policy)]

    def _promised(self, found: list[tuple[Running, IntArray]]) -> list[float]:
        """What bounds should be, by what policies lose and by their widths."""
        weights = np.array([running.lag.policies.log_weight(policy) for running, policy in found])
        spent = np.array([running.lag.delta for running, _ in found])
        samples = np.array([max(1, running.samples) for running, _ in found])
        widths = np.sqrt((2.5 - np.log(spent) - weights) / samples)
        widths *= max(self.epsilon, _TINY * float(self.problem.value_limits[0])) / widths.min()
        if self.problem.horizon is None:
            losses = np.concatenate([self.known.losses(policy, running.lag.theorem) for running, policy in found])
        else:
            losses = np.array([float((policy != self.known.policy).any()) for _, policy in found])
        scores: list[float] = steady(losses + widths).tolist()
        return scores

    def _most_promising(self, lag: Lag, policies: list[IntArray]) -> list[IntArray]:
        """The policy for which what it loses and what its bound is wide sum up to least; another one if it is close."""
        nats = self.nats - np.array([lag.policies.log_weight(policy) for policy in policies])
        losses = self.known.losses(np.concatenate(policies), lag.theorem)
        scores = steady(losses + self.epsilon * np.sqrt(nats / nats[0]))
        order = np.argsort(scores, kind="stable")
        first, near = policies[order[0]], scores[order[0]] + _CLOSE * self.epsilon
        others = (policies[place] for place in order if scores[place] <= near)
        return [first, *(policy for policy in others if not np.array_equal(policy, first))][:2]

    def recall(self, check: Check | None) -> None:
        """Take a check from the study's file; if it states something new, this moment's samples prove it."""
        if check is None:
            return
        before = self.check
        proof = None if before is None else before.proof
        if check.epsilon < inf and (before is None or check.epsilon < before.epsilon):
            running = next(one for one in self.running if one.lag.number == check.lag)
            proof = self._proof(running, check.policy)
        self.check = replace(check, proof=proof)

    def _proof(self, running: Running, policy: IntArray) -> Proof:
        """Return what shows what a lag says now: what it has fixed, and each batch with what was fixed before it."""
        lag, states = running.lag, np.arange(self.problem.states)
        ahead = self.used.features[states, policy]
        if self.problem.horizon is not None:
            ahead = np.concatenate([ahead[1:], np.zeros_like(ahead[:1])])
        batches = [
            {
                "theta": snapshot.theta,
                "links": snapshot.mu.swapaxes(1, 2) @ ahead,
                "variances": snapshot.variances,
                "shares": snapshot.shares,
                "weights": snapshot.weights,
                "planned": snapshot.counts,
                "cells": batch.cells,
                "counts": batch.counts,
                "rewards": batch.rewards,
                "squares": batch.squared_rewards,
            }
            for snapshot, batch in running.batches
        ]
        apart = ["prior", "policies", "frame", "asked", "theorem"]
        apart += [] if lag.steering else ["soonest", "above", "steering"]  # of a study that older code has begun
        apart += [] if lag.spikes.size else ["spikes"]
        apart += [] if (lag.portions != 1).any() else ["portions"]
        fixed = {name: value for name, value in vars(lag).items() if name not in apart}
        fixed |= {name: value for name, value in vars(lag.policies).items() if value.size}
        fixed["frame"] = vars(lag.frame)
        past = Past(lag.prior, lag.number, lag.started, policy)
        transform = coordinates_of(self.used).transform
        return Proof(
            lag.theorem, running.evidence, transform, past, design=self.design, fixed=fixed, fresh={"batches": batches}
        )
