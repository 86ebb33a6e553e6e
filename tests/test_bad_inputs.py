"""Whatever is given, the answer is right or one exception of this package that names what was wrong.

The tables below list what a user can call with an argument of each kind; the tests put everything into it that is no
such thing, and numbers that are one but extreme. Warnings are errors here, so that nothing odd is computed on the way.
"""

from __future__ import annotations

import inspect
import io
import os
import subprocess
import sys
import zipfile
import zlib
from contextlib import suppress

import numpy as np
import pytest

import bestpolicy as bp
from bestpolicy import bounds, diagnostics, instances
from bestpolicy.errors import BestPolicyError


class Hostile:
    """Raises at every touch."""

    def __float__(self):
        raise RuntimeError("no number")

    def __array__(self, *_, **__):
        raise RuntimeError("no array")

    def __repr__(self):
        raise RuntimeError("no text")


NO_NUMBERS = {
    "text": "x",
    "digits": "1",
    "bytes": b"1",
    "complex": 1j,
    "numpy complex": np.complex128(1),
    "nan": float("nan"),
    "minus infinity": -float("inf"),
    "list": [1, 2, 3],
    "ragged list": [[1], [1, 2]],
    "array": np.array([1.0, 2.0, 3.0]),
    "array of one": np.array([0.5]),
    "array of objects": np.array([None]),
    "date": np.datetime64("2020-01-01"),
    "span": np.timedelta64(1, "D"),
    "masked": np.ma.masked,
    "dict": {},
    "object": object(),
    "hostile": Hostile(),
    "very negative": -(10**5000),
}
EXTREMES = {
    "1e308": 1e308,
    "1e-320": 1e-320,
    "5e-324": 5e-324,
    "just below 1": np.nextafter(1.0, 0.0),
    "1 - 1e-17": 1 - 1e-17,
    "infinity": float("inf"),
    "zero": 0,
    "2**62": 2**62,
    "2**63": 2**63,
    "10**400": 10**400,
    "10**5000": 10**5000,
    "float32": np.float32(0.5),
}
NO_ARRAYS = {
    "text": "x",
    "texts": ["a", "b"],
    "digits": ["0", "1"],
    "bytes": b"abc",
    "complex": np.ones(4) * 1j,
    "objects": np.array([None, 1], dtype=object),
    "dates": np.array(["2020"], dtype="M8[D]"),
    "masked": np.ma.masked_array([1.0, 0.0], [True, False]),
    "ragged list": [[1], [1, 2]],
    "huge": [10**400],
    "dict": {"a": 1},
    "set": {1},
    "function": len,
    "records": np.zeros(2, dtype=[("a", int)]),
    "not a number": [float("nan")],
    "hostile": Hostile(),
}

MDP = instances.load("two-state")
PROBLEM = MDP.problem
SIMULATOR = bp.ExactSimulator(MDP)
TALLY = SIMULATOR.sample(bp.Pulls(PROBLEM.pairs, np.full((1, 4), 100)), np.random.default_rng(0))
ONE = {"pulls": bp.Pulls([0], [[3]]), "rng": np.random.default_rng(0)}
TIME = {"problem": PROBLEM, "gap": 0.1, "epsilon": 0.1, "delta": 0.1}
SAMPLE = {"problem": PROBLEM, "states": [0], "actions": [0], "rewards": [0.5], "next_states": [0], "stages": 0}
SUMS = {"pairs": [0], "next_counts": [[[1, 0]]], "next_rewards": [[[0.5, 0]]], "squared_rewards": [[0.25]]}


def step(state, action, rng):
    return 0.5, 0


def without(arguments, *names):
    return {name: value for name, value in arguments.items() if name not in names}


# What is called, with arguments that are right, and those to be replaced in turn.
NUMBERS = [
    (bp.Problem, {"features": PROBLEM.features}, ["discount", "horizon"]),
    (bp.Units, {}, ["reward_scale", "reward_offset", "own_states"]),
    (MDP.is_near_optimal, {"policy": MDP.policy}, ["epsilon"]),
    (bp.LinearMDP.load, {"path": "model.npz"}, ["max_bytes"]),
    (diagnostics.sample_for_diagnostics, {"model": SIMULATOR, "rng": ONE["rng"]}, ["samples_per_pair"]),
    (
        diagnostics.sample_for_diagnostics,
        {"model": SIMULATOR, "samples_per_pair": 2, "rng": ONE["rng"]},
        ["max_pairs"],
    ),
    (diagnostics.check_linearity, {"problem": PROBLEM, "tally": TALLY}, ["level"]),
    (
        bounds.lower_bound,
        {"mdp": MDP, "epsilon": 0.0, "delta": 0.1, "max_seconds": 0.01},
        ["epsilon", "delta", "tolerance", "max_seconds"],
    ),
    (bounds.time_upper_bound, without(TIME, "delta"), ["gap", "epsilon", "leverage", "divergence_constant"]),
    (bounds.predicted_rounds, TIME, ["gap", "epsilon", "delta", "leverage"]),
    (bounds.predicted_samples, TIME, ["gap", "epsilon", "delta", "leverage"]),
    (bounds.expected_rounds_bound, TIME, ["gap", "epsilon", "delta", "grid_ratio"]),
    (bounds.expected_samples_bound, TIME, ["gap", "epsilon", "delta", "grid_ratio"]),
    (bounds.design_phase, {}, ["dimension"]),
    (bounds.stopping_phase, {"problem": PROBLEM, "upper": 3.0, "delta": 0.1}, ["upper", "delta"]),
    (
        bounds.concentration_rounds,
        {"dimension": 3, "delta": 0.1},
        ["dimension", "delta", "accuracy", "design_tolerance"],
    ),
    (bounds.confidence_divergence, {}, ["delta"]),
    (
        bounds.refined_divergence,
        {"shift": 0.1, "variance": 0.1, "ceiling": 1.0},
        ["shift", "variance", "ceiling"],
    ),
    (bounds.applicable_bounds, without(TIME, "gap"), ["epsilon", "delta"]),
    (instances.aggregated, {"small": MDP}, ["copies", "concentration", "seed"]),
    (instances.tabular, {"transitions": np.ones((1, 2, 1)), "rewards": [[0.1, 0.2]]}, ["discount", "horizon"]),
    *(
        (family, {}, [name for name in inspect.signature(family).parameters if name not in ("name", "service_levels")])
        for family in dict.fromkeys([*(each.construct for each in instances.catalogue()), instances.universal_mixture])
    ),
]
ARRAYS = [
    (bp.Problem, {"discount": 0.9}, ["features"]),
    (bp.Problem, {"features": PROBLEM.features, "discount": 0.9}, ["mask"]),
    (bp.LinearMDP, {"problem": PROBLEM, "mu": MDP.mu[0]}, ["theta"]),
    (bp.LinearMDP, {"problem": PROBLEM, "theta": MDP.theta[0]}, ["mu"]),
    (bp.Pulls, {"pairs": [0, 1], "counts": [[1, 2]]}, ["pairs", "counts"]),
    (bp.Tally, SUMS, list(SUMS)),
    (bp.Tally.from_samples, SAMPLE, ["states", "actions", "rewards", "next_states", "stages"]),
    (bp.Tally.empty, {"problem": PROBLEM}, ["pairs"]),
    (PROBLEM.stage_policy, {}, ["policy"]),
    (MDP.loss, {}, ["policy"]),
    (MDP.evaluate, {}, ["policy"]),
    (bp.CallableSimulator, {"problem": PROBLEM, "step": step}, ["reward_range"]),
    (bp.Units.of_range, {}, ["reward_range"]),
    (bounds.bernoulli_kl, {"x": 0.1, "y": 0.1}, ["x", "y"]),
    (instances.queue, {}, ["service_levels"]),
    (
        instances.tabular,
        {"transitions": np.ones((1, 2, 1)), "rewards": [[0.1, 0.2]], "discount": 0.9},
        ["transitions", "rewards", "mask"],
    ),
]
OTHERS = [
    (bp.LinearMDP, {"theta": MDP.theta[0], "mu": MDP.mu[0]}, ["problem"]),
    (bp.LinearMDP.load, {}, ["path"]),
    (MDP.save, {}, ["path"]),
    (bp.Tally.from_samples, SAMPLE, ["problem"]),
    (bp.Tally.empty, {}, ["problem"]),
    (bp.ExactSimulator, {"mdp": MDP}, ["mdp", "rewards"]),
    (SIMULATOR.sample, ONE, ["pulls", "rng"]),
    (bp.CallableSimulator, {"problem": PROBLEM, "step": step}, ["problem", "step"]),
    (bp.CallableSimulator(PROBLEM, step).sample, ONE, ["pulls", "rng"]),
    (diagnostics.sample_for_diagnostics, {"model": SIMULATOR, "samples_per_pair": 2, "rng": None}, ["model", "rng"]),
    (diagnostics.check_linearity, {"problem": PROBLEM, "tally": TALLY}, ["problem", "tally"]),
    (bounds.lower_bound, {"mdp": MDP, "epsilon": 0.0, "delta": 0.1}, ["mdp", "rewards", "also", "callback"]),
    (bounds.predicted_rounds, TIME, ["problem"]),
    (bounds.time_upper_bound, without(TIME, "delta"), ["problem"]),
    (bounds.stopping_phase, {"upper": 3.0, "delta": 0.1}, ["problem"]),
    (bounds.expected_samples_bound, TIME, ["problem"]),
    (bounds.applicable_bounds, without(TIME, "gap"), ["problem"]),
    (bounds.model_divergence, {"mdp": MDP, "other": MDP}, ["mdp", "other"]),
    (instances.aggregated, {}, ["small"]),
    (instances.load, {}, ["name"]),
]


def cases(table, values):
    """All cases; a few for each argument, of other values each time, are in the quick suite."""
    found, arguments_so_far = [], 0
    for function, arguments, names in table:
        for name in names:
            for position, (what, value) in enumerate(values.items()):
                quick = (position - 3 * arguments_so_far) % len(values) < 3
                given = pytest.param(
                    function,
                    arguments | {name: value},
                    name,
                    id=f"{function.__name__} {name} {what}",
                    marks=() if quick else pytest.mark.study,
                )
                found.append(given)
            arguments_so_far += 1
    return found


def assert_refused(function, arguments, name):
    with pytest.raises(BestPolicyError) as caught:
        function(**arguments)
    message = str(caught.value)
    assert name in message or "no instance" in message, message
    assert len(message) < 600, message


@pytest.mark.parametrize(("function", "arguments", "name"), cases(NUMBERS, NO_NUMBERS))
def test_what_is_no_number_is_refused_by_name(function, arguments, name):
    assert_refused(function, arguments, name)


@pytest.mark.parametrize(("function", "arguments", "name"), cases(ARRAYS, NO_ARRAYS))
def test_what_is_no_array_of_numbers_is_refused_by_name(function, arguments, name):
    assert_refused(function, arguments, name)


@pytest.mark.parametrize(
    ("function", "arguments", "name"),
    cases(OTHERS, {what: NO_NUMBERS[what] for what in ("bytes", "nan", "masked", "array", "dict", "hostile")}),
)
def test_what_is_of_another_kind_is_refused_by_name(function, arguments, name):
    assert_refused(function, arguments, name)


@pytest.mark.parametrize(("function", "arguments", "name"), cases(NUMBERS, EXTREMES))
def test_extreme_numbers_are_used_or_refused(function, arguments, name):
    with suppress(BestPolicyError):
        function(**arguments)


def test_a_horizon_of_ten_thousand_is_a_problem_and_one_without_end_is_none():
    problem = bp.Problem(PROBLEM.features, horizon=10**4)
    assert problem.value_limits[0] == 10**4
    for horizon in (10**9, 10**400):
        with pytest.raises(bp.InvalidInput, match=r"horizon .* is too long: one look at the samples would take"):
            bp.Problem(PROBLEM.features, horizon=horizon)
    with pytest.raises(bp.InvalidInput, match=r"theta must have shape \(H, d\) = \(10000, 4\)"):
        bp.LinearMDP(problem, theta=MDP.theta, mu=MDP.mu)


@pytest.mark.parametrize(
    ("names", "reason"),
    [
        ([object()], "serializable"),
        ([float("nan")], "JSON"),
        (["\ud800"], "surrogates"),
        ([np.int64(1)], "serializable"),
        ({"a": {1, 2}}, "serializable"),
        ([Hostile()], "JSON"),
    ],
)
@pytest.mark.parametrize("argument", ["states", "actions"])
def test_names_are_ready_for_json_or_refused(argument, names, reason):
    with pytest.raises(bp.InvalidInput, match=f"{argument} of units must be ready for JSON.*{reason}|{reason}"):
        bp.Units(**{argument: names})


@pytest.mark.parametrize("units", [{"reward_offset": 1e308, "reward_scale": 1.7e308}, {"environment": 3}])
def test_units_that_are_none_are_refused(units):
    with pytest.raises(bp.InvalidInput, match=next(iter(units))):
        bp.Units(**units)


# --- samples


def counted(count):
    return bp.Tally([0], [[[count, 0]]], [[[0.0, 0.0]]], [[0.0]])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: bp.Pulls([0, 1], [[-1, 2]]), "counts must not be negative"),
        (lambda: bp.Pulls([-1, 1], [[1, 2]]), "pairs must be"),
        (lambda: bp.Pulls([1, 0], [[1, 2]]), "pairs must be"),
        (lambda: bp.Pulls([0, 1], [[0.5, 2]]), "counts must hold whole numbers"),
        (lambda: bp.Pulls([0, 1], [[True, True]]), "counts must hold whole numbers"),
        (lambda: bp.Pulls([0, 1], np.full((1, 2), 2**64 - 1, np.uint64)), "counts must hold whole numbers"),
        (lambda: bp.Pulls([0, 1], [[2**62, 2**62]]), "counts must sum to"),
        (lambda: bp.Pulls([[0, 1]], [[1, 2]]), "pairs must have shape"),
        (lambda: counted(-1), "next_counts of a tally has a negative count"),
        (lambda: counted(2**63), "next_counts of a tally must hold whole numbers"),
        (lambda: counted(2**62) + counted(2**62), "too many to count"),
        (lambda: bp.Tally.from_samples(**SAMPLE | {"stages": [0, 0]}), "stages must be one number"),
        (lambda: bp.Tally.from_samples(**SAMPLE | {"rewards": [1.5]}), "rewards must be finite"),
        (lambda: bp.Tally.from_samples(**SAMPLE | {"states": [2]}), "states must lie in"),
        (lambda: SIMULATOR.sample(bp.Pulls([4], [[1]]), ONE["rng"]), "pulls ask for a pair"),
        (lambda: SIMULATOR.sample(bp.Pulls([0], [[1], [1]]), ONE["rng"]), "pulls are of 2 steps"),
    ],
)
def test_samples_that_cannot_be_are_refused(make, message):
    with pytest.raises(bp.InvalidInput, match=message):
        make()


def test_tallies_add_up_to_the_very_limit():
    assert (counted(2**61) + counted(2**61)).samples == 2**62


def test_tallies_add_to_tallies_only():
    with pytest.raises(TypeError, match="unsupported operand"):
        counted(1) + 1


# --- files


GOOD = {"features": PROBLEM.features, "theta": MDP.theta[0], "mu": MDP.mu[0], "discount": 0.9}


def array_bytes(array):
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


def header(shape, kind="<f8", version=1, length=None):
    text = repr({"descr": kind, "fortran_order": False, "shape": shape}).encode() + b"\n"
    size = len(text) if length is None else length
    return b"\x93NUMPY" + bytes([version, 0]) + size.to_bytes(2 if version == 1 else 4, "little") + text


def archive(*members, kind=zipfile.ZIP_DEFLATED):
    """Return an archive with the given (name, content) besides what a good model has."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", kind) as file, pytest.MonkeyPatch.context() as quiet:
        quiet.setattr(zipfile.ZipFile, "_writecheck", lambda *_: None)  # which warns of names that are there already
        replaced = {name for name, _ in members}
        for key, value in GOOD.items():
            if f"{key}.npy" not in replaced:
                file.writestr(f"{key}.npy", array_bytes(value))
        for name, content in members:
            file.writestr(name, content)
    return buffer.getvalue()


def with_features(content):
    return archive(("features.npy", content))


def changed(content, old, new):
    assert content.count(old) >= 1
    return content.replace(old, new)


def encrypted():
    content = bytearray(archive())
    for signature, offset in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        at = content.find(signature)
        while at >= 0:
            content[at + offset] |= 1
            at = content.find(signature, at + 4)
    return bytes(content)


def wrong_checksum():
    plain = archive(kind=zipfile.ZIP_STORED)
    crc = zlib.crc32(array_bytes(GOOD["features"])).to_bytes(4, "little")
    return changed(plain, crc, b"\0\0\0\0")


def list_of_members(count):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as file:
        for i in range(count):
            file.writestr(f"member{i}", b"")
    return buffer.getvalue()


BROKEN = {
    "empty": b"",
    "text": b"features theta mu",
    "pickle": b"\x80\x04\x95\x00",
    "single array": array_bytes(np.ones(3)),
    "single array, cut": array_bytes(np.ones(3))[:7],
    "only a signature": b"PK\x03\x04",
    "only an end": b"PK\x05\x06" + b"\0" * 18,
    "an end with a huge list": b"PK\x05\x06" + b"\0" * 8 + b"\xff" * 4 + b"\0" * 6,
    "cut": archive()[:300],
    "cut at the end": archive()[:-5],
    "begins elsewhere": b"x" * 40 + archive()[60:],
    "zeros": b"\0" * 1000,
    "encrypted": encrypted(),
    "wrong checksum": wrong_checksum(),
    "packed by bzip2": archive(kind=zipfile.ZIP_BZIP2),
    "packed by lzma": archive(kind=zipfile.ZIP_LZMA),
    "a foreign member": archive(("readme.txt", b"hello")),
    "a path outside": archive(("../features.npy", b"")),
    "a name of surrogates": changed(archive(("abcd.npy", b"")), b"abcd", b"\xed\xa0\x80x"),
    "the same name twice": archive(("theta.npy", b"a"), ("theta.npy", b"b")),
    "two spellings of a name": archive(("theta", array_bytes(GOOD["theta"]))),
    "many members": list_of_members(100),
    "a list of members too long to read": list_of_members(20_000),
    "no features": list_of_members(0),
    "no array inside": with_features(b"hello"),
    "nothing inside": with_features(b""),
    "a header cut": with_features(header((2, 2, 4))[:20]),
    "a header that promises more": with_features(header((2, 2, 4), length=60_000)),
    "a header of 4 GB": with_features(header((2, 2, 4), version=2, length=2**32 - 1)),
    "an unknown version": with_features(header((2, 2, 4), version=9)),
    "a header of nested brackets": with_features(header("(" * 3000)),
    "a header that is no dictionary": with_features(b"\x93NUMPY\x01\x00\x05\x00hello"),
    "objects": with_features(header((2, 2, 4), "|O") + b"\0" * 128),
    "texts": with_features(array_bytes(np.array(["a"]))),
    "dates": with_features(array_bytes(np.array(["2020"], dtype="M8[D]"))),
    "complex numbers": with_features(array_bytes(np.ones((2, 2, 4)) * 1j)),
    "records": with_features(array_bytes(np.zeros(2, dtype=[("a", int)]))),
    "nothing of any size": with_features(array_bytes(np.zeros((0, 2, 4)))),
    "a negative shape": with_features(header((-2, -2, 4)) + b"\0" * 128),
    "a shape too long": with_features(header((10**5, 10**5, 1)) + b"\0" * 100),
    "a shape too short": with_features(header((2, 2, 1)) + b"\0" * 100),
    "a shape beyond all": with_features(header((10**400, 2, 4)) + b"\0" * 100),
    "a shape of nothing beyond all": with_features(header((0, 10**4000))),
    "no axes": with_features(array_bytes(np.float64(1))),
    "flags as a horizon": archive(("horizon.npy", array_bytes(np.True_)), ("discount.npy", b"")),
    "an endless horizon": archive(("horizon.npy", array_bytes(np.inf))),
    "several discounts": archive(("discount.npy", array_bytes(np.ones(3)))),
    "theta of another shape": archive(("theta.npy", array_bytes(np.ones(7)))),
    "features beyond float": with_features(array_bytes(np.full((2, 2, 4), 1e308))),
    "features next to nothing": with_features(array_bytes(np.full((2, 2, 4), 1e-320))),
    "features of zeros": with_features(array_bytes(np.zeros((2, 2, 4)))),
    "features without a number": with_features(array_bytes(np.full((2, 2, 4), np.nan))),
    "mu beyond float": archive(("mu.npy", array_bytes(np.full((2, 4), 1e308)))),
    "theta without end": archive(("theta.npy", array_bytes(np.full(4, np.inf)))),
    "mask of numbers": archive(("mask.npy", array_bytes(np.full((2, 2), 0.5)))),
}


def run_command(monkeypatch, capsys, *arguments):
    """Run the command line here; return its exit code and what it said."""
    from bestpolicy.cli import main

    monkeypatch.setattr(sys, "argv", ["bestpolicy", *map(str, arguments)])
    with pytest.raises(SystemExit) as left:
        main()
    return left.value.code, capsys.readouterr().err


@pytest.mark.parametrize("what", BROKEN)
def test_broken_files_give_one_error(what, tmp_path, monkeypatch, capsys):
    path = tmp_path / "model.npz"
    path.write_bytes(BROKEN[what])
    with pytest.raises(bp.InvalidInput) as caught:
        bp.LinearMDP.load(path)
    assert len(str(caught.value)) < 600
    for command in (("identify", path, "--epsilon", 0.1, "--delta", 0.1), ("check", path), ("design", path)):
        code, said = run_command(monkeypatch, capsys, *command)
        if code != 0:  # a design needs no theta and mu
            assert code == 2
            assert said.startswith("Error: ")
            assert said.count("\n") == 1


def test_the_files_are_broken_by_what_their_names_say(tmp_path):
    (tmp_path / "model.npz").write_bytes(archive())
    assert bp.LinearMDP.load(tmp_path / "model.npz").problem.discount == 0.9


@pytest.mark.parametrize(
    "path", ["a\0b.npz", "\ud800.npz", "no/such/file.npz", "", " ", ".", b"model.npz", 3, "x" * 5000]
)
def test_paths_of_no_file_give_one_error(path, monkeypatch, capsys):
    with pytest.raises(bp.InvalidInput):
        bp.LinearMDP.load(path)
    if isinstance(path, str) and path.isprintable():  # others cannot be typed, or not be captured here
        code, said = run_command(monkeypatch, capsys, "check", path)
        assert code == 2
        assert said.startswith("Error: ")


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read_gives_one_error(tmp_path):
    MDP.save(tmp_path / "model.npz")
    (tmp_path / "model.npz").chmod(0)
    with pytest.raises(bp.InvalidInput, match="is not a readable"):
        bp.LinearMDP.load(tmp_path / "model.npz")


# --- files that unpack to far more than they are


def zeros(shape, kind="<f8"):
    """Return the first bytes of an array of zeros, and how many follow."""
    return header(shape, kind), int(np.prod(shape)) * np.dtype(kind).itemsize


def bomb(path, **shapes):
    """Write an archive whose arrays are zeros of the given shapes."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as file:
        for key, shape in shapes.items():
            start, size = zeros(*shape)
            with file.open(f"{key}.npy", "w", force_zip64=True) as member:
                member.write(start)
                while size > 0:
                    size -= member.write(bytes(min(size, 2**24)))


BOMBS = {
    "features": {"features": ((3000, 5000, 9),)},
    "features of bytes": {"features": ((1000, 15_000, 9), "|i1")},
    "a mask": {"features": ((2, 2, 4),), "mask": ((2**15, 2**13), "|b1")},
    "mu": {"features": ((2, 2, 4),), "theta": ((4,),), "mu": ((2**14, 2**14), "|i1")},
    "all together": {"features": ((1000, 1000, 50),), "mu": ((2**14, 5000), "|i1"), "theta": ((2**14, 1000), "|i1")},
    "many dimensions": {"features": ((1, 1, 50_000),)},
    "much work": {"features": ((2**20, 4, 2), "|i1"), "mu": ((2**20, 2), "|i1")},
    "many steps": {"features": ((1000, 100, 10), "|i1"), "mu": ((5000, 1000, 10), "|i1")},
}


@pytest.mark.parametrize("what", BOMBS)
def test_files_are_weighed_before_they_are_unpacked(what, tmp_path, monkeypatch):
    bomb(tmp_path / "model.npz", **BOMBS[what])
    monkeypatch.setattr(np.lib.format, "read_array", lambda *_, **__: pytest.fail("something was unpacked"))
    with pytest.raises(bp.InvalidInput, match=r"model.npz would take .* of memory .*max_bytes=\d+.*MAX_MODEL_BYTES"):
        bp.LinearMDP.load(tmp_path / "model.npz")


def test_the_limit_can_be_raised_and_lowered(tmp_path, monkeypatch):
    MDP.save(tmp_path / "model.npz")
    with pytest.raises(bp.InvalidInput, match="more than a limit of") as caught:
        bp.LinearMDP.load(tmp_path / "model.npz", max_bytes=100)
    enough = int(str(caught.value).split("max_bytes=")[1].split(")")[0])
    assert bp.LinearMDP.load(tmp_path / "model.npz", max_bytes=enough).fingerprint == MDP.fingerprint
    monkeypatch.setenv("BESTPOLICY_MAX_MODEL_BYTES", str(enough - 1))
    with pytest.raises(bp.InvalidInput, match="would take"):
        bp.LinearMDP.load(tmp_path / "model.npz")
    monkeypatch.setenv("BESTPOLICY_MAX_MODEL_BYTES", str(enough))
    bp.LinearMDP.load(tmp_path / "model.npz")
    monkeypatch.setenv("BESTPOLICY_MAX_MODEL_BYTES", "plenty")
    with pytest.raises(bp.InvalidInput, match="BESTPOLICY_MAX_MODEL_BYTES must be a whole number"):
        bp.LinearMDP.load(tmp_path / "model.npz")


def test_too_little_memory_is_one_error(tmp_path, monkeypatch):
    MDP.save(tmp_path / "model.npz")

    def fail(*_, **__):
        raise MemoryError

    monkeypatch.setattr(np.lib.format, "read_array", fail)
    with pytest.raises(bp.InvalidInput, match=r"reading .*model.npz takes more memory than .* MiB at least"):
        bp.LinearMDP.load(tmp_path / "model.npz")
    wide = bp.Problem(np.ones((1, 1, 10**7)), discount=0.9)
    with pytest.raises(bp.InvalidInput, match="examining the features takes more memory"):
        bp.LinearMDP(wide, theta=np.ones(10**7), mu=np.ones((1, 10**7)))


@pytest.mark.skipif(sys.platform != "linux", reason="limits of memory are a matter of the system")
@pytest.mark.parametrize("what", ["features", "features of bytes", "much work"])
def test_a_process_of_two_gigabytes_survives_hostile_files(what, tmp_path):
    bomb(tmp_path / "model.npz", **BOMBS[what])
    program = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_AS, (2 * 2**30,) * 2); "
        "sys.argv = ['bestpolicy', 'check', sys.argv[1]]; from bestpolicy_command import main; main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "model.npz")],
        capture_output=True,
        text=True,
        env=os.environ | {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"},
        timeout=120,
    )
    assert done.returncode == 2, done.stderr
    assert done.stderr.startswith("Error: ")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("function", [bp.identify, bp.estimate])
@pytest.mark.parametrize("store", [3, bp.instances.load("two-state"), b"run.db", ""])
def test_a_store_that_is_no_path_is_refused(function, store):
    simulator = bp.ExactSimulator(bp.instances.load("two-state"))
    with pytest.raises(bp.InvalidInput, match="store must be the path of a file"):
        function(simulator, epsilon=1.0, delta=0.1, store=store)
