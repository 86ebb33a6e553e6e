"""Features on a sphere: linear MDPs without anchors.

A pair is a direction x(s, a) on the unit sphere of R^{d-1}, with features φ = (1, x)/√2. The next state has a
base distribution p₀, tilted by the direction, and the reward is linear in it:

    p(s'|s, a) = p₀(s') (1 + ρ ⟨u_{s'}, x⟩),     Σ p₀ u = 0,  ‖u‖ ≤ 1,
    r(s, a)    = 1/2 + ⟨c, x⟩,                   ‖c‖ = 1/2 .

Rows sum to 1 because the tilts average out, and are not negative because ρ ≤ 1. All pairs are vertices of the
convex hull of the features, so no small set of pairs generates the others as mixtures. Methods that rely on
anchors lose a factor here; the G-optimal design does not. In these coordinates the norms of θ and μ are
within the limits of the theory as they stand, for ρ = 1 if d ≥ 4 and ρ = 1/√2 if d = 3.
"""

from __future__ import annotations

import numpy as np

from bestpolicy._numerics.inputs import require_fraction, require_whole
from bestpolicy.instances.arithmetic import lengths, product
from bestpolicy.instances.construction import model_of, problem_of, require_room, require_sizes
from bestpolicy.mdp import LinearMDP


def ball(
    *,
    states: int = 40,
    actions: int = 10,
    dimension: int = 5,
    contrast: float | None = None,
    seed: int = 0,
    discount: float | None = None,
    horizon: int | None = None,
    name: str = "ball",
) -> LinearMDP:
    """Return a random linear MDP with features on a sphere.

    Drawn in this order: the directions x, pair by pair; then for each step p₀ (Dirichlet 5), u and c (normal,
    then centred or scaled). A discounted model is the first step of the episodic one with the same seed.

    Parameters
    ----------
    states, actions : int
    dimension : int
        d ≥ 3.
    contrast : float, optional
        ρ in [0, 1]: how much the direction changes where one goes. By default 1, and 1/√2 if d = 3.
    seed : int
    discount, horizon
        At most one of them; discount 0.8 by default. With a horizon every step has its own (p₀, u, c).
    name : str, optional
        Shown in reports.
    """
    require_sizes(1, states=states, actions=actions)
    require_sizes(3, dimension=dimension)
    require_room("states, actions or dimension", states * actions * dimension)
    require_whole(0, seed=seed)
    if contrast is None:
        contrast = 1.0 if dimension >= 4 else 0.5**0.5
    require_fraction(contrast=contrast)
    rng = np.random.default_rng(seed)
    directions = rng.normal(size=(states, actions, dimension - 1))
    directions /= lengths(directions)[..., None]
    features = np.concatenate([np.ones((states, actions, 1)), directions], axis=2) / np.sqrt(2)
    problem = problem_of(features, discount, horizon, 0.8)
    thetas, mus = [], []
    for _ in range(problem.stages):
        base = rng.dirichlet(np.full(states, 5.0))
        tilts = rng.normal(size=(states, dimension - 1))
        tilts -= product(base, tilts)
        tilts /= lengths(tilts).max()
        gradient = rng.normal(size=dimension - 1)
        gradient *= 0.5 / lengths(gradient)
        mus.append(np.sqrt(2) * base[:, None] * np.column_stack([np.ones(states), contrast * tilts]))
        thetas.append(np.sqrt(2) * np.concatenate([[0.5], gradient]))
    return model_of(problem, thetas, mus, name)
