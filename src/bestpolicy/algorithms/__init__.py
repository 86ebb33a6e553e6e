"""Algorithms: one file each, reading like its pseudo-code.

An algorithm is a frozen object with a `run` method, a generator: it yields the pulls it wants next together with
its latest check, is sent their `Tally`, and returns its last check. It sees the `Problem` and tallies, never the
simulator, so the same generator serves a loop in this process, a pool of workers, and a run resumed from a file.
"""

from __future__ import annotations

from dataclasses import asdict, is_dataclass
from inspect import signature
from typing import Any

from bestpolicy._numerics.inputs import shown
from bestpolicy.algorithms.adaptive import Adaptive
from bestpolicy.algorithms.default import AUTO, Choice, default_name
from bestpolicy.algorithms.forward import Forward
from bestpolicy.algorithms.gss import GSS, GSSE
from bestpolicy.algorithms.hull import Hull
from bestpolicy.algorithms.peers.action_elimination import ActionElimination
from bestpolicy.algorithms.peers.bpi_ucbvi import BPIUCBVI
from bestpolicy.algorithms.peers.bpi_ucrl import BPIUCRL
from bestpolicy.algorithms.peers.klb_ts import KLBTS
from bestpolicy.algorithms.peers.lavi import LAVI
from bestpolicy.algorithms.peers.linear_plug_in import LinearPlugIn
from bestpolicy.algorithms.peers.lspi_g import LSPIG
from bestpolicy.algorithms.peers.lsvi_ucb import LSVIUCB
from bestpolicy.algorithms.peers.lsvi_ucb_no_guarantee import LSVIUCBNoGuarantee
from bestpolicy.algorithms.peers.mdp_nas import MDPNaS
from bestpolicy.algorithms.peers.oppq import OPPQ
from bestpolicy.algorithms.peers.pedel import PEDEL
from bestpolicy.algorithms.peers.phased_q import PhasedQ
from bestpolicy.algorithms.peers.plug_in import PlugIn
from bestpolicy.algorithms.peers.plug_in_no_guarantee import PlugInNoGuarantee
from bestpolicy.algorithms.peers.ppq import PPQ
from bestpolicy.algorithms.peers.rflin import RFLIN
from bestpolicy.algorithms.peers.ucfh import UCFH
from bestpolicy.algorithms.peers.uclk import UCLK
from bestpolicy.algorithms.peers.ucrl_vtr import UCRLVTR
from bestpolicy.algorithms.peers.vqvi import VQVI
from bestpolicy.algorithms.protocol import About, Algorithm, Remembered, Request, Run, Task, check_times
from bestpolicy.algorithms.sharp import Sharp
from bestpolicy.algorithms.tight import Tight
from bestpolicy.errors import InvalidInput, did_you_mean
from bestpolicy.problem import FeatureProblem, Problem

ALGORITHMS: dict[str, type[Algorithm]] = {
    kind.name: kind
    for kind in (
        GSS,
        GSSE,
        Tight,
        Adaptive,
        Sharp,
        Forward,
        Hull,
        PPQ,
        OPPQ,
        LSPIG,
        LinearPlugIn,
        LAVI,
        PhasedQ,
        ActionElimination,
        PlugIn,
        PlugInNoGuarantee,
        VQVI,
        KLBTS,
        LSVIUCB,
        LSVIUCBNoGuarantee,
        UCRLVTR,
        RFLIN,
        PEDEL,
        BPIUCRL,
        BPIUCBVI,
        UCFH,
        UCLK,
        MDPNaS,
    )
}


def choose_algorithm(algorithm: str | Algorithm | Choice | None, problem: Problem, **known: bool) -> Choice:
    """Return an algorithm as it was named; if it was not, the one that `default_name` has for what is known."""
    if isinstance(algorithm, Choice):
        return algorithm
    if not is_default(algorithm):
        return Choice(find_algorithm(algorithm, problem))
    name, why = default_name(problem, **known)
    return Choice(find_algorithm(name, problem), why)


def is_default(algorithm: Any) -> bool:
    """Whether no algorithm was named."""
    return algorithm is None or (isinstance(algorithm, str) and algorithm == AUTO)


def find_algorithm(algorithm: str | Algorithm | None, problem: Problem) -> Algorithm:
    """Return an algorithm by name, ready to run on the problem; the default one if it is None or "auto"."""
    if is_default(algorithm):
        algorithm = default_name(problem)[0]
    if isinstance(algorithm, str):
        if algorithm == "gss" and problem.horizon is not None:
            algorithm = "gss-e"
        if algorithm not in ALGORITHMS:
            hint = did_you_mean(algorithm, ALGORITHMS)
            raise InvalidInput(f"unknown algorithm {algorithm!r}. Known: {', '.join(ALGORITHMS)}.{hint}")
        algorithm = ALGORITHMS[algorithm]()
    found: Algorithm = require_algorithm(algorithm)
    _require_task(found)
    if isinstance(problem, FeatureProblem) and found.name in ALGORITHMS and not isinstance(found, Hull):
        raise InvalidInput(f"algorithm {found.name!r} needs states that are listed. Use 'hull'.")
    reason = found.unsuitable(problem)
    if reason:
        raise InvalidInput(f"algorithm {found.name!r} cannot run on this problem: {reason}")
    return found


def require_algorithm(algorithm: Any) -> Any:
    """Return an object that is an algorithm."""
    if isinstance(algorithm, type) or not hasattr(algorithm, "run"):
        known = ", ".join(ALGORITHMS)
        raise InvalidInput(
            f"algorithm must be an Algorithm or the name of one ({known}). Got {shown(algorithm)} instead."
        )
    return algorithm


def _require_task(algorithm: Algorithm) -> None:
    """Refuse an algorithm that was written for the first versions, with a word on what has changed."""
    known = signature(algorithm.run).parameters.values()
    if sum(one.kind is one.POSITIONAL_OR_KEYWORD and one.default is one.empty for one in known) > 1:
        raise InvalidInput(
            f"run of algorithm {algorithm.name!r} must take one argument, a Task: write `def run(self, task)` and take "
            "task.problem, task.epsilon, task.delta, task.rng and task.own_data instead of five arguments."
        )


def make_algorithm(name: str, parameters: dict[str, Any]) -> Algorithm:
    """Build an algorithm from its name and parameters, as `parameters_of` gives them."""
    if name not in ALGORITHMS:
        raise InvalidInput(f"unknown algorithm {name!r}. Known: {', '.join(ALGORITHMS)}.")
    try:
        return ALGORITHMS[name](**parameters)
    except TypeError as error:
        raise InvalidInput(f"algorithm {name!r} has other parameters ({error}).") from None


def require_proof(algorithm: Algorithm) -> None:
    """Refuse an algorithm that will have nothing to write into a certificate."""
    if not algorithm.about.writes_certificates:
        able = ", ".join(name for name, kind in ALGORITHMS.items() if kind.about.writes_certificates)
        raise InvalidInput(
            f"algorithm {algorithm.name!r} writes no certificates. Leave the certificate out, or choose one of {able}."
        )


def parameters_of(algorithm: Algorithm) -> dict[str, Any]:
    """Parameters of an algorithm, as JSON gives them back: lists for tuples."""
    known: dict[str, Any] = asdict(algorithm) if is_dataclass(algorithm) and not isinstance(algorithm, type) else {}
    return {name: _listed(value) for name, value in known.items()}


def _listed(value: Any) -> Any:
    return [_listed(item) for item in value] if isinstance(value, list | tuple) else value


__all__ = [
    "ALGORITHMS",
    "BPIUCBVI",
    "BPIUCRL",
    "GSS",
    "GSSE",
    "KLBTS",
    "LAVI",
    "LSPIG",
    "LSVIUCB",
    "OPPQ",
    "PEDEL",
    "PPQ",
    "RFLIN",
    "UCFH",
    "UCLK",
    "UCRLVTR",
    "VQVI",
    "About",
    "ActionElimination",
    "Adaptive",
    "Algorithm",
    "Choice",
    "Forward",
    "Hull",
    "LSVIUCBNoGuarantee",
    "LinearPlugIn",
    "MDPNaS",
    "PhasedQ",
    "PlugIn",
    "PlugInNoGuarantee",
    "Remembered",
    "Request",
    "Run",
    "Sharp",
    "Task",
    "Tight",
    "check_times",
    "choose_algorithm",
    "default_name",
    "find_algorithm",
    "is_default",
    "make_algorithm",
    "parameters_of",
    "require_proof",
]
