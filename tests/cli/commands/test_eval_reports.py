"""`eval report`, `eval compare` and the exit codes of `eval`, on results that are there."""

import json
from pathlib import Path

import pytest

from ohsandbox.cli.commands.eval_reports import exit_code_of_run
from ohsandbox.evaluation.reports import read_results
from ohsandbox.evaluation.results import Outcome
from tests.cli.conftest import Invoke
from tests.evaluation.results import HOSTILE_NAMES, trial, write_run


@pytest.mark.parametrize(
    ("outcomes", "min_pass_rate", "code"),
    [
        (["pass", "pass"], 1.0, 0),
        (["pass", "fail"], 1.0, 1),
        (["pass", "fail"], 0.5, 0),
        (["pass", "agent_error"], 0.6, 1),
        (["pass"] * 7 + ["fail"] * 3, 0.7, 0),
        (["pass", "verifier_error"], 1.0, 1),
        (["pass", "invalid"], 0.0, 2),
        (["pass", "infrastructure_error"], 0.0, 4),
        (["pass", "model_error"], 0.0, 5),
        (["infrastructure_error", "model_error", "invalid", "fail"], 1.0, 4),
        (["model_error", "invalid", "fail"], 1.0, 5),
        (["invalid", "fail"], 1.0, 2),
        ([], 1.0, 0),
    ],
)
def test_the_exit_code_says_what_stands_in_the_way(
    tmp_path: Path, outcomes: list[Outcome], min_pass_rate: float, code: int
) -> None:
    trials = [trial(f"t{number}", outcome) for number, outcome in enumerate(outcomes)]
    assert exit_code_of_run(read_results([write_run(tmp_path, trials)]).report, min_pass_rate) == code


def test_what_is_not_finished_is_not_reached(tmp_path: Path) -> None:
    run = write_run(tmp_path, [trial("a")], tasks={"a": "sha256:1", "b": "sha256:1"})
    assert exit_code_of_run(read_results([run]).report, 0.0) == 1


def test_without_an_engine_there_is_one_line_and_no_report(
    tmp_path: Path, invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
    (tmp_path / "tasks.yaml").write_text("- {id: a, image: i, prompt: x, check: 'true', solution: 'true'}\n")
    ended = invoke("eval", str(tmp_path / "tasks.yaml"), "-o", str(tmp_path / "out"))
    assert ended.code == 4
    assert len(ended.err.splitlines()) == 1
    assert not (tmp_path / "out" / "report.json").exists()


def test_report_writes_all_reports_and_prints_a_summary(tmp_path: Path, invoke: Invoke) -> None:
    run = write_run(tmp_path / "run", [trial("a", cost_usd=0.5), trial("b", "fail")])
    ended = invoke("eval", "report", str(run), "-o", str(tmp_path / "out"))
    assert (ended.code, ended.err) == (0, "")
    assert ended.out.splitlines()[:3] == [
        "1 pass, 1 fail",
        "Pass rate 50.0 % (95% interval 9.5 % to 90.5 %; 2 tasks, 2 trials)",
        "2.0 s, $0.50 ($0.50 per solved task)",
    ]
    assert len([*(tmp_path / "out").iterdir()]) == 4


def test_report_merges_shards_and_says_what_is_missing(tmp_path: Path, invoke: Invoke) -> None:
    paths = [str(write_run(tmp_path / str(part), [trial(f"t{part}")], shard=f"{part}/3")) for part in (1, 2)]
    ended = invoke("eval", "report", *paths)
    assert ended.out.startswith("Partial: 2 of 2 trials are finished; missing shards: 3/3.\n2 pass\n")
    assert (ended.code, invoke("eval", "report", *paths, "--min-pass-rate", "1").code) == (0, 1)
    paths.append(str(write_run(tmp_path / "3", [trial("t3", "fail")], shard="3/3")))
    for rate, code in (("0.7", 1), ("0.6", 0)):
        assert invoke("eval", "report", *paths, "--min-pass-rate", rate).code == code


def test_the_summary_is_appended_for_github(tmp_path: Path, invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    summary = tmp_path / "step-summary"
    summary.write_text("before\n")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    run = write_run(tmp_path / "run", [trial("a")])
    assert invoke("eval", "report", str(run)).code == 0
    assert summary.read_text() == "before\n" + (run / "summary.md").read_text()
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "missing" / "summary"))
    ended = invoke("eval", "report", str(run))
    assert ended.code == 0
    assert "cannot be appended" in ended.err


def test_report_of_what_holds_no_results_is_bad_input(tmp_path: Path, invoke: Invoke) -> None:
    ended = invoke("eval", "report", str(tmp_path))
    assert ended.code == 2
    assert "holds no results" in ended.err


def _run(path: Path, passed: int, failed: int, *, first: int = 0) -> str:
    names = [f"task-{first + number:02}" for number in range(passed + failed)]
    trials = [trial(name, "pass" if number < passed else "fail") for number, name in enumerate(names)]
    return str(write_run(path, trials))


def test_compare_fails_on_a_regression_and_not_on_noise(tmp_path: Path, invoke: Invoke) -> None:
    good, noisy, bad = (_run(tmp_path / str(passed), passed, 20 - passed) for passed in (18, 16, 8))
    for a, b, code in ((good, good, 0), (good, noisy, 0), (good, bad, 1), (bad, good, 0)):
        assert invoke("eval", "compare", a, b).code == code
    ended = invoke("eval", "compare", good, bad)
    assert "10 broken, 2 failing, 8 passing" in ended.out
    assert "Two-sided p = 0.0020; that B is worse: p = 0.0010 (McNemar, exact)" in ended.out
    assert ended.err == "ohsandbox: B is worse than A: p = 0.0010, at most 0.05.\n"
    assert invoke("eval", "compare", good, bad, "--alpha", "0.0005").code == 0
    assert invoke("eval", "compare", good, noisy, "--max-regressions", "2").code == 0
    ended = invoke("eval", "compare", good, noisy, "--max-regressions", "1")
    assert (ended.code, ended.err) == (1, "ohsandbox: 2 tasks are broken, more than 1.\n")


def test_compare_reads_reports_and_writes_json_and_a_page(tmp_path: Path, invoke: Invoke) -> None:
    a, b = _run(tmp_path / "a", 4, 0), _run(tmp_path / "b", 2, 2)
    invoke("eval", "report", a, "-o", str(tmp_path / "out"))
    page = tmp_path / "pages" / "compare.html"
    ended = invoke("eval", "compare", str(tmp_path / "out" / "report.json"), b, "--json", "--html", str(page))
    told = json.loads(ended.out)
    assert ended.code == 0
    assert told["changes"] == {"broken": 2, "passing": 2}
    assert told["effect"]["value"] == -0.5
    assert page.read_text().startswith("<!doctype html>")


def test_compare_of_other_tasks_is_bad_input(tmp_path: Path, invoke: Invoke) -> None:
    ended = invoke("eval", "compare", _run(tmp_path / "a", 2, 0), _run(tmp_path / "b", 2, 0, first=50))
    assert ended.code == 2
    assert "no task on which both have a verdict (2 only in a, 2 only in b)" in ended.err


def test_hostile_names_are_safe_in_a_comparison(tmp_path: Path, invoke: Invoke) -> None:
    a = write_run(tmp_path / "a", [trial(name) for name in HOSTILE_NAMES])
    b = write_run(tmp_path / "b", [trial(name, "fail") for name in HOSTILE_NAMES])
    ended = invoke("eval", "compare", str(a), str(b))
    assert ended.code == 1
    assert "\x1b" not in ended.out
    assert "\u202e" not in ended.out


def _write_task(place: Path, image: str, test: str) -> None:
    files = {
        "task.toml": f'[environment]\ndocker_image = "{image}"\n', "instruction.md": "Do it.\n",
        "solution/solve.sh": "#!/bin/sh\ntouch /tmp/done\n", "tests/test.sh": f"#!/bin/sh\n{test}\n",
    }  # fmt: skip
    for name, text in files.items():
        path = place / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)  # not executable, as archives and checkouts leave scripts


@pytest.mark.docker
def test_a_run_tells_progress_on_stderr_and_the_summary_on_stdout(tmp_path: Path, invoke: Invoke, image: str) -> None:
    _write_task(tmp_path / "tasks" / "good", image, "test -e /tmp/done && echo 1 >/logs/verifier/reward.txt")
    _write_task(tmp_path / "tasks" / "bad", image, "echo no such luck; echo 0 >/logs/verifier/reward.txt")
    ended = invoke("eval", str(tmp_path / "tasks"), "-o", str(tmp_path / "out"), "--min-pass-rate", "0.6")
    assert (ended.code, len(ended.err.splitlines())) == (1, 2), ended.err
    assert ended.out.startswith("1 pass, 1 fail\nPass rate 50.0 %")
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert report["images"][image][0].startswith("sha256:")
    assert report["machines"][0].keys() >= {"python", "engine", "kernel", "processors"}
    assert "no such luck" in (tmp_path / "out" / "junit.xml").read_text()
    assert invoke("eval", str(tmp_path / "tasks"), "-o", str(tmp_path / "out"), "--min-pass-rate", "0.5").code == 0
