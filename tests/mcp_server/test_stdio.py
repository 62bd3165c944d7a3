"""`ohsandbox mcp serve` over stdio, by a client that speaks line by line, and by FastMCP's."""

from __future__ import annotations

import gc
import json
import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import anyio
import pytest
from fastmcp import Client
from fastmcp.client.transports import StdioTransport

import ohsandbox.tools  # noqa: F401 - registers those that ship
from ohsandbox.cli.app import app
from ohsandbox.cli.entrypoint import exit_code_of
from ohsandbox.runtime.local import CLIRuntime
from ohsandbox.state import ConversationState
from ohsandbox.tool import Tool, resolve_tool
from tests.mcp_server.conftest import COMMAND, INITIALIZE

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.mcp_server.conftest import Named, Served

    Serve = Callable[..., Served]

TOOLS = ["execute_bash", "file_editor", "file_read", "file_write", "glob", "grep", "execute_ipython_cell"]
RUNS_ON = "sh -c 'trap \"\" INT TERM; echo $$ > pid; while :; do sleep 0.1; done'"
STOPS = "echo $$ > pid; exec sleep 1000"

CALLS: list[tuple[str, dict[str, Any], str]] = [
    ("execute_bash", {"command": "echo $((6 * 7)) | tee answer.txt"}, "42"),
    ("file_read", {"path": "answer.txt"}, "42"),
    ("file_write", {"path": "a b.txt", "content": "one\ntwo\n"}, "Wrote 8 bytes"),
    ("file_editor", {"command": "view", "path": "/workspace/a b.txt"}, "two"),
    ("glob", {"pattern": "*.txt"}, "a b.txt"),
    ("grep", {"pattern": "tw."}, "two"),
    ("execute_ipython_cell", {"code": "6 * 7"}, "42"),
    ("checkpoint", {"label": "two files"}, "Checkpoint 1 (two files)"),
    ("execute_bash", {"command": "rm *.txt; ls | wc -l"}, "0"),
    ("undo", {}, "checkpoint 1 (two files)"),
    ("file_read", {"path": "answer.txt"}, "42"),
    ("execute_ipython_cell", {"code": "6 * 7"}, "42"),
]


@pytest.mark.slow
@pytest.mark.docker
def test_every_tool_for_the_client_of_fastmcp(image: Named, home: dict[str, str]) -> None:
    async def main() -> None:
        transport = StdioTransport(sys.executable, ["-m", "ohsandbox", "mcp", "serve", "--image", image.name], env=home)
        async with Client(transport) as client:
            offered = {tool.name: tool for tool in await client.list_tools()}
            assert [*offered] == [*TOOLS, "checkpoint", "undo"]
            state = ConversationState(conversation_id="test", runtime=CLIRuntime("/", quiet=True))
            for name in TOOLS:
                [tool] = resolve_tool(Tool(name=name), state)
                assert offered[name].input_schema == tool.to_mcp_tool()["inputSchema"]
                assert offered[name].description == tool.description
            assert image.containers() == []
            for name, arguments, expected in CALLS:
                result = await client.call_tool(name, arguments)  # which holds the result against the output schema
                assert expected in str(result.content), name
                assert result.structured_content
            assert len(image.containers()) == 1

    anyio.run(main)
    assert image.containers() == []
    listing = ["docker", "images", "-q", "--filter", "label=ohsandbox.checkpoint=1"]
    kept = subprocess.run(listing, capture_output=True, check=True).stdout.decode().split()
    assert "two files" not in [_comment(name) for name in kept]


def _comment(name: str) -> str:
    shown = subprocess.run(["docker", "inspect", "-f", "{{.Comment}}", name], capture_output=True, check=False)
    return shown.stdout.decode().strip()


@pytest.mark.slow
@pytest.mark.docker
@pytest.mark.parametrize(
    ("number", "code"), [(None, 0), (signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGHUP, 129)]
)
def test_the_sandbox_goes_with_its_client_while_a_command_runs(
    serve: Serve, image: Named, number: int | None, code: int
) -> None:
    served = serve("--image", image.name)
    served.begin()
    # what starts the sandbox has "run for" a while, too
    served.bash(99, "true")
    served.ask(100, "execute_bash", command=STOPS, timeout=60)
    served.until_it_runs(100)
    assert len(image.containers()) == 1
    if number is None:
        assert served.process.stdin is not None
        served.process.stdin.close()
    else:
        served.process.send_signal(number)
    assert served.process.wait(60) == code
    assert image.containers() == []


@pytest.mark.slow
@pytest.mark.docker
@pytest.mark.parametrize("command", [STOPS, RUNS_ON])
def test_a_cancelled_command_is_ended_and_not_answered(serve: Serve, image: Named, command: str) -> None:
    served = serve("--image", image.name)
    served.begin()
    served.bash(99, "export KEPT=kept")
    served.ask(100, "execute_bash", command=command, timeout=60)
    served.until_it_runs(100)
    served.cancel(100)
    served.ask(1, "execute_bash", command="kill -0 $(cat pid) 2>/dev/null || echo gone $KEPT")
    while (message := served.receive()).get("method") == "notifications/progress":
        pass
    assert (message["id"], message["result"]["structuredContent"]["output"]) == (1, "gone kept\n")


@pytest.mark.slow
@pytest.mark.docker
def test_a_call_that_is_cancelled_before_its_turn_never_runs(serve: Serve, image: Named) -> None:
    served = serve("--image", image.name)
    served.begin()
    served.ask(1, "execute_bash", command="sleep 0.5")
    served.ask(2, "execute_bash", command="touch ran")
    served.cancel(2)
    assert served.bash(3, "ls ran 2>/dev/null || echo none") == "none\n"


@pytest.mark.slow
@pytest.mark.docker
def test_a_sandbox_that_is_lost_is_told_and_replaced(serve: Serve, image: Named) -> None:
    served = serve("--image", image.name)
    served.begin()
    served.bash(1, "touch file")
    subprocess.run(["docker", "rm", "-f", *image.containers()], check=True, capture_output=True)
    served.ask(2, "execute_bash", command="ls file")
    lost = served.answer(2)
    assert lost["isError"]
    assert "files in this one are lost" in lost["content"][0]["text"]
    assert served.bash(3, "ls file 2>/dev/null || echo new") == "new\n"


@pytest.mark.docker
def test_a_session_gets_a_warm_sandbox_and_all_go_with_the_server(serve: Serve, image: Named) -> None:
    served = serve("--image", image.name, "--warm", "1")
    served.begin()
    while not image.containers():  # nobody has called anything
        assert served.process.poll() is None
    assert served.bash(1, "echo works") == "works\n"
    assert served.process.stdin is not None
    served.process.stdin.close()
    assert served.process.wait(60) == 0
    assert image.containers() == []


@pytest.mark.docker
def test_a_workspace_is_worked_in_and_has_no_undo(serve: Serve, image: Named, tmp_path: Path) -> None:
    workspace = tmp_path / "my files"
    workspace.mkdir()
    served = serve("--image", image.name, "--workspace", str(workspace))
    assert "/workspace is a directory of the user" in served.begin()["instructions"]
    served.bash(1, "echo hello > file")
    assert (workspace / "file").read_text() == "hello\n"
    served.send(id=2, method="tools/list")
    assert [tool["name"] for tool in served.answer(2)["tools"]] == TOOLS


@pytest.mark.slow
@pytest.mark.docker
def test_what_a_session_left_in_a_workspace_is_told_at_its_end(serve: Serve, image: Named, tmp_path: Path) -> None:
    workspace = tmp_path / "files"
    workspace.mkdir()
    served = serve("--image", image.name, "--workspace", str(workspace), "--git", "rw")
    served.begin()
    served.bash(1, "mkdir .git; printf '[core]\\nfsmonitor = evil\\n' > .git/config")
    _, err = served.process.communicate(timeout=60)
    lines = err.decode().splitlines()
    assert "ohsandbox:   new: .git/config (core.fsmonitor = evil)" in lines
    assert lines[0].startswith("ohsandbox: --git rw: the sandbox can change what git")


@pytest.mark.slow
def test_rubbish_is_answered_and_the_session_goes_on(serve: Serve, tmp_path: Path) -> None:
    served = serve("--runtime", "cli", "--workspace", str(tmp_path))
    served.begin()
    served.write(b'garbage\n\n\xff\xfe\n[]\n{"jsonrpc":1}\n')
    assert [served.receive()["error"]["code"] for _ in range(4)] == [-32700] * 4
    served.ask(1, "nope")
    assert "Unknown tool: nope" in served.receive()["error"]["message"]
    served.ask(2, "execute_bash", comand="echo")
    assert served.answer(2)["isError"]
    assert served.bash(3, "printf '%s' '\ud800\udcff'") != ""
    served.ask(4, "file_write", path="big", content="x" * 20_000_000)
    assert not served.answer(4)["isError"]


@pytest.mark.slow
def test_nobody_reads_any_more(serve: Serve, tmp_path: Path) -> None:
    served = serve("--runtime", "cli", "--workspace", str(tmp_path))
    served.begin()
    assert served.process.stdout is not None
    served.process.stdout.close()
    served.ask(1, "execute_bash", command="echo")
    assert served.process.wait(60) == 0


@pytest.mark.slow
def test_without_an_engine_each_call_says_so(serve: Serve, home: dict[str, str]) -> None:
    home["DOCKER_HOST"] = "unix:///nonexistent/docker.sock"
    served = serve("--image", "any")
    served.begin()
    served.ask(1, "execute_bash", command="echo")
    result = served.answer(1)
    assert result["isError"]
    assert "Start the engine" in result["content"][0]["text"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--token", "env:HOME"), "--token needs --http"),
        (("--runtime", "cli", "--network", "open"), "--network needs a container"),
        (("--http", "nowhere"), "Invalid address"),
        (("--warm", "1", "--workspace", "/opt"), "--warm and --workspace exclude each other"),
        (("--warm", "1", "--keep"), "--warm and --keep exclude each other"),
        (("--warm", "1", "--runtime", "cli"), "--warm keeps containers"),
        (("--http", "0", "--token", "env:SHORT"), "expected 16 or more"),
        (("--http", "0", "--token", "abc"), "env:VARIABLE"),
        (("--enable", "nonsense"), "'nonsense'"),
        (("--enable", "delegation"), "Tool 'delegate' needs an ohsandbox agent"),
        (
            (
                "--disable",
                "cmd",
                "--disable",
                "editor",
                "--disable",
                "file_tools",
                "--disable",
                "search",
                "--disable",
                "jupyter",
            ),
            "All tools are disabled",
        ),
    ],
)
def test_wrong_options(
    options: tuple[str, ...], words: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SHORT", "short")
    code = exit_code_of(lambda: app(["mcp", "serve", *options], prog_name="ohsandbox", standalone_mode=False))
    gc.unfreeze()
    out, err = capfd.readouterr()
    assert (code, out) == (2, "")
    assert words in err
    assert err.count("\n") == 1


def test_a_wrong_option_ends_the_process(serve: Serve) -> None:
    process = serve("--token", "env:HOME").process
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (2, b"")
    assert b"--token needs --http" in err
    assert err.count(b"\n") == 1


def test_nothing_but_the_protocol_is_on_stdout(home: dict[str, str], tmp_path: Path) -> None:
    """Not even what a library prints there: descriptor 1 is stderr while we serve."""
    program = (
        "import anyio, os; from ohsandbox.mcp_server.stdio import serve_stdio\n"
        "class Fake:\n"
        "    def create_initialization_options(self): pass\n"
        "    async def run(self, *_): print('noise', flush=True); os.write(1, b'more'); assert os.read(0, 1) == b''\n"
        "anyio.run(serve_stdio, Fake())"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], check=False, capture_output=True, input=b"", cwd=tmp_path,
        env={**os.environ, **home},
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"noise\nmore")


@pytest.mark.slow
def test_a_client_that_never_reads_holds_up_nobody(home: dict[str, str], tmp_path: Path) -> None:
    asked = tmp_path / "asked"
    hello = {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": INITIALIZE}
    asked.write_text(json.dumps(hello) + '\n{"jsonrpc":"2.0","id":1,"method":"tools/list"}' * 2000 + "\n")
    with asked.open("rb") as stdin:
        command = [*COMMAND, "--runtime", "cli", "--workspace", str(tmp_path)]
        process = subprocess.Popen(command, stdin=stdin, stdout=subprocess.PIPE, env=home)
    assert process.stdout is not None
    with process.stdout:
        assert process.wait(60) == 0


@pytest.mark.slow
def test_without_stdin_it_says_so(home: dict[str, str]) -> None:
    done = subprocess.run(
        ["sh", "-c", 'exec "$@" <&-', "sh", *COMMAND], check=False, capture_output=True, env=home, timeout=30
    )
    assert (done.returncode, b"stdin or stdout is closed" in done.stderr) == (2, True)
