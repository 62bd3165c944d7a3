"""Instances in the style of SWE-bench."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from ohsandbox.evaluation import load_tasks

if TYPE_CHECKING:
    from pathlib import Path

INSTANCE = {
    "instance_id": "org__repo-1", "image_name": "sweb/org_1776_repo-1:latest", "repo": "org/repo", "version": "4.3",
    "base_commit": "d16bfe05a744909de4b27f5875fe0d4ed41ce607", "problem_statement": "It is broken.",
    "hints_text": "", "FAIL_TO_PASS": '["t.py::a[x"]', "PASS_TO_PASS": ["t.py::b"], "test_cmd": "pytest -rA t.py",
    "patch": "diff --git a/x b/x\n--- a/x\n+++ b/x\n@@ -1 +1 @@\n-1\n+2",
    "test_patch": "diff --git a/t.py b/t.py\n--- a/t.py\n+++ b/t.py\n@@ -1 +1 @@\n-1\n+2\n",
}  # fmt: skip


def load(root: Path, **changed: Any) -> Any:
    told = {name: value for name, value in {**INSTANCE, **changed}.items() if value is not None}
    (root / "swe.jsonl").write_text(json.dumps(told))
    return load_tasks(root / "swe.jsonl")


def test_an_instance_is_read(tmp_path: Path) -> None:
    [task] = load(tmp_path).tasks
    [step] = task.steps
    assert (task.id, task.format, task.metadata["repo"]) == ("org__repo-1", "swe-bench", "org/repo")
    assert (task.environment.image, task.environment.workdir) == ("sweb/org_1776_repo-1:latest", "/testbed")
    assert (step.instruction, step.agent.network) == ("It is broken.", "none")
    verifier = step.verifier
    assert (verifier.verdict, verifier.must_pass, verifier.must_not_fail) == ("tests", ("t.py::a[x",), ("t.py::b",))
    script = verifier.files[0].texts["eval.sh"]
    assert "checkout -q d16bfe05a744909de4b27f5875fe0d4ed41ce607 -- ./t.py" in script
    assert script.endswith("pytest -rA t.py\n")
    assert step.solution.files[0].texts["gold.patch"].endswith("+2\n")


def test_the_script_of_a_dataset_runs_as_it_is(tmp_path: Path) -> None:
    [task] = load(tmp_path, eval_script="#!/bin/bash\npytest\n", test_cmd=None).tasks
    assert task.steps[0].verifier.files[0].texts["eval.sh"] == "#!/bin/bash\npytest\n"


def test_test_commands_may_be_a_list(tmp_path: Path) -> None:
    [task] = load(tmp_path, test_cmd=None, test_commands=["make", "pytest"]).tasks
    assert task.steps[0].verifier.files[0].texts["eval.sh"].endswith("\nmake\npytest\n")


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"image_name": None}, "'image' is missing"),
        ({"test_cmd": None}, "has neither 'eval_script', as the datasets of SWE-bench 5 have it, nor 'test_command'"),
        ({"FAIL_TO_PASS": [], "PASS_TO_PASS": None}, "has neither FAIL_TO_PASS nor PASS_TO_PASS"),
        ({"FAIL_TO_PASS": "a"}, "FAIL_TO_PASS: 'a': expected a list of names, or one as JSON text"),
        ({"base_commit": "main; rm"}, "base_commit: string should match pattern"),
        ({"eval_scripts": "x"}, "unknown key 'eval_scripts': did you mean 'eval_script'?"),
        ({"image_name": "UPPER/x"}, "image: 'UPPER/x' is not an image name"),
        ({"workdir": "../x"}, "workdir: workdir='../x' is refused"),
        ({"patch": "\0"}, "patch: holds a NUL character"),
    ],
)
def test_what_is_wrong_is_told_with_the_line(tmp_path: Path, changed: dict[str, Any], told: str) -> None:
    [problem, *_] = load(tmp_path, **changed).problems
    assert str(problem).startswith(f"{tmp_path}/swe.jsonl:1: {told}")
