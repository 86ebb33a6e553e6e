"""Your own simulator in twenty lines: when to repair a machine."""

import bestpolicy as bp

STATES = ["good", "worn", "broken"]


def step(state, action, rng):
    """One day: what was earned (between 0 and 1), and the state of the machine tomorrow."""
    if action == "repair":
        return 0.2, "good"
    age = STATES.index(state)
    earned = float(rng.random() < (0.9, 0.7, 0.0)[age])
    return earned, STATES[min(2, age + int(rng.random() < 0.3))]


result = bp.identify(
    step, states=STATES, actions=["run", "repair"], discount=0.6, epsilon=0.3, delta=0.05, algorithm="tight", seed=0
)
print(result.explanation)
print({state: result.action(state) for state in STATES})
result.save("certificate.json")  # for others to check: bestpolicy verify certificate.json
