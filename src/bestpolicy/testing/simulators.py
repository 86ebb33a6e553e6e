"""Is a simulator what the guarantee takes it for?"""

from __future__ import annotations

import numpy as np

from bestpolicy._numerics.inputs import whole
from bestpolicy.errors import InvalidInput
from bestpolicy.problem import Problem
from bestpolicy.samples import Pulls, Tally
from bestpolicy.simulators import GenerativeModel


def check_generative_model(model: GenerativeModel, *, samples: int = 100, seed: int = 0) -> None:
    """Raise InvalidInput with the first thing that is wrong with a simulator; return quietly if nothing is.

    Parameters
    ----------
    model : GenerativeModel
    samples : int
        Simulator calls per pair and batch; at most 20 pairs are tried, and each four times.
    seed : int
    """
    if not isinstance(model, GenerativeModel):
        raise InvalidInput("a generative model needs an attribute `problem` and a method `sample(pulls, rng)`.")
    problem = model.problem
    if not isinstance(problem, Problem):
        raise InvalidInput(f"model.problem must be a Problem. Got {type(problem).__name__} instead.")
    samples, seed = whole("samples", samples, 1), whole("seed", seed, 0)
    open_pairs = problem.open_pairs  # nobody asks for what comes after the end
    chosen = np.unique(np.linspace(0, len(open_pairs) - 1, 20).round().astype(np.int64))
    pairs = open_pairs[chosen]
    pulls = Pulls(pairs, np.full((problem.stages, len(pairs)), samples))

    first = model.sample(pulls, np.random.default_rng(seed))
    check_tally(problem, pulls, first)
    again = model.sample(pulls, np.random.default_rng(seed))
    if not (
        np.array_equal(first.next_counts, again.next_counts) and np.allclose(first.next_rewards, again.next_rewards)
    ):
        raise InvalidInput(
            "two calls with equal random generators gave different samples. Use no randomness but `rng`, and keep no "
            "state between calls."
        )
    half = Pulls(pairs, pulls.counts // 2)
    check_tally(problem, half, model.sample(half, np.random.default_rng(seed + 1)))
    nothing = Pulls(pairs, np.zeros_like(pulls.counts))
    check_tally(problem, nothing, model.sample(nothing, np.random.default_rng(seed + 2)))


def check_tally(problem: Problem, pulls: Pulls, tally: Tally) -> None:
    """Raise InvalidInput if a tally cannot be the answer to these pulls."""
    if not isinstance(tally, Tally):
        raise InvalidInput(f"sample must return a Tally. Got {type(tally).__name__} instead.")
    shape = (problem.stages, len(tally.pairs), problem.states)
    for name, array, expected in (
        ("next_counts", tally.next_counts, shape),
        ("next_rewards", tally.next_rewards, shape),
        ("squared_rewards", tally.squared_rewards, shape[:2]),
    ):
        if np.shape(array) != expected:
            raise InvalidInput(f"{name} must have shape {expected}. Got {np.shape(array)} instead.")
        if not np.isfinite(array).all() or (np.asarray(array) < 0).any():
            raise InvalidInput(f"{name} must be finite and not negative.")
    if pulls.minus(tally).total:
        raise InvalidInput(f"{pulls.total} samples were asked for and {tally.samples} came back.")
    slack = 1e-9 * (1 + tally.next_counts)
    if (tally.next_rewards > tally.next_counts + slack).any():
        stage, k, next_state = np.argwhere(tally.next_rewards > tally.next_counts + slack)[0]
        state, action = problem.pair(int(tally.pairs[k]))
        raise InvalidInput(
            f"pair (state {state}, action {action}): rewards that came with next state {next_state} at stage {stage} "
            "sum to more than their number, so some exceed 1."
        )
    sums = tally.reward_sums
    few = 1e-9 * (1 + tally.pulls)
    if (tally.squared_rewards > sums + few).any() or (
        tally.squared_rewards * tally.pulls < sums**2 - few * (1 + tally.pulls)
    ).any():
        raise InvalidInput("squared_rewards do not fit next_rewards for rewards in [0, 1].")


__all__ = ["check_generative_model", "check_tally"]
