"""What the documents promise of settings and of MCP servers, each line a test."""

from __future__ import annotations

import importlib.util
import json
from typing import TYPE_CHECKING, Any

import pytest
from mcp_types import Tool as MCPTool

from ohsandbox import Agent, Conversation, Settings
from ohsandbox.errors import UsageError
from ohsandbox.mcp import MCPConfig, MCPToolAction, MCPToolDefinition
from ohsandbox.mcp.definition import listed_tool
from tests.fakes import FakeModel, RecordingRuntime, answer

if TYPE_CHECKING:
    from pathlib import Path

SERVERS = {
    "mcp": {
        "sse_servers": [{"url": "https://a.example/sse", "api_key": "k"}],
        "shttp_servers": [{"url": "https://b.example/mcp"}],
        "stdio_servers": [{"name": "fetch", "command": "uvx", "args": ["mcp-server-fetch"]}],
    }
}
"""As the document has them."""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("OHSANDBOX_HOME", raising=False)
    monkeypatch.delenv("OHSANDBOX_MODEL", raising=False)
    return tmp_path


def write(file: Path, **values: Any) -> None:
    file.parent.mkdir(mode=0o700, exist_ok=True)
    file.write_text(json.dumps(values))
    file.chmod(0o600)


# --- settings ---------------------------------------------------------------------------------------------


def test_flags_stand_above_the_environment_and_that_above_the_file(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(home / ".ohsandbox" / "settings.json", model="a/file")
    assert Settings.load().model == "a/file"
    monkeypatch.setenv("OHSANDBOX_MODEL", "a/variable")
    assert Settings.load().model == "a/variable"
    assert Settings.load(model="a/flag").model == "a/flag"


def test_settings_sdk_is_read_where_it_exists_and_told_once(home: Path) -> None:
    write(home / ".openhands" / "settings_sdk.json", model="a/theirs", **SERVERS)
    settings = Settings.load()
    assert settings.model == "a/theirs"
    assert [line.partition(",")[0] for line in settings.warnings] == [
        f"Settings are read from '{home}/.openhands/settings_sdk.json'"
    ]


def test_the_three_lists_of_servers_are_servers(home: Path) -> None:
    write(home / ".openhands" / "settings_sdk.json", **SERVERS)
    servers = MCPConfig.parse(Settings.load().mcp_config or {}).servers.values()
    assert [(one.url or one.command, one.transport) for one in servers] == [
        ("https://a.example/sse", "sse"), ("https://b.example/mcp", "http"), ("uvx", None),
    ]  # fmt: skip


# --- MCP --------------------------------------------------------------------------------------------------


def test_the_generic_action_comes_first_and_a_model_is_made_when_it_is_asked_for() -> None:
    caller: Any = None  # the tool is not called
    schema = {"type": "object", "properties": {"url": {"type": "string"}}, "required": ["url"]}
    told = MCPTool.model_validate({"name": "fetch", "description": "Fetches a page.", "inputSchema": schema})
    [tool] = MCPToolDefinition.create("s", listed_tool("s", told), caller, name="fetch")
    assert tool.action_type is MCPToolAction
    assert "arguments_type" not in vars(tool)
    action = tool.action_from_arguments({"url": "http://x/"})
    assert (type(action), action.arguments) == (MCPToolAction, {"url": "http://x/"})
    assert (tool.arguments_type.__name__, str(tool.arguments_type.__doc__)[:15]) == ("Fetch", "Fetches a page.")


def test_servers_without_the_library_are_an_error_of_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr("ohsandbox.mcp.servers.find_spec", lambda name: None if name == "fastmcp" else found(name))
    agent = Agent(FakeModel(answer("x")), [], mcp_config={"mcpServers": {"a": {"command": "b"}}})
    with pytest.raises(
        UsageError, match=r"^MCP server 'a' is configured, and the library fastmcp is not installed\. .*$"
    ):
        Conversation(agent, RecordingRuntime(), tmp_path).start()


# --- what is wrong is told on entry -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "told"),
    [
        ({"mcpServers": {"s": {"comand": "x"}}}, "'s'"),
        ({"mcpServer": {}}, "mcpServer"),
        ("no-such-file.json", "no-such-file.json"),
        (7, "mcp_config 7"),
    ],
)
def test_wrong_servers_are_told_when_the_agent_is_made(source: Any, told: str) -> None:
    with pytest.raises(UsageError, match=told):
        Agent(mcp_config=source)
    with pytest.raises(UsageError, match=told):
        Agent().with_mcp(source)


@pytest.mark.parametrize("runtime", [RecordingRuntime(), None])
def test_a_tool_that_nobody_has_is_told_when_the_conversation_is_made(runtime: Any, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"execute_bsh.*execute_bash"):
        Conversation(Agent(FakeModel(answer("x")), ["execute_bsh"]), runtime, tmp_path)
