"""MCP servers in a conversation: their tools among the others, their news in the log, their end with it."""

from __future__ import annotations

import importlib
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ohsandbox import Agent, CLIRuntime, Conversation
from ohsandbox.conversation.environment import mcp_servers
from ohsandbox.events import ConversationStatus as Status
from ohsandbox.mcp import MCPAction, MCPConfig, MCPConfigError, MCPServers, Pins
from ohsandbox.schema import text_of
from ohsandbox.settings import Settings
from tests.fakes import FakeModel, answer, call, data_of, results_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ohsandbox.llm import ChatResponse
    from ohsandbox.runtime.base import Runtime

SERVER = Path(__file__).parents[2] / "mcp" / "server.py"


def odd(*modes: str, **more: Any) -> dict[str, Any]:
    return {"command": "python3", "args": ["-S", "-u", str(SERVER), *modes], **more}


def config(**servers: dict[str, Any]) -> dict[str, Any]:
    return {"mcpServers": servers}


@pytest.fixture(autouse=True)
def _pins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mcp_servers, "pins_path", lambda: tmp_path / "pins.json")


@pytest.fixture
def runtime(tmp_path: Path) -> Iterator[Runtime]:
    (tmp_path / "work").mkdir()
    with CLIRuntime(tmp_path / "work", bubblewrap=False, quiet=True) as started:
        yield started


class Offers(FakeModel):
    """Remembers which tools it is offered with each request."""

    def __init__(self, *turns: Any) -> None:
        super().__init__(*turns)
        self.offered: list[list[str]] = []

    def send(self, messages: Any, tools: Any = (), tool_choice: Any = "auto", **options: Any) -> Any:
        self.offered.append([tool["function"]["name"] for tool in tools])
        return super().send(messages, tools, tool_choice, **options)


def converse(
    tmp_path: Path, runtime: Runtime, model: FakeModel, mcp_config: Any, tools: Any = ("finish",)
) -> Conversation:
    return Conversation(Agent(model, tools, mcp_config=mcp_config), runtime, tmp_path / "c")


def later(seconds: float, turn: ChatResponse) -> Any:
    def wait() -> ChatResponse:
        time.sleep(seconds)
        return turn

    return wait


def notices(conversation: Conversation) -> list[str]:
    return [data["message"] for data in data_of(conversation.events(), "notice")]


def told(model: FakeModel, request: int = -1) -> str:
    """What the model was shown as the user's words."""
    return "\n".join(str(message["content"]) for message in model.seen[request] if message["role"] == "user")


def test_a_servers_tool_is_called_like_any_other(tmp_path: Path, runtime: Runtime) -> None:
    model = Offers(answer("", call("echo", {"text": "hi"}), call("rich")), answer("", call("finish", {"message": "x"})))
    with converse(tmp_path, runtime, model, config(odd=odd())) as conversation:
        assert conversation.run("go") == Status.FINISHED
        assert results_of(conversation)[0] == {"status": "ok", "output": "hi", "error": None}
        assert data_of(conversation.events(), "tool_result")[1]["images"][0].startswith("data:image/png;base64,")
        assert model.offered[0][:2] == ["finish", "echo"]
        (offer,) = data_of(conversation.events(), "system_message")
        assert [tool["function"]["name"] for tool in offer["tools"]] == model.offered[0]
        assert "MCP" not in model.seen[0][0]["content"]


def test_native_names_stay_native(tmp_path: Path, runtime: Runtime) -> None:
    from ohsandbox import Action, Observation, ToolDefinition, ToolExecutor  # noqa: PLC0415 - only here

    class Nothing(Action):
        pass

    class Echoed(ToolExecutor[Nothing, Observation]):
        def __call__(self, action: Nothing) -> Observation:
            raise AssertionError(action)

    native = ToolDefinition(name="echo", description="d", action_type=Nothing, executor=Echoed())
    model = Offers(answer("", call("odd__echo", {"text": "theirs"})))
    with converse(tmp_path, runtime, model, config(odd=odd()), tools=(native,)) as conversation:
        conversation.run("go")
        assert results_of(conversation)[0]["output"] == "theirs"
        assert model.offered[0][:2] == ["echo", "odd__echo"]


def test_a_server_that_is_not_there_is_told_to_the_model_and_the_person(tmp_path: Path, runtime: Runtime) -> None:
    model = Offers()
    with converse(tmp_path, runtime, model, config(good=odd(include=["echo"]), bad=odd("dies"))) as conversation:
        assert conversation.run("go") == Status.IDLE
        prompt = model.seen[0][0]["content"]
        assert "- bad: failed. MCP server 'bad' ended while it started. It ended with exit code 4." in prompt
        assert "good:" not in prompt
        assert any("'bad', failed" in line for line in notices(conversation))
        assert model.offered == [["finish", "echo"]]


@pytest.mark.slow
def test_a_slow_server_blocks_nobody_and_its_tools_come_later(
    tmp_path: Path, runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    importlib.import_module("ohsandbox.mcp.client")  # takes longer than that
    monkeypatch.setattr(mcp_servers, "WAIT_S", 0.2)
    model = Offers(later(2.5, answer("", call("late_call"))), answer("", call("echo", {"text": "at last"})))
    with converse(tmp_path, runtime, model, config(slow=odd("slow", include=["echo"]))) as conversation:
        conversation.run("go")
        assert model.offered[0] == ["finish"]
        assert "- slow: starting" in model.seen[0][0]["content"]
        assert notices(conversation)[0] == "MCP server 'slow', late: it still starts; the agent begins without it"
        assert model.offered[1] == ["finish", "echo"]
        assert "MCP server 'slow', ready: 1 tool: echo" in told(model, 1)
        assert "not a word of the user" in told(model, 1)
        assert results_of(conversation)[-1]["output"] == "at last"
        assert [len(data["tools"]) for data in data_of(conversation.events(), "system_message")] == [1, 2]


def test_tools_that_change_are_offered_at_the_next_step(tmp_path: Path, runtime: Runtime) -> None:
    model = Offers(
        answer("", call("grow")), later(0.5, answer("", call("echo", {"text": "1"}))), answer("", call("extra"))
    )
    with converse(tmp_path, runtime, model, config(odd=odd(include=["grow", "echo", "extra"]))) as conversation:
        conversation.run("go")
        assert model.offered[0] == ["finish", "echo", "grow"]
        assert model.offered[2] == ["finish", "echo", "grow", "extra"]
        assert "MCP server 'odd', tools changed: new: extra; gone: none" in told(model, 2)
        assert results_of(conversation)[-1]["output"] == "extra"


def test_a_tool_that_changes_is_gone_until_a_person_approves_it(tmp_path: Path, runtime: Runtime) -> None:
    def approve() -> ChatResponse:
        Pins(tmp_path / "pins.json").approve("odd", "echo")
        return answer("", call("echo", {"text": "early"}))

    model = Offers(
        answer("", call("change")),
        later(0.5, answer("", call("pid"))),
        answer("", call("pid")),
        approve,
        answer("", call("echo", {"text": "2"})),
    )
    with converse(tmp_path, runtime, model, config(odd=odd(include=["change", "echo", "pid"]))) as conversation:
        conversation.run("go")
        assert "echo" in model.offered[0]
        assert "echo" not in model.offered[2]
        assert "ohsandbox mcp approve odd echo" in told(model, 2)
        assert "echo" in model.offered[4]
        results = results_of(conversation)
        assert "Unknown tool: echo" in str(results[3]["error"])
        assert results[4]["output"] == "2"


def test_stopping_ends_a_call_that_waits(tmp_path: Path, runtime: Runtime) -> None:
    model = FakeModel(answer("", call("sleep", {"seconds": 60})))
    with converse(tmp_path, runtime, model, config(odd=odd())) as conversation:
        conversation.send_message("go")
        while not data_of(conversation.events(), "tool_call"):
            time.sleep(0.02)
        began = time.monotonic()
        assert conversation.stop() is Status.CANCELED
        assert time.monotonic() - began < 20
        assert "was interrupted. Its outcome is unknown" in results_of(conversation)[0]["error"]
        assert conversation.run("again") == Status.IDLE


def test_closing_ends_the_servers(tmp_path: Path, runtime: Runtime) -> None:
    model = FakeModel(answer("", call("pid")))
    conversation = converse(tmp_path, runtime, model, config(odd=odd()))
    conversation.run("go")
    pid = int(results_of(conversation)[0]["output"])
    assert Path(f"/proc/{pid}").exists()
    conversation.close()
    assert not Path(f"/proc/{pid}").exists()
    assert not [thread for thread in threading.enumerate() if thread.name == "ohsandbox-mcp-write"]


def test_progress_is_a_status_and_no_event(tmp_path: Path, runtime: Runtime) -> None:
    said: list[str] = []
    model = FakeModel(answer("", call("progress")))
    with converse(tmp_path, runtime, model, config(odd=odd())) as conversation:
        conversation.register_status(said.append)
        conversation.run("go")
        assert "odd: progress: 1 of 3 step 1" in said
        assert not any("step 1" in line for line in notices(conversation))


def test_a_wrong_configuration_is_told_before_anything_starts(tmp_path: Path, runtime: Runtime) -> None:
    with pytest.raises(MCPConfigError, match="'odd' has the unknown key 'comand'"):
        converse(tmp_path, runtime, FakeModel(), config(odd={"comand": "x"})).start()


def test_servers_of_the_settings_go_to_an_agent_that_is_not_given(tmp_path: Path, runtime: Runtime) -> None:
    settings = Settings(
        model="scripted:demo",
        mcpServers={"a": odd(include=["echo"])},
        mcp={"stdio_servers": [{"name": "b", **odd(include=["pid"])}]},
    )
    with Conversation(runtime=runtime, persist_dir=tmp_path / "c", settings=settings):
        assert isinstance(runtime.mcp, MCPServers)  # they begin with `start`: the sandbox runs
        runtime.mcp.wait()
        found = [(one.name, one.tools) for one in runtime.mcp.status()]
        assert found == [("a", ("echo",)), ("b", ("pid",))]


def test_a_runtime_calls_tools_by_name(tmp_path: Path, runtime: Runtime) -> None:
    assert "No MCP server runs" in text_of(runtime.call_tool_mcp(MCPAction(name="echo")))
    with converse(tmp_path, runtime, FakeModel(), config(odd=odd())) as conversation:
        conversation.run("go")
        assert text_of(runtime.call_tool_mcp(MCPAction(name="echo", arguments={"text": "hi"}))) == "hi"
        unknown = runtime.call_tool_mcp(MCPAction(name="nope"))
        assert unknown.is_error
        assert text_of(unknown).startswith("Unknown tool: nope.")
    assert runtime.mcp is None


@pytest.mark.parametrize(("arguments", "has_servers"), [({}, True), ({"tools": ["think"]}, False)])
def test_a_sub_agent_has_its_parents_servers_unless_its_tools_are_named(
    tmp_path: Path, runtime: Runtime, arguments: dict[str, Any], *, has_servers: bool
) -> None:
    model = Offers(
        answer("", call("pid")),
        answer("", call("delegate", {"task": "t", "name": "helper", **arguments})),
        answer("", call("pid") if has_servers else call("think", {"thought": "x"})),
        answer("", call("finish", {"message": "done"})),
        answer("", call("pid")),
    )
    tools = ("delegate", "finish", "think")
    with converse(tmp_path, runtime, model, config(odd=odd(include=["pid"])), tools=tools) as conversation:
        conversation.run("go")
        assert ("pid" in model.offered[2]) is has_servers
        results = results_of(conversation)
        assert results[0]["output"] == results[2]["output"]  # the same server, before and after
        if has_servers:
            assert results[0]["output"] in str(model.seen[3])


def test_servers_that_run_stay_their_owners(tmp_path: Path, runtime: Runtime) -> None:
    from ohsandbox.mcp import MCPConfig  # noqa: PLC0415 - only here

    with MCPServers(MCPConfig.parse(config(odd=odd(include=["pid"]))), runtime) as servers:
        for number in range(2):
            model = FakeModel(answer("", call("pid")))
            agent = Agent(model, ["finish"], mcp_config=servers)
            with Conversation(agent, runtime, tmp_path / f"c{number}") as conversation:
                conversation.run("go")
                assert results_of(conversation)[0]["status"] == "ok"
        assert servers.status()[0].restarts == 0


def test_a_servers_own_security_risk_reaches_it(tmp_path: Path, runtime: Runtime) -> None:
    model = FakeModel(answer("", call("risk", {"security_risk": "none of ours"})))
    with converse(tmp_path, runtime, model, config(odd=odd("risky"))) as conversation:
        conversation.run("go")
        assert results_of(conversation)[0] == {"status": "ok", "output": "none of ours", "error": None}


def test_missing_library_is_one_error_before_anything_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fastmcp", None)
    named = config(off=odd(disabled=True), far={"url": "http://127.0.0.1:9/mcp"})
    with pytest.raises(MCPConfigError, match="'far' is configured, and the library fastmcp is not"):
        Conversation(Agent(FakeModel(), mcp_config=named), persist_dir=tmp_path).start()
    with pytest.raises(MCPConfigError, match="fastmcp is not installed"):
        MCPServers(MCPConfig.parse(named), None)
    only_off = config(off={**odd(), "disabled": True})
    with Conversation(Agent(FakeModel(), mcp_config=only_off), persist_dir=tmp_path) as conversation:
        assert conversation.status() is Status.IDLE
