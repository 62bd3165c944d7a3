from __future__ import annotations

import pytest

from ohsandbox import events
from ohsandbox.events import ConversationStatus, EventBody, ToolResult
from ohsandbox.state import ConversationState
from ohsandbox.timetravel.checkpoints import CheckpointIndex
from ohsandbox.tool import CallHint, Tool, list_registered_tools, origin_of_tool, resolve_tool
from ohsandbox.tools import HINTS, hint_of
from tests.fakes import RecordingRuntime, stamp

RUNNING = events.status_update(ConversationStatus.RUNNING)
IDLE = events.status_update(ConversationStatus.IDLE)
SAID = events.user_message("go on")


def _kept(name: str) -> EventBody:
    return events.checkpoint(id=name, label="")


def _call(call_id: str, name: str = "execute_bash") -> EventBody:
    return events.tool_call(
        tool_call_id=call_id, name=name, arguments="{}", response_id="r", call_index=0, total_calls=1
    )


def _result(call_id: str) -> EventBody:
    return events.tool_result(tool_call_id=call_id, name="execute_bash", result=ToolResult.ok(""))


def _files(*bodies: EventBody) -> CheckpointIndex:
    files = CheckpointIndex()
    for event in stamp(*bodies):
        files.add(event)
    return files


def _names(files: CheckpointIndex, count: int) -> list[str | None]:
    return [kept.data["id"] if (kept := files.at(seq)) else None for seq in range(count)]


def test_files_are_known_from_the_last_result_before_a_checkpoint_to_the_next_call_after_it() -> None:
    files = _files(SAID, RUNNING, _kept("a"), _call("1"), _result("1"), IDLE, _kept("b"), SAID, RUNNING, _call("2"))
    assert _names(files, 10) == ["a", "a", "a", None, "b", "b", "b", "b", "b", None]
    assert files.written
    assert not files.is_known


def test_calls_that_only_read_change_nothing() -> None:
    files = _files(_kept("a"), _call("1", "file_read"), _result("1"), IDLE)
    assert _names(files, 4) == ["a"] * 4
    assert not files.written


def test_a_call_without_a_result_is_over_with_the_next_run_and_its_turn_can_be_undone() -> None:
    files = _files(SAID, RUNNING, _kept("a"), _call("1"), SAID, RUNNING, _kept("b"), _call("2"))
    assert _names(files, 8) == ["a", "a", "a", "b", "b", "b", "b", None]


def test_held_calls_write_only_after_the_checkpoint_that_comes_when_they_are_released() -> None:
    held = events.held(_call("1"), asks=True, risk="HIGH", why=(), only_reads=False)
    yes = events.confirmation(tool_call_ids=["1"], approved=True, reason="", by="test")
    files = _files(held, IDLE, yes, RUNNING, _kept("a"), _result("1"), _kept("b"))
    assert _names(files, 7) == ["a", "a", "a", "a", "a", "b", "b"]


def test_a_hint_in_the_event_decides_whatever_the_tool_is_called() -> None:
    def call(call_id: str, name: str, *, writes: bool) -> EventBody:
        return EventBody("tool_call", {**_call(call_id, name).data, "hint": {"writes": writes}})

    looked = _files(_kept("a"), call("1", "server__list", writes=False), _result("1"), IDLE)
    assert (looked.written, _names(looked, 4)) == (False, ["a"] * 4)
    changed = _files(_kept("a"), call("1", "file_read", writes=True), _result("1"), IDLE)
    assert (changed.written, _names(changed, 4)) == (True, ["a", None, None, None])


def test_a_hint_of_an_older_log_has_the_kind_of_the_tool_that_ships() -> None:
    older = {"hint": {"sign": ">", "subject": "command", "writes": True}, "arguments": '{"is_input": true}'}
    assert hint_of("execute_bash", older) == CallHint(sign=">", kind="input", subject="command")
    assert hint_of("finish", {"hint": {"writes": False}}).kind == "answer"
    assert hint_of("server__finish", {"hint": {"writes": False}}).kind == ""


def test_a_call_of_the_task_list_in_an_older_log_has_its_kind_although_the_log_has_another() -> None:
    assert hint_of("task_tracker", {"hint": {"kind": "", "writes": False}}).kind == "tasks"
    assert hint_of("task_tracker", {"hint": {"kind": "", "writes": True}}).kind == ""
    assert hint_of("server__task_tracker", {"hint": {"kind": "", "writes": False}}).kind == ""


def test_a_servers_tool_with_the_name_of_one_that_ships_has_no_kind_in_the_log() -> None:
    assert hint_of("file_write", {"hint": {"kind": "", "writes": True}}).kind == ""


@pytest.mark.parametrize(
    "name", sorted(set(HINTS) - {"edit_file", "delegate", "delegate_to_browsing_agent", "task_tracker"})
)
def test_a_log_without_hints_is_told_by_the_tools_that_ship_as_they_say_themselves(name: str) -> None:
    state = ConversationState(conversation_id="c", runtime=RecordingRuntime())
    [tool] = resolve_tool(Tool(name=name), state)
    assert hint_of(name, {}).writes is tool.call_hint({}).writes is not tool.is_read_only


def test_every_registered_tool_that_ships_has_a_hint() -> None:
    shipped = {name for name in list_registered_tools() if origin_of_tool(name).name == "ohsandbox"}
    assert shipped == set(HINTS)
