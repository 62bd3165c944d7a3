"""Instances in the style of SWE-bench: an image with a repository, tests that must pass, a reference patch."""

from __future__ import annotations

import posixpath
import shlex
from difflib import get_close_matches
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import AliasChoices, BeforeValidator, ConfigDict, Field, ValidationError

from ohsandbox.evaluation.formats.inputs import environment_problems
from ohsandbox.evaluation.formats.problems import InvalidTask, Problem, Section, problems_of
from ohsandbox.evaluation.patches import GIT, apply_script, changed_paths, with_final_newline
from ohsandbox.evaluation.task import AgentPhase, Files, Solution, Step, Task, TaskEnvironment, Verifier
from ohsandbox.evaluation.verifier import SETUP_FAILED
from ohsandbox.strict_json import load_json

if TYPE_CHECKING:
    from pathlib import Path

    from ohsandbox.evaluation.formats.inputs import JsonLine

PLACE, SOLUTION_DIR = "/swe-bench", "/solution"
WORKDIR = "/testbed"
_ACTIVATE = """\
if [ -f /opt/miniconda3/bin/activate ]; then . /opt/miniconda3/bin/activate; conda activate testbed || true; fi
"""
"""Activates the conda environment of SWE-bench's own images."""
_NEAR = 0.85
"""Similarity to a known column's name from which an unknown column is reported as a mistake."""


def _names(value: Any) -> Any:
    """Parse a list, or a list as JSON text, as the datasets have it."""
    if isinstance(value, str):
        try:
            return load_json(value)
        except ValueError:
            raise ValueError(f"{value[:60]!r}: expected a list of names, or one as JSON text") from None
    return value


def _joined(value: Any) -> Any:
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return "\n".join(value)
    return value


_TestNames = Annotated[list[str], BeforeValidator(_names)]


class _SweBenchInstance(Section):
    """One line of a dataset. Unknown columns are kept as metadata."""

    model_config = ConfigDict(extra="allow")

    instance_id: str = Field(min_length=1)
    image: str = Field(validation_alias=AliasChoices("image", "image_name", "docker_image"))
    problem_statement: str = ""
    workdir: str = WORKDIR
    base_commit: str | None = Field(default=None, pattern=r"^[0-9a-fA-F]{7,64}$")
    patch: str | None = None
    test_patch: str = ""
    eval_script: str | None = None
    test_command: Annotated[str | None, BeforeValidator(_joined)] = Field(
        default=None, validation_alias=AliasChoices("test_command", "test_commands", "test_cmd")
    )
    fail_to_pass: _TestNames = Field(default=[], validation_alias=AliasChoices("FAIL_TO_PASS", "fail_to_pass"))
    pass_to_pass: _TestNames = Field(default=[], validation_alias=AliasChoices("PASS_TO_PASS", "pass_to_pass"))
    timeout: float | None = Field(default=None, gt=0)
    test_timeout: float = Field(default=1800, gt=0)


_COLUMNS = sorted({
    *_SweBenchInstance.model_fields, "image_name", "docker_image", "test_commands", "test_cmd", "FAIL_TO_PASS",
    "PASS_TO_PASS",
})  # fmt: skip


def is_instance(value: dict[str, Any]) -> bool:
    """Whether a line looks like an instance of this format."""
    return "instance_id" in value


def read_line(line: JsonLine, file: Path) -> Task:
    """Read one instance of a list in file.

    Raises:
        InvalidTask: with all problems found.
    """
    try:
        instance = _SweBenchInstance.model_validate(line.value)
    except ValidationError as error:
        raise InvalidTask(problems_of(error, _SweBenchInstance, file, line.line_of)) from None
    problems = [
        f"unknown key {name!r}: did you mean {near[0]!r}?"
        for name in instance.model_extra or {}
        if (near := get_close_matches(name, _COLUMNS, n=1, cutoff=_NEAR))
    ]
    if instance.eval_script is None and instance.test_command is None:
        problems.append(
            "has neither 'eval_script', as the datasets of SWE-bench 5 have it, nor 'test_command': add one of them"
        )
    if not instance.fail_to_pass and not instance.pass_to_pass:
        problems.append("has neither FAIL_TO_PASS nor PASS_TO_PASS: name the tests that must pass")
    task = _task(instance, file)
    problems += [f"{name}: {message}" for name, message in environment_problems(task.environment)]
    if problems:
        raise InvalidTask([Problem(file, line.number, problem) for problem in problems])
    return task


def _task(instance: _SweBenchInstance, file: Path) -> Task:
    solution = None
    if instance.patch:
        solution = Solution(
            command=apply_script(f"{SOLUTION_DIR}/gold.patch"),
            files=(Files(target=SOLUTION_DIR, texts={"gold.patch": with_final_newline(instance.patch)}),),
        )
    texts = {"eval.sh": instance.eval_script or _eval_script(instance)}
    if instance.test_patch:
        texts["test.patch"] = with_final_newline(instance.test_patch)
    step = Step(
        instruction=instance.problem_statement,
        agent=AgentPhase(timeout_s=instance.timeout),
        verifier=Verifier(
            command=f'exec "$(command -v bash || echo sh)" {PLACE}/eval.sh',
            files=(Files(target=PLACE, texts=texts),), verdict="tests", network="open",
            must_pass=tuple(instance.fail_to_pass), must_not_fail=tuple(instance.pass_to_pass),
            timeout_s=instance.test_timeout,
        ),
        solution=solution,
    )  # fmt: skip
    return Task(
        id=instance.instance_id, path=file, format="swe-bench",
        environment=TaskEnvironment(image=instance.image, workdir=instance.workdir), steps=(step,),
        metadata={name: value for name, value in (instance.model_extra or {}).items() if isinstance(value, str | int)},
    )  # fmt: skip


def _eval_script(instance: _SweBenchInstance) -> str:
    """Return a script that resets the test files to the commit, applies the test patch, and runs the tests."""
    commit = instance.base_commit or "HEAD"
    failed = f'{{ echo "cannot set the tests up: $1"; exit {SETUP_FAILED}; }}'
    lines = [f"failed() {failed}", f"cd {shlex.quote(instance.workdir)} || failed cd"]
    for path in changed_paths(instance.test_patch):
        name = shlex.quote(f"./{posixpath.normpath(path)}")
        lines += [f"{GIT} checkout -q {commit} -- {name} 2>/dev/null || rm -rf -- {name}"]
    if instance.test_patch:
        lines += [f"{GIT} apply --whitespace=nowarn {PLACE}/test.patch || failed 'git apply'"]
    return "\n".join([*lines, _ACTIVATE.rstrip("\n"), instance.test_command or "", ""])
