from __future__ import annotations

import os
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ohsandbox.runtime.docker.mounts import git_exclude
from ohsandbox.runtime.docker.mounts.guard import guard, release
from ohsandbox.runtime.docker.ownership.tree_uses import TreeUses

EXCLUDE = Path(".git", "info", "exclude")
HOOKS_IN_EVIL = "[core]\n\thooksPath = src/evil\n"


def git(directory: Path, *arguments: str) -> str:
    environment = {"PATH": os.environ["PATH"], "GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": "/dev/null"}
    command = ["git", "-c", "safe.directory=*", "-c", "user.name=x", "-c", "user.email=x", *arguments]
    return subprocess.run(command, cwd=directory, env=environment, check=True, capture_output=True, text=True).stdout


def repository(directory: Path) -> Path:
    directory.mkdir()
    git(directory, "init", "-q")
    git(directory, "commit", "-q", "--allow-empty", "-m", "first")
    return directory


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    """Another repository of this machine, with a file that the person has not committed yet."""
    victim = repository(tmp_path / "victim")
    (victim / "src" / "evil").mkdir(parents=True)
    (victim / "src" / "evil" / "x").touch()
    return victim


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A repository that names a missing program, for which `guard` puts a file there."""
    project = repository(tmp_path / "project")
    git(project, "config", "diff.external", "tools/dx")
    return project


def line_for(workspace: Path) -> str:
    """What an earlier start would have written for a workspace, which a release takes out."""
    return f"# The next line goes with the sandbox of ohsandbox that works in {workspace}.\n/x\n"


def starts_and_ends(workspace: Path) -> None:
    guard(str(workspace), "guarded")
    release(str(workspace), uses=TreeUses())


def assert_guard_leaves(victim: Path, workspace: Path) -> None:
    """Guard the workspace and release it: the victim's exclude stays, with a line that looks like one of ours."""
    exclude = victim / EXCLUDE
    exclude.write_text(line_for(workspace))
    before = exclude.read_text()
    guard(str(workspace), "guarded")
    assert (workspace / "src" / "evil").is_dir()
    assert exclude.read_text() == before
    release(str(workspace), uses=TreeUses())
    assert exclude.read_text() == before


def test_a_commondir_that_a_sandbox_wrote_leads_to_no_other_repository(victim: Path, tmp_path: Path) -> None:
    workspace = tmp_path / "workspace"
    (workspace / ".git" / "info").mkdir(parents=True)
    (workspace / ".git" / "HEAD").write_text("ref: refs/heads/main\n")
    (workspace / ".git" / "commondir").write_text("../../victim/.git\n")
    (workspace / ".git" / "config.worktree").write_text(HOOKS_IN_EVIL)
    git(victim, "config", "extensions.worktreeConfig", "true")
    assert_guard_leaves(victim, workspace)


def forge_worktree(mount: Path, workspace: Path, victim: Path, common: str) -> None:
    """A git directory in a writable mount that says it is the workspace's, and belongs to the victim's repository."""
    fake = mount / "fake"
    fake.mkdir(parents=True)
    (fake / "HEAD").write_text("ref: refs/heads/main\n")
    (fake / "gitdir").write_text(f"{workspace}/.git\n")
    (fake / "commondir").write_text(f"{common}\n")
    (fake / "config.worktree").write_text(HOOKS_IN_EVIL)
    git(victim, "config", "extensions.worktreeConfig", "true")
    (workspace / ".git").write_text(f"gitdir: {fake}\n")


@pytest.mark.parametrize("common", ["../../victim/.git", "{victim}/.git"])
def test_a_git_directory_in_a_writable_mount_leads_to_no_other_repository(
    common: str, victim: Path, tmp_path: Path
) -> None:
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    forge_worktree(tmp_path / "data", workspace, victim, common.format(victim=victim))
    assert_guard_leaves(victim, workspace)
    assert "src/evil/x" in git(victim, "status", "--porcelain", "-uall")


def test_a_link_in_place_of_a_git_directory_around_leads_to_no_other_repository(victim: Path, tmp_path: Path) -> None:
    workspace = tmp_path / "data" / "workspace"
    workspace.mkdir(parents=True)
    (tmp_path / "data" / ".git").symlink_to(victim / ".git")
    before = (victim / EXCLUDE).read_text()
    git(victim, "config", "diff.external", str(workspace / "dx"))
    guard(str(workspace), "guarded")
    assert (workspace / "dx").exists()
    assert (victim / EXCLUDE).read_text() == before


def test_an_exclude_behind_a_link_stays_as_it_is(project: Path, tmp_path: Path) -> None:
    dotfile = tmp_path / "dotfile"
    dotfile.write_text("mine\n")
    (project / EXCLUDE).unlink()
    (project / EXCLUDE).symlink_to(dotfile)
    starts_and_ends(project)
    assert (project / EXCLUDE).readlink() == dotfile
    assert dotfile.read_text() == "mine\n"


def test_what_is_no_file_stays_as_it_is(project: Path) -> None:
    (project / EXCLUDE).unlink()
    os.mkfifo(project / EXCLUDE)
    starts_and_ends(project)
    assert (project / EXCLUDE).is_fifo()


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads every file")
def test_an_exclude_that_cannot_be_read_stays_as_it_is(project: Path) -> None:
    (project / EXCLUDE).write_text("mine\n")
    (project / EXCLUDE).chmod(0o200)
    starts_and_ends(project)
    (project / EXCLUDE).chmod(0o600)
    assert (project / EXCLUDE).read_text() == "mine\n"


def test_a_long_exclude_is_not_cut(project: Path) -> None:
    guard(str(project), "guarded")
    exclude = project / EXCLUDE
    long = exclude.read_text() + "mine\n" * 80_000
    assert "/tools/dx\n" in long
    exclude.write_text(long)
    release(str(project), uses=TreeUses())
    assert exclude.read_text() == long


def test_an_exclude_keeps_its_mode(project: Path) -> None:
    exclude = project / EXCLUDE
    exclude.write_text("mine\n")
    exclude.chmod(0o640)
    guard(str(project), "guarded")
    assert "/tools/dx\n" in exclude.read_text()
    assert exclude.stat().st_mode & 0o777 == 0o640
    release(str(project), uses=TreeUses())
    assert (exclude.read_text(), exclude.stat().st_mode & 0o777) == ("mine\n", 0o640)


def test_sandboxes_of_one_repository_that_start_at_once_lose_no_line(tmp_path: Path) -> None:
    project = repository(tmp_path / "project")
    parts = [project / f"part{number}" for number in range(4)]

    def add_all(part: Path) -> None:
        for number in range(60):
            git_exclude.add(str(part), f"x{number}", {"..": str(project / ".git")})

    for part in parts:
        part.mkdir()
    with ThreadPoolExecutor(len(parts)) as at_once:
        assert list(at_once.map(add_all, parts)) == [None] * len(parts)
    lines = set((project / EXCLUDE).read_text().splitlines())
    assert {f"/{part.name}/x{number}" for part in parts for number in range(60)} - lines == set()
    for part in parts:
        git_exclude.clean(str(part), str(project / ".git"))
    assert "ohsandbox" not in (project / EXCLUDE).read_text()
