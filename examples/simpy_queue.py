"""One server, two queues: whom to serve next, where a SimPy model says what a minute brings."""

import simpy

import bestpolicy as bp

ROOM, ARRIVALS, SERVICE, COST = 3, (0.5, 0.7), (0.8, 1.2), (3, 1)


def minute(state, queue, rng):
    """Serve one of the queues for a minute: what it costs that some still wait, and who does."""
    env, waiting = simpy.Environment(), list(state)

    def happens(which, rate, change):
        while True:
            yield env.timeout(rng.exponential(1 / rate))
            waiting[which] = min(max(waiting[which] + change, 0), ROOM)

    for which, rate, change in ((0, ARRIVALS[0], 1), (1, ARRIVALS[1], 1), (queue, SERVICE[queue], -1)):
        env.process(happens(which, rate, change))
    env.run(until=1.0)
    return -COST[0] * waiting[0] - COST[1] * waiting[1], tuple(waiting)


states = [(first, second) for first in range(ROOM + 1) for second in range(ROOM + 1)]
result = bp.identify(minute, states=states, actions=[0, 1], discount=0.8, reward_range=(-12, 0),
                     epsilon="10%", delta=0.05, algorithm="sharp", seed=0)  # fmt: skip
print(result)
result.plot().savefig("policy.svg")
