"""What docs/mcp.md says is accepted as it stands there: each configuration, each command line."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ohsandbox.mcp import MCPConfig
from tests.mcp_server.conftest import OverHTTP, Served, home, serve, serve_http

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["home", "serve", "serve_http"]

PAGE = (Path(__file__).parents[2] / "docs" / "mcp.md").read_text(encoding="utf-8")
BLOCKS = [json.loads(text) for text in re.findall(r"^```json\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)]
INLINE = [" ".join(text.split()) for text in re.findall(r"(?<!`)`([^`]+)`(?!`)", PAGE)]

SERVERS = [entry for block in BLOCKS for entry in block["mcpServers"].values()]
OURS = [[entry["command"], *entry["args"]] for entry in SERVERS if entry.get("command") == "ohsandbox"]
IN_CLAUDE_CODE = [shlex.split(text.split(" -- ")[1]) for text in INLINE if text.startswith("claude mcp add")]
OPTIONS = [shlex.split(text) for text in INLINE if text.startswith(("--workspace", "--allow", "--http", "--token"))]


@pytest.fixture
def files(tmp_path: Path) -> Path:
    (tmp_path / "files").mkdir()
    return tmp_path / "files"


def test_the_page_has_what_is_looked_for() -> None:
    assert len(BLOCKS) == 2
    assert OURS
    assert IN_CLAUDE_CODE
    assert {options[0] for options in OPTIONS} == {"--workspace", "--allow", "--http", "--token"}


def test_each_server_is_one_and_keeps_what_was_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRACKER_TOKEN", raising=False)
    for block in BLOCKS:
        config = MCPConfig.parse(block)
        assert [*config.servers] == [*block["mcpServers"]]
        assert not config.warnings


@pytest.mark.parametrize("argv", [*OURS, *IN_CLAUDE_CODE], ids=" ".join)
def test_a_client_is_served_by_the_configured_command(serve: Callable[..., Served], argv: list[str]) -> None:
    assert argv[:3] == ["ohsandbox", "mcp", "serve"]
    assert tools_of(serve(*argv[3:])) >= {"execute_bash", "checkpoint", "undo"}


def test_the_options_that_may_be_added_are_accepted(serve: Callable[..., Served], files: Path) -> None:
    added = [word for options in OPTIONS if options[0] in {"--workspace", "--allow"} for word in options]
    meant = {"DIR": str(files), "HOST": "api.example.org"}
    tools = tools_of(serve(*[meant.get(word, word) for word in added]))
    assert "execute_bash" in tools
    assert "undo" not in tools


@pytest.mark.docker
def test_the_line_that_runs_with_the_servers_of_the_chapter_runs(home: dict[str, str], files: Path) -> None:
    """On an image without `npx`, and nobody is at that URL: both are told, and the run goes on."""
    [line] = re.findall(r"^ohsandbox run .*--mcp-config.*$", PAGE, re.MULTILINE)
    words = shlex.split(line)
    words[words.index("--image") + 1] = os.environ.get("OHSANDBOX_TEST_IMAGE", "ohsandbox-base:debian")
    (files / "mcp.json").write_text(json.dumps(BLOCKS[0]))
    (files / "script.json").write_text('{"turns": [{"content": "Nothing."}]}')
    command = [sys.executable, "-m", *words, "--model", "scripted:script.json", "--no-tui"]
    ended = subprocess.run(command, check=False, capture_output=True, text=True, cwd=files, env=home, timeout=110)
    assert ended.returncode == 0, ended.stderr
    assert "'npx' was not found" in ended.stdout
    assert "MCP server 'tracker'" in ended.stdout


@pytest.mark.parametrize("text", [text for text in INLINE if text.startswith("ohsandbox mcp ")])
def test_other_commands_are_known(home: dict[str, str], text: str) -> None:
    command = [sys.executable, "-m", *shlex.split(text), "--help"]
    ended = subprocess.run(command, check=False, capture_output=True, text=True, env=home, timeout=60)
    assert (ended.returncode, "Usage: " in ended.stdout) == (0, True)


@pytest.mark.slow
def test_the_options_of_a_server_for_several_are_accepted(
    serve_http: Callable[..., OverHTTP], home: dict[str, str], files: Path
) -> None:
    home["NAME"] = "a token of sixteen"
    [said] = [url for url in INLINE if url.startswith("http://127.0.0.1")]
    [port] = [options[1] for options in OPTIONS if options[0] == "--http"]
    assert f":{port}/" in said
    assert serve_http().token
    assert not serve_http("--token", "env:NAME").token  # it is known, so none is made
    served = serve_http("--workspace", str(files))
    assert served.token
    assert re.sub(r":\d+/", "", served.url) == re.sub(r":\d+/", "", said)


def tools_of(served: Served) -> set[str]:
    served.begin()
    served.send(id=1, method="tools/list")
    tools: list[dict[str, Any]] = served.answer(1)["tools"]
    return {tool["name"] for tool in tools}
