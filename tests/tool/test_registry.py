from __future__ import annotations

from typing import Any

import pytest

from ohsandbox.errors import UsageError
from ohsandbox.schema import TextObservation
from ohsandbox.state import ConversationState
from ohsandbox.tool import (
    Tool,
    ToolRegistry,
    list_registered_tools,
    origin_of_tool,
    register_tool,
    resolve_tool,
    unregister_tool,
)
from ohsandbox.tools.execute_bash import make_execute_bash_tool
from ohsandbox.tools.file_editor import FileEditorTool
from ohsandbox.tools.finish import make_finish_tool
from ohsandbox.tools.think import make_think_tool
from tests.fakes import RecordingRuntime

STATE = ConversationState(conversation_id="c", runtime=RecordingRuntime())


def test_instance_is_resolved_as_it_is() -> None:
    registry, tool = ToolRegistry(), make_think_tool()
    registry.register("t", tool)
    assert registry.resolve(Tool(name="t"), STATE) == [tool]


def test_instance_takes_no_params() -> None:
    registry = ToolRegistry()
    registry.register("t", make_think_tool())
    with pytest.raises(UsageError, match="takes no params"):
        registry.resolve(Tool(name="t", params={"a": 1}), STATE)


def test_class_is_created_with_state() -> None:
    registry = ToolRegistry()
    registry.register("edit", FileEditorTool)
    [tool] = registry.resolve(Tool(name="edit"), STATE)
    assert isinstance(tool, FileEditorTool)


def test_factory_is_called_with_params_and_state() -> None:
    registry = ToolRegistry()
    registry.register("sh", make_execute_bash_tool)
    [tool] = registry.resolve(Tool(name="sh", params={"timeout": 7.0}), STATE)
    assert "7 s" in tool.description


def test_factory_may_make_one_tool_or_several() -> None:
    registry = ToolRegistry()
    registry.register("one", lambda conv_state: make_think_tool())  # noqa: ARG005 - a factory's signature
    registry.register("two", lambda conv_state: [make_think_tool(), make_finish_tool()])  # noqa: ARG005 - the same
    assert [len(registry.resolve(Tool(name=name), STATE)) for name in ("one", "two")] == [1, 2]


def test_wrong_params_are_a_usage_error() -> None:
    registry = ToolRegistry()
    registry.register("sh", make_execute_bash_tool)
    with pytest.raises(UsageError, match=r"no params 'shell'. It has: session, working_dir, timeout, idle_timeout\."):
        registry.resolve(Tool(name="sh", params={"shell": "zsh"}), STATE)
    with pytest.raises(UsageError, match=r"params \{'session': 7, 'timeout': 'x'\}|timeout is 'x'"):
        registry.resolve(Tool(name="sh", params={"session": 7, "timeout": "x"}), STATE)


@pytest.mark.parametrize("bad", [int, 7, "execute_bash"])
def test_what_is_no_tool_cannot_be_registered(bad: Any) -> None:
    with pytest.raises(UsageError):
        ToolRegistry().register("x", bad)


def test_factory_that_makes_no_tool_is_told() -> None:
    registry = ToolRegistry()
    registry.register("x", lambda conv_state: [conv_state])
    with pytest.raises(UsageError, match="not a ToolDefinition"):
        registry.resolve(Tool(name="x"), STATE)


def test_unknown_name_lists_those_that_are() -> None:
    registry = ToolRegistry()
    registry.register("tea", make_think_tool())
    with pytest.raises(UsageError, match=r"'coffee' is not registered\. Registered are: tea"):
        registry.resolve(Tool(name="coffee"), STATE)


def test_names_are_found_by_pattern() -> None:
    assert {"file_read", "file_write"} <= set(list_registered_tools("file_*"))


def test_spec_can_have_a_person_asked_each_time() -> None:
    registry = ToolRegistry()
    entries: dict[str, Any] = {"instance": make_think_tool(), "class": FileEditorTool}
    for name, entry in entries.items():
        registry.register(name, entry)
        [asking] = registry.resolve(Tool(name=name, require_confirmation=True), STATE)
        [plain] = registry.resolve(Tool(name=name), STATE)
        assert (type(asking), asking.require_confirmation, plain.require_confirmation) == (type(plain), True, False)


def test_registry_knows_what_was_registered() -> None:
    registry = ToolRegistry()
    registry.register("tea", make_think_tool())
    assert (registry.knows("tea"), registry.knows("coffee")) == (True, False)


def test_second_registration_replaces_the_first_and_a_name_can_be_taken_away() -> None:
    first, second = make_think_tool(), make_finish_tool()
    register_tool("test_name", first)
    register_tool("test_name", second)
    assert resolve_tool(Tool(name="test_name"), STATE) == [second]
    unregister_tool("test_name")
    unregister_tool("test_name")
    assert list_registered_tools("test_name") == []


def weather(city: str) -> str:
    """Say the weather."""
    return f"rain in {city}"


def test_plain_function_is_registered_as_a_tool_of_that_name() -> None:
    register_tool("forecast", weather)
    try:
        [tool] = resolve_tool(Tool("forecast"), STATE)
        assert (tool.name, tool.description, tool.is_read_only) == ("forecast", "Say the weather.", False)
        assert tool(tool.action_from_arguments({"city": "Rome"})) == TextObservation(text="rain in Rome")
        assert origin_of_tool("forecast").name == __name__
    finally:
        unregister_tool("forecast")


def test_method_and_coroutine_function_are_tools_too() -> None:
    class Desk:
        async def look(self, at: str) -> str:
            """Look."""
            return at

    registry = ToolRegistry()
    registry.register("look", Desk().look)
    [tool] = registry.resolve(Tool("look"), STATE)
    assert tool(tool.action_from_arguments({"at": "it"})) == TextObservation(text="it")
