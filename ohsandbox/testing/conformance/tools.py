"""`get_tools` and `execute_tool`: MCP's shape, and mistakes that the model can read."""
# ruff: noqa: S101, D103 - cases are tests: their names are sentences, their values literal

from __future__ import annotations

import json
import secrets
from typing import TYPE_CHECKING

from ohsandbox.schema import ErrorObservation, text_of

if TYPE_CHECKING:
    from ohsandbox.runtime.base import Runtime

PATH = f"/tmp/ohsandbox-conformance-tools-{secrets.token_hex(4)}"  # noqa: S108 - in the sandbox, which may be this host
NAMES = ["execute_bash", "file_read", "file_write"]


def _read(runtime: Runtime, view_range: list[int] | None = None) -> str:
    arguments = {"path": PATH} | ({"view_range": view_range} if view_range else {})
    return text_of(runtime.execute_tool("file_read", arguments))


def tools_have_the_shape_of_mcp(runtime: Runtime) -> None:
    tools = runtime.get_tools()
    assert [tool["name"] for tool in tools] == NAMES
    for tool in tools:
        assert set(tool) <= {"name", "description", "inputSchema", "outputSchema"}
        assert tool["inputSchema"]["type"] == "object"
        assert "prefixItems" not in json.dumps(tool), "some providers refuse arrays without `items`"


def unknown_tool_is_named_in_the_answer(runtime: Runtime) -> None:
    assert runtime.execute_tool("nope", {}) == ErrorObservation(message="Unknown tool: nope")


def the_tools_of_an_agent_work_in_a_runtime_alone(runtime: Runtime) -> None:
    assert not runtime.execute_tool("file_editor", {"command": "create", "path": PATH, "file_text": "one\n"}).is_error
    swap = {"command": "str_replace", "path": PATH, "old_str": "one", "new_str": "two"}
    assert not runtime.execute_tool("str_replace_editor", swap).is_error
    assert runtime.read_bytes(PATH) == b"two\n"
    assert not runtime.execute_tool("file_editor", {"command": "undo_edit", "path": PATH}).is_error
    assert runtime.read_bytes(PATH) == b"one\n"
    assert f"{PATH}\n1: one" in text_of(runtime.execute_tool("grep", {"pattern": "on.", "path": PATH}))
    runtime.run(["rm", PATH])


def wrong_arguments_of_a_tool_are_an_error_and_nothing_runs(runtime: Runtime) -> None:
    for arguments in ({}, {"path": PATH}, {"path": 1, "content": "x"}, {"path": PATH, "content": "x", "more": 1}):
        found = runtime.execute_tool("file_write", arguments)
        assert found.is_error, found
        assert "file_write" in text_of(found)
    assert runtime.execute_tool("file_read", {"path": PATH}).is_error


def tools_write_read_and_execute(runtime: Runtime) -> None:
    text = "one\r\ntwo\nthree"
    assert not runtime.execute_tool("file_write", {"path": PATH, "content": text}).is_error
    assert _read(runtime) == text
    ran = runtime.execute_tool("execute_bash", {"command": f"rm {PATH} && echo done"})
    assert "done\n" in text_of(ran)


def lines_of_a_file_are_chosen_by_view_range(runtime: Runtime) -> None:
    runtime.write_bytes(PATH, b"1\n2\x0b2\n3\r\n4")
    chosen = {(1, 1): "1\n", (2, 3): "2\x0b2\n3\r\n", (3, -1): "3\r\n4", (4, 99): "4", (1, -1): "1\n2\x0b2\n3\r\n4"}
    assert {pair: _read(runtime, list(pair)) for pair in chosen} == chosen
    for wrong in ([0, 1], [3, 2], [-1, 1], [5, 9], [1, -2], [1], [1, 2, 3]):
        assert runtime.execute_tool("file_read", {"path": PATH, "view_range": wrong}).is_error, wrong
    runtime.run(["rm", PATH])


def binary_file_is_told_not_dumped(runtime: Runtime) -> None:
    runtime.write_bytes(PATH, b"\x7fELF\0\1\2")
    assert "binary file of 7 bytes" in _read(runtime)
    runtime.run(["rm", PATH])


def file_error_of_a_tool_is_for_the_model_to_read(runtime: Runtime) -> None:
    found = runtime.execute_tool("file_read", {"path": "/none/such"})
    assert found.is_error
    assert "No such file" in text_of(found)
