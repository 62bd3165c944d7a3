from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from ohsandbox.errors import ToolArgumentsError, ToolError, UnknownSessionError, UsageError, file_error
from ohsandbox.runtime.results import CommandObservation
from ohsandbox.schema import Observation, text_of
from ohsandbox.state import ConversationState
from ohsandbox.tool import Tool, ToolDefinition, resolve_tool
from ohsandbox.tools import DEFAULT_TOOLS, CmdRunAction
from tests.fakes import RecordingRuntime


@pytest.fixture
def runtime() -> RecordingRuntime:
    return RecordingRuntime()


def make(name: str, runtime: RecordingRuntime | None, **params: Any) -> ToolDefinition[Any, Any]:
    state = ConversationState(conversation_id="c", runtime=runtime)
    [tool] = resolve_tool(Tool(name=name, params=params), state)
    return tool


def use(name: str, runtime: RecordingRuntime, **arguments: Any) -> Observation:
    tool = make(name, runtime)
    observation: Observation = tool(tool.action_from_arguments(arguments))
    return observation


@pytest.mark.parametrize("name", DEFAULT_TOOLS)
def test_every_tool_says_what_it_does_in_a_schema_that_providers_take(name: str, runtime: RecordingRuntime) -> None:
    function = make(name, runtime).to_openai_tool()["function"]
    assert function["name"] == name
    assert function["parameters"]["required"]
    assert all("description" in field for field in function["parameters"]["properties"].values())
    assert 100 < len(function["description"]) < 4096


@pytest.mark.parametrize("name", ["execute_bash", "file_read", "file_write"])
def test_tool_that_works_in_the_sandbox_needs_a_runtime(name: str) -> None:
    with pytest.raises(UsageError, match="has no runtime"):
        make(name, None)


@pytest.mark.parametrize("alias", ["terminal", "BashTool"])
def test_shell_can_be_asked_for_by_its_other_names(alias: str, runtime: RecordingRuntime) -> None:
    tool = make(alias, runtime)
    assert tool.name == "execute_bash"
    assert alias in tool.aliases


def test_command_runs_with_the_default_limits_that_the_description_names(runtime: RecordingRuntime) -> None:
    observation = use("execute_bash", runtime, command="ls")
    assert isinstance(observation, CommandObservation)
    [options] = runtime.calls
    wanted = {"timeout_s": None, "yield_s": 120.0, "idle_timeout_s": 30.0, "session": "main", "is_input": False}
    assert {name: options[name] for name in wanted} == wanted
    description = make("execute_bash", runtime).description
    assert all(text in description for text in ("30 s", "120 s", "3600", "30000 characters"))


def test_timeout_that_the_model_gives_is_waited_out_in_silence(runtime: RecordingRuntime) -> None:
    use("execute_bash", runtime, command="make", timeout="600")
    assert (runtime.calls[0]["timeout_s"], runtime.calls[0]["idle_timeout_s"]) == (600.0, None)


def test_hard_timeout_that_is_set_on_an_action_is_the_one_that_holds(runtime: RecordingRuntime) -> None:
    tool, action = make("execute_bash", runtime), CmdRunAction(command="make")
    for timed in (action.set_hard_timeout(5), action.set_hard_timeout(5).set_hard_timeout(None)):
        tool(timed)
    assert [options["timeout_s"] for options in runtime.calls] == [5.0, None]
    assert action.timeout is None
    with pytest.raises(ValidationError):
        action.set_hard_timeout(0)


def test_command_that_is_stopped_tells_how_to_give_it_more_time(
    runtime: RecordingRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped = CommandObservation(command="x", output="", exit_code=None, cwd="/", timed_out=True, notice="Before.")
    monkeypatch.setattr(runtime, "execute", lambda *_, **__: stopped)
    told = text_of(use("execute_bash", runtime, command="make", timeout=5))
    assert all(fact in told for fact in ("Before. Stopped after 5 s", "`timeout`", "> out.log 2>&1 &"))


@pytest.mark.parametrize("given", [True, "true", "True"])
def test_input_may_be_said_as_boolean_or_text(runtime: RecordingRuntime, given: object) -> None:
    use("execute_bash", runtime, command="y", is_input=given)
    assert runtime.calls[0]["is_input"] is True


@pytest.mark.parametrize("timeout", [0, -1, True, 3601, "NaN", "inf", float("inf"), "soon", []])
def test_timeout_must_be_seconds_in_reach(runtime: RecordingRuntime, timeout: object) -> None:
    with pytest.raises(ToolArgumentsError, match="argument 'timeout'"):
        use("execute_bash", runtime, command="x", timeout=timeout)
    assert runtime.commands == []


def test_reset_closes_the_shell_first(runtime: RecordingRuntime) -> None:
    use("execute_bash", runtime, command="pwd", reset=True)
    assert runtime.log == ["close_session main"]
    assert runtime.commands == ["pwd"]


def test_reset_of_a_shell_that_never_was_is_fine(runtime: RecordingRuntime, monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(_: str) -> None:
        raise UnknownSessionError("none")

    monkeypatch.setattr(runtime, "close_session", unknown)
    use("execute_bash", runtime, command="pwd", reset=True)
    assert runtime.commands == ["pwd"]


def test_reset_with_input_is_refused(runtime: RecordingRuntime) -> None:
    with pytest.raises(ToolError, match="exclude each other"):
        use("execute_bash", runtime, command="y", reset=True, is_input=True)


def test_long_output_keeps_head_and_tail_and_says_what_is_missing(runtime: RecordingRuntime) -> None:
    runtime.on_execute = lambda _: "a" * 20_000 + "b" * 80_000 + "c" * 20_000
    text = text_of(use("execute_bash", runtime, command="x"))
    assert text.startswith("a" * 15_000 + "\n[... 90000 of 120000 characters left out here ...]\n" + "c" * 15_000)
    assert "Exit code 0" in text


def test_file_is_read_as_it_is(runtime: RecordingRuntime) -> None:
    runtime.files["/f"] = "\té\r\n".encode()
    assert text_of(use("file_read", runtime, path="/f")) == "\té\r\n"


@pytest.mark.parametrize(
    ("view_range", "text"), [([1, 1], "1\n"), ([2, 3], "2\n3"), ([2, -1], "2\n3"), ("[3, 99]", "3"), ([1, 2], "1\n2\n")]
)
def test_lines_are_counted_from_one_and_the_last_is_included(
    runtime: RecordingRuntime, view_range: object, text: str
) -> None:
    runtime.files["/f"] = b"1\n2\n3"
    assert text_of(use("file_read", runtime, path="/f", view_range=view_range)) == text


@pytest.mark.parametrize("view_range", [[0, 1], [3, 2], [1], [1, 2, 3], "x", [1, -2]])
def test_wrong_range_is_refused(runtime: RecordingRuntime, view_range: object) -> None:
    with pytest.raises(ToolArgumentsError, match="view_range"):
        use("file_read", runtime, path="/f", view_range=view_range)


def test_range_past_the_end_says_how_long_the_file_is(runtime: RecordingRuntime) -> None:
    runtime.files["/f"] = b"1\n2\n"
    with pytest.raises(ToolError, match="has 2 lines"):
        use("file_read", runtime, path="/f", view_range=[3, -1])


def test_empty_file_is_read_with_and_without_range(runtime: RecordingRuntime) -> None:
    runtime.files["/f"] = b""
    assert text_of(use("file_read", runtime, path="/f")) == ""
    assert text_of(use("file_read", runtime, path="/f", view_range=[1, -1])) == ""


def test_long_file_is_cut_at_a_line_and_says_where_to_read_on(runtime: RecordingRuntime) -> None:
    lines = [f"line {number}\n" for number in range(1, 10_001)]
    runtime.files["/f"] = "".join(lines).encode()
    text = text_of(use("file_read", runtime, path="/f"))
    body, _, note = text.partition("[... ")
    following = int(note.partition("view_range [")[2].partition(",")[0])
    assert body == "".join(lines[: following - 1])
    assert text_of(use("file_read", runtime, path="/f", view_range=[following, following])) == lines[following - 1]


def test_binary_file_is_refused(runtime: RecordingRuntime) -> None:
    runtime.files["/f"] = b"\x7fELF\0\0"
    with pytest.raises(ToolError, match="binary"):
        use("file_read", runtime, path="/f")


def test_bytes_that_are_no_utf8_are_marked(runtime: RecordingRuntime) -> None:
    runtime.files["/f"] = b"caf\xe9\n"
    assert text_of(use("file_read", runtime, path="/f")) == "caf\ufffd\n"


def test_missing_file_is_the_builtin_error_too(runtime: RecordingRuntime) -> None:
    with pytest.raises(FileNotFoundError):
        use("file_read", runtime, path="/no")


def test_file_is_written_as_utf8(runtime: RecordingRuntime) -> None:
    assert text_of(use("file_write", runtime, path="/f", content="é\n")) == "Wrote 3 bytes to /f."
    assert runtime.files["/f"] == "é\n".encode()


def test_failed_write_is_the_runtime_s_error(runtime: RecordingRuntime, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: str, _: bytes) -> None:
        raise file_error(28, "No space left on device", path)

    monkeypatch.setattr(runtime, "write_bytes", full)
    with pytest.raises(OSError, match="No space left"):
        use("file_write", runtime, path="/f", content="x")


def test_think_and_finish_need_nothing(runtime: RecordingRuntime) -> None:
    assert "Noted" in text_of(use("think", runtime, thought="hm"))
    assert text_of(use("finish", runtime, message="Done.")) == "Done."
