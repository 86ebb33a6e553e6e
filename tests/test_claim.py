"""What is claimed of a policy is never rounded in the claim's favour, wherever it is said."""

from __future__ import annotations

import doctest

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import bestpolicy as bp
from bestpolicy.stopping import Check
from bestpolicy.study import result as claims
from bestpolicy.study.result import at_most, claim, confidence, explain, percent
from bestpolicy.verification import Verification

CASES = [  # ε, δ, and what may be said of them
    (0.284400378, 0.05, "within 0.2845 of optimal in every state with probability at least 0.95"),
    (0.2844, 1e-7, "within 0.2844 of optimal in every state with probability at least 0.9999999"),
    (0.1 * 3, 1 / 3, "within 0.3 of optimal in every state with probability at least 0.6666"),
    (1e-7, 0.123456, "within 0.0000001 of optimal in every state with probability at least 0.8765"),
    (0.0, 1e-30, "optimal in every state with probability at least 0." + 28 * "9"),
]


def test_the_examples_of_the_module():
    assert doctest.testmod(claims).failed == 0


@pytest.mark.parametrize(("epsilon", "delta", "said"), CASES)
def test_a_claim_is_the_same_everywhere(epsilon, delta, said):
    assert claim(epsilon, delta) == said
    check = Check(1, 1, None, 1.0, 0.0, True, epsilon, 1.0, "Theorem R")
    assert said in explain(bp.Outcome.CERTIFIED, check, delta, None, 1.0)
    assert said in str(Verification(True, [], epsilon, delta, epsilon, "R", 1, 1))


def test_large_numbers():
    assert at_most(12345.6) == "12,350"
    assert at_most(1234.0) == "1,234"
    assert at_most(float("inf")) == "∞"
    assert "within 12350 of optimal" in str(Verification(True, [], 12345.6, 0.1, 12345.6, "R", 1, 1))


@given(st.floats(1e-9, 0.999))
def test_both_ways_to_write_a_probability_agree(delta):
    assert float(percent(delta)[:-2]) == pytest.approx(100 * float(confidence(delta)), rel=1e-15)


@given(st.floats(1e-12, 1e12))
@example(0.284400378)
@example(0.1 * 3)
@example(12345.6)
@example(0.0999999999)
def test_a_promise_is_never_rounded_in_its_favour(bound):
    stated = float(at_most(bound).replace(",", ""))
    assert bound * (1 - 1e-14) <= stated <= bound * 1.00101


@given(st.floats(1e-9, 0.999))
@example(0.05)
@example(1e-6)
def test_a_probability_is_never_rounded_up(delta):
    text = percent(delta)
    assert text.endswith("\N{NO-BREAK SPACE}%")
    stated = float(text[:-2])
    assert stated <= 100 * (1 - delta) * (1 + 1e-12)
    assert stated >= 100 * (1 - delta) - 0.101 * delta - 1e-12


def test_probabilities_read_well():
    assert [percent(d).replace("\N{NO-BREAK SPACE}", " ") for d in (0.05, 0.1, 0.01, 1e-6, 0.123)] == [
        "95 %",
        "90 %",
        "99 %",
        "99.9999 %",
        "87.7 %",
    ]
