"""Our own lists of small tasks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ohsandbox.evaluation import load_tasks

if TYPE_CHECKING:
    from ohsandbox.evaluation.task import Task

TASK = {"id": "add", "image": "python:3.13", "prompt": "Add.", "check": "python check.py"}
FULL = {
    **TASK, "files": {"src/add.py": "x"}, "check_files": {"check.py": "y"}, "solution": "echo 1 > x",
    "limits": {"cpus": 0.5, "memory": "512M", "timeout": 60, "check_timeout": 5}, "network": {"agent": "open"},
    "env": {"A": "1"}, "user": "nobody", "workdir": "/srv", "artifacts": ["/srv/out"],
}  # fmt: skip
YAML = """\
# two tasks
- &base
  id: one
  image: busybox
  prompt: |
    First line.
    Second.
  check: "true"
- <<: *base
  id: two
  limits: {memory: 64M}
"""


def read(root: Path, *tasks: dict[str, Any]) -> list[Task]:
    (root / "tasks.jsonl").write_text("\n\n".join(json.dumps(one) for one in tasks))
    loaded = load_tasks(root / "tasks.jsonl")
    assert loaded.problems == []
    return loaded.tasks


def refused(root: Path, text: str, name: str = "tasks.jsonl") -> list[str]:
    (root / name).write_text(text)
    loaded = load_tasks(root / name)
    assert loaded.tasks == []
    return [str(one).removeprefix(f"{root}/") for one in loaded.problems]


def test_a_line_with_all_keys_is_read(tmp_path: Path) -> None:
    [task] = read(tmp_path, FULL)
    environment, [step] = task.environment, task.steps
    assert (task.id, task.format, environment.image, environment.workdir) == ("add", "inline", "python:3.13", "/srv")
    assert (environment.cpus, environment.memory_bytes, environment.env) == (0.5, 512 * 1024**2, {"A": "1"})
    assert (step.instruction, step.agent.user, step.agent.timeout_s) == ("Add.", "nobody", 60)
    assert (step.agent.network, step.verifier.network, step.verifier.timeout_s) == ("open", "none", 5)
    assert (step.verifier.command, step.verifier.verdict) == ("python check.py", "exit code")
    [files] = environment.files
    assert (files.target, files.texts, files.owner) == (".", {"src/add.py": "x"}, "nobody")
    assert [one.texts for one in step.verifier.files] == [{"check.py": "y"}]
    assert step.solution is not None
    assert step.solution.files[0].texts == {"solve.sh": "echo 1 > x\n"}
    assert [one.source for one in step.artifacts] == ["/srv/out"]


def test_a_directory_is_built_that_lies_beside_the_list(tmp_path: Path) -> None:
    (tmp_path / "image").mkdir()
    (tmp_path / "image" / "Dockerfile").write_text("FROM busybox\n")
    [task] = read(tmp_path, {**TASK, "image": None, "build": "image"})
    assert (task.environment.image, task.environment.build) == (None, tmp_path / "image")


def test_the_digest_follows_what_an_image_is_built_from_and_not_where_it_lies(tmp_path: Path) -> None:
    digests = []
    for name, text in (("a", "1"), ("b", "1"), ("c", "2")):
        (tmp_path / name / "image").mkdir(parents=True)
        (tmp_path / name / "image" / "Dockerfile").write_text(text)
        digests += [task.digest() for task in read(tmp_path / name, {**TASK, "image": None, "build": "image"})]
    assert digests[0] == digests[1] != digests[2]


def test_a_list_in_yaml_may_repeat_by_alias(tmp_path: Path) -> None:
    (tmp_path / "tasks.yaml").write_text(YAML)
    one, two = load_tasks(tmp_path).tasks
    assert [task.id for task in (one, two)] == ["one", "two"]
    assert one.steps == two.steps
    assert two.environment.memory_bytes == 64 * 1024**2


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("  id: two", "  ids: two", "tasks.yaml:10: unknown key 'ids': did you mean 'id'?"),
        ("64M", "lots", "tasks.yaml:11: limits.memory: 'lots': expected a size such as 512M or 2G"),
        ("64M", "1M", "tasks.yaml:11: memory_bytes: "),
        ("busybox", "UPPER/x", "tasks.yaml:4: image: 'UPPER/x' is not an image name"),
        ("- <<: *base\n  id: two", "- two\n- id: one", "tasks.yaml:9: the file = 'two': expected keys with values"),
        ("- <<", "- &x [*x]\n- <<", "tasks.yaml:9: refers to itself by an alias"),
    ],
)
def test_what_is_wrong_in_yaml_is_told_with_its_line(tmp_path: Path, old: str, new: str, told: str) -> None:
    (tmp_path / "tasks.yaml").write_text(YAML.replace(old, new))
    problems = [str(one).removeprefix(f"{tmp_path}/") for one in load_tasks(tmp_path).problems]
    assert any(one.startswith(told) for one in problems), problems


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"promt": "x"}, "unknown key 'promt': did you mean 'prompt'?"),
        ({"limits": {"cpu": 1}}, "unknown key 'limits.cpu': did you mean 'cpus'?"),
        ({"memory": "1G"}, "unknown key 'memory': it belongs in limits"),
        ({"image": None}, "expected either 'image' or 'build'"),
        ({"build": "x"}, "expected either 'image' or 'build'"),
        ({"image": None, "build": "../x"}, "build = '../x': expected a directory below"),
        ({"image": None, "build": "/etc"}, "build = '/etc': expected a directory below"),
        ({"image": None, "build": "x"}, "build = 'x': "),
        ({"check": ""}, "check: string should have at least 1 character"),
        ({"files": {"../x": ""}}, "files: '../x': expected a path relative to the working directory"),
        ({"check_files": {"/etc/x": ""}}, "check_files: '/etc/x': expected a path relative to the working directory"),
        ({"artifacts": ["a/../../b"]}, "artifacts: 'a/../../b': expected a path without '..'"),
        ({"network": {"agent": "public"}}, "network.agent = 'public': expected 'none', 'allowlist' or 'open'"),
        (
            {"network": {"agent": "allowlist", "allow": ["https://x"]}},
            "network.allow: Invalid network rule 'https://x'",
        ),
        ({"network": {"agent": "open", "allow": ["a.example.org"]}}, "network: allow is for agent: allowlist"),
        ({"workdir": "srv"}, "workdir: workdir='srv' is refused"),
        ({"env": {"A-B": "1"}}, "env: Environment name 'A-B' is invalid"),
        ({"prompt": "a\0b"}, "prompt: holds a NUL character"),
        ({"files": {"x": "\ud800"}}, "files.x: holds a NUL character or half of a surrogate pair"),
    ],
)
def test_what_is_wrong_in_a_line_is_told_with_its_number(tmp_path: Path, changed: dict[str, Any], told: str) -> None:
    [problem] = refused(tmp_path, "\n" + json.dumps({**TASK, **changed}))
    assert problem.startswith(f"tasks.jsonl:2: {told}")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("{", "tasks.jsonl:1: not JSON: "),
        ("[]", "tasks.jsonl:1: expected an object"),
        ('{"id": "a", "id": "b"}', "tasks.jsonl:1: not JSON: the key 'id' stands twice in one object"),
        ('{"limits": {"cpus": NaN}}', "tasks.jsonl:1: not JSON: NaN is not a JSON number"),
        ("[" * 100_000, "tasks.jsonl:1: not JSON: it is nested too deep"),
        ("", "tasks.jsonl: holds no task"),
    ],
)
def test_a_line_that_is_no_object_is_told(tmp_path: Path, text: str, told: str) -> None:
    [problem] = refused(tmp_path, text)
    assert problem.startswith(told)


def test_yaml_that_is_no_list_is_told(tmp_path: Path) -> None:
    assert refused(tmp_path, "id: x\n", "x.yml") == [
        "x.yml:1: expected a list of tasks, each beginning with '- id: NAME'"
    ]


def test_the_same_id_twice_in_a_list_is_told(tmp_path: Path) -> None:
    (tmp_path / "tasks.jsonl").write_text(f"{json.dumps(TASK)}\n" * 2)
    [problem] = load_tasks(tmp_path).problems
    assert "task 'add' is at" in problem.message


def test_the_list_in_the_documentation_is_read(tmp_path: Path) -> None:
    page = (Path(__file__).parents[3] / "docs" / "evaluation.md").read_text()
    (tmp_path / "tasks.yaml").write_text(page.split("```yaml\n")[1].split("```")[0])
    loaded = load_tasks(tmp_path)
    assert loaded.problems == []
    assert [task.id for task in loaded.tasks] == ["sum", "sum-as-nobody"]
