from functools import partial

from ohsandbox.evaluation.reports.numbers import dollars, percent, probability, seconds


def test_parts_are_percent_and_only_all_is_100() -> None:
    assert [*map(percent, (0, 0.5, 1, 0.9999, 2 / 3, None))] == [
        "0 %", "50.0 %", "100 %", "100.0 %", "66.7 %", "\N{EN DASH}"
    ]  # fmt: skip
    assert percent(-0.125, signed=True) == "-12.5 points"


def test_durations_are_in_units_that_fit() -> None:
    assert [*map(seconds, (0, 1.25, 9.96, 59.6, 200, 7500, None))] == [
        "0.0 s", "1.2 s", "10 s", "1 min 0 s", "3 min 20 s", "2 h 5 min", "\N{EN DASH}"
    ]  # fmt: skip
    assert [*map(partial(seconds, signed=True), (2.0, -65))] == ["+2.0 s", "-1 min 5 s"]


def test_amounts_below_a_cent_are_not_nothing() -> None:
    assert [*map(dollars, (0, 1.256, 0.0034, None))] == ["$0.00", "$1.26", "$0.0034", "\N{EN DASH}"]
    assert dollars(-0.5, signed=True) == "-$0.50"


def test_a_p_value_is_never_nothing() -> None:
    assert [*map(probability, (1.0, 0.03125, 0.00001))] == ["p = 1.0000", "p = 0.0312", "p < 0.0001"]
