"""Which of a server's tools are offered, without a server."""

from __future__ import annotations

from typing import Any

import pytest
from mcp_types import Tool

from ohsandbox.mcp import MCPConfig, Pins
from ohsandbox.mcp.config import Resolved
from ohsandbox.mcp.tool_filter import MAX_ANNOUNCED, ToolFilter, how_to_approve
from ohsandbox.mcp.tool_listing import MAX_SERVER_CHARS

SERVER = MCPConfig.parse({"mcpServers": {"s": {"command": "x"}}}).servers["s"]


def made(secrets: dict[str, str] | None = None) -> tuple[ToolFilter, list[str]]:
    told: list[str] = []
    return ToolFilter("s", Resolved(SERVER, secrets or {}), Pins(), lambda kind, _: told.append(kind)), told


def tool(name: str, **fields: Any) -> Tool:
    return Tool.model_validate({"name": name, "inputSchema": {"type": "object"}, **fields})


def test_a_server_does_not_fill_the_prompt() -> None:
    wide = {"type": "object", "properties": {f"p{n}": {"type": "string", "description": "y" * 900} for n in range(60)}}
    offer, _ = made()
    offer.take([*(tool(f"t{number}", inputSchema=wide) for number in range(8)), tool("small")], {})
    assert sum(one.length for one in offer.now()) <= MAX_SERVER_CHARS
    assert offer.now()[-1].name == "small"
    assert "characters together" in offer.refused["t7"]


def test_many_refused_tools_are_a_few_lines() -> None:
    offer, told = made()
    offer.take([tool("same")] * 2 + [tool(f"t{number}") for number in range(500)], {})
    assert len(offer.now()) == 128
    assert told == ["refused"] * (MAX_ANNOUNCED + 1)


def test_a_secret_in_a_description_is_masked_and_a_new_one_is_no_change() -> None:
    offer, told = made({"K": "hunter2222"})
    offer.take([tool("t", description="Asks db:hunter2222@host.")], {})
    assert offer.now()[0].description.startswith("Asks db:[value of K]@host.")
    offer._mask = Resolved(SERVER, {"K": "correct horse"}).masked
    offer.take([tool("t", description="Asks db:correct horse@host.")], {})
    assert told == []


@pytest.mark.parametrize(
    ("name", "command"),
    [("echo", "approve s echo`"), ("a; curl x|sh", "approve s 'a; curl x|sh'`"), ("--help", "approve s -- --help`")],
)
def test_the_command_to_approve_can_be_pasted(name: str, command: str) -> None:
    assert command in how_to_approve("s", name)
