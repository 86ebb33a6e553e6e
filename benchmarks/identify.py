"""A whole run: design, 10¹⁰ samples, all checks."""

from __future__ import annotations

import bestpolicy as bp
from benchmarks.timing import best_of, line, timed


def main() -> None:
    """Time runs of about 10¹⁰ samples."""
    mdp = bp.instances.simplex(states=100, actions=5, dimension=10, seed=0, discount=0.9)
    simulator = bp.ExactSimulator(mdp)
    seconds, result = best_of(3, lambda: bp.identify(simulator, epsilon=0.25, delta=0.05, seed=0))
    more = f"{result.samples:.2g} samples, {len(result.checks)} checks"
    timed("gss, S=100 A=5 d=10 γ=0.9 ε=0.25", seconds, 0.5, more, met=result.certified)
    episodic = bp.instances.simplex(states=100, actions=5, dimension=10, seed=0, horizon=5)
    seconds, result = best_of(3, lambda: bp.identify(bp.ExactSimulator(episodic), epsilon=0.1, delta=0.05, seed=0))
    more = f"{result.samples:.2g} samples, {len(result.checks)} checks"
    line("gss-e, S=100 A=5 d=10 H=5 ε=0.1", seconds, "", None, more)


if __name__ == "__main__":
    main()
