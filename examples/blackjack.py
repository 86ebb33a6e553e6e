"""Certify a policy for Blackjack, which ends: a simulator of many hands at once, and a state for what is over."""

import numpy as np

import bestpolicy as bp

HANDS = [(total, card, ace) for ace in (0, 1) for total in range(12 if ace else 4, 22) for card in range(1, 11)]
END = len(HANDS)  # the state after the last ones
NUMBER = np.full((22, 11, 2), END)
NUMBER[tuple(np.array(HANDS).T)] = np.arange(END)


def take(total, ace, rng):
    """Add a card, of which four in thirteen count ten, and an ace eleven where that is not too much."""
    card = np.minimum(rng.integers(1, 14, len(total)), 10)
    hard, ace = total - 10 * ace + card, ace | (card == 1)
    ace = ace & (hard + 10 <= 21)
    return hard + 10 * ace, ace


def dealer(card, rng):
    """Final total of the dealer, who draws up to 17; 0 if that is too much."""
    ace = card == 1
    total = card + 10 * ace
    while (draws := total < 17).any():
        total[draws], ace[draws] = take(total[draws], ace[draws], rng)
    return np.where(total > 21, 0, total)


def step(states, actions, rng):
    """Stick (0), and the hand is over; or hit (1), and it is over if that is too much."""
    total, card, ace = np.array(HANDS)[states].T
    hit = actions == 1
    new, new_ace = take(total, ace == 1, rng)
    lost = hit & (new > 21)
    rewards = np.where(hit, -1.0 * lost, np.sign(total - dealer(card, rng)))
    return rewards, np.where(hit, NUMBER[np.where(new > 21, 0, new), card, np.int64(new_ace)], END)


problem = bp.Problem.tabular(END + 1, 2, discount=0.99, ends=[END])
simulator = bp.CallableSimulator(problem, step, vectorized=True, reward_range=(-1, 1))
result = bp.identify(simulator, epsilon=0.5, delta=0.05, algorithm="sharp", seed=0)

print(result.explanation)
print(f"{result.samples:,} hands")
plays = np.where(result.policy[NUMBER[4:22, 1:, 0]] == 1, "hit", "   ")
print("hard totals against a dealer's ace, 2, …, 10:")
for total, row in reversed(list(enumerate(plays, start=4))):
    print(f"{total:3}", " ".join(row))
