"""Values marked "statsmodels" or "scipy" were computed with statsmodels 0.15.0 and scipy 1.17.1."""

from __future__ import annotations

import itertools
import random
from fractions import Fraction

import pytest

from ohsandbox.evaluation import statistics
from ohsandbox.evaluation.statistics import (
    TaskCount,
    mcnemar,
    mean_difference,
    paired_test,
    pass_at,
    pass_rate,
    wilson,
)


@pytest.mark.parametrize(
    ("passed", "trials", "low", "high"),
    [
        (0, 10, 0.0, 0.27753279986288926),
        (10, 10, 0.7224672001371106, 1.0),
        (7, 10, 0.39677814746114537, 0.8922087325936989),
        (81, 263, 0.2552885198782742, 0.36620957698280004),
        (1, 1, 0.2065493143772374, 1.0),
    ],
)
def test_wilson_is_that_of_statsmodels(passed: int, trials: int, low: float, high: float) -> None:
    assert wilson(passed, trials) == pytest.approx((low, high))


def test_wilson_at_another_confidence_is_that_of_statsmodels() -> None:
    assert wilson(7, 10, confidence=0.9) == pytest.approx((0.44169979586983493, 0.873123416096802))


def test_one_attempt_a_task_has_wilsons_interval() -> None:
    found = pass_rate([TaskCount(1, 1)] * 7 + [TaskCount(0, 1)] * 3)
    assert found is not None
    assert (found.value, found.low, found.high) == pytest.approx((0.7, *wilson(7, 10)))
    assert found.method == "Wilson"


def test_attempts_that_always_agree_tell_no_more_than_one() -> None:
    found = pass_rate([TaskCount(4, 4)] * 7 + [TaskCount(0, 4)] * 3)
    assert found is not None
    assert (found.low, found.high) == pytest.approx(wilson(7, 10))


def test_attempts_that_do_not_depend_on_their_task_tell_as_much_as_tasks() -> None:
    found = pass_rate([TaskCount(2, 4)] * 10)
    assert found is not None
    assert (found.low, found.high) == pytest.approx(wilson(20, 40))


def test_all_passed_is_no_more_certain_with_more_attempts() -> None:
    found = pass_rate([TaskCount(8, 8)] * 10)
    assert found is not None
    assert (found.low, found.high) == pytest.approx(wilson(10, 10))


def test_the_pass_rate_weighs_tasks_not_trials() -> None:
    found = pass_rate([TaskCount(1, 1), TaskCount(0, 4), TaskCount(0, 0)])
    assert found is not None
    assert found.value == 0.5


def test_nothing_that_counts_has_no_pass_rate() -> None:
    assert pass_rate([]) is None
    assert pass_rate([TaskCount(0, 0)]) is None


@pytest.mark.parametrize(("tasks", "attempts"), [(10, 4), (30, 4), (30, 1)])
def test_intervals_hold_the_true_value_about_as_often_as_they_say(tasks: int, attempts: int) -> None:
    draw = random.Random(1)
    held = held_difference = 0
    for _ in range(300):
        rates = [draw.betavariate(2, 2) for _ in range(tasks)]
        counts = [TaskCount(sum(draw.random() < rate for _ in range(attempts)), attempts) for rate in rates]
        others = [TaskCount(sum(draw.random() < rate * 0.8 for _ in range(attempts)), attempts) for rate in rates]
        found = pass_rate(counts)
        apart = mean_difference([b.rate - a.rate for a, b in zip(counts, others, strict=True)])
        assert found is not None
        assert apart is not None
        held += found.low <= 0.5 <= found.high
        held_difference += apart.low <= -0.1 <= apart.high
    assert held >= 270
    assert held_difference >= 270


def test_pass_at_k_is_the_part_of_all_choices_of_k_attempts_with_one_that_passes() -> None:
    outcomes = [True, True, False, False, False]
    for k in range(1, 6):
        choices = list(itertools.combinations(outcomes, k))
        expected = sum(any(choice) for choice in choices) / len(choices)
        assert pass_at(k, [TaskCount(2, 5)]) == pytest.approx(expected)
    assert pass_at(2, [TaskCount(2, 5), TaskCount(0, 5)]) == pytest.approx(0.35)


def test_pass_at_k_is_unknown_where_a_task_has_fewer_attempts() -> None:
    assert pass_at(2, [TaskCount(2, 5), TaskCount(1, 1)]) is None
    assert pass_at(1, []) is None


@pytest.mark.parametrize(
    ("better", "worse", "p_value", "p_worse"),
    [
        (10, 2, 0.03857421875, 0.996826171875),
        (1, 6, 0.125, 0.0625),
        (0, 5, 0.0625, 0.03125),
        (3, 3, 1.0, 0.65625),
        (0, 0, 1.0, 1.0),
        (40, 20, 0.01348929373119186, 0.9968911986703367),
    ],
)
def test_mcnemar_is_that_of_statsmodels(better: int, worse: int, p_value: float, p_worse: float) -> None:
    found = mcnemar(better, worse)
    assert (found.p_value, found.p_worse) == pytest.approx((p_value, p_worse))
    differences = [Fraction(1)] * better + [Fraction(-1)] * worse + [Fraction(0)] * 9
    assert paired_test(differences) == found


DIFFERENCES = [Fraction(n, 4) for n in (2, 1, -1, 0, 3, 2, -2, 4, 1, 1)]


def test_sign_flips_are_those_of_scipy() -> None:
    found = paired_test(DIFFERENCES)
    assert (found.p_value, found.p_worse) == pytest.approx((0.12109375, 0.97265625))
    assert found.method == "sign flips over tasks, exact"


def test_drawn_sign_flips_are_near_the_exact_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    exact = paired_test(DIFFERENCES)
    monkeypatch.setattr(statistics, "MAX_EXACT_STEPS", 0)
    drawn = paired_test(DIFFERENCES)
    assert "drawn" in drawn.method
    assert (drawn.p_value, drawn.p_worse) == pytest.approx((exact.p_value, exact.p_worse), abs=0.005)


def test_no_difference_at_all_is_no_evidence() -> None:
    found = paired_test([Fraction(1, 2), Fraction(1, 4), Fraction(-3, 4)])
    assert found.p_value == 1.0


def test_the_difference_of_one_attempt_a_task_has_bonett_and_prices_interval() -> None:
    """b = 10, c = 2, n = 40: p12 = 11/42, p21 = 3/42, half = 1.95996 * sqrt((p12 + p21 - (p12 - p21)^2) / 42)."""
    found = mean_difference([Fraction(1)] * 10 + [Fraction(-1)] * 2 + [Fraction(0)] * 28)
    assert found is not None
    assert (found.value, found.low, found.high) == pytest.approx((0.2, 0.025645, 0.355308), abs=1e-6)


def test_pairs_that_all_agree_have_an_interval_too() -> None:
    found = mean_difference([Fraction(0)] * 10)
    assert found is not None
    assert found.low < 0 < found.high
    assert mean_difference([]) is None
