"""Whatever stands in a task's files, reading them ends in tasks and problems, never in an error."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ohsandbox.evaluation import load_tasks
from tests.evaluation.formats.test_inline import FULL
from tests.evaluation.formats.test_swe_bench import INSTANCE
from tests.evaluation.formats.trees import COMPOSE, HARBOR, TERMINAL_BENCH, write_tree

if TYPE_CHECKING:
    from pathlib import Path

VALUES: Any = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
SLOW = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
SERVICE = yaml.safe_load(COMPOSE)["services"]["client"]
OTHER_KEYS = ("network_mode", "working_dir", "mem_limit", "cpus", "entrypoint", "nonsense")


def changed(draw: Any, base: dict[str, Any], other_keys: tuple[str, ...] = ()) -> dict[str, Any]:
    keys = draw(st.lists(st.sampled_from([*base, *other_keys]), max_size=3))
    return {**base, **{key: draw(VALUES) for key in keys}}


@pytest.mark.slow
@SLOW
@given(data=st.data())
def test_values_of_any_kind_are_problems_or_tasks(tmp_path: Path, data: st.DataObject) -> None:
    service = changed(data.draw, SERVICE, OTHER_KEYS)
    compose = data.draw(st.sampled_from([{"services": {"client": service}}, {"services": service}, service]))
    write_tree(
        tmp_path / "t", TERMINAL_BENCH, docker_compose_yaml=json.dumps(compose),
        task_yaml=json.dumps(changed(data.draw, yaml.safe_load(TERMINAL_BENCH["task.yaml"]))),
    )  # fmt: skip
    lines = [changed(data.draw, FULL), changed(data.draw, INSTANCE), data.draw(VALUES)]
    (tmp_path / "tasks.jsonl").write_text("\n".join(map(json.dumps, lines)))
    (tmp_path / "tasks.yaml").write_text(json.dumps(lines[:1]))
    loaded = load_tasks(tmp_path)
    assert loaded.tasks or loaded.problems
    for problem in loaded.problems:
        assert problem.line is None or problem.line >= 1
        assert "\n" not in problem.message


@pytest.mark.parametrize("key", ["\n", "a\nb", "\r", "\x1b]0;x\x07", "\u2028", "\x85"])
def test_a_key_with_a_control_character_is_spelt_out(tmp_path: Path, key: str) -> None:
    compose = {"services": {"client": {**SERVICE, key: 1}}, key: 1}
    task = {**yaml.safe_load(TERMINAL_BENCH["task.yaml"]), key: 1}
    write_tree(tmp_path / "t", TERMINAL_BENCH, docker_compose_yaml=json.dumps(compose), task_yaml=json.dumps(task))
    (tmp_path / "tasks.yaml").write_text(json.dumps([{**FULL, "files": {key: None}}]))
    messages = [problem.message for problem in load_tasks(tmp_path).problems]
    assert len(messages) > 1
    assert all(message.isprintable() for message in messages)


@SLOW
@given(at=st.integers(0, 400), text=st.binary(max_size=8), name=st.sampled_from(["task.toml", "instruction.md"]))
def test_bytes_in_any_place_are_problems_or_a_task(tmp_path: Path, at: int, text: bytes, name: str) -> None:
    root = write_tree(tmp_path / "h", HARBOR)
    content = HARBOR[name].encode()
    (root / name).write_bytes(content[:at] + text + content[at:])
    loaded = load_tasks(root)
    assert loaded.tasks or loaded.problems
