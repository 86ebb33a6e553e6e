"""A name means the same numbers on every processor, down to the last bit."""

from __future__ import annotations

import ast
import json
import platform
from pathlib import Path

import numpy as np
import pytest

from bestpolicy import instances
from bestpolicy.errors import ConvergenceError, InvalidInput
from bestpolicy.instances import arithmetic
from tests.everywhere import on_machines
from tests.kernels import dispatched_features, extreme_machines, other_machines, outputs, runnable_kernels

FINGERPRINTS = """
import json
from bestpolicy import instances
from tests.kernels import dispatched_features
models = {each.name: each.load() for each in instances.catalogue()}
models["larger ball"] = instances.ball(states=70, actions=3, dimension=14, seed=1)
models["larger low-rank"] = instances.low_rank(states=40, actions=3, dimension=9, concentration=3.0, seed=1)
models["larger inventory"] = instances.inventory(capacity=29, demand=7.3)
models["larger universal"] = instances.universal(states=30, dimension=12, bases=9, seed=1)
print(json.dumps([dispatched_features(), {name: model.fingerprint for name, model in models.items()}]))
"""


@on_machines
def test_fingerprints_do_not_depend_on_the_processor(machines, capsys: pytest.CaptureFixture[str]) -> None:
    exec(FINGERPRINTS, {})
    features, here = json.loads(capsys.readouterr().out)
    assert features == dispatched_features()
    assert set(here) > {each.name for each in instances.catalogue()}
    found = {machine: json.loads(text) for machine, text in outputs(FINGERPRINTS, machines=machines()).items()}
    assert found["no vector instructions"][0] == []
    differing = {machine: [name for name in here if there[name] != here[name]] for machine, (_, there) in found.items()}
    assert not any(differing.values()), differing


@pytest.mark.skipif(platform.machine().lower() not in ("x86_64", "amd64"), reason="other processors, other kernels")
def test_there_are_other_machines_to_compare_with() -> None:
    assert len(runnable_kernels()) >= 3
    assert list(other_machines()) == [*runnable_kernels()[1:], "no vector instructions"]
    assert other_machines()["no vector instructions"]["OPENBLAS_CORETYPE"] == runnable_kernels()[0]
    assert list(extreme_machines()) == [runnable_kernels()[-1], "no vector instructions"]


def test_no_instance_is_drawn_with_blas_or_functions_that_depend_on_the_processor() -> None:
    named = {
        "linalg",
        "dot",
        "vdot",
        "inner",
        "matmul",
        "tensordot",
        "exp",
        "log",
        "power",
        "sin",
        "cos",
        "tanh",
        "optimize",
    }
    for path in Path(instances.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            where = f"{path.name}, line {getattr(node, 'lineno', 0)}"
            assert not isinstance(node, ast.MatMult), f"{path.name}: use arithmetic.product instead of @"
            assert not (isinstance(node, ast.Attribute) and node.attr in named), where
            assert not (isinstance(node, ast.ImportFrom) and str(node.module).startswith("scipy.linalg")), where


class TestArithmetic:
    @pytest.mark.parametrize("inner", [1, 3, 4, 5, 8, 11, 30])
    def test_products_are_products(self, inner: int) -> None:
        rng = np.random.default_rng(inner)
        left, right = rng.normal(size=(2, 7, inner)), rng.normal(size=(inner, 5))
        np.testing.assert_allclose(arithmetic.product(left, right), left @ right, atol=1e-13)
        np.testing.assert_allclose(arithmetic.product(left, right[:, 0]), left @ right[:, 0], atol=1e-13)
        np.testing.assert_allclose(arithmetic.product(left[0, 0], right), left[0, 0] @ right, atol=1e-13)
        np.testing.assert_allclose(arithmetic.lengths(left), np.linalg.norm(left, axis=2), rtol=1e-14)

    def test_powers_are_correctly_rounded(self) -> None:
        assert arithmetic.powers(np.array([0.1, 0.5, 3.0]), 4).tolist() == [0.1**4, 0.0625, 81.0]

    @pytest.mark.parametrize("size", [1, 2, 9, 25])
    def test_roots_and_inverses(self, size: int) -> None:
        rows = np.random.default_rng(size).dirichlet(np.ones(size), size=3 * size)
        matrix = rows.T @ rows
        root = arithmetic.square_root(matrix)
        np.testing.assert_array_equal(root, root.T)
        np.testing.assert_allclose(root @ root, matrix, atol=1e-14)
        assert np.linalg.eigvalsh(root).min() > 0
        np.testing.assert_allclose(arithmetic.inverse(root) @ root, np.eye(size), atol=1e-11)

    @pytest.mark.parametrize(
        ("pairs", "dimension", "concentration"), [(1, 1, 1.0), (9, 9, 1.0), (150, 5, 1.0), (99, 20, 9.0)]
    )
    def test_designs_are_optimal(self, pairs: int, dimension: int, concentration: float) -> None:
        rows = np.random.default_rng(0).dirichlet(np.full(dimension, concentration), size=pairs)
        information = arithmetic.optimal_information(rows, 1e-7)
        # Kiefer and Wolfowitz: the largest leverage of a design is at least d, and d at the optimum only.
        leverages = np.einsum("ni,ij,nj->n", rows, np.linalg.inv(information), rows)
        assert leverages.max() <= dimension * (1 + 2e-7)
        # It is the information of some design: its rows have sum 1, so Σ ω (φᵀ1)² = Σ ω.
        assert information.sum() == pytest.approx(1.0, abs=1e-12)

    def test_what_has_no_design_says_why(self, monkeypatch: pytest.MonkeyPatch) -> None:
        with pytest.raises(InvalidInput, match="span 2 of 3 dimensions only"):
            arithmetic.optimal_information(np.array([[1.0, 0, 0], [0, 1, 0], [0.5, 0.5, 0]]), 1e-7)
        monkeypatch.setattr(arithmetic, "_ROUNDS", 1)
        with pytest.raises(ConvergenceError, match="smaller concentration"):
            arithmetic.optimal_information(np.random.default_rng(0).dirichlet(np.ones(5), size=90), 1e-7)
