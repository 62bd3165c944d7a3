"""Predictions in the style of SWE-bench, judged in real sandboxes."""

from __future__ import annotations

import json
import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

from ohsandbox import DockerRuntime
from ohsandbox.cli.commands.eval import run_tasks, validate_tasks
from ohsandbox.cli.options.per_command import EvalOptions, RunOptions, ValidateOptions
from ohsandbox.errors import UsageError
from ohsandbox.evaluation.agents import PredictionsAgent
from ohsandbox.evaluation.images import Images
from ohsandbox.evaluation.patches import apply_script
from ohsandbox.evaluation.results import ResultsDirectory
from ohsandbox.evaluation.task import TaskEnvironment

if TYPE_CHECKING:
    from pathlib import Path

    from ohsandbox.evaluation.results import TrialResult

DOCKERFILE = """\
FROM ohsandbox-base:debian
COPY git /usr/bin/git
COPY lib/ /usr/lib/x86_64-linux-gnu/
COPY calc.py test_calc.py /testbed/
RUN cd /testbed && git init -q . && git add . && git -c user.name=x -c user.email=x@y commit -qm first
WORKDIR /testbed
"""
TESTS = """\
import unittest
import calc

class Calc(unittest.TestCase):
    def test_zero(self):
        self.assertEqual(calc.add(0, 0), 0)
"""
TEST_PATCH = """\
diff --git a/test_calc.py b/test_calc.py
--- a/test_calc.py
+++ b/test_calc.py
@@ -6,2 +6,5 @@
     def test_zero(self):
         self.assertEqual(calc.add(0, 0), 0)
+
+    def test_sum(self):
+        self.assertEqual(calc.add(1, 2), 3)
"""


def patch(name: str, before: str, after: str) -> str:
    return f"diff --git a/{name} b/{name}\n--- a/{name}\n+++ b/{name}\n@@ -1,2 +1,2 @@\n{before}{after}"


BEFORE = " def add(a, b):\n-    return a - b\n"
GOLD = patch("calc.py", BEFORE, "+    return a + b\n")
PREDICTIONS = {
    "good": GOLD.rstrip("\n"),
    "wrong": patch("calc.py", BEFORE, "+    return a * b\n"),
    "stale": patch("calc.py", " def add(a, b):\n-    return a // b\n", "+    return a + b\n"),
    "empty": None,
    "cheat": GOLD.replace("+    return a + b", "+    return a")
    + "diff --git a/test_calc.py b/test_calc.py\ndeleted file mode 100644\n--- a/test_calc.py\n+++ /dev/null\n"
    + f"@@ -1,{TESTS.count(chr(10))} +0,0 @@\n"
    + "".join(f"-{line}\n" for line in TESTS.splitlines()),
}


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The base image with this machine's git in it, and a repository."""
    place = tmp_path_factory.mktemp("image")
    git = shutil.which("git") or ""
    shutil.copy(git, place / "git")
    (place / "lib").mkdir()
    for line in subprocess.run(["ldd", git], capture_output=True, text=True, check=True).stdout.splitlines():
        name, _, library = line.strip().partition(" => ")
        if library and not name.startswith("libc.so"):
            shutil.copy(library.split(" ")[0], place / "lib" / name)
    (place / "calc.py").write_text("def add(a, b):\n    return a - b\n")
    (place / "test_calc.py").write_text(TESTS)
    (place / "Dockerfile").write_text(DOCKERFILE)
    return Images().get(TaskEnvironment(build=place)).name


def instance(name: str, image: str, **changed: object) -> dict[str, object]:
    return {
        "instance_id": name, "image": image, "problem_statement": "add() subtracts.", "patch": GOLD,
        "test_patch": TEST_PATCH, "test_command": "python3 -m unittest -v",
        "FAIL_TO_PASS": ["test_sum (test_calc.Calc.test_sum)"],
        "PASS_TO_PASS": json.dumps(["test_zero (test_calc.Calc.test_zero)"]), **changed,
    }  # fmt: skip


def write_lines(path: Path, lines: list[dict[str, object]]) -> Path:
    path.write_text("\n".join(map(json.dumps, lines)))
    return path


@pytest.mark.docker
def test_predictions_are_applied_and_judged_by_pristine_tests(tmp_path: Path, image: str) -> None:
    names = [*PREDICTIONS, "missing"]
    tasks = write_lines(tmp_path / "swe.jsonl", [instance(name, image) for name in names])
    lines: list[dict[str, object]] = [
        {"instance_id": name, "model_patch": text, "model_name_or_path": "m"} for name, text in PREDICTIONS.items()
    ]
    predictions = write_lines(tmp_path / "predictions.jsonl", lines)
    how = EvalOptions(predictions=predictions, output=tmp_path / "out", no_tui=True)
    assert run_tasks([tasks], how, RunOptions()) == 1
    found: dict[str, TrialResult] = {
        key.task: result for key, result in ResultsDirectory(tmp_path / "out").finished().items()
    }
    assert {name: found[name].outcome for name in names} == {
        "good": "pass", "wrong": "fail", "stale": "fail", "empty": "fail", "cheat": "fail", "missing": "fail",
    }  # fmt: skip
    notes = {name: " ".join(found[name].notes) for name in ("stale", "empty", "missing")}
    assert "does not apply" in notes["stale"]
    assert "is empty" in notes["empty"]
    assert "no prediction in predictions.jsonl" in notes["missing"]
    assert (found["good"].agent, found["good"].model) == ("predictions", "m")


@pytest.mark.docker
def test_an_image_that_can_apply_no_patch_makes_the_task_invalid(tmp_path: Path) -> None:
    tasks = write_lines(tmp_path / "swe.jsonl", [instance("bare", "ohsandbox-base:debian", workdir="/tmp")])
    predictions = write_lines(tmp_path / "predictions.jsonl", [{"instance_id": "bare", "model_patch": GOLD}])
    how = EvalOptions(predictions=predictions, output=tmp_path / "out", no_tui=True)
    assert run_tasks([tasks], how, RunOptions()) == 2
    [result] = ResultsDirectory(tmp_path / "out").finished().values()
    assert result.outcome == "invalid"
    assert "has neither git nor patch" in (result.fault.message if result.fault else "")


@pytest.mark.docker
def test_a_test_patch_that_does_not_apply_is_the_tasks_fault(
    tmp_path: Path, image: str, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = instance("broken", image, test_patch=TEST_PATCH.replace("(0, 0), 0", "(0, 0), 1"))
    tasks = write_lines(tmp_path / "swe.jsonl", [instance("sound", image), broken])
    assert validate_tasks([tasks], ValidateOptions(output=tmp_path / "out", no_tui=True)) == 1
    broken_line, sound_line = capsys.readouterr().out.splitlines()[1:3]
    assert sound_line.split() == ["sound", "1", "0", "valid"]
    assert "the tests could not be set up" in broken_line


@pytest.mark.slow
@pytest.mark.docker
def test_a_patch_of_200_mb_is_applied(image: str) -> None:
    size, line = 200 * 1024**2, "+" + "x" * 1023 + "\n"
    head = f"diff --git a/big b/big\nnew file mode 100644\n--- /dev/null\n+++ b/big\n@@ -0,0 +1,{size // 1024} @@\n"
    with DockerRuntime(image) as sandbox:
        sandbox.write_bytes("/tmp/big.patch", (head + line * (size // 1024)).encode())
        applied = sandbox.run(["/bin/sh", "-c", apply_script("/tmp/big.patch")])
        assert applied.exit_code == 0, applied.stderr
        assert sandbox.run(["stat", "-c", "%s", "big"]).stdout == b"%d\n" % size


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("{", "predictions.jsonl:1: not JSON"),
        ('{"instance_id": "a"}', "predictions.jsonl:1: expected 'instance_id' and 'model_patch'"),
        ('{"instance_id": "a", "model_patch": 1}', "predictions.jsonl:1: 'model_patch' and 'model_name_or_path' are"),
        ('{"instance_id": "a", "model_patch": ""}\n' * 2, "predictions.jsonl:2: a second prediction for 'a'"),
    ],
)
def test_a_line_that_is_no_prediction_is_told(tmp_path: Path, text: str, told: str) -> None:
    (tmp_path / "predictions.jsonl").write_text(text)
    with pytest.raises(UsageError, match=r"\. [A-Z][a-z]+ [^.]*\.$") as caught:
        PredictionsAgent(tmp_path / "predictions.jsonl")
    assert told in str(caught.value)
