from __future__ import annotations

import json
from pathlib import Path

import pytest

from ohsandbox.errors import UsageError
from ohsandbox.evaluation.reports import load_report, read_results, write_reports
from ohsandbox.evaluation.reports.report import PassRate, Report, TaskReport, Totals
from tests.evaluation.results import HOSTILE_NAMES, HOSTILE_OUTPUT, trial, write_run


def test_outcomes_are_counted_apart_and_only_verdicts_make_the_rate(tmp_path: Path) -> None:
    trials = [
        trial("a"), trial("b", "fail"), trial("c", "agent_error"), trial("d", "verifier_error"),
        trial("e", "infrastructure_error"), trial("f", "model_error"), trial("g", "invalid"),
    ]  # fmt: skip
    report = read_results([write_run(tmp_path, trials)]).report
    assert set(report.outcomes.values()) == {1}
    assert report.pass_rate is not None
    assert (report.pass_rate.value, report.pass_rate.tasks, report.pass_rate.trials) == (0.25, 4, 4)
    assert report.complete


def test_what_is_not_finished_makes_the_report_partial(tmp_path: Path) -> None:
    run = write_run(tmp_path, [trial("a")], attempts=2, tasks={"a": "sha256:1", "b": "sha256:2"})
    report = read_results([run]).report
    assert not report.complete
    assert (report.trials_planned, report.trials_finished) == (4, 1)
    assert [task.missing for task in report.tasks] == [1, 2]


def test_pass_at_k_is_there_for_several_attempts(tmp_path: Path) -> None:
    trials = [trial("a", "pass" if attempt > 2 else "fail", attempt) for attempt in range(1, 5)]
    report = read_results([write_run(tmp_path, trials, attempts=4)]).report
    assert report.pass_at == pytest.approx({1: 0.5, 2: 5 / 6, 4: 1.0})


def test_repeats_of_what_failed_count_in_no_rate_and_tell_what_is_flaky(tmp_path: Path) -> None:
    trials = [
        trial("flaky", "fail"), trial("flaky", attempt=2, is_repeat=True),
        trial("broken", "fail"), trial("broken", "fail", 2, is_repeat=True),
    ]  # fmt: skip
    report = read_results([write_run(tmp_path, trials)]).report
    assert report.pass_rate is not None
    assert (report.pass_rate.value, report.outcomes["pass"], report.trials_planned) == (0.0, 0, 2)
    assert {task.id for task in report.tasks if task.is_flaky} == {"flaky"}
    assert report.complete


def test_totals_are_sums_over_all_trials(tmp_path: Path) -> None:
    trials = [
        trial("a", cost_usd=0.3, usage={"input_tokens": 10}, infrastructure_tries=3),
        trial("b", "fail", cost_usd=0.5, usage={"input_tokens": 5}),
        trial("c", "infrastructure_error"),
    ]
    totals = read_results([write_run(tmp_path, trials)]).report.totals
    assert totals.cost_usd == pytest.approx(0.8)
    assert totals.cost_per_solved_task_usd == pytest.approx(0.8)
    assert (totals.trials_without_cost, totals.infrastructure_retries) == (1, 2)
    assert (totals.seconds, totals.tokens, totals.phases) == (6.0, {"input_tokens": 15}, {"agent": 4.5})


def test_waits_for_a_provider_are_no_time_of_a_task(tmp_path: Path) -> None:
    report = read_results([write_run(tmp_path, [trial("a", seconds=30.0, rate_limit_wait_s=20.0)])]).report
    assert (report.tasks[0].seconds, report.totals.seconds, report.totals.rate_limit_wait_s) == (10.0, 30.0, 20.0)


def test_a_report_names_what_a_reader_needs_to_trust_it(tmp_path: Path) -> None:
    source = read_results([write_run(tmp_path, [trial("a")], shard="1/2")])
    write_reports(source, tmp_path)
    written = json.loads((tmp_path / "report.json").read_text())
    assert written["images"] == {"python:3.12": ["sha256:abc"]}
    assert written["fixed_environment"]["PYTHONHASHSEED"] == "0"
    assert written["runs"][0]["shard"] == "1/2"
    assert written["runs"][0]["ohsandbox"]
    assert written["pass_rate"]["method"] == "Wilson"
    assert Report.model_validate(written) == source.report


def test_shards_are_merged(tmp_path: Path) -> None:
    one = write_run(tmp_path / "1", [trial("a")], shard="1/2")
    two = write_run(tmp_path / "2", [trial("b", "fail")], shard="2/2")
    merged = read_results([one, two]).report
    assert merged.complete
    assert [task.id for task in merged.tasks] == ["a", "b"]
    assert merged.pass_rate is not None
    assert merged.pass_rate.value == 0.5


def test_a_shard_that_is_missing_makes_the_report_partial(tmp_path: Path) -> None:
    paths = [write_run(tmp_path / str(part), [trial(f"t{part}")], shard=f"{part}/4") for part in (1, 3)]
    merged = read_results(paths).report
    assert merged.missing_shards == ["2/4", "4/4"]
    assert not merged.complete


def test_one_shard_alone_is_whole_for_itself_and_not_for_the_run(tmp_path: Path) -> None:
    path = write_run(tmp_path, [trial("a")], shard="1/2")
    assert read_results([path]).report.complete
    merged = read_results([path], is_whole=True).report
    assert merged.missing_shards == ["2/2"]
    assert not merged.complete


def test_results_that_are_no_shards_of_one_run_are_refused(tmp_path: Path) -> None:
    first = write_run(tmp_path / "1", [trial("a")])
    with pytest.raises(UsageError, match="attempts is 1 and 2"):
        read_results([first, write_run(tmp_path / "2", [trial("b")], attempts=2)])
    with pytest.raises(UsageError, match=r"Task 'a', attempt 1, is in .*1.* and in .*3"):
        read_results([first, write_run(tmp_path / "3", [trial("a")])])
    with pytest.raises(UsageError, match="'a' is not the same"):
        read_results([first, write_run(tmp_path / "4", [trial("b")], tasks={"a": "sha256:other"})])
    with pytest.raises(UsageError, match="Shards of different numbers"):
        read_results(
            [write_run(tmp_path / f"s{n}", [trial(f"s{n}")], shard=shard) for n, shard in enumerate(("1/2", "2/3"))]
        )


def test_what_is_no_result_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="holds no results"):
        read_results([tmp_path])
    with pytest.raises(UsageError, match="cannot be read"):
        load_report(tmp_path / "missing")
    (tmp_path / "report.json").write_text("{}")
    with pytest.raises(UsageError, match="is not a report"):
        load_report(tmp_path / "report.json")


def test_every_report_is_written_of_hostile_and_of_empty_results(tmp_path: Path) -> None:
    hostile = write_run(tmp_path / "h", [trial(name, "fail") for name in HOSTILE_NAMES], output=HOSTILE_OUTPUT)
    empty = write_run(tmp_path / "e", [], tasks={"a": "sha256:1"})
    for run in (hostile, empty):
        write_reports(read_results([run]), run / "out")
        assert {path.name for path in (run / "out").iterdir()} == {
            "report.json", "junit.xml", "summary.md", "report.html"
        }  # fmt: skip
        assert load_report(run / "out" / "report.json").report == load_report(run / "out").report


def test_the_page_of_the_documents_names_every_field() -> None:
    page = (Path(__file__).parents[3] / "docs" / "evaluation.md").read_text()
    for model in (Report, PassRate, Totals, TaskReport):
        assert [name for name in model.model_fields if f"`{name}`" not in page] == []
