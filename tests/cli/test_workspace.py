"""What a person is told of a bound workspace, on the command line."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli.conftest import Invoke, Start, WriteScript

PLANT = "mkdir -p lib/.git; printf '[core]\\n\\tfsmonitor = evil\\n' > lib/.git/config; touch .envrc"
TOLD = [
    "git runs what it names as soon as you use git, or your prompt or editor does (1):",
    "  new: lib/.git/config (core.fsmonitor = evil)",
    "an editor, an agent or a shell runs it when the directory is opened (1):",
    "  new: .envrc",
]


def told(err: str) -> list[str]:
    return [line.removeprefix("ohsandbox: ") for line in err.splitlines()]


@pytest.mark.parametrize("git", ["--git", "rw"])
def test_git_needs_a_workspace(invoke: Invoke, git: str) -> None:
    ended = invoke("exec", git, "rw", "--", "true") if git == "--git" else invoke("run", "x", "--git", git)
    assert (ended.code, ended.err) == (
        2,
        "ohsandbox: --git needs a directory to protect. Name one with --workspace, or leave out --git.\n",
    )


def test_git_is_one_of_three(invoke: Invoke, workspace: Path) -> None:
    ended = invoke("exec", "--workspace", str(workspace), "--git", "maybe", "--", "true")
    assert ended.code == 2
    assert "'guarded', 'ro', 'rw'" in ended.err


@pytest.mark.docker
def test_exec_tells_what_its_command_left(invoke: Invoke, image: str, workspace: Path) -> None:
    ended = invoke("exec", "--image", image, "--workspace", str(workspace), "--", "sh", "-c", f"{PLANT}; echo out")
    assert ended[:2] == (0, "out\n")
    lines = told(ended.err)
    assert lines[0].startswith(f"Look at these before you work in {workspace} again")
    assert lines[1:] == TOLD
    assert invoke("exec", "--image", image, "--workspace", str(workspace), "--", "true").err == ""


@pytest.mark.slow
@pytest.mark.docker
def test_what_a_killed_command_left_is_told_by_the_next(
    invoke: Invoke, start: Start, image: str, workspace: Path
) -> None:
    doing = ["sh", "-c", f"{PLANT}; touch done; sleep 100"]
    process = start("exec", "--image", image, "--workspace", str(workspace), "--", *doing)
    deadline = time.monotonic() + 60
    while not (workspace / "done").exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    process.send_signal(signal.SIGKILL)
    process.wait(timeout=60)
    lines = told(invoke("exec", "--image", image, "--workspace", str(workspace), "--", "true").err)
    assert lines[0].endswith("when a session began that was killed):")
    assert lines[1:] == TOLD


@pytest.mark.docker
def test_rw_is_one_line(invoke: Invoke, image: str, workspace: Path) -> None:
    subprocess.run(["git", "init", "-q", str(workspace)], check=True)
    where = ("--image", image, "--workspace", str(workspace))
    guarded = invoke("exec", *where, "--", "sh", "-c", "echo >> .git/config")
    assert guarded.code != 0
    ended = invoke("exec", *where, "--git", "rw", "--", "sh", "-c", "echo >> .git/config")
    assert ended.code == 0
    assert told(ended.err)[0] == "--git rw: the sandbox can change what git, editors and agents run from the workspace."
    assert told(ended.err)[2:] == ["git takes it for a repository (1):", "  changed: .git/config"]


@pytest.mark.docker
def test_the_settings_say_it_as_well(invoke: Invoke, image: str, workspace: Path, home: Path) -> None:
    subprocess.run(["git", "init", "-q", str(workspace)], check=True)
    (home / ".ohsandbox").mkdir(mode=0o700)
    (home / ".ohsandbox" / "settings.json").write_text(json.dumps({"git": "ro"}))
    ended = invoke("exec", "--image", image, "--workspace", str(workspace), "--", "sh", "-c", "touch .git/x")
    assert ended.code != 0


@pytest.mark.slow
@pytest.mark.docker
def test_run_tells_after_each_turn_and_once(
    start: Start, image: str, workspace: Path, write_script: WriteScript
) -> None:
    model = write_script(("planting", PLANT), ("done", None), ("nothing more", None))
    process = start(
        "run", "--image", image, "--workspace", str(workspace), "--model", model, "--no-tui", stdin=subprocess.PIPE
    )
    out, err = process.communicate(b"go\nagain\n/exit\n", timeout=110)
    assert process.returncode == 0, err
    lines = out.decode().splitlines()
    [changed] = [line for line in lines if "info     Changed: " in line]
    assert "Changed: 1 file: .envrc. To see it: ohsandbox diff 2" in changed
    told_at = [number for number, line in enumerate(lines) if "lib/.git/config (core.fsmonitor" in line]
    assert len(told_at) == 1
    assert told_at[0] < next(number for number, line in enumerate(lines) if "nothing more" in line)
