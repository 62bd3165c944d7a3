"""Configurations: what is taken, and what is told of a wrong one."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from ohsandbox.mcp import MCPConfig, MCPConfigError, MCPServers, Timeouts
from ohsandbox.mcp.config import resolve_variables
from ohsandbox.secrets import Secrets

if TYPE_CHECKING:
    from pathlib import Path


def one(entry: Any) -> Any:
    return MCPConfig.parse({"mcpServers": {"s": entry}}).servers["s"]


def test_the_usual_form() -> None:
    fetch = one({"command": "uvx", "args": ["mcp-server-fetch"], "env": {"A": 1, "B": True}, "progressEnabled": True})
    assert (fetch.command, fetch.args, fetch.env) == ("uvx", ("mcp-server-fetch",), {"A": "1", "B": "true"})
    assert fetch.runs_in == "sandbox"
    assert one({"url": "https://x.test/mcp", "type": "http"}).runs_in == "host"


def test_the_lists_of_the_older_form() -> None:
    config = MCPConfig.parse(
        {
            "mcp": {
                "sse_servers": ["http://a.test/sse", {"url": "http://b.test", "api_key": "k"}],
                "shttp_servers": [{"url": "http://c.test/mcp", "name": "c"}],
                "stdio_servers": [{"name": "time", "command": "uvx", "args": ["mcp-server-time"]}],
            }
        }
    )
    assert {name: server.transport for name, server in config.servers.items()} == {
        "sse1": "sse", "sse2": "sse", "c": "http", "time": None,
    }  # fmt: skip
    assert config.servers["sse2"].headers == {"Authorization": "Bearer k"}


@pytest.mark.parametrize(
    ("entry", "told"),
    [
        ({"args": []}, "'s': give either `command` or `url`"),
        ({"command": "x", "url": "http://x"}, "either `command` or `url`"),
        ({"command": ""}, "`command`"),
        ({"command": "x", "args": "--all"}, "`args`"),
        ({"command": "x", "env": {"A B": "1"}}, "'A B', which is not a valid variable name"),
        ({"command": "x", "env": {"A": "1\n2"}}, "line break"),
        ({"command": "x", "enviroment": {}}, "unknown key 'enviroment'. Known are: command, "),
        ({"command": "x", "timeout": 0}, "`timeout`"),
        ({"command": "x", "where": "moon"}, "`where`"),
        ({"command": "x", "headers": {"A": "b"}}, "`headers` go with `url`"),
        ({"command": "x", "transport": "sse"}, "'sse', which goes with `url`"),
        ({"url": "file:///etc/passwd"}, "http:// or https://"),
        ({"url": "http://x", "env": {"A": "b"}}, "go with `command`"),
        (None, "'s' must be an object"),
    ],
)
def test_a_wrong_entry_names_server_and_key(entry: Any, told: str) -> None:
    with pytest.raises(MCPConfigError) as wrong:
        one(entry)
    assert told in str(wrong.value)
    assert "'s'" in str(wrong.value)
    assert "\n" not in str(wrong.value)


@pytest.mark.parametrize(
    ("raw", "told"),
    [
        ({"mcpServer": {}}, "Unknown key 'mcpServer'"),
        ({"mcpServers": []}, "must be an object of servers"),
        ({"mcpServers": {"a b": {"command": "x"}}}, "'a b'"),
        ({"sse_servers": "http://x"}, "`sse_servers` must be a list"),
        ({"sse_servers": [7]}, "Entry 1 of `sse_servers`"),
        ({"mcpServers": {"t": {"command": "x"}}, "stdio_servers": [{"name": "t", "command": "y"}]}, "Two MCP servers"),
        ({"mcp": []}, "must be a JSON object with `mcpServers`"),
    ],
)
def test_a_wrong_whole_is_told(raw: Any, told: str) -> None:
    with pytest.raises(MCPConfigError, match=told):
        MCPConfig.parse(raw)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('{"mcpServers": {', "not valid JSON"),
        ("[]", "must be a JSON object"),
        ('{"mcpServers": {"a": {"command": "x"}, "a": {"command": "y"}}}', "'a' stands twice"),
        ("[" * 100_000, "not valid JSON"),
    ],
)
def test_a_wrong_file_is_named(tmp_path: Path, text: str, told: str) -> None:
    (tmp_path / "mcp.json").write_text(text)
    with pytest.raises(MCPConfigError, match=told) as wrong:
        MCPConfig.load(tmp_path / "mcp.json")
    assert "mcp.json" in str(wrong.value)


def test_a_missing_file_is_told(tmp_path: Path) -> None:
    with pytest.raises(MCPConfigError, match="No such file"):
        MCPConfig.load(tmp_path / "none.json")


def test_variables_are_filled_in_once() -> None:
    server = one({"command": "x", "args": ["${A}"], "env": {"E": "<${A}>${NOPE:-d}${EMPTY}"}})
    filled = resolve_variables("s", server, {"A": "${A} and ${B}", "EMPTY": "", "OTHER": "o"})
    assert filled.config.env == {"E": "<${A} and ${B}>d"}
    assert filled.config.args == ("${A}",)  # arguments are the server's, and seen by everybody in `ps`
    assert filled.masked("x ${A} and ${B} y") == "x [value of A] y"


def test_secrets_of_the_conversation_are_variables_too() -> None:
    server = one({"command": "x", "env": {"T": "${secret:TOKEN}"}})
    filled = resolve_variables("s", server, Secrets({"TOKEN": "a-long-token"}).variables({}))
    assert filled.config.env == {"T": "a-long-token"}
    assert "a-long-token" not in filled.masked("echo a-long-token")


def test_a_missing_variable_names_itself_and_no_value() -> None:
    server = one({"url": "https://x.test", "headers": {"Key": "${GIVEN}${MISSING}"}})
    with pytest.raises(MCPConfigError, match=r"'s' needs variable MISSING for `headers.Key`") as missing:
        resolve_variables("s", server, {"GIVEN": "secret-value"})
    assert "secret-value" not in str(missing.value)


def test_a_variable_that_makes_a_wrong_value_is_not_shown() -> None:
    server = one({"url": "${WHERE}"})
    with pytest.raises(MCPConfigError, match="http") as wrong:
        resolve_variables("s", server, {"WHERE": "ftp://user:secret-word@x"})
    assert "secret-word" not in str(wrong.value)


def test_a_disabled_servers_variables_are_not_asked_for() -> None:
    config = MCPConfig.parse({"mcpServers": {"s": {"command": "x", "env": {"A": "${NOPE}"}, "disabled": True}}})
    assert MCPServers(config, None).status()[0].state.value == "disabled"


def test_a_command_needs_a_sandbox_or_says_host() -> None:
    with pytest.raises(MCPConfigError, match='"where": "host"'):
        MCPServers(MCPConfig.parse({"mcpServers": {"s": {"command": "x"}}}), None)


def test_timeout_is_for_calls_and_lengthens_the_start() -> None:
    assert one({"command": "x"}).timeouts == Timeouts(30, 15, 180)
    assert one({"command": "x", "timeout": 5}).timeouts == Timeouts(30, 15, 5)
    assert one({"command": "x", "timeout": 300}).timeouts == Timeouts(300, 15, 300)


def test_include_and_exclude_are_shell_patterns() -> None:
    server = one({"command": "x", "include": ["get_*", "set_?"], "exclude": ["*secret*"]})
    assert [name for name in ("get_a", "set_b", "set_bb", "get_secret", "GET_a") if server.offers(name)] == [
        "get_a", "set_b",
    ]  # fmt: skip


def test_a_value_is_masked_as_it_stands_in_json_too() -> None:
    config = MCPConfig.parse({"mcpServers": {"x": {"command": "x", "env": {"KEY": "${KEY}"}}}}).servers["x"]
    resolved = resolve_variables("x", config, {"KEY": 'pass"wörd\\9'})
    for text in ('pass"wörd\\9', json.dumps('pass"wörd\\9'), json.dumps('pass"wörd\\9', ensure_ascii=False)):
        assert resolved.masked(text).strip('"') == "[value of KEY]"
