"""The command against a real engine."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ohsandbox.runtime.build_options import Build, resolved_build
from ohsandbox.runtime.docker.engine.connection import connect
from ohsandbox.runtime.docker.images import build, engine_images
from ohsandbox.runtime.docker.runtime import DockerRuntime
from ohsandbox.testing.provider import FakeProvider, calls, text
from tests.cli.conftest import Invoke, Start, WriteScript

pytestmark = pytest.mark.docker


def _containers() -> list[str]:
    """Names of all containers that are labelled as ours."""
    listed = subprocess.run(
        [sys.executable, "-m", "ohsandbox", "ps", "--json"], capture_output=True, check=True, timeout=60
    )
    return [found["name"] for found in json.loads(listed.stdout) if found["ours"]]


def test_a_run_asks_the_provider_works_in_the_container_and_removes_it(start: Start, image: str) -> None:
    replies = calls(("execute_bash", {"command": "id -u; echo marker-$((6*7))"})), text("All done.")
    with FakeProvider(*replies) as provider:
        process = start(
            "run", "look around", "--no-tui", "--image", image,
            "--model", "openai/fake", "--base-url", provider.base_url, "--api-key", "test",
        )  # fmt: skip
        out, err = process.communicate(timeout=110)
    assert process.returncode == 0, err
    assert b"marker-42" in out
    assert b"answer   All done." in out
    assert len(provider.requests) == 2
    assert _containers() == []


@pytest.mark.slow
def test_a_provider_that_refuses_is_exit_code_5_and_leaves_no_container(start: Start, image: str) -> None:
    with FakeProvider() as provider:
        process = start(
            "run", "x", "--no-tui", "--image", image,
            "--model", "openai/fake", "--base-url", provider.base_url, "--api-key", "test",
        )  # fmt: skip
        _, err = process.communicate(timeout=110)
    assert process.returncode == 5
    assert err.splitlines()[-1].startswith(b"ohsandbox: ")
    assert _containers() == []


def test_the_demo_ends_green(start: Start, image: str) -> None:
    process = start("demo", "--no-tui", "--image", image)
    out, err = process.communicate(timeout=110)
    assert process.returncode == 0, err
    assert b"FAILED (failures=1)" in out
    assert _containers() == []


def test_an_image_that_cannot_be_had_names_those_that_are_here(invoke: Invoke) -> None:
    ended = invoke("demo", "--no-tui", "--image", "localhost:1/ohsandbox/nothing:here")
    assert ended.code == 4
    assert "Here are: " in ended.err


def test_files_of_a_workspace_are_on_the_host(invoke: Invoke, image: str, tmp_path: Path) -> None:
    workspace = tmp_path / "work"
    workspace.mkdir()
    arguments = ["exec", "--image", image, "--workspace", str(workspace), "--", "sh", "-c", "echo hi > file; pwd"]
    assert invoke(*arguments)[:2] == (0, "/workspace\n")
    assert (workspace / "file").read_text() == "hi\n"


@pytest.mark.parametrize(
    ("command", "code"), [(["sh", "-c", "exit 7"], 7), (["nosuch"], 127), (["/etc/passwd"], 126), (["true"], 0)]
)
def test_exec_ends_as_its_command_does(invoke: Invoke, image: str, command: list[str], code: int) -> None:
    assert invoke("exec", "--image", image, "--", *command).code == code


def test_exec_kills_what_takes_too_long_with_124(invoke: Invoke, image: str) -> None:
    assert invoke("exec", "--image", image, "--timeout", "1", "--", "sleep", "60").code == 124


def test_exec_is_binary_safe_both_ways_and_keeps_streams_apart(start: Start, image: str) -> None:
    data = bytes(range(256)) * 4096
    process = start("exec", "--image", image, "--", "sh", "-c", "cat; echo err >&2", stdin=subprocess.PIPE)
    assert process.communicate(data, timeout=60) == (data, b"err\n")


def test_exec_passes_variables_and_user(invoke: Invoke, image: str) -> None:
    ended = invoke("exec", "--image", image, "-e", "A=b=c", "--user", "1234", "--", "sh", "-c", "echo $A; id -u")
    assert ended[:2] == (0, "b=c\n1234\n")


def test_run_and_mcp_serve_pass_variables_and_user(start: Start, write_script: WriteScript, image: str) -> None:
    options = ["--image", image, "-e", "A=b=c", "--user", "1234"]
    model = write_script(("", "echo $A-$(id -u)"), ("done", None))
    out, err = start("run", "x", "--no-tui", "--model", model, *options).communicate(timeout=110)
    assert b"b=c-1234" in out, err
    known = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}
    call = {"name": "execute_bash", "arguments": {"command": "echo $A-$(id -u)"}}
    served = start("mcp", "serve", *options, stdin=subprocess.PIPE)
    assert served.stdin is not None
    assert served.stdout is not None
    for message in (
        {"id": 1, "method": "initialize", "params": known},
        {"method": "notifications/initialized"},
        {"id": 2, "method": "tools/call", "params": call},
    ):
        served.stdin.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")
    served.stdin.flush()
    answer = next(line for line in served.stdout if json.loads(line).get("id") == 2)
    assert b"b=c-1234" in answer
    served.communicate(timeout=60)
    assert _containers() == []


@pytest.mark.slow
def test_images_of_others_are_pruned_only_by_name(invoke: Invoke, image: str, home: Path, tmp_path: Path) -> None:
    context = tmp_path / "context"
    context.mkdir()
    (context / "Dockerfile").write_text(f"FROM {image}\nLABEL of={tmp_path}\n")
    engine = connect()
    built = build.ensure(engine, resolved_build(Build(context)))
    assert "Use --yes." in invoke("images", "prune").err
    assert f"would remove: {built} (" in invoke("images", "prune", "--dry-run").out
    own = home / ".ohsandbox"
    own.rename(home / "unmounted")
    stays = invoke("images", "prune", "--yes").out
    assert f"stays: {built} (" in stays
    assert f"another user or state directory made it. `ohsandbox images prune {built}` removes it" in stays
    assert engine_images.inspect(engine, built) is not None
    shutil.rmtree(own, ignore_errors=True)
    (home / "unmounted").rename(own)
    assert invoke("images", "prune", "--yes").out.endswith("Removed 1 image.\n")
    assert engine_images.inspect(engine, built) is None
    assert "is not an image of ohsandbox" in invoke("images", "prune", image, "--yes").err
    engine.close()


@pytest.mark.slow
def test_caches_are_listed_and_pruned_but_not_while_a_sandbox_has_them(
    invoke: Invoke, image: str, tmp_path: Path, home: Path
) -> None:
    workspace = tmp_path / "work"
    workspace.mkdir()
    assert invoke("cache", "list").out == "No package caches.\n"
    with DockerRuntime(image, workspace=workspace, cache="project") as sandbox:
        assert sandbox.run(["sh", "-c", "head -c 3000000 /dev/zero >$PIP_CACHE_DIR/wheel"]).exit_code == 0
        [found] = json.loads(invoke("cache", "list", "--json").out)
        assert (found["scope"], found["in_use"], found["image"]) == (str(workspace), True, image)
        assert found["size_bytes"] >= 3_000_000
        assert str(workspace) not in invoke("cache", "prune", "--yes").out
        told = invoke("cache", "prune", found["name"], "--yes")
        kept = f"{workspace} ({image}, 2.9 MiB, {found['name'].rpartition('-')[2][:8]}) stays: a sandbox has it."
        assert (told.code, told.out.splitlines()[-1]) == (1, kept)
    refused = invoke("cache", "prune")
    assert (refused.code, "Use --yes." in refused.err) == (2, True)
    assert "is not a cache of yours" in invoke("cache", "prune", "ohsandbox-cache-other", "--yes").err
    # what another state directory made, which may be on a disk that is not mounted now, goes only by its name
    home.joinpath(".ohsandbox").rename(home / "elsewhere")
    short = found["name"].rpartition("-")[2][:8]
    stays = invoke("cache", "prune", "--yes").out
    assert f"`ohsandbox cache prune {short}` removes it" in stays
    assert stays.endswith("Nothing to remove.\n")
    assert f"would remove: state directory '{home}/.ohsandbox'" in invoke("cache", "prune", short, "--dry-run").out
    assert invoke("cache", "prune", short, "--yes").out.endswith("Removed 1 package cache.\n")
    assert invoke("cache", "list").out == "No package caches.\n"


def test_a_kept_container_can_be_joined_and_collected(start: Start, invoke: Invoke, image: str) -> None:
    with FakeProvider(text("ok")) as provider:
        model = ["--model", "openai/fake", "--base-url", provider.base_url, "--api-key", "test"]
        out, _ = start("run", "x", "--no-tui", "--image", image, "--keep", *model).communicate(timeout=110)
    (name,) = _containers()
    assert f"ohsandbox run --attach {name}".encode() in out
    assert invoke("exec", "--attach", name, "--", "echo", "there")[:2] == (0, "there\n")
    assert name in invoke("ps").out
    assert invoke("gc", "--dry-run").out == "Nothing to remove.\n"
    assert f"would remove {name}" in invoke("gc", "--dry-run", "--kept").out
    assert f"removed {name}" in invoke("gc", "--kept").out
    assert _containers() == []


def test_the_doctor_reports_the_engine(invoke: Invoke) -> None:
    ended = invoke("doctor", "--json")
    assert ended.code == 0
    assert {"engine", "runc", "storage", "seccomp", "model key"} <= {check["name"] for check in json.loads(ended.out)}


@pytest.mark.slow
def test_everything_that_is_kept_is_private_whatever_the_umask(
    start: Start, write_script: WriteScript, image: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = tmp_path / "not there" / "state"
    state.parent.parent.chmod(0o755)
    monkeypatch.setenv("OHSANDBOX_HOME", str(state))
    edit = {"command": "create", "path": "f", "file_text": "x"}
    plan = {"command": "plan", "task_list": [{"title": "a"}]}
    model = write_script(
        {"content": "", "tool_calls": [{"name": "file_editor", "arguments": edit}]},
        {"content": "", "tool_calls": [{"name": "task_tracker", "arguments": plan}]},
        ("", "seq 100000; echo y > g"),
        ("done", None),
    )
    (tmp_path / "w").mkdir()
    config = tmp_path / "mcp.json"
    config.write_text(json.dumps({"mcpServers": {"none": {"command": "false"}}}))
    where = ("--image", image, "--workspace", str(tmp_path / "w"), "--mcp-config", str(config))
    run = start("run", "go", "--model", model, "--no-tui", *where, umask=0)
    out, err = run.communicate(timeout=110)
    assert run.returncode == 0, out + err
    undo = start("undo", "--yes", umask=0)
    undo.communicate(timeout=60)
    assert undo.returncode == 0
    kept = [state.parent, *state.parent.rglob("*")]
    assert not (tmp_path / "home" / ".ohsandbox").exists()
    assert any(path.parent.name == "checkpoints" for path in kept)
    assert any(path.parent.name == "objects" for path in kept)
    loose = [str(path) for path in kept if path.lstat().st_mode & 0o077 and not path.is_symlink()]
    assert loose == []
