"""Lemma E: bounds on the largest eigenvalues of all pairs, against eigenvalues."""

from __future__ import annotations

import numpy as np
import pytest

from bestpolicy.stopping.lemmas.next_states import NextStates

SHAPES = ((40, 9, 30), (300, 20, 12), (25, 30, 60), (12, 8, 40), (2, 3, 5))  # states, pairs, dimension


def laws_and_directions(rng, states, pairs, dimension, concentration):
    laws = rng.dirichlet(np.full(states, concentration), size=(2, pairs))
    laws[0, 0] = np.eye(states)[1]  # one that always leads to the same state
    laws[1, 0] = 0.0  # and one without samples
    directions = rng.normal(size=(2, states, dimension)) * np.exp(rng.normal(size=dimension))
    return laws, directions


def exact(laws, directions, metrics):
    """Square roots of λ_max(M·Cov), from the definition."""
    found = np.zeros(laws.shape[:2])
    for stage, pair in np.ndindex(*found.shape):
        law, rows = laws[stage, pair], directions[stage]
        centred = rows - law @ rows if law.any() else rows
        covariance = (centred.T * law) @ centred
        found[stage, pair] = np.sqrt(max(0.0, np.linalg.eigvals(metrics[stage] @ covariance).real.max()))
    return found


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("way", ["few", "wide", "kept"])
def test_no_deviation_is_above_its_bound_nor_far_below(shape, way):
    rng = np.random.default_rng(0)
    for concentration in (0.02, 0.3, 5.0):
        laws, directions = laws_and_directions(rng, *shape, concentration)
        root = rng.normal(size=(2, shape[2], shape[2]))
        metrics = root @ root.swapaxes(1, 2)
        pulls = rng.integers(1, 100, size=laws.shape[:2])
        states = NextStates(laws, directions, pulls)
        states._few, states._wide = way == "few", way == "wide"
        found, truth = states.deviations(metrics), exact(laws, directions, metrics)
        scale = np.sqrt(np.trace(metrics, axis1=1, axis2=2) * (directions**2).sum(axis=2).max(axis=1))[:, None]
        assert (found >= truth * (1 - 1e-9)).all()
        limit = 1 + 1e-6 if way == "few" else 1.4
        assert (found <= limit * truth + 1e-5 * scale).all()


def test_the_bound_is_exact_where_the_lemma_says_so():
    rng = np.random.default_rng(1)
    directions = rng.normal(size=(1, 30, 12))
    metrics = np.eye(12)[None]
    # Laws on two states have one direction; equal laws are multiples of the reference.
    two = np.zeros((1, 4, 30))
    two[0, np.arange(4), np.arange(4)], two[0, np.arange(4), np.arange(4) + 9] = 0.3, 0.7
    same = np.broadcast_to(rng.dirichlet(np.ones(30)), (1, 4, 30))
    for laws in (two, same):
        for way in (True, False):
            states = NextStates(laws, directions, np.full((1, 4), 10))
            states._few, states._wide = False, way
            assert np.allclose(states.deviations(metrics), exact(laws, directions, metrics), rtol=1e-4)


def test_directions_of_no_length_do_not_vary():
    laws = np.full((1, 50, 4), 0.25)
    assert not NextStates(laws, np.zeros((1, 4, 60)), np.ones((1, 50), int)).deviations(np.eye(60)[None]).any()
