"""`ohsandbox run` and `ohsandbox mcp` with MCP servers, as a person starts them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ohsandbox.mcp import Pins
from ohsandbox.persistence import read_events
from tests.fakes import data_of
from tests.mcp.conftest import image_with

pytestmark = pytest.mark.timeout(600)  # the image is built once, in a minute
SERVER = Path(__file__).with_name("server.py")

PYTHON = {
    "time": {"command": "mcp-server-time", "args": ["--local-timezone=UTC"]},
    "git": {"command": "mcp-server-git"},
    "fetch": {"command": "mcp-server-fetch", "args": ["--ignore-robots-txt", "--allow-private-ips"]},
}
BEGIN = """git init -q /tmp/r
(cd /tmp && exec python3 -u -m http.server 18924 >/tmp/web.log 2>&1 &)
until grep -q Serving /tmp/web.log; do sleep 0.05; done"""
PYTHON_CALLS = [
    ("execute_bash", {"command": BEGIN}),
    ("get_current_time", {"timezone": "Asia/Tokyo"}),
    ("git_status", {"repo_path": "/tmp/r"}),
    ("fetch", {"url": "http://127.0.0.1:18924/", "raw": True}),
]
NODE = {
    "files": {"command": "mcp-server-filesystem", "args": ["/tmp"]},
    "everything": {"command": "mcp-server-everything"},
    "memory": {"command": "mcp-server-memory", "env": {"MEMORY_FILE_PATH": "${MEMORY}"}},
}
NODE_CALLS = [
    ("write_file", {"path": "/tmp/note", "content": "from a server"}),
    ("execute_bash", {"command": "cat /tmp/note"}),
    ("get-sum", {"a": 2, "b": 3}),
    ("read_graph", {}),
]

PATIENT = "from ohsandbox.conversation.environment import mcp_servers\nmcp_servers.WAIT_S = 100.0\n"
"""The command begins without servers that take over half a minute to start, as they may on a busy machine."""


class Place:
    """A home, with a way to run the command in it."""

    def __init__(self, home: Path) -> None:
        self.home = home

    def write(self, name: str, value: Any) -> str:
        path = self.home / name
        path.write_text(json.dumps(value))
        return str(path)

    def run(self, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("OHSANDBOX_")}
        return subprocess.run(
            [sys.executable, "-m", "ohsandbox", *arguments],
            env={**kept, "HOME": str(self.home), "PYTHONPATH": str(Path(__file__).parents[2]), **variables},
            cwd=self.home, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip

    def conversation(self) -> Path:
        (conversation,) = (self.home / ".ohsandbox" / "conversations").glob("[!.]*")
        return conversation

    def events(self) -> Any:
        return read_events(self.conversation())


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def script(*responses: list[tuple[str, dict[str, Any]]]) -> dict[str, Any]:
    turns = [[{"name": name, "arguments": arguments} for name, arguments in calls] for calls in responses]
    return {"turns": [{"content": "", "tool_calls": calls} for calls in turns]}


@pytest.mark.slow
@pytest.mark.docker
@pytest.mark.parametrize(
    ("language", "servers", "calls", "answers"),
    [
        ("python", PYTHON, PYTHON_CALLS, ["Asia/Tokyo", "No commits yet", "Directory listing"]),
        ("node", NODE, NODE_CALLS, ["from a server", "is 5", "entities"]),
    ],
)
def test_an_agent_uses_three_servers_at_once(
    place: Place, language: str, servers: dict[str, Any], calls: list[Any], answers: list[str]
) -> None:
    model = "scripted:" + place.write("script.json", script(calls, [("finish", {"message": "All done."})]))
    patient = {name: {**server, "timeout": 100} for name, server in servers.items()}
    config = place.write("mcp.json", {"mcpServers": patient})
    (place.home / "sitecustomize.py").write_text(PATIENT)
    ended = place.run(
        "run",
        "go",
        "--image",
        image_with(language),
        "--model",
        model,
        "--mcp-config",
        config,
        "--no-tui",
        MEMORY="/tmp/m.json",
        PYTHONPATH=os.pathsep.join([str(place.home), str(Path(__file__).parents[2])]),
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    results = data_of(place.events(), "tool_result")
    assert [data["result"]["status"] for data in results] == ["ok"] * 5
    said = "\n".join(str(data["result"]["output"]) for data in results)
    assert [answer for answer in answers if answer not in said] == []
    assert ended.stdout.count(", ready:") == 3  # a line each for the person
    listed = ["docker", "ps", "-aq", "--filter", f"label=ohsandbox.conversation={place.conversation().name}"]
    assert subprocess.run(listed, capture_output=True, text=True, check=True).stdout == ""


@pytest.mark.slow
@pytest.mark.docker
def test_the_list_says_how_each_server_is(place: Place, real_image: str) -> None:
    broken = {"command": "no-such-program"}
    config = place.write("mcp.json", {"mcpServers": {"time": PYTHON["time"], "broken": broken}})
    ended = place.run("mcp", "list", "--mcp-config", config, "--image", real_image, "--json")
    assert ended.returncode == 1
    one, two = json.loads(ended.stdout)
    assert (one["name"], one["state"], one["tools"]) == ("time", "ready", ["get_current_time", "convert_time"])
    assert (two["name"], two["state"]) == ("broken", "failed")
    assert "'no-such-program' was not found" in two["reason"]


def odd(*modes: str) -> dict[str, Any]:
    return {
        "command": sys.executable,
        "args": [str(SERVER)],
        "env": {"ODD_MODE": " ".join(modes)},
        "include": ["echo", "pid"],
    }


def test_the_settings_servers_are_listed_and_a_file_adds_to_them(place: Place) -> None:
    settings = place.write(
        "settings.json", {"mcpServers": {"a": odd()}, "mcp": {"stdio_servers": [{"name": "b", **odd()}]}}
    )
    config = place.write(
        "mcp.json", {"mcpServers": {"b": {**odd(), "include": ["pid"]}, "c": {**odd(), "disabled": True}}}
    )
    ended = place.run("mcp", "list", "--runtime", "cli", "--settings", settings, "--mcp-config", config)
    assert ended.returncode == 0, ended.stderr
    rows = {line.split()[0]: line for line in ended.stdout.splitlines()[1:]}
    assert "echo, pid" in rows["a"]
    assert "echo" not in rows["b"]
    assert rows["b"].split()[-1] == "pid"
    assert "disabled" in rows["c"]


@pytest.mark.slow
def test_a_tool_that_changed_is_listed_shown_and_approved(place: Place) -> None:
    first = place.write("one.json", {"mcpServers": {"odd": odd()}})
    changed = place.write("two.json", {"mcpServers": {"odd": odd("changed")}})
    assert place.run("mcp", "list", "--runtime", "cli", "--mcp-config", first).returncode == 0
    listed = place.run("mcp", "list", "--runtime", "cli", "--mcp-config", changed).stdout
    assert "ohsandbox mcp approve odd echo" in listed
    approved = place.run("mcp", "approve", "odd", "echo")
    assert approved.returncode == 0, approved.stderr
    added = [line for line in approved.stdout.splitlines() if line.startswith("+") and "wants your passwords" in line]
    assert len(added) == 1
    assert "\n-  " in approved.stdout
    again = place.run("mcp", "list", "--runtime", "cli", "--mcp-config", changed, "--json")
    assert json.loads(again.stdout)[0]["withheld"] == {}
    nothing = place.run("mcp", "approve", "odd", "echo")
    assert nothing.returncode == 2
    assert "waits to be approved" in nothing.stderr
    assert Pins(place.home / ".ohsandbox" / "mcp" / "pins.json").changed() == []


@pytest.mark.parametrize(
    ("config", "fault"),
    [
        ('{"mcpServers": {"x": {', "is not valid JSON"),
        ('{"mcpServers": {"x": {"args": []}}}', "'x': give either `command` or `url`"),
        ('{"mcpServers": {"x": {"command": "c", "args": "a b"}}}', "'x': `args`"),
        ('{"mcpServers": {"x": {"command": "c", "env": {"A": "${NOT_SET}"}}}}', "needs variable NOT_SET for `env.A`"),
    ],
)
def test_a_wrong_file_is_one_line_and_no_sandbox(place: Place, config: str, fault: str) -> None:
    path = place.home / "mcp.json"
    path.write_text(config)
    model = "scripted:" + place.write("script.json", script([("finish", {"message": "x"})]))
    ended = place.run("run", "go", "--runtime", "cli", "--model", model, "--mcp-config", str(path), "--no-tui")
    assert ended.returncode == 2
    assert fault in ended.stderr
    assert "Traceback" not in ended.stderr
