from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from ohsandbox.errors import ToolArgumentsError, ToolError
from ohsandbox.schema import text_of
from ohsandbox.state import ConversationState
from ohsandbox.tools.request_condensation import make_request_condensation_tool
from ohsandbox.tools.task_tracker import make_task_tracker_tool

if TYPE_CHECKING:
    from pathlib import Path

    from ohsandbox.tool import ToolDefinition


def tracker(directory: Path | None) -> ToolDefinition[Any, Any]:
    return make_task_tracker_tool(conv_state=ConversationState(conversation_id="c", directory=directory))


def use(tool: ToolDefinition[Any, Any], **arguments: Any) -> str:
    return text_of(tool(tool.action_from_arguments(arguments)))


def test_a_new_list_is_empty(tmp_path: Path) -> None:
    assert use(tracker(tmp_path), command="view") == "The task list is empty."
    assert not list(tmp_path.iterdir()), "a look makes nothing"


def test_what_an_item_leaves_out_is_filled_in() -> None:
    tool = tracker(None)
    action = tool.action_from_arguments(
        {"command": "plan", "task_list": [{}, {"id": 7, "title": "b\n c", "notes": None}]}
    )
    assert action.model_dump()["task_list"] == (
        {"id": "task-1", "title": "Untitled task", "status": "todo", "notes": ""},
        {"id": "7", "title": "b c", "status": "todo", "notes": ""},
    )


@pytest.mark.parametrize("kept", [True, False])
def test_the_list_is_shown_with_signs_and_stays(tmp_path: Path, *, kept: bool) -> None:
    tool = tracker(tmp_path if kept else None)
    tasks = [
        {"title": "read", "status": "done"},
        {"title": "write", "status": "in_progress", "notes": "in a.py\nand b.py"},
        {"title": "test"},
    ]
    shown = use(tool, command="plan", task_list=tasks)
    assert shown.splitlines() == [
        "3 tasks: 1 done, 1 in progress, 1 to do.",
        "[x] task-1: read",
        "[>] task-2: write",
        "      in a.py",
        "      and b.py",
        "[ ] task-3: test",
    ]
    assert use(tool, command="view") == shown
    assert use(tracker(tmp_path), command="view") == (shown if kept else "The task list is empty.")


def test_a_list_that_came_as_json_text_is_taken() -> None:
    assert "[ ] task-1: a" in use(tracker(None), command="plan", task_list='[{"title": "a"}]')


def test_two_tasks_in_progress_and_a_shared_id_are_told_and_kept() -> None:
    shown = use(tracker(None), command="plan", task_list=[{"id": "a", "status": "in_progress"}] * 2)
    assert "2 tasks are in progress" in shown
    assert "the id 'a'" in shown
    assert shown.count("[>] a:") == 2


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({}, 'Missing required argument "command"'),
        ({"command": "plan"}, 'Missing required argument "task_list" for command "plan"'),
        ({"command": "drop"}, "'view' or 'plan'"),
        ({"command": "plan", "task_list": ["read"]}, "task_list.0"),
        ({"command": "plan", "task_list": {"title": "x"}}, "task_list"),
        ({"command": "plan", "task_list": [{"status": "doing"}]}, "'todo', 'in_progress' or 'done'"),
        ({"command": "plan", "task_list": [{"titel": "x"}]}, "task_list.0.titel"),
        ({"command": "plan", "task_list": [{"title": "\ud800"}]}, "task_list"),
        ({"command": "plan", "task_list": [{}] * 201}, "200"),
    ],
)
def test_wrong_arguments_are_named(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(ToolArgumentsError) as caught:
        tracker(None).action_from_arguments(arguments)
    assert said in str(caught.value)


@pytest.mark.parametrize("data", [b"", b"{", b'[{"status": "?"}]', b"\xff\x00", b"[" * 100_000])
def test_a_damaged_file_is_told_kept_aside_and_not_fatal(tmp_path: Path, data: bytes) -> None:
    tool = tracker(tmp_path)
    use(tool, command="plan", task_list=[{}])
    path = tmp_path / "task_tracker" / "TASKS.json"
    path.write_bytes(data)
    assert "damaged" in use(tool, command="view")
    assert path.with_name("TASKS.damaged.json").read_bytes() == data
    assert "task-1: new" in use(tool, command="plan", task_list=[{"title": "new"}])
    assert "task-1: new" in use(tracker(tmp_path), command="view")


def test_a_list_that_cannot_be_stored_is_an_error_and_the_old_one_stays(tmp_path: Path) -> None:
    tool = tracker(tmp_path)
    (tmp_path / "task_tracker").write_text("in the way")
    with pytest.raises(ToolError, match="cannot be stored"):
        use(tool, command="plan", task_list=[{"title": "lost"}])


def test_a_huge_list_is_bounded() -> None:
    shown = use(tracker(None), command="plan", task_list=[{"title": "t" * 500, "notes": "n" * 4000}] * 200)
    assert len(shown) < 31_000
    assert "characters left out here" in shown


def test_a_person_sees_a_checklist() -> None:
    tool = tracker(None)
    action = tool.action_from_arguments({"command": "plan", "task_list": [{"title": "[red]x[/red]", "status": "done"}]})
    assert "[x] task-1: [red]x[/red]" in action.visualize.plain
    assert tool(action).visualize.plain == action.visualize.plain


@pytest.mark.parametrize(
    ("has_condenser", "said"), [(False, "has no condenser"), (True, "is summarised before"), (None, "if nothing is")]
)
def test_a_request_for_condensation_says_what_will_come_of_it(said: str, *, has_condenser: bool | None) -> None:
    state = ConversationState(conversation_id="c")
    tool = make_request_condensation_tool(conv_state=state, has_condenser=has_condenser)
    assert said in text_of(tool(tool.action_from_arguments({})))
    assert tool.to_openai_tool()["function"]["parameters"]["properties"] == {}
