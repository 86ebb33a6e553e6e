"""What a page says of a study whose states nobody lists."""

from __future__ import annotations

from math import inf
from typing import Any

from bestpolicy.pictures.drawing import require_matplotlib
from bestpolicy.report import words
from bestpolicy.report.accounts import Account
from bestpolicy.report.study_part import Fact, checks_table, commands, progress_picture
from bestpolicy.report.unlisted import Unlisted
from bestpolicy.study.result import at_most


def unlisted_part(account: Account, known: Unlisted) -> dict[str, Any]:
    """All that a page says of it, for the same template as other studies."""
    require_matplotlib()
    pictures = [progress_picture(account, None), known.picture()]
    failed = bool(account.settings.failures)
    independent = ("in doubt", "see the warning") if failed else ("taken on trust", "no file can show it")
    low, high = account.settings.units.reward_range
    assumed = [
        known.trusted,
        ("features are convex combinations", "checked", "at every state that was visited"),
        (f"rewards lie in [{low:g}, {high:g}]", "checked", "every reward that was told"),
        ("samples are independent given the sampled pairs, and none was lost for what came out", *independent),
    ]
    if account.verification is not None:
        assumed += [(item, "taken on trust", "no file can show it") for item in account.verification.trusted[1:]]
    return {
        "name": account.name,
        "subject": account.subject,
        "headline": words.headline(account),
        "standing": words.standing(account),
        "state": "certified" if account.certified and not account.warnings else "over" if account.over else "running",
        "outcome": account.outcome + (", in doubt" if account.warnings else ""),
        "warnings": account.warnings,
        "attempts": account.attempts,
        "facts": _facts(account, known),
        "pictures": [picture for picture in pictures if picture is not None],
        "policy": known.table(),
        "as_of": "" if account.certified or not account.checks else words.count(account.checks[-1]["samples"]),
        "checks": checks_table(account),
        "assumptions": assumed,
        "commands": commands(account),
        "versions": account.versions,
        "verification": account.verification,
    }


def _facts(account: Account, known: Unlisted) -> list[Fact]:
    settings, certified = account.settings, account.epsilon < inf
    facts = [
        Fact("Certified ε, if the features fit", at_most(account.epsilon) if certified else "nothing", account.epsilon)
    ]
    if certified:
        grown = f"{at_most(account.epsilon)} + {at_most(known.per_misfit)}ζ"
        facts.append(Fact("ε with an interpolation error of up to ζ", grown, known.per_misfit))
    facts += [
        Fact("Test of the features", known.fit or "none"),
        Fact("Asked ε", words.figure(settings.asked_epsilon), settings.asked_epsilon),
        Fact("Allowed probability of error δ", words.figure(settings.delta), settings.delta),
        Fact("Simulator calls", words.count(account.samples), account.samples),
        Fact("Algorithm", settings.algorithm + (f" ({settings.chosen})" if settings.chosen else "")),
        Fact("Statement that certifies", account.rule if certified else "–"),
        Fact("Problem", known.size),
        Fact("Seed", str(settings.seed), settings.seed),
    ]
    if known.problem is None:
        missing = "functions of yours are in no file: write_report(result), in Python, has the policy and its values"
        facts.append(Fact("The policy", missing))
    if account.seconds is not None:
        facts.append(Fact("Seconds", words.figure(account.seconds, 3), account.seconds))
    if account.created:
        facts.append(Fact("Begun", f"{account.created} UTC"))
    return facts
