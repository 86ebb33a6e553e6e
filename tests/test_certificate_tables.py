"""Certificates of Theorem U: what `sharp` saves is recomputed by a program of its own, and nothing else passes."""

from __future__ import annotations

import json
from copy import deepcopy
from dataclasses import replace

import numpy as np
import pytest
from benchmarks.sparse import World, garnet
from scipy.stats import binomtest

import bestpolicy as bp
from bestpolicy.certificate import _table_proof, make_certificate
from bestpolicy.errors import InvalidInput, TooLarge
from bestpolicy.stopping.rule import Proof
from bestpolicy.stopping.tables.lag import LOOKS, SHARES, Lag
from bestpolicy.stopping.tables.look import look
from bestpolicy.stopping.tables.model import TableSamples
from bestpolicy.study.journal import pack, unpack
from bestpolicy.verification import tables, verify_text
from bestpolicy.verification.case import Case
from bestpolicy.verification.reading import VERSION, digest
from tests.journals import rewrite
from tests.test_certificate import array, stored, verdict_on
from tests.test_tables import HOSTILE, bad_policy, batches, make_lag, world

WITHOUT_ENDS = [name for name in HOSTILE if name != "trapdoor"]


def case_of(problem: World) -> Case:
    table = problem.table
    numbers = np.bincount(table.state, minlength=table.states)
    mask = np.arange(numbers.max()) < numbers[:, None]
    return Case(np.zeros((*mask.shape, 0)), mask, table.discount, table.horizon)


def document_of(problem: World, lag: Lag, fresh: TableSamples, units: int, epsilon: float, number: int = 1) -> dict:
    """A certificate that states what a lag says, with the size of the table in place of its features."""
    case, table, delta = case_of(problem), problem.table, lag.delta / (0.65 * 0.35 ** (number - 1))
    first = np.searchsorted(table.state, np.arange(table.states))
    actions = (lag.policy % len(table.state)).reshape(case.stages, -1) - first
    fixed = vars(lag) | {"number": number, "started": 10**6}
    encoded = make_certificate.__globals__["_encoded"]
    samples = 10**6 + int(fresh.pulls.sum())
    document = {
        "format": "bestpolicy certificate",
        "version": VERSION,
        "problem": {
            "tabular": {"states": table.states, "actions": case.mask.shape[1]},
            "mask": None if case.mask.all() else encoded(case.mask, "|b1"),
            "discount": table.discount,
            "horizon": table.horizon,
            "fingerprint": case.fingerprint,
            "labels": None,
        },
        "claim": {
            "policy": encoded(actions, "<i8"),
            "epsilon": epsilon,
            "asked_epsilon": epsilon,
            "asked_was_certified": True,
            "delta": delta,
            "reward_scale": 1.0,
            "reward_offset": 0.0,
            "theorem": "U",
            "rule": "Theorem U" if table.horizon is None else "Theorem U-E",
        },
        "proof": _table_proof(Proof("U", fixed=fixed, fresh=vars(fresh) | {"units": units}), table.states),
        "run": {
            "algorithm": "sharp",
            "parameters": {},
            "seed": 0,
            "samples": samples,
            "own_data": 0,
            "rounds": samples // case.stages,
            "attempts": 1,
            "warnings": [],
            "versions": {},
        },
        "assumptions": [],
    }
    if table.start is not None:
        document["claim"]["start"] = encoded(table.start, "<f8")
    return document | {"sha256": digest(document)}


def verified(problem: World, lag: Lag, fresh: TableSamples, units: int, epsilon: float, **options) -> bp.Verification:
    return verify_text(json.dumps(document_of(problem, lag, fresh, units, epsilon, **options)))
