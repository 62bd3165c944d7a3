"""Tools that change after they were first seen, and the fingerprints that tell."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from ohsandbox.errors import UsageError
from ohsandbox.mcp import MCPConfigError, MCPToolWithheldError, Pins
from tests.mcp.conftest import call, odd, until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.mcp.conftest import Servers


def test_a_new_tool_is_told_and_offered_from_then_on(servers: Servers) -> None:
    started = servers.odd()
    call(started, "grow")
    until(servers, "tools_changed")
    assert started.take_notices() == ["MCP server 'odd', tools changed: new: extra; gone: none"]
    assert call(started, "extra") == "extra"


def test_a_tool_that_changes_is_not_called_until_it_is_approved(servers: Servers) -> None:
    started = servers.odd()
    echo = next(tool for tool in started.tools() if tool.name == "echo")
    call(started, "change")
    until(servers, "withheld")
    with pytest.raises(MCPToolWithheldError, match="ohsandbox mcp approve odd echo"):
        echo(echo.action_from_arguments({"text": "x"}))
    assert "echo" not in [tool.name for tool in started.tools()]
    started.approve("odd", "echo")
    assert "passwords" in next(tool.description for tool in started.tools() if tool.name == "echo")
    assert call(started, "echo", text="x") == "x"
    with pytest.raises(UsageError, match="withheld"):
        started.approve("odd", "echo")


def test_a_tool_that_changed_between_two_runs_is_withheld(servers: Servers, tmp_path: Path) -> None:
    assert call(servers.odd(pins=Pins(tmp_path / "pins.json")), "echo", text="1") == "1"
    started = servers({"odd": odd(env={"ODD_MODE": "changed"})}, pins=Pins(tmp_path / "pins.json"))
    assert "echo" not in [tool.name for tool in started.tools()]
    assert list(started.status()[0].withheld) == ["echo"]


def test_pins_that_cannot_be_kept_say_so(tmp_path: Path) -> None:
    (tmp_path / "pins.lock").mkdir()
    with pytest.raises(MCPConfigError, match=r"cannot be kept in '.*': Is a directory"):
        Pins(tmp_path / "pins.json").update("odd@1", {"echo": "x"})


def test_pins_of_two_processes_are_all_kept(tmp_path: Path) -> None:
    one, two = Pins(tmp_path / "pins.json"), Pins(tmp_path / "pins.json")
    one.update("a@1", {"x": "1"})
    two.update("b@1", {"y": "2"})
    read = Pins(tmp_path / "pins.json")
    assert (read.get("a@1", "x"), read.get("b@1", "y")) == ("1", "2")


def test_another_command_of_the_same_name_is_another_server(servers: Servers, tmp_path: Path) -> None:
    assert call(servers.odd(pins=Pins(tmp_path / "pins.json")), "echo", text="1") == "1"
    started = servers.odd("changed", pins=Pins(tmp_path / "pins.json"))  # an argument more
    assert call(started, "echo", text="2") == "2"


def test_a_server_that_lists_ever_new_tools_fills_no_disk(
    servers: Servers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("tool_pinning", "tool_filter"):
        monkeypatch.setattr(f"ohsandbox.mcp.{module}.MAX_PINNED", 2)
    started = servers({"odd": odd(include=["echo", "pid"])}, pins=Pins(tmp_path / "pins.json"))
    assert len(started.tools()) == 2
    started = servers({"odd": odd(include=["echo", "nothing"])}, pins=Pins(tmp_path / "pins.json"))
    assert [tool.name for tool in started.tools()] == ["echo"]
    assert started.status()[0].refused["nothing"] == "its server has listed 2 others before"


def test_damaged_pins_are_a_persons_to_look_at(tmp_path: Path) -> None:
    (tmp_path / "pins.json").write_text('{"odd": ')
    with pytest.raises(MCPConfigError, match="Delete the file"):
        Pins(tmp_path / "pins.json")
