from __future__ import annotations

import json
import os
import socket
import subprocess
from typing import TYPE_CHECKING, Any, NoReturn

import pytest

from ohsandbox.schema import Action, TextObservation
from ohsandbox.tool import ToolDefinition, ToolExecutor, register_tool, unregister_tool
from tests.cli.conftest import COMMAND

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.cli.conftest import Invoke


@pytest.fixture
def own_tool() -> Iterator[str]:
    """A tool of this module, with a description that would move a cursor."""

    class Ask(Action):
        city: str

    class Answer(ToolExecutor[Ask, TextObservation]):
        def __call__(self, action: Ask) -> TextObservation:
            return TextObservation(text=action.city)

    tool = ToolDefinition(name="weather_x", description="Tell\x1b[2Jit.", action_type=Ask, executor=Answer())
    register_tool("weather_x", tool)
    yield "weather_x"
    unregister_tool("weather_x")


@pytest.fixture
def faulty_tool() -> Iterator[str]:
    def fail(**_: Any) -> NoReturn:
        raise RuntimeError("no\nluck")

    register_tool("faulty_x", fail)
    yield "faulty_x"
    unregister_tool("faulty_x")


@pytest.fixture
def _nothing_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    def started(*_: Any, **__: Any) -> NoReturn:
        raise AssertionError("something was started")

    monkeypatch.setattr(subprocess, "Popen", started)
    monkeypatch.setattr(socket, "socket", started)


def rows(out: str) -> dict[str, str]:
    return {line.split()[0]: line for line in out.splitlines() if line.strip()}


@pytest.mark.usefixtures("_nothing_starts")
def test_every_tool_is_a_row_with_origin_effects_and_arguments(invoke: Invoke, own_tool: str) -> None:
    ended = invoke("tools")
    listed = rows(ended.out)
    assert (ended.code, ended.err) == (0, "")
    assert {"execute_bash", "think", "finish", own_tool} <= set(listed)
    assert not {"terminal", "BashTool"} & set(listed)
    assert "destructive, open world" in listed["execute_bash"]
    assert "command [is_input] [timeout]" in listed["execute_bash"]
    assert "read-only, idempotent" in listed["think"]
    assert __name__.rpartition(".")[2] in listed[own_tool]


def test_one_tool_is_shown_with_description_and_schema(invoke: Invoke, own_tool: str) -> None:
    out = invoke("tools", "terminal").out
    assert out.startswith("execute_bash (also terminal, BashTool), of ohsandbox")
    assert "Run a command in a persistent bash shell" in out
    schema = json.loads(out[out.index("\n{") :])
    assert list(schema["properties"])[:2] == ["security_risk", "command"]
    assert "\x1b" not in invoke("tools", own_tool).out


def test_json_is_the_shape_of_mcp_with_the_origin(invoke: Invoke, own_tool: str) -> None:
    found = {tool["name"]: tool for tool in json.loads(invoke("tools", "--json").out)}
    assert found["think"]["annotations"]["readOnlyHint"] is True
    assert found["think"]["origin"]["name"] == "ohsandbox"
    assert json.loads(invoke("tools", own_tool, "--json").out) == found[own_tool]
    assert found[own_tool]["inputSchema"]["required"] == ["city"]


def test_unknown_tool_is_a_usage_error(invoke: Invoke) -> None:
    ended = invoke("tools", "nonsense")
    assert (ended.code, ended.out) == (2, "")
    assert "Tool 'nonsense' is not registered. Registered are:" in ended.err


def test_tool_that_cannot_be_made_is_a_warning_and_the_rest_is_listed(invoke: Invoke, faulty_tool: str) -> None:
    ended = invoke("tools")
    assert ended.code == 0
    assert "execute_bash" in ended.out
    [line] = ended.err.splitlines()
    assert line.startswith(f"ohsandbox: warning: Tool {faulty_tool!r} cannot be made")
    assert invoke("tools", faulty_tool).code == 2


def test_broken_plugin_is_one_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    info = tmp_path / "site" / "sky_tools-1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: sky-tools\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[ohsandbox.tools]\nsky = nowhere:Tool\n")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path / "site"), os.environ["PYTHONPATH"]]))
    ended = subprocess.run([*COMMAND, "tools"], capture_output=True, text=True, check=True, timeout=60)
    [line] = ended.stderr.splitlines()
    assert line.startswith("ohsandbox: warning: Tool 'sky' of sky-tools is left out: nowhere:Tool cannot be imported")
    assert "execute_bash" in ended.stdout


@pytest.mark.parametrize("option", ["--enable", "--disable"])
def test_run_switches_tools_by_name(invoke: Invoke, option: str) -> None:
    ended = invoke("run", "--model", "scripted:demo", "--runtime", "cli", option, "magic", "task")
    assert ended.code == 2
    assert "No tools 'magic' to switch. There are: cmd, editor," in ended.err


def test_run_gives_the_agent_what_is_enabled_and_not_what_is_disabled(
    invoke: Invoke, tmp_path: Path, home: Path
) -> None:
    script = tmp_path / "script.json"
    script.write_text(json.dumps([{"content": "Nothing to do."}]))
    off = [part for name in ("editor", "search", "jupyter", "plan_mode", "think") for part in ("--disable", name)]
    ended = invoke(
        "run", "--no-tui", "--model", f"scripted:{script}", "--runtime", "cli", "--workspace", str(tmp_path), *off, "x"
    )
    assert ended.code == 0, ended.err
    [log] = home.rglob("sdk_events.jsonl")
    events = [json.loads(line) for line in log.read_text().splitlines()]
    first = next(event for event in events if event["type"] == "system_message")
    names = [tool["function"]["name"] for tool in first["data"]["tools"]]
    assert names == ["execute_bash", "file_read", "file_write", "finish"]
