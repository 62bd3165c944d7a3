from pathlib import Path

import pytest

from ohsandbox.evaluation.reports import read_results
from ohsandbox.evaluation.reports.comparison import Comparison, compare_reports
from ohsandbox.evaluation.reports.report import Report
from tests.evaluation.results import trial, write_run


def _report(path: Path, passed: dict[str, int], *, attempts: int = 2) -> Report:
    trials = [
        trial(name, "pass" if attempt < count else "fail", attempt + 1, seconds=1.0 + count, cost_usd=0.1 * count)
        for name, count in passed.items()
        for attempt in range(attempts)
    ]
    return read_results([write_run(path, trials, attempts=attempts)]).report


def _changes(made: Comparison) -> dict[str, str]:
    return {task.id: task.change for task in made.tasks}


def test_each_task_has_a_change_and_the_worst_stand_first(tmp_path: Path) -> None:
    a = _report(tmp_path / "a", {"p": 2, "f": 0, "m": 1, "fix": 1, "imp": 0, "brk": 1, "wrs": 2, "gone": 2})
    b = _report(tmp_path / "b", {"p": 2, "f": 0, "m": 1, "fix": 2, "imp": 1, "brk": 0, "wrs": 1, "new": 2})
    made = compare_reports(a, b)
    assert _changes(made) == {
        "brk": "broken", "wrs": "worsened", "fix": "fixed", "imp": "improved", "m": "mixed", "f": "failing",
        "p": "passing", "gone": "only_in_a", "new": "only_in_b",
    }  # fmt: skip
    assert [task.id for task in made.tasks][:2] == ["brk", "wrs"]
    assert made.compared_tasks == 7
    assert made.effect.value == 0


def test_tasks_without_a_verdict_or_with_other_files_are_in_no_test(tmp_path: Path) -> None:
    a = read_results([write_run(tmp_path / "a", [trial("x"), trial("e"), trial("t")])]).report
    digests = {"x": "sha256:1", "e": "sha256:1", "t": "sha256:changed"}
    b = read_results(
        [write_run(tmp_path / "b", [trial("x"), trial("e", "infrastructure_error"), trial("t", "fail")], tasks=digests)]
    ).report
    made = compare_reports(a, b)
    assert _changes(made) == {"e": "no_verdict", "t": "changed_task", "x": "passing"}
    assert made.compared_tasks == 1


def test_several_attempts_are_tested_by_task(tmp_path: Path) -> None:
    names = [f"t{number}" for number in range(8)]
    a = _report(tmp_path / "a", dict.fromkeys(names, 2))
    b = _report(tmp_path / "b", {name: number % 2 for number, name in enumerate(names)})
    made = compare_reports(a, b)
    assert made.effect.value == pytest.approx(-0.75)
    assert made.effect.test == "sign flips over tasks, exact"
    assert made.effect.p_worse == pytest.approx(1 / 256)
    assert made.is_worse(0.05)
    assert not compare_reports(b, a).is_worse(0.05)


def test_time_and_cost_are_compared_where_both_are_known(tmp_path: Path) -> None:
    made = compare_reports(_report(tmp_path / "a", {"x": 1, "y": 1}), _report(tmp_path / "b", {"x": 2, "y": 2}))
    assert made.seconds_per_task is not None
    assert (made.seconds_per_task.a, made.seconds_per_task.b, made.seconds_per_task.tasks) == (2.0, 3.0, 2)
    assert made.cost_usd_per_task is not None
    assert made.cost_usd_per_task.b == pytest.approx(0.2)


def test_what_differs_in_the_settings_is_named(tmp_path: Path) -> None:
    a = read_results([write_run(tmp_path / "a", [trial("x")])]).report
    b = read_results(
        [write_run(tmp_path / "b", [trial("x", model="m", image_digest="sha256:new")], timeout_multiplier=2.0)]
    ).report
    assert compare_reports(a, b).settings == {
        "timeout_multiplier": (1.0, 2.0),
        "models": ([], ["m"]),
        "images": ({"python:3.12": ["sha256:abc"]}, {"python:3.12": ["sha256:new"]}),
    }


def test_shards_that_are_all_there_are_no_other_setting(tmp_path: Path) -> None:
    whole = read_results([write_run(tmp_path / "whole", [trial("x"), trial("y")])]).report
    parts = [write_run(tmp_path / name, [trial(name)], shard=f"{at}/2") for at, name in enumerate("xy", 1)]
    assert "shard" not in compare_reports(whole, read_results(parts).report).settings
    assert compare_reports(whole, read_results(parts[:1]).report).settings["shard"] == (None, "1/2")


def test_of_an_agent_each_setting_that_differs_is_named_by_itself(tmp_path: Path) -> None:
    shared = {"temperature": 0.0, "tools": ["grep"]}
    a, b = (
        read_results([write_run(tmp_path / name, [trial("x")], agent_settings={"model": name, **shared})]).report
        for name in "ab"
    )
    assert compare_reports(a, b).settings == {"agent_settings.model": ("a", "b")}
