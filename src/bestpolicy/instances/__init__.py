"""Named instances, and the families they come from.

>>> from bestpolicy import instances
>>> instances.load("riverswim")
LinearMDP(riverswim: Problem(6 states, 2 actions, d=12, discount 0.9))
>>> instances.load("riverswim", states=10, discount=0.95)
LinearMDP(riverswim: Problem(10 states, 2 actions, d=20, discount 0.95))
>>> instances.riverswim(states=4, horizon=8, name="short river")
LinearMDP(short river: Problem(4 states, 2 actions, d=8, horizon 8))

`catalogue` lists the names with a sentence on each. A family is a function with keyword parameters; an
instance is a family with fixed ones, which `load` can override. Every model is drawn from a seed, in an order
that is part of the family's definition, so a name means the same numbers everywhere.

How to choose: *smoke tests* two-state, universal, simplex-gap; *a fair comparison* simplex, ball,
aggregated-riverswim, hard-discounted, queue, inventory; *stress* riverswim, simplex-large, grid, lock,
sixarms. Seeds of simplex-gap and of the episodic random instances were chosen for their gaps (the first ones
to reach 0.15 and 0.05): say so when reporting on them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from inspect import signature
from typing import Any

from bestpolicy._numerics.inputs import shown
from bestpolicy.errors import InvalidInput, did_you_mean
from bestpolicy.instances.aggregation import aggregated, aggregated_riverswim
from bestpolicy.instances.ball import ball
from bestpolicy.instances.classics import double_chain, forked_riverswim, grid, lock, riverswim, sixarms
from bestpolicy.instances.hard import hard_discounted, hard_episodic
from bestpolicy.instances.inventory import inventory
from bestpolicy.instances.queue import queue
from bestpolicy.instances.simplex import Mixture, low_rank, simplex, universal, universal_mixture
from bestpolicy.instances.tabular import garnet, random_tabular, tabular
from bestpolicy.mdp import LinearMDP

__all__ = [
    "Instance",
    "Mixture",
    "aggregated",
    "aggregated_riverswim",
    "ball",
    "catalogue",
    "double_chain",
    "forked_riverswim",
    "garnet",
    "grid",
    "hard_discounted",
    "hard_episodic",
    "inventory",
    "load",
    "lock",
    "low_rank",
    "queue",
    "random_tabular",
    "riverswim",
    "simplex",
    "sixarms",
    "tabular",
    "universal",
    "universal_mixture",
]


@dataclass(frozen=True)
class Instance:
    """A named instance; nothing is built before `load` is called.

    Attributes
    ----------
    name : str
        What `load` and the command line know it by.
    alias : str
        Its number in the benchmark, ``"B1"`` to ``"B15"``, or an empty string.
    family : str
        ``"F1"`` to ``"F11"``, as in the benchmark.
    summary : str
        What it models, in one sentence.
    construct : callable
        The family's function.
    settings : mapping
        The parameters that differ from the family's own defaults.
    """

    name: str
    alias: str
    family: str
    summary: str
    construct: Callable[..., LinearMDP] = field(repr=False)
    settings: Mapping[str, Any] = field(default_factory=dict, repr=False, hash=False)

    @property
    def parameters(self) -> list[str]:
        """Names of the parameters that `load` accepts."""
        return [name for name in signature(self.construct).parameters if name != "name"]

    def load(self, **overrides: Any) -> LinearMDP:
        """Build the model, with some parameters changed.

        A discount takes the place of a horizon, and the other way round.
        """
        for unknown in sorted(overrides.keys() - set(self.parameters)):
            raise InvalidInput(
                f"{self.name!r} has no parameter {unknown!r}.{did_you_mean(unknown, self.parameters)} "
                f"Its parameters are {', '.join(self.parameters)}."
            )
        settings = dict(self.settings)
        if not overrides.keys().isdisjoint({"discount", "horizon"}):
            settings = {name: value for name, value in settings.items() if name not in ("discount", "horizon")}
        return self.construct(**(settings | overrides), name=self.name)


def catalogue() -> list[Instance]:
    """List the named instances, those of the benchmark first."""
    return list(_CATALOGUE)


def load(name: str, **overrides: Any) -> LinearMDP:
    """Build a named instance.

    Parameters
    ----------
    name : str
        A name of the catalogue or its alias, in any case: ``"riverswim"``, ``"B2"``.
    **overrides
        Parameters of the family to change, such as ``discount=0.95``, ``horizon=5`` or ``seed=3``.
    """
    known = {key.lower(): instance for instance in _CATALOGUE for key in (instance.name, instance.alias) if key}
    asked = name.lower() if isinstance(name, str) else ""
    instance = known.get(asked)
    if instance is None:
        names = [each.name for each in _CATALOGUE]
        hint = did_you_mean(asked, names)
        raise InvalidInput(f"there is no instance {shown(name)}.{hint} Known are {', '.join(names)}.")
    return instance.load(**overrides)


# fmt: off
_CATALOGUE = (
    Instance("two-state", "B1", "F1",
             "The smallest interesting model: two states, two actions, random rows and rewards.",
             random_tabular, {"seed": 3}),
    Instance("riverswim", "B2", "F8", "Swim six states up a river to a large reward, or drift to a small one at once.",
             riverswim),
    Instance("simplex", "B3", "F2",
             "Twenty states whose pairs are random mixtures of four prototypes, each of which is also a pair.",
             simplex),
    Instance("simplex-large", "B4", "F2", "A thousand pairs that are random mixtures of five prototypes.",
             simplex, {"states": 100, "actions": 10, "dimension": 5, "discount": 0.9}),
    Instance("ball", "B5", "F3", "Features on a sphere, so that no few pairs generate the others as mixtures.", ball),
    Instance("aggregated-riverswim", "B6", "F4", "A river of four places, each made of five states that behave alike.",
             aggregated_riverswim),
    Instance("low-rank", "B7", "F5", "Random mixtures of five prototypes, hidden behind a change of coordinates.",
             low_rank),
    Instance("hard-discounted", "B8", "F6",
             "Two states and eight sign vectors as actions that hardly differ: the instance behind lower bounds.",
             hard_discounted),
    Instance("queue", "B9", "F9",
             "A queue of up to eight customers in which one of five service levels is chosen in each slot.", queue),
    Instance("inventory", "B10", "F10",
             "Reorder a stock of up to ten items each evening under Poisson demand and lost sales.", inventory),
    Instance("universal", "B11", "F11",
             "A linear MDP that is also a linear mixture of known kernels, made for every algorithm.", universal),
    Instance("grid", "B12", "F8", "Walk over a slippery four-by-four grid to the far corner, again and again.", grid),
    Instance("lock", "B13", "F8",
             "A combination lock of five places that springs back to the start at any wrong action.", lock),
    Instance("sixarms", "B14", "F8", "Six arms around a hub: the better one pays, the less often it can be reached.",
             sixarms),
    Instance("simplex-gap", "B15", "F2", "Mixtures of four prototypes with few ties: a seed chosen for its large gap.",
             simplex, {"states": 8, "actions": 2, "concentration": 0.25, "seed": 56}),
    Instance("forked-riverswim", "", "F8",
             "Two rivers with one spring and almost equal rewards at their ends, and jumps between them.",
             forked_riverswim),
    Instance("double-chain", "", "F8",
             "Two chains of four states that leave a centre and differ in the reward at their ends only.",
             double_chain),
    Instance("random-small", "", "F8", "A random tabular model with two states, two actions and discount 0.5.",
             random_tabular),
    Instance("random-wide", "", "F8", "A random tabular model with five states, ten actions and discount 0.7.",
             random_tabular, {"states": 5, "actions": 10, "discount": 0.7}),
    Instance("hard-episodic", "", "F7",
             "Jump to the good state as early as possible, with actions that hardly differ: behind lower bounds.",
             hard_episodic),
    Instance("hard-episodic-unique", "", "F7",
             "The hard episodic instance paid on arrival, so that the last step counts and the optimum is unique.",
             hard_episodic, {"pay_on_arrival": True}),
    Instance("riverswim-episodic", "", "F8",
             "Six steps to swim up a river of four states, where drifting pays a little everywhere.",
             riverswim, {"states": 4, "rest_reward": 0.04, "horizon": 6}),
    Instance("queue-episodic", "", "F9", "Five slots of a queue of up to three customers with three service levels.",
             queue, {"capacity": 3, "service_levels": (0.0, 0.5, 1.0), "waiting_cost": 0.7,
              "service_cost": 0.3, "horizon": 5}),
    Instance("inventory-episodic", "", "F10", "Five evenings of reordering a stock of up to four items.",
             inventory, {"capacity": 4, "largest_order": 2, "price": 1.0, "holding_cost": 0.1, "horizon": 5}),
    Instance("simplex-episodic", "", "F2", "Three steps, each with its own four prototypes: a seed chosen for its gap.",
             simplex, {"states": 8, "actions": 2, "concentration": 0.25, "seed": 22, "horizon": 3}),
    Instance("ball-episodic", "", "F3",
             "Three steps, each with its own law, over features on a sphere: a seed chosen for its gap.",
             ball, {"states": 6, "actions": 3, "dimension": 4, "seed": 9, "horizon": 3}),
    Instance("universal-episodic", "", "F11",
             "Three steps of a linear MDP that is also a linear mixture: a seed chosen for its gap.",
             universal, {"actions": 2, "seed": 29, "horizon": 3}),
)
# fmt: on
