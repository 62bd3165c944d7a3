"""`load_tasks`: several paths, mixed formats, and nothing that is dropped in silence."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import pytest

from ohsandbox.evaluation import load_tasks
from tests.evaluation.formats.trees import HARBOR, TERMINAL_BENCH, write_tree

if TYPE_CHECKING:
    from pathlib import Path


def told(root: Path, *paths: Path) -> list[str]:
    return [str(one).removeprefix(f"{root}/") for one in load_tasks(paths or root).problems]


def test_a_directory_may_hold_tasks_of_several_formats_and_datasets_of_them(tmp_path: Path) -> None:
    write_tree(tmp_path / "b", HARBOR)
    write_tree(tmp_path / "a", TERMINAL_BENCH)
    write_tree(tmp_path / "set" / "c", HARBOR)
    (tmp_path / "docs").mkdir()
    (tmp_path / "README.md").write_text("About")
    found = load_tasks(tmp_path)
    assert [(task.id, task.format) for task in found.tasks] == [
        ("a", "terminal-bench"),
        ("b", "harbor"),
        ("c", "harbor"),
    ]
    assert found.problems == []


def test_a_single_task_and_several_paths_may_be_named(tmp_path: Path) -> None:
    one, two = write_tree(tmp_path / "x" / "b", HARBOR), write_tree(tmp_path / "y" / "a", HARBOR)
    assert [task.id for task in load_tasks(one).tasks] == ["b"]
    assert [task.id for task in load_tasks([one, two]).tasks] == ["a", "b"]


def test_the_same_id_twice_is_a_problem(tmp_path: Path) -> None:
    one, two = write_tree(tmp_path / "x" / "a", HARBOR), write_tree(tmp_path / "y" / "a", HARBOR)
    assert told(tmp_path, one, two) == [f"y/a: task 'a' is at {one} already: rename one of the two"]
    assert told(tmp_path, one, one) == [f"x/a: task 'a' is at {one} already: rename one of the two"]


@pytest.mark.parametrize("name", ["a\x07b", "a\u202eb", "x" * 256])
def test_an_id_that_cannot_be_shown_or_be_a_label_is_a_problem(tmp_path: Path, name: str) -> None:
    task = {"instance_id": name, "image": "i", "test_command": "pytest", "FAIL_TO_PASS": ["a"]}
    (tmp_path / "tasks.jsonl").write_text(json.dumps(task) + "\n")
    assert told(tmp_path) == [
        f"tasks.jsonl: id {name[:40]!r}: expected at most 255 characters, none of them a control character"
    ]


def test_all_problems_are_told_at_once_in_order(tmp_path: Path) -> None:
    write_tree(tmp_path / "b", HARBOR, task_toml="x = 1\n", instruction_md=None)
    write_tree(tmp_path / "a", TERMINAL_BENCH, run_tests_sh=None)
    write_tree(tmp_path / "c", HARBOR)
    assert told(tmp_path) == [
        "a/run-tests.sh: missing: it runs the tests",
        "b/task.toml:1: unknown key 'x': what only describes belongs in [metadata]",
    ]
    assert [task.id for task in load_tasks(tmp_path).tasks] == ["c"]


def test_a_directory_that_looks_like_a_task_is_not_dropped(tmp_path: Path) -> None:
    write_tree(tmp_path / "good", HARBOR)
    write_tree(tmp_path / "bad", HARBOR, task_toml=None)
    write_tree(tmp_path / "set" / "bad", TERMINAL_BENCH, task_yaml=None)
    write_tree(tmp_path / ".hidden", HARBOR, task_toml=None)
    ending = ": add task.toml or task.yaml, or move it away"
    assert told(tmp_path) == [
        f"bad: is not a task, but has 'instruction.md'{ending}",
        f"set/bad: is not a task, but has 'run-tests.sh'{ending}",
    ]  # fmt: skip


def test_a_path_without_a_task_is_a_problem(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file.txt").write_text("")
    (tmp_path / "links").mkdir()
    (tmp_path / "links" / "a").symlink_to("b")
    assert [one.split(":")[:2] for one in told(tmp_path, *(tmp_path / one for one in ("empty", "file.txt", "x")))] == [
        ["empty", " holds no task"],
        ["file.txt", " is not a list of tasks"],
        ["x", " does not exist"],
    ]
    assert told(tmp_path, tmp_path / "links") == ["links/a: leads nowhere: b does not exist"]


def test_two_formats_in_one_directory_contradict_each_other(tmp_path: Path) -> None:
    write_tree(write_tree(tmp_path / "a", HARBOR), TERMINAL_BENCH)
    assert told(tmp_path) == ["a: has task.toml and task.yaml: keep the one that counts"]


def test_files_that_are_no_text_are_refused_and_not_waited_for(tmp_path: Path) -> None:
    write_tree(tmp_path / "a", HARBOR, instruction_md="x\n\0")
    (write_tree(tmp_path / "b", HARBOR, task_toml=None) / "task.toml").write_bytes(b"\n\xff")
    root = write_tree(tmp_path / "c", HARBOR, instruction_md=None)
    os.mkfifo(root / "instruction.md")
    root = write_tree(tmp_path / "d", HARBOR)
    (root / "instruction.md").write_bytes(b"x" * (4 * 1024**2 + 1))
    os.mkfifo(root / "tests" / "pipe")
    assert told(tmp_path) == [
        "a/instruction.md:2: holds a NUL character: remove it",
        "b/task.toml:2: is not UTF-8: save it as UTF-8",
        "c/instruction.md: is not a regular file",
        "d/instruction.md: has 4,194,305 bytes: expected at most 4,194,304",
        "d/tests/pipe: is neither a file nor a directory: remove it",
    ]
