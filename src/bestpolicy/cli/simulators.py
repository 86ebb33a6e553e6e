"""A simulator of the user's own on the command line: ``my_sim.py:simulator``.

The file is a module that is imported, so it runs; only what the user has typed is, never what a file of studies says.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module, invalidate_caches
from importlib.util import find_spec
from typing import Any

from bestpolicy.errors import BestPolicyError, InvalidInput, did_you_mean, one_line
from bestpolicy.simulators import ForwardModel, GenerativeModel, Model


def is_simulator(model: str) -> bool:
    """Whether what was typed is ``file.py:name``."""
    path, colon, name = model.rpartition(":")
    return bool(colon) and path.endswith(".py") and name.isidentifier()


def load_simulator(typed: str) -> Model:
    """Import the file and return its simulator, or what a function of that name makes."""
    path, _, name = typed.rpartition(":")
    folder, file = os.path.split(os.path.abspath(path))
    if not os.path.isfile(path):
        raise InvalidInput(f"no such file: {path}. Give FILE.py:NAME, the name of a simulator in that file.")
    module = _imported(folder, file.removesuffix(".py"), path)
    if not hasattr(module, name):
        known = [each for each in vars(module) if not each.startswith("_")]
        raise InvalidInput(f"{path} has nothing named {name!r}.{did_you_mean(name, known)}")
    found: Any = getattr(module, name)
    if callable(found) and not isinstance(found, GenerativeModel | ForwardModel):
        try:
            found = found()
        except BestPolicyError:
            raise
        except Exception as error:  # whatever the user's function does
            raise InvalidInput(
                f"{typed} must be a simulator or a function without arguments that makes one "
                f"({type(error).__name__}: {error}). A step function becomes one by bestpolicy.NamedSimulator(step, …)."
            ) from None
    if not isinstance(found, GenerativeModel | ForwardModel):
        what = "bestpolicy.NamedSimulator(step, states=…, actions=…, discount=…)"
        if hasattr(found, "reset") and hasattr(found, "step"):
            what = "bestpolicy.ResetSimulator(env, horizon=…, reward_range=(low, high))"
        raise InvalidInput(f"{typed} must be a simulator, such as {what}. Got {type(found).__name__} instead.")
    return found


def _imported(folder: str, stem: str, path: str) -> Any:
    """Import by name, so that worker processes can, too."""
    if not stem.isidentifier():
        raise InvalidInput(f"{path} must have a name that Python can import: letters, digits and underscores.")
    sys.path.insert(0, folder)
    invalidate_caches()
    try:
        spec = find_spec(stem)
    except (ImportError, ValueError):
        spec = None
    found = spec.origin if spec is not None and spec.origin is not None else ""
    known = str(getattr(sys.modules[stem], "__file__", "")) if stem in sys.modules else found
    if not os.path.exists(known) or not os.path.samefile(known, path):
        raise InvalidInput(f"{path} has the name of another module ({known or stem}). Rename it.")
    try:
        return import_module(stem)
    except BestPolicyError:
        raise
    except Exception as error:
        said = one_line(error).removeprefix("the simulator raised ")
        raise InvalidInput(f"{path} cannot be imported: {said}") from error
