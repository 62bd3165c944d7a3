"""`ohsandbox run` with an engine on another machine: a copy of the workspace, and its changes by a person's word."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.conftest import drop_checkpoints
from tests.runtime.ssh_server import PROGRAM, ssh_program, ssh_server

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.cli.conftest import Invoke, Recorded, Start, WriteScript

pytestmark = [
    pytest.mark.docker,
    pytest.mark.skipif(PROGRAM is None, reason="sshd is not installed (Debian: openssh-server)"),
]
HOSTILE = (
    "echo new >new; ln -s /etc/passwd link; printf '#!/bin/sh\\n' >.git/hooks/post-checkout; mkdir -p .vscode; "
    "echo '{}' >.vscode/tasks.json"
)


@pytest.fixture
def machine(tmp_path: Path, home: Path) -> Iterator[None]:
    (tmp_path / "ssh").mkdir()
    with ssh_server(tmp_path / "ssh") as config, pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", f"{ssh_program(tmp_path / 'bin', config)}:{os.environ['PATH']}")
        patch.setenv("DOCKER_HOST", "ssh://machine")
        yield
        drop_checkpoints(home / ".ohsandbox")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    root = tmp_path / "project"
    root.mkdir()
    subprocess.run(["git", "init", "-q"], cwd=root, check=True)
    (root / "text").write_text("one\n")
    return root


@pytest.mark.usefixtures("machine")
def test_the_agent_works_on_a_copy_and_a_person_is_asked_about_its_changes_at_the_end(
    at_terminal: Callable[..., Recorded], invoke: Invoke, write_script: WriteScript, image: str, project: Path
) -> None:
    where = ("--image", image, "--workspace", str(project), "--confirm", "never")
    model = write_script(("go", HOSTILE), ("finished", None))
    ended = at_terminal(
        "run", "go", "--model", model, *where, answers=[(b"finished", b"\x04"), (b"Change these", b"n\n")]
    )
    told = ended.raw.decode()
    assert "The engine is at ssh://machine: the agent works on a copy" in told
    assert "left out: link: " in told
    assert "Nothing was changed." in told
    assert sorted(path.name for path in project.iterdir()) == [".git", "text"]
    refused = invoke("exec", *where[:4], "true")
    assert f"which cannot bind {project}. Use `ohsandbox exec --copy`" in refused.err
    refused = invoke("mcp", "serve", *where[:4])
    assert "Use `ohsandbox mcp serve --copy`" in refused.err

    done = invoke("apply", "last", "--yes")
    assert done.code == 0, done.err
    assert (project / "new").read_text() == "new\n"
    assert not (project / ".git" / "hooks" / "post-checkout").exists()
    assert ".vscode/tasks.json" in done.out + done.err


@pytest.mark.slow
@pytest.mark.usefixtures("machine")
def test_what_a_killed_run_made_comes_back_once_it_has_gone_on(  # noqa: PLR0917 - fixtures
    start: Start, invoke: Invoke, write_script: WriteScript, image: str, project: Path, home: Path
) -> None:
    model = write_script(("go", "echo new >new"), ("wait", "sleep 61.75"), ("more", "touch more"), ("over", None))
    where = ("--image", image, "--workspace", str(project), "--confirm", "never", "--no-tui")
    killed = start("run", "go", "--model", model, *where)
    logs = home / ".ohsandbox" / "conversations"
    while sum(path.read_text().count('"type":"tool_call"') for path in logs.glob("*/sdk_events.jsonl")) < 2:
        assert killed.poll() is None, killed.communicate()
    killed.kill()
    killed.wait()
    early = invoke("apply", "last", "--yes")
    assert "Its last turn was cut off" in early.err
    assert "ohsandbox run --resume " in early.err
    with Path(os.devnull).open() as nothing, pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.stdin", nothing)
        ended = invoke("run", "--autoresume", "--no-tui")
    assert ended.code == 0, ended.err
    done = invoke("apply", "last", "--yes")
    assert done.code == 0, done.err
    assert "cut off" not in done.err
    assert (project / "new").read_text() == "new\n"
    assert (project / "more").exists()
