"""`copy=`: the files of a directory in a container to which nothing of this machine is bound."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ohsandbox.errors import UsageError
from ohsandbox.runtime.docker.runtime import DockerRuntime

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.docker


@pytest.fixture
def project(tmp_path: Path) -> Path:
    root = tmp_path / "project"
    (root / "sub").mkdir(parents=True)
    (root / "sub" / "run.sh").write_text("#!/bin/sh\n")
    (root / "sub" / "run.sh").chmod(0o755)
    (root / "link").symlink_to("sub/run.sh")
    (root / ".env").write_text("TOKEN=canary")
    (root / ".gitignore").write_text("build/\n")
    (root / "build").mkdir()
    (root / "build" / "out").write_text("x")
    git = ["git", "-c", "user.name=n", "-c", "user.email=e"]
    for arguments in (["init", "-q"], ["add", "."], ["commit", "-qm", "one"]):
        subprocess.run([*git, *arguments], cwd=root, check=True, capture_output=True)
    with (root / ".git" / "config").open("a") as config:
        config.write('[remote "origin"]\n\turl = https://canary@example.invalid/x\n')
    return root


@pytest.mark.parametrize("tag", ["debian", "busybox", "nonroot"])
def test_a_copy_holds_the_work_and_nothing_of_the_host_is_bound(
    sandbox: Callable[..., DockerRuntime], project: Path, tag: str
) -> None:
    runtime = sandbox(f"ohsandbox-base:{tag}", workspace=project, copy=True)
    assert runtime.workdir == "/workspace"
    assert runtime.host_workspace is None
    assert runtime.copied_workspace == project
    assert runtime.left_out == {".env": "looks like a secret", "build/": "ignored by git"}
    inside = runtime.run(["sh", "-c", "find . -path ./.git -prune -o -print | sort; test -x link && echo runs"])
    assert inside.stdout.decode().split() == [".", "./.gitignore", "./link", "./sub", "./sub/run.sh", "runs"]
    assert str(project).encode() not in runtime.read_bytes("/proc/self/mountinfo")
    assert b"canary" not in runtime.run(["sh", "-c", "grep -r canary /workspace"]).stdout
    runtime.execute("rm -rf sub && echo mine > mine")
    assert not (project / "mine").exists()
    assert (project / "sub" / "run.sh").exists()


def test_the_history_in_a_copy_is_whole(sandbox: Callable[..., DockerRuntime], project: Path, tmp_path: Path) -> None:
    runtime = sandbox(workspace=project, copy=True)
    there = tmp_path / "there"
    runtime.download("/workspace", there)
    done = subprocess.run(
        "git fsck --strict && git log --format=%s && git status --porcelain && git remote; ls .git/hooks",
        shell=True, cwd=there, capture_output=True, check=False,
    )  # fmt: skip
    assert done.stdout == b"one\n D .env\n", done.stderr


def test_all_of_it_can_be_taken_along(sandbox: Callable[..., DockerRuntime], project: Path) -> None:
    runtime = sandbox(workspace=project, copy="all")
    assert runtime.left_out == {}
    assert runtime.read_bytes(".env") == b"TOKEN=canary"
    assert runtime.read_bytes("build/out") == b"x"


def test_a_checkpoint_of_a_copy_is_not_copied_over(sandbox: Callable[..., DockerRuntime], project: Path) -> None:
    runtime = sandbox(workspace=project, copy=True)
    runtime.execute("echo mine > mine; rm -r sub")
    checkpoint = runtime.checkpoint()
    forked = runtime.fork(checkpoint.id, conversation="c").start()
    try:
        assert forked.copied_workspace == project
        assert forked.run(["ls"]).stdout == b"link\nmine\n"
        assert forked.workdir == "/workspace"
    finally:
        forked.close()


def test_what_cannot_be_copied_is_refused_before_an_engine_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UsageError, match="copy= needs a directory"):
        DockerRuntime(copy=True)
    with pytest.raises(UsageError, match="attach="):
        DockerRuntime(workspace=tmp_path, copy=True, attach="some-name")
    (tmp_path / ".ssh").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(UsageError, match="secrets"):
        DockerRuntime(workspace=tmp_path / ".ssh", copy=True)


def test_our_own_package_may_be_copied_and_not_bound() -> None:
    place = Path(__file__).parents[3]
    with pytest.raises(UsageError, match="work on a copy"):
        DockerRuntime(workspace=place)
    assert DockerRuntime(workspace=place, copy=True).copied_workspace == place.resolve()
