"""One page that shows what was certified, why, and how it compares; and its pictures one by one.

>>> import bestpolicy as bp
>>> model = bp.ExactSimulator(bp.instances.load("two-state"))
>>> result = bp.identify(model, epsilon=0.3, delta=0.1, algorithm="tight", seed=0)
>>> page = bp.report.report_page(result)          # or write_report(result, "report.html")

The page is one file of HTML that asks for nothing from the network. The functions that end in ``_figure`` return a
`matplotlib.figure.Figure` and show nothing. All of it needs the extra ``report`` (matplotlib and jinja2), which is
imported only when something is drawn.
"""

from __future__ import annotations

import os
import re
from os import PathLike
from pathlib import Path
from typing import Any

from bestpolicy._numerics.inputs import file_path, of_type, shown
from bestpolicy.bounds.lower import lower_bound, verification_floor
from bestpolicy.bounds.price import plug_in_samples
from bestpolicy.comparison import Comparison
from bestpolicy.comparison.comparison import FORMAT
from bestpolicy.errors import InvalidInput
from bestpolicy.mdp import LinearMDP
from bestpolicy.pictures.labels import Labels
from bestpolicy.pictures.progress import progress_figure
from bestpolicy.report.accounts import Account, from_certificate, from_result, from_store, remembered_model
from bestpolicy.report.comparison_part import comparison_part
from bestpolicy.report.estimates import Estimates, estimate
from bestpolicy.report.figures.bounds import bounds_figure
from bestpolicy.report.figures.comparing import comparison_figure, scaling_figure
from bestpolicy.report.figures.states import Grid, design_figure, gaps_figure, grid_figure, states_figure
from bestpolicy.report.layout import find_chart
from bestpolicy.report.page import render
from bestpolicy.report.study_part import study_part
from bestpolicy.report.unlisted_part import unlisted_part
from bestpolicy.study import Result
from bestpolicy.verification.reading import read_text

BOUND_SECONDS = 5.0
PRICE_SECONDS = 3.0
_SQLITE = b"SQLite format 3\x00"

Source = str | PathLike[str] | Result | Comparison


def write_report(
    source: Source,
    path: str | PathLike[str] = "report.html",
    *,
    name: str | None = None,
    model: LinearMDP | None = None,
    bounds: bool = True,
    grid: tuple[int, int] | Grid | None = None,
) -> Path:
    """Write the page of a study, a certificate or a comparison to a file and return its path.

    Parameters
    ----------
    source : path, Result or Comparison
        The path of a file of studies (SQLite), a certificate or a comparison (JSON), or one of the last two in memory.
    path : path
    name : str, optional
        Of the study, if the file has several.
    model : LinearMDP, optional
        The truth, if it is known: the page then has the true loss, a lower bound on what any algorithm needs, and the
        price of certainty: the calls of a certified run over those that the uncertified plug-in needs. The model that a
        study was begun with is found by itself while it is unchanged.
    bounds : bool
        Whether to look for that lower bound (for at most 5 s) and that price (3 s, or it is left out).
    grid : (rows, columns) or Grid, optional
        Draw the states as a grid. By itself it is known for the built-in grid, FrozenLake, CliffWalking and Taxi, and
        states that are tuples or texts of numbers are drawn by these.
    """
    target = Path(file_path("path", path))
    page = report_page(source, name=name, model=model, bounds=bounds, grid=grid)
    try:
        target.write_text(page, encoding="utf-8")
    except OSError as error:
        why = error.strerror or error
        raise InvalidInput(f"cannot write {target}: {why}. Give the path of a file, in a folder that exists.") from None
    return target


def report_page(
    source: Source,
    *,
    name: str | None = None,
    model: LinearMDP | None = None,
    bounds: bool = True,
    grid: tuple[int, int] | Grid | None = None,
) -> str:
    """Return the page as text; the parameters are those of `write_report`."""
    content = read_source(source, name)
    if isinstance(content, Comparison):
        part = comparison_part(content)
        return render(title=f"{part['headline']} – bestpolicy", comparison=part)
    part = describe_study(content, model=model, bounds=bounds, grid=grid)
    return render(title=study_title(content), study=part)


def write_comparison_and_run(comparison: Comparison, result: Result, model: LinearMDP, path: Path) -> None:
    """Write a page of a comparison with one of its runs in detail."""
    part = comparison_part(comparison)
    known = {bound.instance: bound.samples for bound in comparison.lower_bounds}.get(model.name)
    study = describe_study(from_result(result, model.name), model=model, known_bound=known)
    page = render(title=f"{part['headline']} – bestpolicy", comparison=part, study=study)
    path.write_text(page, encoding="utf-8")


def read_source(source: Source, name: str | None = None) -> Account | Comparison:
    """Find out what a source is and read it."""
    if isinstance(source, Result):
        return from_result(source)
    if isinstance(source, Comparison):
        return source
    if not isinstance(source, str | PathLike):
        raise InvalidInput(
            f"a report is made of a file, a Result or a Comparison. Got {type(source).__name__} instead."
        )
    path = os.fspath(source)
    if not os.path.isfile(path):
        raise InvalidInput(f"no such file: {path}. Give a file of studies, a certificate or a comparison.")
    with open(path, "rb") as file:
        beginning = file.read(len(_SQLITE))
    if beginning == _SQLITE:
        return from_store(path, name)
    strange = f"{path} is neither a file of studies (SQLite) nor a certificate or comparison (JSON)."
    if beginning.strip()[:1] not in (b"{", b""):
        raise InvalidInput(strange)
    text = read_text(path)
    if name is not None:
        raise InvalidInput(f"{path} is not a file of studies, so there is none named {name!r} in it. Give no name.")
    written = re.search(r'"format"\s*:\s*"([^"]*)"', text)
    if written is None:
        raise InvalidInput(strange)
    if written[1] == FORMAT:
        return Comparison.load(path)
    return from_certificate(text, path)


def describe_study(
    account: Account,
    *,
    model: LinearMDP | None = None,
    bounds: bool = True,
    grid: tuple[int, int] | Grid | None = None,
    known_bound: float | None = None,
) -> dict[str, Any]:
    """Return what a page says of a study, ready for `page.render`."""
    of_type("bounds", bounds, bool)
    if account.unlisted is not None:
        if model is not None or grid is not None:
            raise InvalidInput("model and grid are for states that are listed. Leave them out.")
        return unlisted_part(account, account.unlisted)
    if model is not None:
        of_type("model", model, LinearMDP)
    if model is not None and model.problem.fingerprint != account.problem.fingerprint:
        raise InvalidInput(
            f"{model.name} is not the model of this study: features, mask or discount differ. Give the right one."
        )
    mdp = model or remembered_model(account)
    bound, in_rounds, plug_in, to_verify = known_bound, None, None, None
    if mdp is not None and bounds and account.samples:
        settings = account.settings
        rewards: Any = settings.origin.get("rewards", "bernoulli")
        if known_bound is None and settings.start is None:  # it is about claims in every state
            lowest = lower_bound(mdp, settings.epsilon, settings.delta, max_seconds=BOUND_SECONDS, rewards=rewards)
            bound = lowest.samples_lower_bound
            in_rounds = mdp.problem.stages * lowest.rounds_lower_bound if mdp.problem.stages > 1 else None
            to_verify = _floor(mdp, account, rewards)
        if account.certified:
            limits = {"max_seconds": PRICE_SECONDS, "rewards": rewards, "start": settings.start}
            plug_in = plug_in_samples(mdp, settings.epsilon, **limits)
    if bound is not None and not 1 <= bound < float("inf"):
        bound = in_rounds = to_verify = None  # says nothing
    if grid is None:
        known = account.model or (mdp.name if mdp is not None else "")
        chart = find_chart(account.problem, known, account.settings.units, account.tally)
    else:
        layout = grid if isinstance(grid, Grid) else _as_grid(grid)
        layout.require_room(account.problem.states)
        chart = layout.chart(account.problem)
    numbers = {"lower_bound": bound, "rounds_bound": in_rounds, "verification": to_verify}
    return study_part(account, mdp=mdp, plug_in=plug_in, chart=chart, **numbers)


def _floor(mdp: LinearMDP, account: Account, rewards: Any) -> float | None:
    """What it takes to verify the policy that was certified, as δ → 0; None where it is what all algorithms take."""
    epsilon = account.settings.epsilon
    if not (account.certified and account.policy is not None and epsilon > 0):
        return None
    policy = account.policy if mdp.problem.horizon is not None else account.policy[0]
    if not mdp.is_near_optimal(policy, epsilon):
        return None
    floor = verification_floor(mdp, policy, epsilon, max_seconds=BOUND_SECONDS / 3, rewards=rewards)
    return floor.samples(account.settings.delta)


def _as_grid(grid: Any) -> Grid:
    if not isinstance(grid, tuple | list) or len(grid) != 2:
        raise InvalidInput(f"grid must be a Grid, or its numbers of rows and columns. Got {shown(grid)} instead.")
    return Grid(*grid)


def study_title(account: Account) -> str:
    """What the page is called in a browser's tab."""
    return f"{account.subject or 'a policy'}: {account.outcome} – bestpolicy"


__all__ = [
    "Estimates",
    "Grid",
    "Labels",
    "bounds_figure",
    "comparison_figure",
    "design_figure",
    "estimate",
    "gaps_figure",
    "grid_figure",
    "progress_figure",
    "report_page",
    "scaling_figure",
    "states_figure",
    "write_report",
]
