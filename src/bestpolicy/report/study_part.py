"""What a page says of a study: the promise, its pictures, the policy, the assumptions, how to repeat it."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from math import inf, isfinite
from typing import Any

import numpy as np

from bestpolicy.algorithms import ALGORITHMS, parameters_of
from bestpolicy.bounds.price import PlugInSamples, loss_from, start_weights
from bestpolicy.diagnostics.assumptions import check_features, check_model
from bestpolicy.mdp import LinearMDP
from bestpolicy.pictures import Chart, Drawn, policy_figure
from bestpolicy.pictures.drawing import require_matplotlib, to_svg
from bestpolicy.pictures.labels import Labels
from bestpolicy.pictures.progress import progress_figure
from bestpolicy.report import words
from bestpolicy.report.accounts import Account
from bestpolicy.report.estimates import Estimates, estimate
from bestpolicy.report.figures.states import (
    MOST_GAPS,
    cut_note,
    decision,
    design_figure,
    drawn,
    gaps_figure,
    states_figure,
)
from bestpolicy.report.page import Picture
from bestpolicy.report.policy_table import policy_table
from bestpolicy.study import Outcome
from bestpolicy.study.result import at_most
from bestpolicy.study.settings import Settings, is_about_failures
from bestpolicy.study.values import estimated_q_values

_CHECKS_SHOWN = 300
_MOST_FEATURES = 600  # beyond it standard errors take minutes, and values alone are shown
_HOW_TO_TEST = "linearity= tests it from samples"


@dataclass(frozen=True)
class Fact:
    """One number or word worth knowing, with its exact value."""

    label: str
    text: str
    value: Any = ""


def study_part(
    account: Account,
    *,
    mdp: LinearMDP | None = None,
    lower_bound: float | None = None,
    rounds_bound: float | None = None,
    verification: float | None = None,
    plug_in: PlugInSamples | None = None,
    chart: Chart | None = None,
) -> dict[str, Any]:
    """All that a page says of a study.

    The bounds are simulator calls, of any algorithm and of any in rounds; `verification` are those that verifying the
    policy takes as δ → 0.
    """
    require_matplotlib()
    policy, labels = account.policy, account.labels
    estimates = None
    if account.tally is not None and policy is not None and account.problem.dimension <= _MOST_FEATURES:
        low, high = account.settings.units.reward_range
        estimates = estimate(account.problem, account.tally, policy, scale=high - low, offset=low)
    loss = None if mdp is None or account.policy is None else _true_loss(mdp, account)
    return {
        "name": account.name,
        "subject": account.subject,
        "headline": words.headline(account, lower_bound),
        "standing": words.standing(account),
        "state": "certified" if account.certified and not account.warnings else "over" if account.over else "running",
        "outcome": account.outcome + (", in doubt" if account.warnings else ""),
        "warnings": account.warnings,
        "attempts": account.attempts,
        "facts": _facts(account, lower_bound, rounds_bound, verification, plug_in, loss),
        "pictures": _pictures(account, estimates, lower_bound, chart),
        "policy": None if policy is None else policy_table(account.problem, policy, estimates, labels),
        "as_of": "" if account.certified or not account.checks else words.count(account.checks[-1]["samples"]),
        "checks": checks_table(account),
        "assumptions": _assumptions(account, mdp),
        "commands": commands(account),
        "versions": account.versions,
        "verification": account.verification,
    }


def _facts(
    account: Account,
    lower_bound: float | None,
    rounds_bound: float | None,
    verification: float | None,
    plug_in: PlugInSamples | None,
    loss: float | None,
) -> list[Fact]:
    settings, problem = account.settings, account.problem
    size = f"{problem.states:,} states, {problem.actions} actions, {problem.dimension} features"
    facts = [
        Fact("Certified ε", at_most(account.epsilon) if account.epsilon < inf else "nothing", account.epsilon),
        Fact("Asked ε", words.figure(settings.asked_epsilon), settings.asked_epsilon),
        Fact("Allowed probability of error δ", words.figure(settings.delta), settings.delta),
        Fact("Simulator calls", words.count(account.samples), account.samples),
    ]
    if lower_bound is not None:
        facts.append(Fact("Lower bound for any algorithm", words.count(int(lower_bound)), lower_bound))
    if rounds_bound is not None:
        label = "Lower bound if every step is sampled equally often"
        facts.append(Fact(label, words.count(int(rounds_bound)), rounds_bound))
    if verification is not None and verification >= 1:
        label = "To verify this policy, as δ → 0 (not a bound at this δ)"
        facts.append(Fact(label, words.count(int(verification)), verification))
    if plug_in is not None and plug_in.samples is not None:
        price = account.samples / plug_in.samples
        calls = f"{words.counted(plug_in.samples, 'simulator call')} {words.plug_in(plug_in.share, plug_in.runs)}"
        facts.append(Fact("The price of certainty", f"{words.times(price)} times the {calls}", price))
    if account.outlook is not None and account.forecast is not None:
        facts.append(Fact("Forecast of calls in all", words.span_roughly(account.outlook), account.forecast))
    if loss is not None:
        facts.append(Fact("True loss (the model is known)", words.figure(loss, 3), loss))
    facts += [
        Fact("Algorithm", settings.algorithm + (f" ({settings.chosen})" if settings.chosen else "")),
        Fact("Statement that certifies", account.rule if account.epsilon < inf else "–"),
        Fact("Problem", f"{size}, {problem.time_description}"),
        Fact("Seed", str(settings.seed), settings.seed),
    ]
    if account.seconds is not None:
        facts.append(Fact("Seconds", words.figure(account.seconds, 3), account.seconds))
    if account.created:
        facts.append(Fact("Begun", f"{account.created} UTC"))
    return facts


def _pictures(
    account: Account, estimates: Estimates | None, lower_bound: float | None, chart: Chart | None
) -> list[Picture]:
    pictures = [progress_picture(account, lower_bound)]
    if chart is not None and account.policy is not None:
        pictures.append(_on_the_chart(account, _drawn(account, estimates), chart))
    if estimates is not None:
        pictures += [
            _states(account, estimates) if chart is None else None,
            _gaps(estimates, account.labels),
            _design(estimates, account.labels),
        ]
    return [picture for picture in pictures if picture is not None]


def progress_picture(account: Account, lower_bound: float | None) -> Picture | None:
    """How the certificate was reached; None if there is nothing to see of it."""
    drawn = [check for check in account.checks if check["statistic"]]
    if len(drawn) < (2 if account.finished else 1):  # one point shows nothing of how it was reached
        return None
    looks, asked = len(account.checks), account.settings.asked_epsilon
    figure = progress_figure(account.checks, asked=asked, forecast=account.forecast, lower_bound=lower_bound)
    description = (
        f"Curves over simulator calls, {words.counted(looks, 'check')}: {words.headline(account, lower_bound)}"
    )
    return Picture(
        "How the certificate was reached" if account.certified else "How far the run is",
        to_svg(figure, "progress", description),
        f"{words.counted(looks, 'check')}, each at all samples so far; the guarantee holds for all of them together.",
    )


def _drawn(account: Account, estimates: Estimates | None) -> Drawn:
    """What is known of each state; of a large problem only values."""
    if estimates is not None:
        return drawn(estimates)
    assert account.policy is not None
    choice = account.problem.mask.sum(axis=1) > 1
    if account.tally is None:
        return Drawn(account.policy, choice=choice)
    q_values = estimated_q_values(account.problem, account.tally, account.policy, account.settings.units)
    values = np.take_along_axis(q_values, account.policy[:, :, None], axis=2)[:, :, 0]
    return Drawn(account.policy, values, choice=choice)


def _on_the_chart(account: Account, shown: Drawn, chart: Chart) -> Picture:
    episodic, names = account.problem.horizon is not None, [axis.name for axis in chart.axes]
    others = len(chart.axes) - (1 if len(chart.axes) == 1 or chart.signs else 2)
    caption, title = "Values are estimated from all samples; they explain, the guarantee does not rest on them.", ""
    if chart.signs:
        title = "The policy on the grid"
        caption = (
            "Colour is the estimated value. Signs are the actions of the policy, pale where the next best action is "
            "within two standard errors; a dot is a state without a choice."
        )
    elif len(chart.axes) == 1:
        title = "The policy, state by step" if episodic else "Action and value of each state"
        caption += "" if episodic else " Bars are two standard errors."
    else:
        title = f"The policy, {names[1]} by {names[0]}" if all(names[:2]) else "The policy by coordinates"
        if others or episodic:
            caption = "What the policy plays; one picture for each value of what is written above it."
    if episodic and len(chart.axes) > 1:
        caption += " Some of the steps are drawn." if account.problem.stages > 4 else ""
    if chart.left_out:
        caption += f" {words.counted(chart.left_out, 'state')} of another kind left out."
    sizes = " by ".join(str(len(axis.levels)) for axis in reversed(chart.axes))
    description = f"{title}. Grid of {sizes} states." if len(chart.axes) > 1 else f"{title}."
    figure = policy_figure(chart, shown, account.labels, episodic=episodic)
    return Picture(
        title,
        to_svg(figure, "map", description),
        caption,
    )


def _states(account: Account, estimates: Estimates) -> Picture:
    problem, labels = account.problem, account.labels
    low, high = float(estimates.values[0].min()), float(estimates.values[0].max())
    used = np.unique(estimates.policy)
    listed = ", ".join(map(labels.action, used[:8])) + (", …" if len(used) > 8 else "")
    description = f"Values of the states lie between {low:.3g} and {high:.3g}; the policy plays the actions {listed}."
    bars = "" if problem.horizon is not None else " Bars are two standard errors."
    return Picture(
        "Value and action of each state",
        to_svg(states_figure(estimates, labels), "states", description),
        f"Values of the policy, estimated from all samples.{bars} They explain; the guarantee does not rest on "
        f"them. {cut_note(problem.states, 'least decided')}",
    )


def _gaps(estimates: Estimates, labels: Labels) -> Picture | None:
    figure, hardest = gaps_figure(estimates, labels), estimates.hardest(MOST_GAPS)
    if figure is None:
        return None
    caption = "How much better the policy's action is than the next best one, where that was hardest to tell."
    if any(estimates.sureness[place] <= 2 for place in hardest):
        caption += " Orange squares are not settled by the samples, and need not be: either action may do for this ε."
    description = f"Hardest decisions, first of them {decision(estimates, *hardest[0], labels)}."
    return Picture("Decisions that were hard", to_svg(figure, "gaps", description), caption)


def _design(estimates: Estimates, labels: Labels) -> Picture:
    pulls = estimates.pulls.sum(axis=0)
    state, action = np.unravel_index(pulls.argmax(), pulls.shape)
    share = 100 * int(pulls.max()) / max(int(pulls.sum()), 1)
    pairs = int((pulls > 0).sum())
    return Picture(
        "Where the simulator was called",
        to_svg(
            design_figure(estimates, labels),
            "design",
            f"{pairs} pairs were simulated, most often state {labels.state(int(state))} with action "
            f"{labels.action(int(action))}: {share:.3g} %.",
        ),
        f"Share of the calls by state and action, {pairs:,} of {estimates.problem.mask.sum():,} pairs; blank where "
        f"there were none: features carry over what is learnt elsewhere. {cut_note(len(pulls), 'most simulated')}",
    )


def checks_table(account: Account) -> dict[str, Any]:
    """Every look at the data, for the page."""
    columns = [(name, "number") for name in ("calls", "statistic", "threshold", "certified ε", "gap")]
    return {
        "columns": [*columns, ("statement", "")],
        "rows": account.checks[-_CHECKS_SHOWN:],
        "total": len(account.checks),
        "words": words,
        "at_most": at_most,
    }


def _assumptions(account: Account, mdp: LinearMDP | None) -> list[tuple[str, str, str]]:
    """(assumption, verdict, what is behind the verdict)."""
    findings = check_features(account.problem)
    if mdp is not None:
        findings += check_model(mdp.problem, mdp.theta, mdp.mu)
    checked = [
        (
            finding.name,
            "holds" if finding.passed else "fails",
            f"{finding.measured:.3g} (wanted {finding.relation} {finding.limit:.3g})".replace("e-0", "e-"),
        )
        for finding in findings
    ]
    in_doubt, units = ("in doubt", "see the warning"), account.settings.units
    failed = any(is_about_failures(warning) for warning in account.warnings)
    independent = in_doubt if failed else ("taken on trust", "no file can show it")
    trusted = [
        (
            "rewards lie in [{:g}, {:g}]".format(*units.reward_range),
            "checked",
            "every reward that was told",
        ),
        ("samples are independent given the sampled pairs, and none was lost for what came out", *independent),
    ]
    if mdp is None and not account.problem.is_tabular:
        linear = "transition probabilities and mean rewards are linear in the features"
        bent = any(not is_about_failures(warning) for warning in account.warnings)
        found = account.linearity
        tested = in_doubt if bent else ("taken on trust", _HOW_TO_TEST) if found is None else ("tested", found.words)
        trusted.insert(1, (linear, *tested))
    span = account.settings.parameters.get("value_span", inf)
    if isinstance(span, float) and isfinite(span):
        trusted.append((f"optimal values differ by at most {span:g} between states", "taken on trust", "value_span"))
    if account.verification is not None:
        # What the samples are has a line above; the rest had to be so before there were any.
        trusted += [(item, "taken on trust", "no file can show it") for item in account.verification.trusted[1:]]
    return checked + trusted


def commands(account: Account) -> list[tuple[str, str]]:
    """(what for, command) to check and to repeat the run."""
    settings, source = account.settings, shlex.quote(account.source)
    name = f" --name {shlex.quote(account.name)}" if account.name else ""
    check = "Check it, with code that shares nothing with the run"
    found = []
    if account.verification is not None:
        found = [(check.replace("it", "the certificate", 1), f"bestpolicy verify {source}")]
    elif account.epsilon < inf and _writes_certificates(settings.algorithm):
        make, how = "Write a certificate, in Python", 'result.save("certificate.json")'
        if account.source and account.model:
            make = "Write a certificate from the stored samples"
            how = f"bestpolicy resume {source}{name} --certificate certificate.json"
        found = [(make, how), (check, "bestpolicy verify certificate.json")]
    if account.source and account.verification is None and not account.finished:
        found.insert(0, ("Go on with the run", _resume(account)))
    typed = bool(account.model) and not isinstance(settings.start, tuple)
    again = "Repeat the run" + ("" if typed else ", in Python") + ": the same seed gives the same answer"
    if len({limit for _, limit in settings.budgets}) > 1:
        again += " (up to the budget, which has changed on the way)"
    return [*found, (again, _identify(account) if typed else _identify_in_python(settings))]


def _identify(account: Account) -> str:
    settings, rewards = account.settings, account.settings.origin.get("rewards", "bernoulli")
    options = {
        "epsilon": repr(settings.asked_epsilon),
        "delta": repr(settings.delta),
        "algorithm": settings.algorithm,
        "seed": settings.seed,
        "start": settings.start,
        "max-samples": settings.max_samples,
        "rewards": None if rewards == "bernoulli" else rewards,
        "workers": None if settings.calls_per_query is None else 2,  # as good as any other number
    }
    typed = [f"--{name} {shlex.quote(str(value))}" for name, value in options.items() if value is not None]
    return " ".join([f"bestpolicy identify {shlex.quote(account.model)}", *typed])


def _identify_in_python(settings: Settings) -> str:
    algorithm, kind = repr(settings.algorithm), ALGORITHMS.get(settings.algorithm)
    if kind is not None:
        usual = parameters_of(kind())
        changed = [f"{name}={value!r}" for name, value in settings.parameters.items() if value != usual.get(name)]
        algorithm = f"bestpolicy.algorithms.{kind.__name__}({', '.join(changed)})" if changed else algorithm
    arguments = f"epsilon={settings.asked_epsilon!r}, delta={settings.delta!r}, algorithm={algorithm}"
    for name in ("seed", "max_samples", "calls_per_query"):
        if getattr(settings, name) is not None:
            arguments += f", {name}={getattr(settings, name)}"
    if settings.start is not None:
        known = settings.units.states
        named = known is not None and settings.units.own_states is None and not isinstance(settings.start, tuple)
        arguments += f", start={known[settings.start]!r}" if named else f", start={settings.start!r}"  # type: ignore[index]
    return f"bestpolicy.identify(simulator, {arguments})"


def _resume(account: Account) -> str:
    """A spent budget must be raised: to twice what was used, or what should be needed with some to spare."""
    budget = 0
    if account.outcome == Outcome.BUDGET:
        budget = max(2 * account.samples, int(float(f"{1.5 * (account.forecast or 0):.2g}")))
    if not account.model:
        more = f", max_samples={budget}" * (budget > 0)
        if account.unlisted is not None and account.unlisted.problem is None:
            more += ", problem=problem"
        return f"bestpolicy.drive(bestpolicy.Study.resume({account.source!r}, {account.name!r}{more}), simulator)"
    more = f" --max-samples {budget}" * (budget > 0)
    return f"bestpolicy resume {shlex.quote(account.source)} --name {shlex.quote(account.name)}{more}"


def _true_loss(mdp: LinearMDP, account: Account) -> float:
    policy = account.policy
    assert policy is not None
    start = start_weights(mdp.problem, account.settings.start)
    return account.settings.units.reward_scale * loss_from(mdp, policy, start)


def _writes_certificates(algorithm: str) -> bool:
    return algorithm in ALGORITHMS and ALGORITHMS[algorithm].about.writes_certificates
