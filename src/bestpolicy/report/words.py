"""Numbers and sentences for people. What is promised is never rounded in the promise's favour."""

from __future__ import annotations

from collections.abc import Sequence
from math import floor, inf
from statistics import median

from bestpolicy.comparison import Summary
from bestpolicy.report.accounts import Account
from bestpolicy.study import Outcome
from bestpolicy.study.forecast import Outlook
from bestpolicy.study.result import gave_up, percent, provided, quality

_WHY = {
    Outcome.BUDGET: "The budget of simulator calls is spent.",
    Outcome.TIME: "The time was up.",
    Outcome.INTERRUPTED: "The run was interrupted.",
    Outcome.DOUBT: "The features do not fit: take finer ones, or one-hot ones.",
    Outcome.NO_GUARANTEE: "All samples are made, but this algorithm proves nothing of its policy.",
    Outcome.RUNNING: "The run is not over.",
}


def count(number: float) -> str:
    """A number of things: ``41,320``."""
    return f"{number:,.0f}"


def counted(number: int, thing: str) -> str:
    """So many things: ``1 check``, ``1,204 checks``."""
    return f"{count(number)} {thing}{'' if number == 1 else 's'}"


def figure(number: float | None, digits: int = 4) -> str:
    """A measured number with so many digits; a dash if there is none."""
    if number is None or not abs(number) < inf:
        return "–"
    return f"{number:,.0f}" if abs(number) >= 10**digits else f"{number:.{digits}g}"


def headline(account: Account, lower_bound: float | None = None) -> str:
    """What is certified, in one sentence."""
    calls = counted(account.samples, "simulator call")
    floor_ = ""
    if lower_bound is not None and lower_bound >= 1:
        floor_ = f"; no algorithm could do with fewer than {count(floor(lower_bound))} on average"
    if account.rule == "no state has two distinct actions":
        return "Every policy is optimal: no state has two distinct actions."
    sure = percent(account.settings.delta)
    promise = f"{quality(account.epsilon)} {account.settings.where} with probability at least {sure}"
    if account.unlisted is not None:
        promise += f",{provided(account.epsilon, account.unlisted.per_misfit)}"
    if account.outcome == Outcome.DOUBT or (account.verification is not None and account.verification.in_doubt):
        return f"In doubt: the features do not fit, so that nothing is certified of this policy, after {calls}."
    if account.warnings:
        promise += ", if the warning below can be dismissed"
    if account.certified:
        return f"This policy is {promise}, from {calls}{floor_}."
    if not account.checks and account.epsilon == inf:
        begun = "has just begun: " if not account.over else "ended before its first check: "
        return f"This study {begun}nothing is certified yet, after {calls}."
    asked = account.settings.asked_epsilon
    wanted = "an optimal one" if asked == 0 else f"one within {figure(asked)}"
    if account.epsilon < inf:
        return f"So far this policy is {promise}, from {calls}. Asked for was {wanted}."
    nothing, verb = ("Nothing is certified", "was") if account.finished else ("Nothing is certified yet", "is")
    return f"{nothing}, after {calls}. Asked for {verb} {wanted.replace('one', 'a policy', 1)}."


def standing(account: Account) -> str:
    """Why the run ended, or that it did not, and what to expect of it; empty if it certified what was asked."""
    if account.certified:
        return ""
    why = next((text for outcome, text in _WHY.items() if outcome == account.outcome), "")
    if account.outcome == Outcome.GAVE_UP:
        why = gave_up(account.samples, account.settings.asked_epsilon) + "."
    if account.forecast is None or account.outlook is None:
        return why
    return f"{why} {span_roughly(account.outlook)} simulator calls should be needed in all."


def span_roughly(ahead: Outlook) -> str:
    """A range of calls, with two digits: ``3,100 to 4,800``."""
    return f"{count_roughly(ahead.low)} to {count_roughly(ahead.high)}"


def count_roughly(number: float) -> str:
    """A forecast, with two digits: ``4,800,000``."""
    return f"{float(f'{number:.2g}'):,.0f}"


def compact(number: float) -> str:
    """A count where room is scarce: ``166k``, ``1.19G``."""
    for unit, size in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if number >= 0.9995 * size:
            return f"{number / size:.3g}{unit}"
    return f"{number:.3g}"


def between(low: float, high: float) -> str:
    """A range of counts: ``352–464``, or one number if its ends look the same."""
    ends = dict.fromkeys((compact(low), compact(high)))
    return "–".join(ends)


def times(ratio: float | None) -> str:
    """How many times as much: ``3.1``, ``5,800``."""
    return "–" if ratio is None else f"{ratio:.2g}" if ratio < 10 else count_roughly(ratio)


def plug_in(share: float, runs: int) -> str:
    """What a price is a multiple of, after "the calls"."""
    often, estimated = f"{100 * share:.4g}\N{NO-BREAK SPACE}%", f"estimated over {counted(runs, 'run')}"
    return f"that the uncertified plug-in needs to be within ε in {often} of runs ({estimated})"


def comparison_headline(summary: Sequence[Summary]) -> str:
    """Say which algorithm needed the fewest calls, of those that were always certified (and simulate pairs, if any)."""
    medians: dict[str, dict[str, float]] = {}
    alike = [entry for entry in summary if entry.simulates_pairs]
    for entry in alike or summary:
        if entry.certified == entry.runs:
            medians.setdefault(entry.instance, {})[entry.algorithm] = entry.median_samples
    contested = {instance: needed for instance, needed in medians.items() if len(needed) > 1}
    if not contested:
        instances, algorithms = len(medians), {name for needed in medians.values() for name in needed}
        if not instances:
            return "No algorithm was certified in all its runs." if summary else "There are no runs."
        return f"{_listed(sorted(algorithms))} certified policies on {counted(instances, 'instance')}."
    winners = [min(needed, key=lambda name: needed[name]) for needed in contested.values()]
    best = max(dict.fromkeys(winners), key=winners.count)
    if len(set(winners)) > 1:
        wins = [f"{name} on {winners.count(name)}" for name in sorted(set(winners), key=lambda n: -winners.count(n))]
        return f"Fewest simulator calls, of {len(winners)} instances: {_listed(wins)}."
    ratios = [
        min(calls for name, calls in needed.items() if name != best) / needed[best]
        for needed in contested.values()
        if best in needed and needed[best] > 0
    ] or [1.0]
    middle = median(ratios)
    many = len(contested)
    where = f"on {next(iter(contested))}" if many == 1 else f"on {winners.count(best)} of {many} instances"
    typical = "" if middle < 1.05 else f"; the next best needed {times(middle)} times as many"
    typical += " (median)" if typical and many > 1 else ""
    return f"{best} needed the fewest simulator calls {where}{typical}."


def _listed(names: list[str]) -> str:
    return names[0] if len(names) == 1 else ", ".join(names[:-1]) + " and " + names[-1]
