"""The three tools of a runtime: what `get_tools` and `execute_tool` share with an agent's."""

from __future__ import annotations

import threading

import pytest

from ohsandbox.content import OutputLimits
from ohsandbox.runtime import tool_calls
from ohsandbox.runtime.execute_bash import IDLE_TIMEOUT_S, YIELD_S, ExecuteBashExecutor, bash_description
from ohsandbox.runtime.file_tools import FILE_READ_DESCRIPTION, FileReadAction, read_file
from ohsandbox.schema import ErrorObservation, text_of
from ohsandbox.state import ConversationState
from ohsandbox.tool import Tool, resolve_tool
from ohsandbox.tools import CmdRunAction
from tests.fakes import RecordingRuntime


@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_runtime_describes_its_tools_as_an_agent_s_tools_are_described(number: int) -> None:
    entry = tool_calls.definitions()[number]
    state = ConversationState(conversation_id="c", runtime=RecordingRuntime())
    [tool] = resolve_tool(Tool(name=entry["name"]), state)
    assert {key: tool.to_mcp_tool()[key] for key in entry} == entry


def test_view_range_is_a_plain_array_of_two_integers() -> None:
    schema = tool_calls.definitions()[1]["inputSchema"]["properties"]["view_range"]
    assert {key: schema[key] for key in ("type", "items", "minItems", "maxItems")} == {
        "type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 2,
    }  # fmt: skip


def test_a_command_has_the_time_limits_and_the_length_of_the_agent_s_tool() -> None:
    runtime = RecordingRuntime()
    runtime.on_execute = lambda _: "x" * 50_000
    text = text_of(tool_calls.execute(runtime, "execute_bash", {"command": "make"}))
    assert (runtime.calls[0]["yield_s"], runtime.calls[0]["idle_timeout_s"]) == (
        YIELD_S,
        IDLE_TIMEOUT_S,
    )
    assert "[... 20000 of 50000 characters left out here ...]" in text


def test_the_caller_s_cancel_reaches_the_command() -> None:
    runtime, cancel = RecordingRuntime(), threading.Event()
    tool_calls.execute(runtime, "execute_bash", {"command": "make"}, cancel=cancel)
    assert runtime.interrupted is cancel


@pytest.mark.parametrize(
    ("name", "arguments", "fact"),
    [
        ("file_read", {}, 'Missing required argument "path" in tool call file_read.'),
        ("file_read", {"path": "/missing"}, "No such file"),
        (
            "file_write",
            {"path": "/f", "content": "x", "more": 1},
            "Unexpected argument 'more' in tool call file_write.",
        ),
        ("execute_bash", {"command": "x", "timeout": 0}, "'timeout' in tool call execute_bash"),
        ("nope", {}, "Unknown tool: nope"),
    ],
)
def test_a_mistake_is_an_answer_for_the_model(name: str, arguments: dict[str, object], fact: str) -> None:
    found = tool_calls.execute(RecordingRuntime(), name, arguments)
    assert isinstance(found, ErrorObservation)
    assert fact in found.message


def test_the_limit_of_the_settings_is_the_one_that_cuts_and_is_described() -> None:
    runtime, limits = RecordingRuntime(), OutputLimits(max_chars=1000)
    runtime.on_execute = lambda _: "x" * 5000
    runtime.files["/f"] = b"line\n" * 1000
    shown = ExecuteBashExecutor(runtime, limits=limits)(CmdRunAction(command="make"))
    assert "[... 4000 of 5000 characters left out here ...]" in shown.output
    assert "view_range [201, -1]" in read_file(runtime, FileReadAction(path="/f"), limits).text
    assert "beyond 1000 characters" in limits.fill(bash_description())
    assert "At most 1000 characters" in limits.fill(FILE_READ_DESCRIPTION)
