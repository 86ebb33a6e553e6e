"""Certify a policy for Blackjack, whose cards nobody can put in order: by reset and step alone, at its start."""

import bestpolicy as bp

model = bp.ResetSimulator("Blackjack-v1", horizon=5, reward_range=(-1, 1), return_limit=1, stationary=True)
result = bp.identify(model, epsilon=0.5, delta=0.1, seed=0)

print(result.explanation)
print(f"{result.rounds} hands in {result.seconds:.0f} s")
for total in range(12, 22):
    dealer = [model.states.index((total, card, 0)) for card in range(1, 11)]
    print(total, " ".join("hit" if result.policy[0, state] else "---" for state in dealer))
