"""Lost sales: how much to order, in euros, where the shelf limits what may be ordered."""

import bestpolicy as bp

SHELF, PRICE, COST, KEEPING = 4, 5.0, 2.0, 0.5


def orders(stock):
    """All that still fits on the shelf."""
    return range(SHELF - stock + 1)


def step(stock, order, rng):
    """One week: what was earned, and what is left."""
    ready = stock + order
    sold = min(ready, rng.poisson(1.5))
    return PRICE * sold - COST * order - KEEPING * (ready - sold), ready - sold


result = bp.identify(
    step, states=range(SHELF + 1), actions=orders, discount=0.8, reward_range=(-10, 20), epsilon="5%", delta=0.05,
    algorithm="sharp", seed=0, max_samples=300_000,
)  # fmt: skip
print(result)
result.save("certificate.json")
result.plot().savefig("policy.svg")
