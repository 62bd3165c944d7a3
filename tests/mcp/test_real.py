"""Servers that nobody here wrote, with every tool they offer called; and servers behind a URL."""

from __future__ import annotations

import base64
import json
import os
import re
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ohsandbox.content import ImageContent
from ohsandbox.mcp import MCPServerGoneError, MCPServers
from ohsandbox.network.package_hosts import shared_package_hosts
from ohsandbox.schema import text_of
from tests.mcp.conftest import Servers, call, observe

if TYPE_CHECKING:
    from ohsandbox.runtime.base import Runtime

pytestmark = pytest.mark.timeout(600)  # the image is built once, in a minute; more on a slow line
MCP_PAGE = Path(__file__).parents[2] / "docs" / "mcp.md"
PAGE = "<html><body><h1>Hello</h1><p>The quick brown fox.</p></body></html>"
PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="

Step = tuple[str, dict[str, Any], str]
"""A tool, its arguments, and what the answer holds."""


def offered(servers: MCPServers) -> set[str]:
    return {tool.name for tool in servers.tools()}


def call_all(servers: MCPServers, steps: list[Step]) -> None:
    """Each step, and no tool that is offered left out."""
    for tool, arguments, expected in steps:
        observation = observe(servers, tool, **arguments)
        assert not observation.is_error, (tool, observation)
        assert expected in text_of(observation), (tool, observation)
    assert offered(servers) - {tool for tool, _, _ in steps} == set()


@pytest.mark.docker
def test_time(real_servers: Servers) -> None:
    started = real_servers({"time": {"command": "mcp-server-time", "args": ["--local-timezone=UTC"]}})
    tokyo = {"source_timezone": "UTC", "time": "12:00", "target_timezone": "Asia/Tokyo"}
    call_all(started, [("get_current_time", {"timezone": "UTC"}, "UTC"), ("convert_time", tokyo, "21:00")])
    assert observe(started, "get_current_time", timezone="Nowhere/Else").is_error


@pytest.mark.docker
def test_fetch_reads_a_page_inside_the_sandbox(real_servers: Servers, real: Runtime) -> None:
    real.write_bytes("www/index.html", PAGE.encode())
    web = real.channel(["python3", "-u", "-m", "http.server", "18923", "--directory", f"{real.workdir}/www"])
    try:
        web.read(5)
        args = ["--ignore-robots-txt", "--allow-private-ips"]
        started = real_servers({"fetch": {"command": "mcp-server-fetch", "args": args}})
        call_all(started, [("fetch", {"url": "http://127.0.0.1:18923/", "raw": True}, "quick brown fox")])
    finally:
        web.kill()
        web.close()


@pytest.mark.docker
def test_git(real_servers: Servers, real: Runtime) -> None:
    repo = f"{real.workdir}/repo"
    real.run(["git", "init", "-q", "-b", "main", repo])
    for key, value in (("user.name", "T"), ("user.email", "t@x.test")):
        real.run(["git", "-C", repo, "config", key, value])
    real.write_bytes(f"{repo}/a.txt", b"one\n")
    started = real_servers({"git": {"command": "mcp-server-git", "args": ["--repository", repo]}})
    steps: list[Step] = [
        ("git_status", {}, "a.txt"),
        ("git_add", {"files": ["a.txt"]}, "staged"),
        ("git_diff_staged", {}, "+one"),
        ("git_commit", {"message": "first"}, "committed"),
        ("git_log", {"max_count": 1}, "first"),
        ("git_show", {"revision": "HEAD"}, "+one"),
        ("git_create_branch", {"branch_name": "b"}, "b"),
        ("git_branch", {"branch_type": "local"}, "main"),
        ("git_checkout", {"branch_name": "b"}, "b"),
        ("git_diff", {"target": "main"}, "main"),
        ("git_diff_unstaged", {}, "changes"),
        ("git_reset", {}, "reset"),
    ]
    call_all(started, [(tool, {"repo_path": repo, **arguments}, said) for tool, arguments, said in steps])


@pytest.mark.docker
def test_filesystem(real_servers: Servers, real: Runtime) -> None:
    real.write_bytes("files/a.txt", b"alpha\nbeta\n")
    real.write_bytes("files/pixel.png", base64.b64decode(PIXEL))
    folder = f"{real.workdir}/files"
    started = real_servers({"files": {"command": "mcp-server-filesystem", "args": [folder]}})
    a, b, sub = f"{folder}/a.txt", f"{folder}/b.txt", f"{folder}/sub"
    steps: list[Step] = [
        ("list_allowed_directories", {}, folder),
        ("read_file", {"path": a}, "beta"),
        ("read_text_file", {"path": a, "head": 1}, "alpha"),
        ("read_media_file", {"path": f"{folder}/pixel.png"}, ""),
        ("write_file", {"path": b, "content": "gamma\n"}, "b.txt"),
        ("read_multiple_files", {"paths": [a, b]}, "gamma"),
        ("edit_file", {"path": b, "edits": [{"oldText": "gamma", "newText": "delta"}]}, "+delta"),
        ("create_directory", {"path": sub}, "sub"),
        ("move_file", {"source": b, "destination": f"{sub}/b.txt"}, "moved"),
        ("list_directory", {"path": folder}, "[DIR] sub"),
        ("list_directory_with_sizes", {"path": folder}, "a.txt"),
        ("directory_tree", {"path": folder}, "b.txt"),
        ("search_files", {"path": folder, "pattern": "**/b.txt"}, "sub/b.txt"),
        ("get_file_info", {"path": a}, "size: 11"),
    ]
    call_all(started, steps)
    assert real.read_bytes("files/sub/b.txt") == b"delta\n"
    image = observe(started, "read_media_file", path=f"{folder}/pixel.png")
    assert any(isinstance(part, ImageContent) for part in image.to_llm_content)
    assert observe(started, "read_text_file", path="/etc/passwd").is_error


@pytest.mark.docker
def test_memory(real_servers: Servers) -> None:
    entry = {"command": "mcp-server-memory", "env": {"MEMORY_FILE_PATH": "/tmp/memory.json"}}
    relation = {"from": "ann", "to": "bob", "relationType": "knows"}
    people = [{"name": name, "entityType": "person", "observations": ["tall"]} for name in ("ann", "bob")]
    steps: list[Step] = [
        ("create_entities", {"entities": people}, "ann"),
        ("create_relations", {"relations": [relation]}, "knows"),
        ("add_observations", {"observations": [{"entityName": "ann", "contents": ["kind"]}]}, "kind"),
        ("search_nodes", {"query": "kind"}, "ann"),
        ("open_nodes", {"names": ["bob"]}, "tall"),
        ("delete_observations", {"deletions": [{"entityName": "ann", "observations": ["tall"]}]}, "deleted"),
        ("delete_relations", {"relations": [relation]}, "deleted"),
        ("delete_entities", {"entityNames": ["bob"]}, "deleted"),
        ("read_graph", {}, "ann"),
    ]
    call_all(real_servers({"memory": entry}), steps)


@pytest.mark.docker
def test_everything(real_servers: Servers) -> None:
    started = real_servers({"everything": {"command": "mcp-server-everything"}})
    steps: list[Step] = [
        ("echo", {"message": "hi"}, "Echo: hi"),
        ("get-annotated-message", {"messageType": "success", "includeImage": True}, "success"),
        ("get-env", {}, "HOSTNAME"),
        ("get-resource-links", {"count": 2}, "not read: demo://resource"),
        ("get-resource-reference", {"resourceType": "Text", "resourceId": 1}, "Resource 1"),
        ("get-structured-content", {"location": "Chicago"}, "temperature"),
        ("get-sum", {"a": "2", "b": 3}, "5"),
        ("get-tiny-image", {}, "image"),
        ("gzip-file-as-resource", {"name": "x.gz", "data": "data:text/plain,hello"}, "x.gz"),
        ("toggle-simulated-logging", {}, "Started"),
        ("toggle-subscriber-updates", {}, "Started"),
        ("trigger-long-running-operation", {"duration": 0.2, "steps": 2}, "Steps: 2"),
    ]
    call_all(started, steps)
    assert "progress" in real_servers.kinds()
    assert "only as a task" in started.status()[0].refused["simulate-research-query"]


@pytest.mark.slow
@pytest.mark.docker
def test_two_hundred_calls_at_once_over_four_real_servers(real_servers: Servers) -> None:
    node = {"command": "mcp-server-everything", "include": ["echo"]}
    clock = {"command": "mcp-server-time", "args": ["--local-timezone=UTC"], "include": ["get_current_time"]}
    started = real_servers({"n1": node, "n2": node, "t1": clock, "t2": clock})
    tools = started.tools()
    assert len(tools) == 4

    def one(number: int) -> bool:
        tool = tools[number % 4]
        echoes = tool.listed.name == "echo"
        arguments = {"message": f"<{number}>"} if echoes else {"timezone": "UTC"}
        said = text_of(tool(tool.action_from_arguments(arguments)))
        return (f"<{number}>" if echoes else "UTC") in said

    with ThreadPoolExecutor(200) as pool:
        assert all(pool.map(one, range(200)))


def signal_to(runtime: Runtime, name: str, program: str) -> None:
    """To each process with program in its command line, but for the shell that looks for it."""
    pattern = f"{program[:-1]}[{program[-1]}]"
    found = f"$(grep -ls {pattern} /proc/[0-9]*/cmdline | cut -d/ -f3)"
    assert runtime.run(["sh", "-c", f"kill -{name} {found}"]).exit_code == 0


@pytest.mark.slow
@pytest.mark.docker
@pytest.mark.parametrize("command", ["mcp-server-everything", "mcp-server-time"])
def test_a_real_server_killed_in_mid_call_is_told_at_once_and_comes_back(
    real_servers: Servers, real: Runtime, command: str
) -> None:
    started = real_servers({"one": {"command": command}, "odd": {"command": "mcp-server-memory"}})
    node = command == "mcp-server-everything"
    tool = "trigger-long-running-operation" if node else "get_current_time"
    arguments: dict[str, Any] = {"duration": 60, "steps": 2} if node else {"timezone": "UTC"}
    observe(started, "read_graph")
    with ThreadPoolExecutor(1) as pool:
        if not node:  # its calls are over in a millisecond: it is stopped first
            signal_to(real, "STOP", command)
        waiting = pool.submit(observe, started, tool, **arguments)
        deadline = time.monotonic() + 60
        while not started._in_flight and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(0.2)
        began = time.monotonic()
        signal_to(real, "KILL", command)
        with pytest.raises(MCPServerGoneError, match="exit code 137"):
            waiting.result(60)
        assert time.monotonic() - began < 20
    observe(started, "read_graph")
    if not node:
        assert "UTC" in call(started, tool, **arguments)


# --- installed first ----------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.docker
def test_a_server_is_downloaded_under_an_open_network_with_the_hosts_certificates(real_image: str) -> None:
    """What `npx`, `pip` and `uvx` print while they download is told, and no time runs out meanwhile."""
    from ohsandbox import DockerRuntime  # noqa: PLC0415 - slow to import, and not every run needs it

    ca = os.environ.get("SSL_CERT_FILE") or "/etc/ssl/certs/ca-certificates.crt"
    venv = "python3 -m venv --without-pip /tmp/v; pip --python /tmp/v install mcp-server-time"
    uv = "pip install --quiet --target /tmp/uv uv; exec /tmp/uv/bin/uvx mcp-server-fetch"
    thinking = "@modelcontextprotocol/server-sequential-thinking"
    blocks = re.findall(r"^```json\n(.*?)^```", MCP_PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    on_the_page = next(json.loads(block) for block in blocks if "server-filesystem" in block)
    # a site's own registries may have private addresses, which the open network closes
    hosts = {one.host for one in shared_package_hosts().all()}
    own = {str(info[4][0]) for host in hosts for info in socket.getaddrinfo(host, 443, socket.AF_INET)}
    with DockerRuntime(real_image, network="open", allow=sorted(own), ca_bundle=ca) as runtime:
        made = Servers(runtime)
        started = made(
            {
                "npx": {"command": "npx", "args": ["-y", thinking]},
                "files": on_the_page["mcpServers"]["files"],
                "pip": {"command": "sh", "args": ["-c", f"{venv}; exec /tmp/v/bin/mcp-server-time"]},
                "uvx": {"command": "sh", "args": ["-c", uv]},
            }
        )
        try:
            assert {"sequentialthinking", "convert_time", "list_directory", "fetch"} <= offered(started), (
                started.missing()
            )
            assert "write_file" not in offered(started)
            words = {(event.server, event.message.split()[0]) for event in made.events if event.kind == "status"}
            assert ("npx", "npm") in words
            assert any(server == "uvx" for server, _ in words)
            assert words & {("pip", "Collecting"), ("pip", "Downloading"), ("pip", "Installing")}
        finally:
            made.close()


@pytest.mark.docker
def test_without_a_network_a_download_fails_with_its_own_words(real_servers: Servers) -> None:
    install = "pip install --target /tmp/t --retries 0 no-such-server && exec no-such-server"
    started = real_servers({"pip": {"command": "sh", "args": ["-c", install]}})
    started.wait()
    assert "'pip' ended while it started" in started.missing()
    assert "No matching distribution" in started.missing()
