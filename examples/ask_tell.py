"""Own the loop: ask what to measure, measure it your way, tell what came out."""

import numpy as np

import bestpolicy as bp

mdp = bp.instances.load("two-state")  # stands for your laboratory; the study sees only mdp.problem


def measure(pulls, rng):
    """Simulate every pair as often as asked, one sample at a time, and count."""
    states, actions = np.divmod(np.repeat(pulls.pairs, pulls.counts[0]), mdp.problem.actions)
    rewards = (rng.random(len(states)) < mdp.rewards[states, actions]).astype(float)
    following = (rng.random(len(states)) > mdp.transitions[states, actions, 0]).astype(int)
    return bp.Tally.from_samples(mdp.problem, states, actions, rewards, following)


study = bp.Study(mdp.problem, epsilon=0.2, delta=0.1, algorithm="tight", seed=0)
while not study.done:
    for query in study.ask():
        study.tell(query, measure(query.pulls, query.rng()))
print(study.result().explanation)
print("policy", study.result().policy, "after", study.samples, "samples")
