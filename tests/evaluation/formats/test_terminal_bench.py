"""Terminal-Bench 1's tasks: what is read, and what is refused, with file and line."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from ohsandbox.evaluation.formats import InvalidTask, terminal_bench
from tests.evaluation.formats.trees import COMPOSE, TERMINAL_BENCH, write_tree

if TYPE_CHECKING:
    from pathlib import Path

    from ohsandbox.evaluation.task import Task


def read(root: Path, **changed: str | None) -> Task:
    return terminal_bench.read(write_tree(root / "add", TERMINAL_BENCH, **changed))


def refused(root: Path, **changed: str | None) -> list[str]:
    with pytest.raises(InvalidTask) as caught:
        read(root, **changed)
    return [str(one).removeprefix(f"{root}/add/") for one in caught.value.problems]


def test_a_task_is_read(tmp_path: Path) -> None:
    task = read(tmp_path)
    [step] = task.steps
    assert (task.id, task.format, task.metadata["category"]) == ("add", "terminal-bench", "file-operations")
    assert task.environment.build == tmp_path / "add"
    assert (task.environment.env, task.environment.cpus) == ({"TEST_DIR": "/tests", "LANG": "C.UTF-8"}, 1)
    assert step.instruction == "Write the sum of 1 and 2\nto /app/sum.txt.\n"
    assert (step.agent.timeout_s, step.agent.network) == (900, "none")
    verifier = step.verifier
    assert (verifier.timeout_s, verifier.network, verifier.verdict) == (180, "open", "tests")
    assert [one.source or sorted(one.texts) for one in verifier.files] == [tmp_path / "add/tests", ["run-tests.sh"]]
    assert step.solution is not None
    assert step.solution.files[0].texts == {"solution.sh": "#!/bin/bash\necho 3 > /app/sum.txt\n"}


def test_without_a_compose_file_the_dockerfile_counts(tmp_path: Path) -> None:
    environment = read(tmp_path, docker_compose_yaml=None).environment
    assert (environment.build, environment.env) == (tmp_path / "add", {"TEST_DIR": "/tests"})


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("difficulty: easy", "difficulty: trivial", "task.yaml:7: difficulty = 'trivial': expected 'easy'"),
        ("max_agent_timeout_sec", "max_agent_timeout", "task.yaml:12: unknown key 'max_agent_timeout': did"),
        ("max_agent_timeout_sec: 900.0", "max_agent_timeout_sec: 0", "task.yaml:12: max_agent_timeout_sec = 0: "),
        ("instruction: |", "descriptions: |", "task.yaml:2: 'descriptions' is of an older schema: write the text"),
        ("category: file-operations", "category: [", "task.yaml:10: not YAML: "),
        ("category: file-operations", "difficulty: hard", "task.yaml:8: key 'difficulty' is there twice"),
        ("category: file-operations", "category: !!python/name:os.system", "task.yaml:8: not YAML: could not"),
        ("category: file-operations", "category: &a [*a]", "task.yaml:8: refers to itself by an alias"),
        ("category: file-operations", "category: " + "[" * 99, "task.yaml:8: is nested more than 64 levels deep"),
        ("category: file-operations", "category: \x01", "task.yaml:8: not YAML: "),
    ],
)  # fmt: skip
def test_what_is_wrong_in_task_yaml_is_told_with_its_line(tmp_path: Path, old: str, new: str, told: str) -> None:
    [problem, *_] = refused(tmp_path, task_yaml=TERMINAL_BENCH["task.yaml"].replace(old, new))
    assert problem.startswith(told)


def test_aliases_that_multiply_are_refused(tmp_path: Path) -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 9)]
    [problem] = refused(tmp_path, task_yaml="\n".join(lines))
    assert problem == "task.yaml:1: has 1,234,567,880 values more once its aliases are put in: too many"


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("dockerfile: Dockerfile", "dockerfile: Missing", ":3: services.client.build: "),
        ("dockerfile: Dockerfile", "context: ../..", ":3: services.client.build: context '../..' leads out"),
        ("LANG=C.UTF-8", "KEY=${NO_SUCH_KEY}", ":8: services.client.environment: ${NO_SUCH_KEY} is not set here"),
        ("services:", "service:", ":1: names no service: expected 'services'"),
    ],
)  # fmt: skip
def test_a_compose_file_that_asks_for_more_is_told_with_its_line(tmp_path: Path, old: str, new: str, told: str) -> None:
    problems = refused(tmp_path, docker_compose_yaml=COMPOSE.replace(old, new, 1))
    assert problems[0].startswith(f"docker-compose.yaml{told}"), problems


def test_a_compose_file_may_name_an_image_a_directory_and_a_network(tmp_path: Path) -> None:
    text = "services:\n  client:\n    image: ${NO_SUCH:-busybox}\n    working_dir: /srv\n    network_mode: none\n"
    task = read(tmp_path, docker_compose_yaml=text + "    mem_limit: 512m\n    cpus: 0.5\n    command: bash\n")
    environment = task.environment
    assert (environment.image, environment.build, environment.workdir) == ("busybox", None, "/srv")
    assert (environment.memory_bytes, environment.cpus) == (512 * 1024**2, 0.5)
    assert (task.steps[0].agent.network, task.steps[0].verifier.network) == ("none", "none")


def test_what_is_missing_is_told(tmp_path: Path) -> None:
    problems = refused(tmp_path, docker_compose_yaml=None, Dockerfile=None, run_tests_sh=None)
    assert problems == [
        "docker-compose.yaml: missing: give a Compose file, or a Dockerfile",
        "run-tests.sh: missing: it runs the tests",
    ]


def test_a_solution_in_yaml_becomes_a_script_or_is_noted_where_it_types_into_a_program(tmp_path: Path) -> None:
    root = write_tree(tmp_path / "add", TERMINAL_BENCH, solution_sh=None)
    (root / "solution.yaml").write_text("- command: cd /app\n  block: true\n- command: echo 3 > sum.txt\n")
    solution = terminal_bench.read(root).steps[0].solution
    assert solution is not None
    assert solution.files[0].texts == {"solution.sh": "cd /app\necho 3 > sum.txt\n"}
    (root / "solution.yaml").write_text("- command: vim x\n  block: false\n- command: ':wq'\n")
    task = terminal_bench.read(root)
    assert task.steps[0].solution is None
    assert task.notes == ("no solution: solution.yaml types into a program ('vim x')",)
    (root / "solution.yaml").write_text("- command: x\n- comand: y\n")
    with pytest.raises(InvalidTask, match=r"solution\.yaml:2: unknown key 'comand': did you mean 'command'\?"):
        terminal_bench.read(root)
