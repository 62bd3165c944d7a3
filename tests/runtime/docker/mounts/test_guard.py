from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from ohsandbox.errors import SandboxUnavailable, UsageError
from ohsandbox.runtime.docker import DockerRuntime
from ohsandbox.runtime.docker.inventory.docker_inventory import DockerInventory
from ohsandbox.runtime.docker.mounts import guard as guards
from ohsandbox.runtime.docker.mounts.guard import guard
from ohsandbox.runtime.docker.mounts.guard_mounts import GuardMount, verify_mounts
from ohsandbox.runtime.docker.ownership import lease
from ohsandbox.runtime.docker.ownership.lease import workspace_digest
from ohsandbox.runtime.docker.ownership.tree_uses import TreeUses
from ohsandbox.runtime.workspace.changes import ChangeKind
from ohsandbox.runtime.workspace.git_settings import read_settings
from tests.runtime.engines import PODMAN, podman

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ohsandbox.runtime.docker.engine.connection import Engine

NOBODYS = {"GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": "/dev/null"}
OWNER = 12345
MAKE_CANARY = "touch canary-ran"


def held(path: str) -> GuardMount:
    return GuardMount(path, read_only=False)


def locked(path: str) -> GuardMount:
    return GuardMount(path, read_only=True)


def host_git(directory: Path, *arguments: str, check: bool = True) -> str:
    """Git as the person runs it, with no configuration but the repository's."""
    done = subprocess.run(
        ["git", "-c", "safe.directory=*", "-c", "protocol.file.allow=always", *arguments],
        cwd=directory,
        env={"PATH": os.environ["PATH"], "HOME": "/nonexistent", "EMAIL": "a@b", **NOBODYS},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert not check or done.returncode == 0, done.stderr
    return done.stdout


def owned(directory: Path, uid: int = OWNER) -> Path:
    if os.getuid() == 0:
        for path in [directory, *directory.rglob("*")]:
            os.chown(path, uid, uid, follow_symlinks=False)
    return directory


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A repository with a commit, a submodule, a worktree and a nested repository."""
    other, project = tmp_path / "other", tmp_path / "project"
    for directory in (other, project, project / "nested"):
        directory.mkdir()
        host_git(directory, "init", "-q", "-b", "main")
        host_git(directory, "-c", "user.name=x", "commit", "-q", "--allow-empty", "-m", "first")
    host_git(project, "submodule", "--quiet", "add", str(other), "libs/sub")
    (project / "a").write_text("a\n")
    host_git(project, "add", "a")
    host_git(project, "-c", "user.name=x", "commit", "-q", "-m", "second")
    host_git(project, "worktree", "add", "-q", "-b", "side", "tree")
    return owned(project)


def paths(mounts: tuple[GuardMount, ...], *, read_only: bool) -> list[str]:
    return [mount.path for mount in mounts if mount.read_only is read_only]


def test_each_kind_of_repository_is_guarded(project: Path) -> None:
    mounts = guard(str(project), "guarded")
    own = (
        "commondir", "config", "config.lock", "config.worktree", "config.worktree.lock", "hooks", "info",
        "modules", "objects/info/alternates",
    )  # fmt: skip
    fixed = {f"{place}/{name}" for place in (".git", ".git/modules/libs/sub", "nested/.git") for name in own}
    fixed |= {
        f".git/worktrees/tree/{name}"
        for name in ("commondir", "config.worktree", "config.worktree.lock", "gitdir", "modules")
    } | {".git/modules/libs"}
    assert set(paths(mounts, read_only=True)) == fixed | {"libs/sub/.git", "tree/.git", "tree/libs/sub"}
    inner = (
        ".git",
        ".git/modules/libs/sub",
        ".git/worktrees",
        ".git/worktrees/tree",
    )
    outer = {"libs", "libs/sub", "nested", "nested/.git", "tree", "tree/libs"}
    repositories = (".git", ".git/modules/libs/sub", "nested/.git")
    objects = {f"{repository}/{name}" for repository in repositories for name in ("objects", "objects/info")}
    assert set(paths(mounts, read_only=False)) == set(inner) | outer | objects


@pytest.fixture
def clone(project: Path) -> Path:
    """A clone whose submodule is not checked out, as `git clone` leaves it."""
    host_git(project.parent, "clone", "-q", str(owned(project, os.getuid())), "clone")
    return owned(project.parent / "clone")


@pytest.mark.slow
@pytest.mark.parametrize(
    "make_index",
    [
        "update-index --index-version 2",
        "update-index --index-version 4",
        "update-index --split-index",
        "add --intent-to-add new",
        "read-tree HEAD",
    ],
)
def test_a_submodule_that_is_not_checked_out_stays_empty(clone: Path, make_index: str) -> None:
    for name in ("libraries", "libs/a", "new", "x" * 200):
        (clone / name).parent.mkdir(exist_ok=True)
        (clone / name).touch()
    host_git(clone, "add", "--", "libs/a", "libraries", "x" * 200)
    host_git(clone, *make_index.split())
    assert locked("libs/sub") in guard(str(clone), "guarded")
    assert locked("libs/sub") in guard(str(clone), "ro")


def test_a_submodule_whose_directory_was_deleted_is_guarded_as_well(clone: Path) -> None:
    shutil.rmtree(clone / "libs")
    assert locked("libs/sub") in guard(str(clone), "guarded")


def test_a_submodule_of_the_repository_above_the_workspace_is_guarded(clone: Path) -> None:
    assert locked("sub") in guard(str(clone / "libs"), "guarded")


def test_submodules_are_found_by_the_longer_hashes_as_well(tmp_path: Path) -> None:
    other, mine = tmp_path / "other256", tmp_path / "mine256"
    for directory in (other, mine):
        host_git(tmp_path, "init", "-q", "--object-format=sha256", directory.name)
        host_git(directory, "-c", "user.name=x", "commit", "-q", "--allow-empty", "-m", "first")
    commit = host_git(other, "rev-parse", "HEAD").strip()
    host_git(mine, "update-index", "--add", "--cacheinfo", f"160000,{commit},libs/sub")
    host_git(mine, "worktree", "add", "-q", "-b", "side", "tree")
    host_git(mine / "tree", "update-index", "--add", "--cacheinfo", f"160000,{commit},below")
    assert {"libs/sub", "tree/below"} <= set(paths(guard(str(mine), "guarded"), read_only=True))
    (mine / ".git" / "worktrees" / "tree" / "commondir").write_text(f"{mine}/.git\n")  # absolute: git takes it as well
    assert host_git(mine / "tree", "rev-parse", "--show-object-format").strip() == "sha256"
    assert {"libs/sub", "tree/below"} <= set(paths(guard(str(mine), "guarded"), read_only=True))


@pytest.mark.parametrize("index", [b"DIRC\0\0\0\2\0\0\0\5\0\0\xe0\0", b"\0\0\xe0\0" * 100])
def test_an_index_that_cannot_be_read_is_refused(clone: Path, index: bytes) -> None:
    (clone / ".git" / "index").write_bytes(index)
    with pytest.raises(UsageError, match="its index is not understood"):
        guard(str(clone), "guarded")


def test_submodules_outside_of_the_workspace_are_no_concern_of_its_index(clone: Path) -> None:
    commit = host_git(clone, "rev-parse", "HEAD").strip()
    index = clone / ".git" / "index"
    host_git(clone, "update-index", "--add", "--cacheinfo", f"160000,{commit},aaaaaaaaa")
    index.write_bytes(index.read_bytes().replace(b"aaaaaaaaa", b"../../etc"))
    assert paths(guard(str(clone), "ro"), read_only=True) == [".git", "libs/sub"]
    assert not (clone.parent.parent / "etc").exists()


def test_outer_mounts_come_first(project: Path) -> None:
    names = [mount.path for mount in guard(str(project), "guarded")]
    outer = {name: name.rpartition("/")[0] for name in names if "/" in name}
    assert outer
    assert [name for name, within in outer.items() if names.index(within) > names.index(name)] == []


def test_read_only_is_one_mount_a_repository(project: Path) -> None:
    mounts = guard(str(project), "ro")
    assert paths(mounts, read_only=True) == [".git", "nested/.git", "tree/.git", "libs/sub/.git", "tree/libs/sub"]


def test_nothing_is_guarded_or_made_when_asked_so(project: Path) -> None:
    before = sorted(project.rglob("*"))
    assert guard(str(project), "rw") == ()
    assert sorted(project.rglob("*")) == before


def test_what_git_would_read_is_made_where_it_is_missing_and_the_host_s_git_works_on(project: Path) -> None:
    shutil.rmtree(project / ".git" / "hooks")
    guard(str(project), "guarded")
    assert list((project / ".git" / "hooks").iterdir()) == []
    assert (project / ".git" / "hooks").stat().st_uid == (OWNER if os.getuid() == 0 else os.getuid())
    for place in (project, project / "tree", project / "libs" / "sub", project / "nested"):
        assert host_git(place, "rev-parse", "--show-toplevel").strip() == str(place)
        host_git(place, "status")
    host_git(project, "gc", "-q")
    host_git(project, "fsck")


@pytest.mark.parametrize("name", [".git", ".git/config", ".git/hooks", ".git/info", "nested/.git/hooks"])
def test_a_link_in_its_place_is_refused(project: Path, name: str) -> None:
    (project / name).rename(project / "moved")
    (project / name).symlink_to(project / "moved")
    with pytest.raises(UsageError, match=rf"'{name}' in the workspace cannot be guarded.*--git rw"):
        guard(str(project), "guarded")


def test_a_fifo_in_its_place_is_refused_at_once(project: Path) -> None:
    (project / ".git" / "config").unlink()
    os.mkfifo(project / ".git" / "config")
    with pytest.raises(UsageError, match="is not a file"):
        guard(str(project), "guarded")


def test_hooks_and_configuration_in_the_tree_are_guarded_too(project: Path) -> None:
    (project / ".githooks").mkdir()
    (project / "team.gitconfig").touch()
    host_git(project, "config", "core.hooksPath", ".githooks")
    host_git(project, "config", "include.path", "../team.gitconfig")
    assert {".githooks", "team.gitconfig"} <= set(paths(guard(str(project), "guarded"), read_only=True))


@pytest.mark.skipif(os.getuid() != 0, reason="only root may become another user")
def test_what_neither_we_nor_the_sandbox_may_make_needs_no_guard() -> None:
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        git = Path(name, ".git")
        host_git(Path(name), "init", "-q")
        before = sorted(git.iterdir())
        os.seteuid(OWNER)
        try:
            mounts = guard(name, "guarded")
        finally:
            os.seteuid(0)
        assert paths(mounts, read_only=True) == [".git/config", ".git/hooks", ".git/info"]
        assert sorted(git.iterdir()) == before


def test_hooks_of_a_read_only_repository_are_read_only_in_the_tree_as_well(project: Path) -> None:
    (project / ".githooks").mkdir()
    host_git(project, "config", "core.hooksPath", ".githooks")
    assert locked(".githooks") in guard(str(project), "ro")


def test_a_pointer_to_what_is_no_repository_makes_nothing(tmp_path: Path) -> None:
    for name, target in (("a", "../src"), ("b", ".."), ("c", "../../..")):
        (tmp_path / "w" / name).mkdir(parents=True)
        (tmp_path / "w" / name / ".git").write_text(f"gitdir: {target}\n")
    (tmp_path / "w" / "src").mkdir()
    (tmp_path / "w" / "src" / "main.py").touch()
    before = sorted(tmp_path.rglob("*"))
    mounts = guard(str(tmp_path / "w"), "guarded")
    assert paths(mounts, read_only=True) == ["a/.git", "b/.git", "c/.git"]
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.docker
def test_a_start_that_is_refused_leaves_no_lock_behind(project: Path) -> None:
    (project / "nested" / ".git" / "hooks").rename(project / "h")
    (project / "nested" / ".git" / "hooks").symlink_to("../../h")
    with pytest.raises(UsageError, match=r"nested/\.git/hooks"):
        DockerRuntime("ohsandbox-base:busybox", workspace=project).start()
    assert list(project.rglob("*.lock")) == []


def test_configuration_that_is_not_there_yet_cannot_be_made(project: Path) -> None:
    host_git(project, "config", "core.hooksPath", "made/_")
    host_git(project, "config", "include.path", "../local/gitconfig")
    mounts = guard(str(project), "guarded")
    assert {"made", "local/gitconfig"} <= set(paths(mounts, read_only=True))  # husky runs what lies beside `_`
    assert list(read_settings((project / "local" / "gitconfig").read_text())) == []


def test_hooks_over_a_link_are_refused(project: Path) -> None:
    (project / "hooks").symlink_to("elsewhere")
    host_git(project, "config", "core.hooksPath", "hooks/git")
    with pytest.raises(UsageError, match="'hooks/git' in the workspace cannot be guarded"):
        guard(str(project), "guarded")


def test_programs_of_the_tree_that_the_configuration_names_are_guarded(project: Path) -> None:
    for name in ("tools/clean", "show.sh", "other.sh"):
        (project / name).parent.mkdir(exist_ok=True)
        (project / name).touch()
    host_git(project, "config", "filter.x.clean", "./tools/clean %f")
    host_git(project, "config", "alias.s", "!sh show.sh")
    found = set(paths(guard(str(project), "guarded"), read_only=True))
    assert {"tools/clean", "show.sh"} <= found
    assert "other.sh" not in found


def test_hooks_that_are_links_and_scripts_that_hooks_call_are_guarded(project: Path) -> None:
    for name in ("scripts/check", "scripts/lint", "scripts/other"):
        (project / name).parent.mkdir(exist_ok=True)
        (project / name).write_text("#!/bin/sh\n")
        (project / name).chmod(0o755)
    (project / ".git" / "hooks" / "pre-commit").symlink_to("../../scripts/check")
    (project / ".git" / "hooks" / "pre-push").write_text('#!/bin/sh\nexec "./scripts/lint" a\n')
    found = set(paths(guard(str(project), "guarded"), read_only=True))
    assert {"scripts/check", "scripts/lint"} <= found
    assert not {"scripts/other", "a"} & found


def test_hooks_of_an_included_file_and_of_each_worktree_are_guarded(project: Path) -> None:
    (project / "team.gitconfig").write_text("[include]\n\tpath = more/gitconfig\n")
    (project / "more").mkdir()
    (project / "more" / "gitconfig").write_text("[core]\n\thooksPath = .githooks\n[include]\n\tpath = gitconfig\n")
    host_git(project, "config", "include.path", "../team.gitconfig")
    found = set(paths(guard(str(project), "guarded"), read_only=True))
    assert {"team.gitconfig", "more/gitconfig", ".githooks", "tree/.githooks"} <= found


def test_hooks_of_a_worktree_s_own_configuration_are_guarded(project: Path) -> None:
    host_git(project, "config", "extensions.worktreeConfig", "true")
    host_git(project, "config", "--worktree", "core.hooksPath", "mine/hooks")
    host_git(project / "tree", "config", "--worktree", "core.hooksPath", "side/hooks")
    assert {"mine/hooks", "tree/side/hooks"} <= set(paths(guard(str(project), "guarded"), read_only=True))


def test_another_git_at_work_on_the_configuration_is_told(project: Path) -> None:
    (project / ".git" / "config.lock").touch()
    with pytest.raises(UsageError, match=r"'\.git/config\.lock'.*another git changes the configuration"):
        guard(str(project), "guarded")


def test_what_was_made_is_removed_and_no_more(project: Path) -> None:
    before = {path for path in project.rglob("*") if "info" not in path.parts}
    (project / "commondir").write_text(".\n")
    guard(str(project), "guarded")
    guards.release(str(project), uses=TreeUses(stopped=frozenset([workspace_digest(str(project))])))
    assert not (project / ".git" / "config.lock").exists()
    assert (project / ".git" / "commondir").exists()
    guards.release(str(project), uses=TreeUses())
    after = {path for path in project.rglob("*") if "info" not in path.parts}
    assert after - before == {project / "commondir"}


def test_what_stood_for_a_missing_program_goes_with_the_last_sandbox_and_a_changed_file_stays(project: Path) -> None:
    for key, value in (("diff.external", "tools/dx"), ("core.pager", "tools/p"), ("include.path", "../inc")):
        host_git(project, "config", key, value)
    guard(str(project), "guarded")
    (project / "tools" / "p").write_text("mine\n")
    guards.release(str(project), uses=TreeUses(stopped=frozenset([workspace_digest(str(project))])))
    assert (project / "tools" / "dx").exists()
    guards.release(str(project), uses=TreeUses())
    assert [path.name for path in (project / "tools").iterdir()] == ["p"]
    assert not (project / "inc").exists()


@pytest.mark.slow
@pytest.mark.parametrize("place", ["", "tree", "libs/sub"])
def test_git_adds_no_file_that_stands_for_a_missing_one(project: Path, place: str) -> None:
    exclude = Path(host_git(project / place, "rev-parse", "--git-path", "info/exclude").strip())
    exclude = exclude if exclude.is_absolute() else project / place / exclude
    exclude.parent.mkdir(exist_ok=True)
    exclude.write_text("mine")
    include = project / place / "odd[*]"
    host_git(project / place, "config", "include.path", str(include))
    host_git(project / place, "config", "diff.external", "tools/dx")
    guard(str(project), "guarded")
    assert include.exists()
    assert (project / place / "tools" / "dx").exists()
    host_git(project / place, "add", "-A")
    added = host_git(project / place, "diff", "--cached", "--name-only", "--no-ext-diff").split()
    assert {"odd[*]", "tools/dx"}.isdisjoint(added)
    guards.release(str(project), uses=TreeUses(stopped=frozenset([workspace_digest(str(project))])))
    assert "dx" in exclude.read_text()
    guards.release(str(project), uses=TreeUses())
    assert exclude.read_text() == "mine"
    assert not include.exists()


def tree_of(*directories: Path) -> dict[str, tuple[int, bytes]]:
    """The files below directories, with their modes and contents; of git's index its content is no matter."""
    files = (path for top in directories for path in top.rglob("*") if path.is_file() and path.name != "index")
    return {str(path): (path.stat().st_mode, path.read_bytes()) for path in files}


@pytest.fixture(params=["subdirectory", "of a worktree", "worktree", "submodule"])
def part(project: Path, tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """A workspace whose repository is outside of it."""
    tops = {"subdirectory": project, "submodule": project / "libs" / "sub"}
    if (top := tops.get(request.param)) is None:
        top = tmp_path / "elsewhere"
        host_git(project, "worktree", "add", "-q", "-b", "away", str(top))
        owned(project)
    part = top if request.param in {"worktree", "submodule"} else top / "packages" / "app"
    part.mkdir(parents=True, exist_ok=True)
    host_git(top, "config", "diff.external", str(part / "tools" / "dx"))
    host_git(top, "config", "include.path", str(part / "inc"))
    return part


@pytest.mark.slow
def test_what_stands_for_a_missing_file_is_not_seen_by_a_repository_outside(part: Path, tmp_path: Path) -> None:
    trees = [directory for directory in tmp_path.iterdir() if directory.name != "state"]
    before = tree_of(*trees)
    status = host_git(part, "status", "--porcelain", "-uall")
    guard(str(part), "guarded")
    assert {"inc", "dx"} <= {path.name for path in part.rglob("*")}
    assert host_git(part, "status", "--porcelain", "-uall") == status
    added = host_git(part, "add", "-A", "--dry-run", ":/")
    assert "inc" not in added
    assert "dx" not in added
    guards.release(str(part), uses=TreeUses(stopped=frozenset([workspace_digest(str(part))])))
    assert host_git(part, "status", "--porcelain", "-uall") == status
    guards.release(str(part), uses=TreeUses())
    assert tree_of(*trees) == before


def test_two_parts_of_a_repository_each_take_back_their_own_lines(project: Path) -> None:
    parts = [project / name for name in ("one", "two")]
    for part in parts:
        part.mkdir()
        host_git(project, "config", "--add", "include.path", str(part / "inc"))
        guard(str(part), "guarded")
    for part in parts:
        guards.release(str(part), uses=TreeUses())
        assert "inc" not in host_git(part, "status", "--porcelain", "-uall")
    assert "ohsandbox" not in (project / ".git" / "info" / "exclude").read_text()


def test_a_git_file_that_a_sandbox_wrote_leads_to_no_other_repository(project: Path, tmp_path: Path) -> None:
    forged = tmp_path / "forged"
    forged.mkdir()
    host_git(project, "config", "include.path", str(forged / "inc"))
    (forged / ".git").write_text(f"gitdir: {project}/.git\n")
    exclude = project / ".git" / "info" / "exclude"
    before = exclude.read_text()
    with contextlib.suppress(UsageError):
        guard(str(forged), "guarded")
    assert exclude.read_text() == before


def test_a_lock_is_removed_from_what_lost_its_head_as_well(project: Path) -> None:
    guard(str(project), "guarded")
    (project / ".git" / "HEAD").unlink()
    guards.release(str(project), uses=TreeUses())
    assert list(project.rglob("*.lock")) == []


def test_the_other_names_of_guarded_files_are_guarded_as_well(project: Path) -> None:
    (project / ".git" / "hooks" / "pre-commit").write_text("#!/bin/sh\n")
    (project / "deep").mkdir()
    (project / "config-too").hardlink_to(project / ".git" / "config")
    (project / "deep" / "hook-too").hardlink_to(project / ".git" / "hooks" / "pre-commit")
    (project / "objects-too").hardlink_to(next((project / ".git" / "objects").glob("??/*")))
    for git in ("guarded", "ro"):
        locked_paths = set(paths(guard(str(project), git), read_only=True))
        assert {"config-too", "deep/hook-too"} <= locked_paths
        assert "objects-too" not in locked_paths


def test_files_that_editors_and_agents_run_are_guarded_where_they_are(tmp_path: Path) -> None:
    (tmp_path / ".vscode").mkdir()
    (tmp_path / ".cargo").mkdir()
    (tmp_path / ".cargo" / "config.toml").touch()
    (tmp_path / ".mcp.json").symlink_to("elsewhere")
    mounts = guard(str(tmp_path), "guarded")
    assert mounts == (held(".cargo"), locked(".vscode"), locked(".cargo/config.toml"))


def test_a_bare_repository_among_the_files_does_not_change(tmp_path: Path) -> None:
    host_git(tmp_path, "init", "-q", "--bare", "fixtures/x.git")
    before = sorted(tmp_path.rglob("*"))
    assert guard(str(tmp_path), "guarded") == (held("fixtures"), locked("fixtures/x.git"))
    assert sorted(tmp_path.rglob("*")) == before


def test_a_pointer_to_a_repository_elsewhere_stays_as_it_is(project: Path) -> None:
    assert guard(str(project / "tree"), "guarded") == (locked(".git"),)


def test_too_many_repositories_are_one_clear_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guards, "MAX_MOUNTS", 10)
    for number in range(3):
        host_git(tmp_path, "init", "-q", str(number))
    with pytest.raises(UsageError, match=r"needs 39 mounts.*over 10\. Name a smaller directory, or --git rw"):
        guard(str(tmp_path), "guarded")


INFO = (
    "1 0 8:1 /home/u/p /workspace rw,relatime - ext4 /dev/sda1 rw\n"
    "2 1 8:1 /home/u/p/.git /workspace/.git rw - ext4 /dev/sda1 rw\n"
    "3 2 8:1 {root} /workspace/.git/config {options} - ext4 /dev/sda1 rw\n"
)
WANTED = (held(".git"), locked(".git/config"))


def test_the_kernel_s_word_is_believed() -> None:
    verify_mounts(WANTED, INFO.format(root="/home/u/p/.git/config", options="ro,relatime"))


@pytest.mark.parametrize(
    "info",
    [
        "",
        INFO.format(root="/home/u/p/.git/config", options="rw,relatime"),
        INFO.format(root="/etc/shadow", options="ro,relatime"),
        INFO.format(root="/home/u/p/.git/config", options="ro").replace("/workspace/.git ", "/workspace/x "),
    ],
)
def test_a_mount_that_is_missing_writable_or_of_something_else_is_refused(info: str) -> None:
    with pytest.raises(SandboxUnavailable, match=r"is not as strict as asked: '\.git"):
        verify_mounts(WANTED, info)


def test_a_writable_file_system_below_a_read_only_directory_is_refused() -> None:
    below = "5 4 0:9 / /data/sub {options} - tmpfs none rw\n"
    info = "4 0 8:1 /d /data ro,relatime - ext4 /dev/sda1 rw\n" + below
    verify_mounts((), info.format(options="ro"), target="/data", read_only=True)
    verify_mounts(
        (), info.format(options="rw") + below.format(options="ro"), target="/data", read_only=True
    )  # one over it
    with pytest.raises(SandboxUnavailable, match="/data/sub is not mounted read-only"):
        verify_mounts((), info.format(options="rw"), target="/data", read_only=True)


# --- in a container -----------------------------------------------------------------------------

CONFIG = f'[core]\\n\\trepositoryformatversion = 0\\n\\tfsmonitor = "{MAKE_CANARY}; false"\\n'
ATTACKS = {
    "pointer": f"mv .git .g; echo 'gitdir: .g' > .git; printf '{CONFIG}' >> .g/config",
    "copy": f"mv .git .g2; cp -r .g2 .git; printf '{CONFIG}' >> .git/config",
    "append": f"printf '{CONFIG}' >> .git/config",
    "replace": f"printf '{CONFIG}' > .git/c; mv -f .git/c .git/config; rm -f .git/config",
    "remove": f"rm -rf .git; mkdir .git; printf '{CONFIG}' > .git/config",
    "hooks": "mv .git/hooks .git/h; mkdir .git/hooks; echo 'touch canary-ran' > .git/hooks/post-index-change;"
    "chmod +x .git/hooks/*",
    "worktree config": f"printf '{CONFIG}' > .git/config.worktree; rm -f .git/config.worktree",
    "common directory": f"mkdir -p e/objects e/refs; printf '{CONFIG}' > e/config; rm -f .git/commondir;"
    "echo ../e > .git/commondir; echo ../e > .git/x; mv .git/x .git/commondir",
    "worktree's common directory": f"mkdir -p e/objects e/refs; printf '{CONFIG}' > e/config;"
    "echo ../../../e > .git/worktrees/tree/commondir; mv .git/worktrees .git/w; cp -r .git/w .git/worktrees;"
    "echo ../../../e > .git/worktrees/tree/commondir",
    "submodule": f"printf '{CONFIG}' >> .git/modules/libs/sub/config;mv .git/modules .git/m;cp -r .git/m .git/modules;"
    f"printf '{CONFIG}' >> .git/modules/libs/sub/config",
    "submodule's pointer": f"mkdir s; cp -r .git/modules/libs/sub/* s; printf '{CONFIG}' >> s/config;"
    "echo 'gitdir: ../../s' > libs/sub/.git; mv libs l; cp -r l libs; echo 'gitdir: ../../s' > libs/sub/.git",
    "nested": f"mv nested n; cp -r n nested; printf '{CONFIG}' >> nested/.git/config",
    "hard link": f"ln .git/config c; printf '{CONFIG}' >> c; ln -f c .git/config",
}


@pytest.mark.docker
@pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS)
def test_what_a_sandbox_does_to_git_runs_nothing_on_the_host(sandbox: Any, sh: Any, project: Path, attack: str) -> None:
    config = (project / ".git" / "config").read_bytes()
    sh(sandbox("ohsandbox-base:busybox", workspace=project), attack)
    for place in (project, project / "tree", project / "libs" / "sub", project / "nested"):
        host_git(place, "status", check=False)
        host_git(place, "diff", check=False)
        host_git(place, "log", "-1", check=False)
        host_git(place, "add", "-A", check=False)
    assert list(project.rglob("canary-ran")) == []
    assert (project / ".git" / "config").read_bytes() == config


@pytest.mark.docker
@pytest.mark.parametrize("attack", ["pointer", "append", "copy"])
def test_the_same_runs_where_nothing_is_guarded(sandbox: Any, sh: Any, project: Path, attack: str) -> None:
    sh(sandbox("ohsandbox-base:busybox", workspace=project, git="rw"), ATTACKS[attack])
    host_git(project, "status", check=False)
    assert (project / "canary-ran").exists()


@pytest.mark.docker
@pytest.mark.parametrize("name", [".git/config", ".git/hooks/post-index-change"])
def test_a_hard_link_to_what_git_runs_cannot_be_written(sandbox: Any, sh: Any, project: Path, name: str) -> None:
    if not (project / name).exists():
        (project / name).write_text("#!/bin/sh\n")
        (project / name).chmod(0o755)
    (project / "other").hardlink_to(project / name)
    owned(project)
    payload = CONFIG if name == ".git/config" else f"{MAKE_CANARY}\\n"
    before = (project / name).read_bytes()
    sh(sandbox("ohsandbox-base:busybox", workspace=project), f"chmod u+w other; printf '{payload}' >> other")
    host_git(project, "add", "-A", check=False)
    assert ((project / name).read_bytes(), (project / "canary-ran").exists()) == (before, False)
    sh(sandbox("ohsandbox-base:busybox", workspace=project, git="rw"), f"printf '{payload}' >> other")
    host_git(project, "add", "-A", check=False)
    assert (project / "canary-ran").exists()


@pytest.mark.slow
@pytest.mark.docker
@pytest.mark.parametrize("git", ["guarded", "rw"])
def test_git_reads_no_objects_from_where_a_sandbox_says(sandbox: Any, sh: Any, project: Path, git: str) -> None:
    elsewhere = project.parent / "elsewhere"
    host_git(project.parent, "init", "-q", "elsewhere")
    (elsewhere / "secret").write_text("secret\n")
    blob = host_git(elsewhere, "hash-object", "-w", "secret").strip()
    runtime = sandbox("ohsandbox-base:busybox", workspace=project, git=git)
    line = f"echo {elsewhere}/.git/objects > .git/objects/info/alternates"
    sh(runtime, f"{line}; mv .git/objects/info .git/objects/i && mkdir .git/objects/info; {line}")
    sh(runtime, f"mv .git/objects .git/o && mkdir -p .git/objects/info; cp -r .git/o/* .git/objects; {line}")
    assert host_git(project, "cat-file", "-p", blob, check=False) == ("secret\n" if git == "rw" else "")


class Planted(NamedTuple):
    """What git's configuration names in a workspace, and what a sandbox puts there."""

    workspace: str
    settings: str
    """Arguments of `git config`, run at the top of the repository; {W} is the workspace."""
    path: str
    """Path below the workspace that the sandbox writes."""
    before: str = ""
    """Commands of a shell, run in the workspace in advance."""


CLEAN = "echo '* filter=x' > .gitattributes; echo b > b"
TOOL = f"{CLEAN}; mkdir tools; install /dev/null tools/clean"
TOP = '"$(git rev-parse --show-toplevel)"'
PROGRAM = f"#!/bin/sh\n{MAKE_CANARY}\n"
PLANTED_BY_SETTINGS = {
    "include of a monorepo": Planted("mono/sub", "include.path ../sub/inc", "inc", "touch inc"),
    "include of a monorepo, not there yet": Planted("mono/sub", "include.path ../sub/inc", "inc"),
    "conditional include": Planted("mono/sub", "includeIf.onbranch:main.path ../sub/inc", "inc"),
    "hooks of a monorepo": Planted("mono/sub", "core.hooksPath sub/hooks", "hooks/post-index-change"),
    "filter of a monorepo": Planted("mono/sub", "filter.x.clean sub/tools/clean", "tools/clean", CLEAN),
    "shell of a filter": Planted("mono/sub", "filter.x.clean 'cd . && sh sub/tools/clean %f'", "tools/clean", CLEAN),
    "filter by the top of the tree": Planted("mono", f"filter.x.clean '{TOP}/tools/clean'", "tools/clean", CLEAN),
    "filter below a directory": Planted("mono", "filter.x.clean 'cd tools && ./clean'", "tools/clean", TOOL),
    "hook of a shell": Planted("mono", "user.name x", "tools/x", "mkdir tools; install /dev/null tools/x"),
    "hooks of a linked worktree": Planted("linked", "core.hooksPath .githooks", ".githooks/post-index-change"),
    "filter of a linked worktree": Planted("linked", "filter.x.clean tools/clean", "tools/clean", CLEAN),
    "hook of a linked worktree": Planted("linked", "user.name x", "tools/x", "mkdir tools; install /dev/null tools/x"),
    "filter of a submodule": Planted("mono/module", "filter.x.clean tools/clean", "tools/clean", CLEAN),
    "hooks of a submodule": Planted("mono/module", "core.hooksPath hooks", "hooks/post-index-change"),
    "the person's hooks": Planted("mono", "--global core.hooksPath .githooks", ".githooks/post-index-change"),
    "the person's hooks by an absolute path": Planted("mono", "--global core.hooksPath {W}/h", "h/post-index-change"),
    "the person's include": Planted("mono", "--global include.path {W}/dot/git", "dot/git"),
    "the person's conditional include": Planted("mono", "--global includeIf.onbranch:main.path {W}/inc", "inc"),
    "the person's filter": Planted("mono", "--global filter.x.clean ./tools/clean", "tools/clean", CLEAN),
    "program that is not there yet": Planted("mono", "diff.external ./tools/dx", "tools/dx"),
}  # fmt: skip


@pytest.fixture
def planted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> tuple[Path, Planted]:
    """The workspace, with a repository in or around it and its settings."""
    case: Planted = request.param
    mono, other, workspace = tmp_path / "mono", tmp_path / "other", tmp_path / case.workspace
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(tmp_path / "person.gitconfig"))
    for directory in (other, mono):
        directory.mkdir()
        host_git(directory, "init", "-q", "-b", "main")
        (directory / "a").write_text("a\n")
        host_git(directory, "add", "a")
        host_git(directory, "-c", "user.name=x", "commit", "-q", "-m", "first")
    (mono / "sub").mkdir()
    host_git(mono, "submodule", "--quiet", "add", str(other), "module")
    host_git(mono, "worktree", "add", "-q", "-b", "side", str(tmp_path / "linked"))
    if "hook of" in request.node.callspec.id:
        first_line = "" if "shell" in request.node.callspec.id else "#!/bin/sh\n"
        (mono / ".git" / "hooks" / "post-index-change").write_text(f"{first_line}tools/x\n")
        (mono / ".git" / "hooks" / "post-index-change").chmod(0o755)
    subprocess.run(["sh", "-ec", case.before], cwd=workspace, check=True)
    arguments = case.settings.replace("{W}", str(workspace))
    at = workspace if "module" in case.workspace else mono
    subprocess.run(["sh", "-ec", f"git -c safe.directory='*' config {arguments}"], cwd=at, check=True)
    (workspace / "a").write_text("changed\n")
    owned(mono)
    owned(tmp_path / "linked")
    (tmp_path / "person.gitconfig").touch()
    return workspace, case


def use_git(workspace: Path) -> None:
    """Git as the person runs it, with the person's configuration."""
    environment = {"PATH": os.environ["PATH"], "EMAIL": "a@b", "HOME": "/nonexistent"}
    environment["GIT_CONFIG_GLOBAL"] = os.environ["GIT_CONFIG_GLOBAL"]
    for command in ("status", "diff", "add -A", "status"):
        subprocess.run(
            ["git", "-c", "safe.directory=*", *command.split()],
            cwd=workspace, env=environment, capture_output=True, check=False, timeout=60,
        )  # fmt: skip


@pytest.mark.docker
@pytest.mark.parametrize("git", ["guarded", "rw"])
@pytest.mark.parametrize("planted", PLANTED_BY_SETTINGS.values(), ids=PLANTED_BY_SETTINGS, indirect=True)
def test_git_runs_nothing_that_a_sandbox_puts_where_a_setting_leads(
    sandbox: Any, sh: Any, planted: tuple[Path, Planted], git: str, tmp_path: Path
) -> None:
    workspace, case = planted
    runtime = sandbox("ohsandbox-base:busybox", workspace=workspace, git=git)
    content = PROGRAM if "/" in case.path and "git" not in case.path.split("/") else CONFIG
    content = content.replace("\n", "\\n")
    place = case.path.rpartition("/")[0]
    write = f"mkdir -p ./{place}; rm -f {case.path}; printf '{content}' > {case.path}; chmod +x {case.path}"
    sh(runtime, f"{write}; mv {case.path.split('/')[0]} away && {{ {write}; }}")
    changes = runtime.workspace_changes().changes
    use_git(workspace)
    ran = list(tmp_path.rglob("canary-ran"))
    if git == "rw":
        assert ran, "the payload is none"
        assert (changes[0].kind, changes[0].path) == (ChangeKind.RUNS_BY_GIT, case.path)
    else:
        assert ran == []
        assert [change for change in changes if change.kind is ChangeKind.RUNS_BY_GIT] == []
    runtime.close()
    left = [path for path in workspace.rglob("*") if path.is_file() and "ohsandbox" in path.read_text(errors="replace")]
    assert left == []


@pytest.mark.docker
def test_what_git_runs_from_a_directory_of_packages_is_told_first_and_packages_can_be_installed(
    sandbox: Any, sh: Any, project: Path
) -> None:
    host_git(project, "config", "filter.x.clean", "node_modules/.bin/clean")
    host_git(project, "config", "filter.y.clean", f"{project}/.venv/bin/python -m strip")
    for name in ("node_modules/.bin/clean", ".venv/bin/python3", ".venv/lib/strip.py"):
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        (project / name).touch(0o755)
    (project / ".venv" / "bin" / "python").symlink_to("python3")
    runtime = sandbox("ohsandbox-base:busybox", workspace=owned(project))
    install = "rm -rf node_modules && mkdir -p node_modules/.bin && echo x > node_modules/.bin/clean"
    assert sh(runtime, f"{install} && echo evil > .venv/lib/strip.py && touch b && chmod +x b").code == 0
    reasons = {change.path: (change.kind, change.detail) for change in runtime.workspace_changes().changes[:2]}
    assert reasons == {
        "node_modules": (ChangeKind.RUNS_BY_GIT, "filter.x.clean = node_modules/.bin/clean"),
        ".venv": (ChangeKind.RUNS_BY_GIT, f"filter.y.clean = {project}/.venv/bin/python -m strip"),
    }
    assert runtime.workspace_changes().changes == ()


@pytest.mark.slow
@pytest.mark.docker
@pytest.mark.parametrize("git", ["guarded", "rw"])
@pytest.mark.parametrize("name", ["libs/sub", "libs/new"])
def test_a_submodule_is_not_checked_out_from_a_repository_that_the_sandbox_made_for_it(
    sandbox: Any, sh: Any, clone: Path, git: str, name: str
) -> None:
    origin = clone.parent / "other"
    if name == "libs/new":  # a second submodule, where the first is checked out
        host_git(clone, "submodule", "update", "--init")
        commit = host_git(origin, "rev-parse", "HEAD").strip()
        for key, value in (("path", name), ("url", str(origin))):
            host_git(clone, "config", "-f", ".gitmodules", f"submodule.{name}.{key}", value)
        host_git(clone, "update-index", "--add", "--cacheinfo", f"160000,{commit},{name}")
    host_git(clone, "clone", "-q", "--bare", str(origin), "planted")
    host_git(clone / "planted", "config", "core.bare", "false")
    runtime = sandbox("ohsandbox-base:busybox", workspace=owned(clone), git=git)
    hook = f"printf '#!/bin/sh\\ntouch {clone}/canary-ran\\n'"
    place = f".git/modules/{name}"
    plant = f"mkdir -p .git/modules/libs; cp -r planted {place} && mkdir -p {place}/hooks && rm -f {place}/hooks/*"
    sh(runtime, f"{plant} && {hook} > {place}/hooks/post-checkout && chmod +x {place}/hooks/post-checkout")
    runtime.close()
    host_git(clone, "submodule", "update", "--init", name, check=False)
    assert (clone / "canary-ran").exists() is (git == "rw")


@pytest.mark.docker
def test_a_module_in_the_tree_that_git_would_run_is_told_first(sandbox: Any, sh: Any, project: Path) -> None:
    host_git(project, "config", "filter.x.clean", "python3 -m strip")
    runtime = sandbox("ohsandbox-base:busybox", workspace=project)
    sh(runtime, "touch x strip.py; chmod +x x; echo '* filter=x' > .gitattributes")
    sh(runtime, f"echo 'import os; os.system(\"{MAKE_CANARY}\")' > strip.py")
    worst = runtime.workspace_changes().changes[0]
    host_git(project, "add", "-A", check=False)
    assert (project / "canary-ran").exists()
    assert (worst.kind, worst.path) == (ChangeKind.RUNS_BY_GIT, "strip.py")
    assert worst.detail == "filter.x.clean = python3 -m strip"


def test_what_a_repository_beside_the_workspace_names_in_it_is_guarded(project: Path) -> None:
    host_git(project.parent / "other", "config", "core.hooksPath", f"{project}/shared")
    assert locked("shared") not in guard(str(project), "guarded")
    assert locked("shared") in guard(str(project), "guarded", beside=[str(project.parent / "other")])


@pytest.mark.docker
@pytest.mark.parametrize("read_only", [False, True])
def test_what_a_repository_of_another_mount_runs_is_told_wherever_it_is(
    sandbox: Any, sh: Any, project: Path, tmp_path: Path, *, read_only: bool
) -> None:
    """The program is in a directory of packages, which is not guarded: `npm install` replaces it."""
    tools = tmp_path / "tools"
    tools.mkdir()
    owned(tools)
    host_git(project, "config", "diff.external", str(tools / "node_modules" / "dx"))
    if read_only:
        runtime = sandbox("ohsandbox-base:busybox", workspace=tools, mounts=[f"{project}:/project:ro"])
    else:
        runtime = sandbox("ohsandbox-base:busybox", workspace=project, mounts=[f"{tools}:/tools"])
    place = runtime.workdir if read_only else "/tools"
    assert sh(runtime, f"mkdir {place}/node_modules && echo echo >{place}/node_modules/dx").code == 0
    [change] = [change for change in runtime.workspace_changes().changes if change.kind is ChangeKind.RUNS_BY_GIT]
    assert change.path == ("node_modules" if read_only else f"{tools}/node_modules")
    assert change.detail.startswith("diff.external = ")


def test_a_workspace_that_is_itself_a_directory_of_hooks_is_refused(
    project: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "person.gitconfig").write_text(f"[core]\n\thooksPath = {project}\n")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(tmp_path / "person.gitconfig"))
    with pytest.raises(UsageError, match=r"git on this machine runs what is in it \(core.hookspath = .*--copy"):
        guard(str(project), "guarded")


@pytest.mark.docker
def test_the_host_s_git_does_not_take_the_guard_away(sandbox: Any, sh: Any, project: Path) -> None:
    runtime = sandbox("ohsandbox-base:busybox", workspace=project)
    before = (project / ".git" / "config").read_bytes()
    host_git(project, "config", "user.name", "me", check=False)
    host_git(project, "config", "--unset", "user.name", check=False)
    sh(runtime, f"rm -f .git/config.lock; printf '{CONFIG}' >> .git/config")
    assert (project / ".git" / "config").read_bytes() == before
    runtime.close()
    host_git(project, "config", "user.name", "me")
    assert not (project / ".git" / "commondir").exists()


@pytest.mark.docker
def test_two_sandboxes_of_a_workspace_keep_their_guard_until_both_are_gone(sandbox: Any, project: Path) -> None:
    first, second = (sandbox("ohsandbox-base:busybox", workspace=project) for _ in range(2))
    first.close()
    assert (project / ".git" / "config.lock").exists()
    second.close()
    assert not (project / ".git" / "config.lock").exists()


KILLED_OWNER = """
import os, signal
from ohsandbox import DockerRuntime
runtime = DockerRuntime("ohsandbox-base:busybox", workspace={workspace!r}).start()
os.kill(os.getpid(), signal.SIGKILL)
"""


def take_over(runtime: DockerRuntime, place: str) -> None:
    """Have git read its configuration from a copy that the sandbox writes, in a directory of the workspace."""
    runtime.execute(f"(cd {place}; rm -rf e; cp -r .git e; rm -f e/commondir e/*.lock; printf '{CONFIG}' > e/config)")
    runtime.execute(f"rm -f {place}/.git/commondir; echo ../e > {place}/.git/commondir")


def assert_guarded(runtime: DockerRuntime, place: str, repository: Path) -> None:
    """The sandbox cannot take over the repository, and could if a file of the guard were removed."""
    take_over(runtime, place)
    host_git(repository, "status", check=False)
    assert not (repository / "canary-ran").exists()
    (repository / ".git" / "commondir").unlink()
    take_over(runtime, place)
    host_git(repository, "status", check=False)
    assert (repository / "canary-ran").exists()


@pytest.mark.docker
@pytest.mark.parametrize(("mine", "other"), [("", "nested"), ("nested", "")], ids=["below", "above"])
def test_a_sandbox_keeps_its_guard_when_another_ends_above_or_below_its_workspace(
    sandbox: Any, project: Path, mine: str, other: str
) -> None:
    runtime = sandbox("ohsandbox-base:busybox", workspace=project / mine)
    beside = sandbox("ohsandbox-base:busybox", workspace=project / other)
    beside.close()
    assert (project / ".git" / "commondir").exists() == (mine == "")
    assert_guarded(runtime, "." if mine else "nested", project / "nested")


@pytest.mark.docker
def test_a_sandbox_that_is_paused_keeps_its_guard_when_another_ends(
    sandbox: Any, engine: Engine, project: Path
) -> None:
    runtime, beside = (sandbox("ohsandbox-base:busybox", workspace=project) for _ in range(2))
    runtime.execute("true")
    engine.api.pause(runtime.id)
    try:
        beside.close()
    finally:
        engine.api.unpause(runtime.id)
    assert_guarded(runtime, ".", project)


@pytest.mark.docker
def test_a_sandbox_keeps_its_guard_when_a_start_beside_it_is_refused(sandbox: Any, project: Path) -> None:
    runtime = sandbox("ohsandbox-base:busybox", workspace=project)
    with pytest.raises(UsageError, match="already"):
        sandbox("ohsandbox-base:busybox", workspace=project / "nested", name=runtime.name)
    assert_guarded(runtime, "nested", project / "nested")


@pytest.mark.docker
def test_a_sandbox_keeps_its_guard_when_what_a_killed_owner_left_below_it_is_removed(
    sandbox: Any, engine: Engine, project: Path
) -> None:
    runtime = sandbox("ohsandbox-base:busybox", workspace=project)
    killed = subprocess.run([sys.executable, "-c", KILLED_OWNER.format(workspace=str(project / "nested"))], check=False)
    assert killed.returncode == -signal.SIGKILL
    assert [done.outcome for done in DockerInventory(engine).collect_garbage()] == ["removed"]
    assert_guarded(runtime, "nested", project / "nested")


@pytest.mark.parametrize("place", ["", "nested"])
def test_an_owner_whom_no_engine_shows_keeps_what_it_has_mounted(project: Path, place: str) -> None:
    """As that of another engine, of another state directory, and of another user."""
    guard(str(project), "guarded")
    files = [project / "nested" / ".git" / name for name in ("commondir", "config.lock", "config.worktree")]
    held = lease.acquire(container="c", engine="e", image="i", workspaces=(str(project / place),))
    for workspace in (project, project / "nested"):
        guards.release(str(workspace), uses=TreeUses())
    assert all(file.exists() for file in files)
    assert (project / ".git" / "commondir").exists() == (place == "")
    held.leave()
    guards.release(str(project), uses=TreeUses())
    assert not any(file.exists() for file in files)


@pytest.mark.slow
@pytest.mark.docker
@pytest.mark.skipif(PODMAN is None, reason="no Podman for this user (Debian, as root: podman)")
def test_podman_guards_a_workspace_as_docker_does(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with podman() as address:
        monkeypatch.setenv("DOCKER_HOST", address)
        with DockerRuntime("localhost/ohsandbox-base:debian", workspace=project) as runtime:
            result = runtime.execute("echo mine > f; echo x > .git/config; echo x > .git/commondir")
    assert result.output.count("Read-only file system") == 2
    assert (project / "f").read_text() == "mine\n"


@pytest.mark.docker
def test_a_sandbox_that_is_resumed_has_its_whole_guard_again(sandbox: Any, sh: Any, project: Path) -> None:
    first = sandbox("ohsandbox-base:busybox", workspace=project, conversation="guarded-again")
    first.execute("echo here > /tmp/file")
    first.leave()
    host_git(project, "config", "user.name", "me")  # nothing runs in it: the person may
    second = DockerRuntime("ohsandbox-base:busybox", workspace=project, conversation="guarded-again")
    try:
        assert second.resume().how == "same"
        assert second.read_bytes("/tmp/file") == b"here\n"
        assert sh(second, "rm -f .git/config.lock .git/commondir; ls .git/config.lock .git/commondir").code == 0
        assert sh(second, f"printf '{CONFIG}' >> .git/config").code != 0
    finally:
        second.close()


WORK = """
set -e
export GIT_AUTHOR_NAME=x GIT_AUTHOR_EMAIL=a@b GIT_COMMITTER_NAME=x GIT_COMMITTER_EMAIL=a@b
git config --global --add safe.directory '*'
echo 1 > f; git add f; git commit -qm 1
git checkout -qb topic; echo 2 >> f; git commit -qam 2
echo 3 >> f; git stash -q; git stash pop -q; git commit -qam 3
git checkout -q main; echo g > g; git add g; git commit -qm g
git merge -q --no-edit topic
git checkout -q topic; git rebase -q main; git checkout -q main
git tag t; git branch -d topic; git worktree add -q ../workspace/w; git gc -q; git fsck --no-progress
git reset -q --hard HEAD~1; git mv f f2; git commit -qm moved
cd libs/sub; echo s > s; git add s; git commit -qm s; cd ../..; git add libs/sub; git commit -qm sub
git status --short
"""


@pytest.mark.docker
def test_git_works_in_a_guarded_workspace(sandbox: Any, sh: Any, project: Path, git_image: Callable[[], str]) -> None:
    runtime = sandbox(git_image(), workspace=project)
    done = sh(runtime, WORK)
    assert done.code == 0, done.err
    assert host_git(project, "log", "--format=%s", "-1").strip() == "sub"
    refused = sh(runtime, "git config --global --add safe.directory '*'; git config user.name x")
    assert refused.code != 0
    assert "could not lock config file /workspace/.git/config: File exists" in refused.err
    assert "`git config --global`" in runtime.describe()["git"]


@pytest.mark.docker
def test_files_can_be_stashed_where_a_directory_of_hooks_and_a_program_are_missing(
    sandbox: Any, sh: Any, tmp_path: Path, git_image: Callable[[], str]
) -> None:
    project = tmp_path / "project"
    host_git(tmp_path, "init", "-q", str(project))
    (project / "a").write_text("a\n")
    host_git(project, "add", "a")
    host_git(project, "-c", "user.name=x", "commit", "-q", "-m", "first")
    host_git(project, "config", "core.hooksPath", ".githooks")
    host_git(project, "config", "diff.external", "tools/dx")
    host_git(project, "config", "user.name", "x")
    host_git(project, "config", "user.email", "a@b")
    runtime = sandbox(git_image(), workspace=owned(project))
    done = sh(runtime, "git config --global --add safe.directory '*'; echo b >> a; echo c > c; git stash -q -u; cat a")
    assert (done.code, done.out) == (0, "a\n")
    assert sh(runtime, "git stash pop -q && git add -A && git commit -q -m second").code == 0
    assert set(host_git(project, "ls-files").split()) == {"a", "c"}


@pytest.mark.docker
def test_a_read_only_repository_can_be_read(sandbox: Any, sh: Any, project: Path, git_image: Callable[[], str]) -> None:
    runtime = sandbox(git_image(), workspace=project, git="ro")
    done = sh(
        runtime, "git config --global --add safe.directory '*'; git log --format=%s -1; git commit --allow-empty -m x"
    )
    assert done.out == "second\n"
    assert done.code != 0
    assert runtime.describe()["git"] == "read-only: commits fail"


PLANTED = {
    "submodule": "mkdir e; cp -r .git/objects .git/refs .git/HEAD .git/logs .git/index e; mkdir -p n; mv e n/.git;"
    f"printf '{CONFIG}' > n/.git/config; git update-index --add --cacheinfo 160000,$(git rev-parse HEAD),n",
    "bare": f"cp -r .git/* .; printf '{CONFIG}' > config; printf '\\tworktree = .\\n' >> config; rm -f .git/HEAD",
}


@pytest.mark.slow
@pytest.mark.docker
@pytest.mark.parametrize("git", ["guarded", "ro"])
def test_a_repository_in_a_submodule_that_is_not_checked_out_is_not_made(
    sandbox: Any, sh: Any, clone: Path, git_image: Callable[[], str], git: str
) -> None:
    runtime = sandbox(git_image(), workspace=clone, git=git)
    attack = "cp -r .git/objects .git/refs .git/HEAD /tmp; cd libs; mv sub s; mkdir -p sub/.git && cd sub/.git"
    done = sh(runtime, f"{attack} && cp -r /tmp/objects /tmp/refs /tmp/HEAD . && printf '{CONFIG}' > config")
    assert done.code != 0
    for command in ("status", "diff", "add -A"):
        host_git(clone, *command.split())
    assert list(clone.rglob("canary-ran")) == []


@pytest.mark.slow
@pytest.mark.docker
@pytest.mark.parametrize("attack", PLANTED.values(), ids=PLANTED)
def test_planted_repositories_are_not_reached_from_a_read_only_one_and_are_told(
    sandbox: Any, sh: Any, project: Path, git_image: Callable[[], str], attack: str
) -> None:
    runtime = sandbox(git_image(), workspace=project, git="ro")
    sh(runtime, f"git config --global --add safe.directory '*'; {attack}")
    runtime.close()
    for command in ("status", "diff", "log"):
        host_git(project, command)
    assert list(project.rglob("canary-ran")) == []


@pytest.mark.slow
@pytest.mark.docker
@pytest.mark.parametrize("attack", PLANTED.values(), ids=PLANTED)
def test_repositories_planted_beside_a_guarded_one_are_the_first_thing_told(
    sandbox: Any, sh: Any, project: Path, git_image: Callable[[], str], attack: str
) -> None:
    runtime = sandbox(git_image(), workspace=project)
    sh(runtime, f"git config --global --add safe.directory '*'; {attack}")
    worst = runtime.workspace_changes().changes[0]
    assert (worst.kind, worst.is_new) == (ChangeKind.RUNS_BY_GIT, True)
    assert worst.path in {"n/.git/config", "config"}
    assert worst.detail.startswith("core.fsmonitor = touch canary-ran")
    assert runtime.workspace_changes().changes == ()


@pytest.mark.docker
@pytest.mark.parametrize("target", ["config", "hooks/pre-commit", "/etc/hostname"])
def test_a_link_that_the_host_s_git_would_write_through_is_the_first_thing_told(
    sandbox: Any, sh: Any, project: Path, target: str
) -> None:
    """`git commit --amend` writes the agent's own message to COMMIT_EDITMSG: to the configuration, in the first."""
    runtime = sandbox("ohsandbox-base:busybox", workspace=project)
    sh(runtime, f"ln -sf {target} .git/COMMIT_EDITMSG; ln -s a b; touch x; chmod +x x")
    worst = runtime.workspace_changes().changes[0]
    assert (worst.kind, worst.path, worst.detail) == (ChangeKind.WRITES_BY_GIT, ".git/COMMIT_EDITMSG", f"-> {target}")


@pytest.mark.docker
def test_files_of_an_editor_do_not_change(sandbox: Any, sh: Any, tmp_path: Path) -> None:
    project = tmp_path / "project"
    (project / ".vscode").mkdir(parents=True)
    (project / ".vscode" / "tasks.json").write_text("{}")
    runtime = sandbox("ohsandbox-base:busybox", workspace=owned(project))
    done = sh(runtime, "echo x > .vscode/tasks.json; mv .vscode v; rm -rf .vscode; mkdir .vscode; echo x > .vscode/a")
    assert done.code != 0
    assert [path.name for path in (project / ".vscode").iterdir()] == ["tasks.json"]
    assert (project / ".vscode" / "tasks.json").read_text() == "{}"
    assert runtime.describe()["read-only files"] == ".vscode"


@pytest.mark.slow
@pytest.mark.docker
def test_a_sandbox_from_a_checkpoint_is_guarded_as_before(sandbox: Any, sh: Any, project: Path) -> None:
    runtime = sandbox("ohsandbox-base:busybox", workspace=project)
    runtime.restore(runtime.checkpoint())
    sh(runtime, ATTACKS["pointer"])
    host_git(project, "status")
    assert (project / ".git").is_dir()
    assert not (project / "canary-ran").exists()


@pytest.mark.docker
def test_a_container_that_ended_is_started_again_with_its_guard(sandbox: Any, sh: Any, project: Path) -> None:
    runtime = sandbox("ohsandbox-base:busybox", workspace=project)
    runtime._restart()
    assert sh(runtime, "mv .git g").code != 0
    assert sh(runtime, "echo x >> .git/config").code != 0


@pytest.mark.docker
def test_a_worktree_of_a_repository_elsewhere_is_said(sandbox: Any, project: Path) -> None:
    runtime = sandbox("ohsandbox-base:busybox", workspace=project / "tree")
    assert runtime.workspace_notes == (
        (
            f"git does not work in the sandbox: .git names '{project}/.git/worktrees/tree', which is outside of the "
            "workspace."
        ),
    )


@pytest.mark.docker
def test_names_of_any_kind_are_guarded(sandbox: Any, sh: Any, tmp_path: Path) -> None:
    project = tmp_path / "project"
    for name in ("a b", "new\nline", "back\\slash", "quote'\"", "#x", "\u00fc", "tab\t"):
        (project / name).mkdir(parents=True)
        host_git(project / name, "init", "-q")
    runtime = sandbox("ohsandbox-base:busybox", workspace=owned(project))
    assert sh(runtime, 'for d in *; do mv "$d" x || echo no; mv "$d/.git" y || echo no; done').out == "no\n" * 14


@pytest.mark.slow
@pytest.mark.docker
def test_a_hundred_repositories_are_guarded(sandbox: Any, sh: Any, tmp_path: Path) -> None:
    project = tmp_path / "project"
    for number in range(100):
        place = project / f"a-directory-with-a-long-name-{number}" / ".git"
        (place / "objects").mkdir(parents=True)
        (place / "refs").mkdir()
        (place / "HEAD").write_text("ref: refs/heads/main\n")
    runtime = sandbox("ohsandbox-base:busybox", workspace=owned(project))
    assert len(guard(str(project), "guarded")) == 1300
    assert sh(runtime, "for d in */.git; do mv $d $d.x || echo no; done").out.count("no\n") == 100


@pytest.fixture
def answering(tmp_path: Path) -> Iterator[Path]:
    """A workspace with sockets that a program of this machine answers on, one of them in a locked directory."""
    workspace = tmp_path / "project"
    host_git(tmp_path, "init", "-q", str(workspace))
    (workspace / "deep" / "er").mkdir(parents=True)
    with contextlib.ExitStack() as stack:
        for name, kind in (
            ("agent", socket.SOCK_STREAM),
            ("deep/er/log", socket.SOCK_DGRAM),
            ("deep/sequence", socket.SOCK_SEQPACKET),
            (".git/info/daemon", socket.SOCK_STREAM),
        ):
            listener = stack.enter_context(socket.socket(socket.AF_UNIX, kind))
            listener.bind(str(workspace / name))
            if kind != socket.SOCK_DGRAM:
                listener.listen()
        (workspace / "linked").hardlink_to(workspace / "agent")
        yield owned(workspace)


SOCKETS = {"agent", "linked", "deep/er/log", "deep/sequence", ".git/info/daemon"}


@pytest.mark.parametrize("git", ["guarded", "ro", "rw"])
def test_sockets_that_answer_are_hidden_and_dead_ones_are_not(answering: Path, git: Any) -> None:
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(answering / "dead"))
    os.mkfifo(answering / "pipe")
    hidden = [mount for mount in guard(str(answering), git) if mount.source]
    assert {mount.path for mount in hidden} == SOCKETS
    assert {mount.read_only for mount in hidden} == {True}


CALL = """
import socket, sys
for name in sys.argv[1:]:
    for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_SEQPACKET):
        try:
            socket.socket(socket.AF_UNIX, kind).connect(name)
            print("reached", name)
        except OSError as error:
            pass
"""


@pytest.mark.docker
def test_no_socket_of_this_machine_answers_in_a_sandbox(answering: Path, sandbox: Callable[..., Any]) -> None:
    names = sorted(SOCKETS)
    assert subprocess.run(["python3", "-c", CALL, *names], cwd=answering, capture_output=True, check=True).stdout
    runtime = sandbox("ohsandbox-base:debian", workspace=str(answering))
    assert runtime.run(["python3", "-c", CALL, *names], workdir="/workspace").stdout == b""
    moved = runtime.run(
        ["sh", "-c", "mv deep other && mv agent away; ln agent copy; rm -f agent"], workdir="/workspace"
    )
    assert moved.exit_code != 0
    names += ["other/er/log", "other/sequence", "away", "copy"]
    assert runtime.run(["python3", "-c", CALL, *names], workdir="/workspace").stdout == b""
    own = "import socket; s = socket.socket(socket.AF_UNIX); s.bind('mine'); s.listen(); " + CALL.replace(
        "sys.argv[1:]", "['mine']"
    )
    assert runtime.run(["python3", "-c", own], workdir="/workspace").stdout == b"reached mine\n"
    assert "deep/er/log" in runtime.describe()["hidden sockets"]


@pytest.mark.docker
def test_directories_on_path_do_not_change(
    tmp_path: Path, sandbox: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    workspace = tmp_path / "project"
    (workspace / ".venv" / "bin").mkdir(parents=True)
    (workspace / ".venv" / "bin" / "tool").write_text("#!/bin/sh\n")
    monkeypatch.setenv("PATH", f"{workspace}/.venv/bin:{os.environ['PATH']}")
    runtime = sandbox("ohsandbox-base:debian", workspace=str(owned(workspace)), git="rw")
    for attack in (
        "echo evil >.venv/bin/ls",
        "rm .venv/bin/tool",
        "mv .venv v",
        "mv .venv/bin b",
        "echo x >.venv/bin/tool",
    ):
        assert runtime.run(["sh", "-c", attack], workdir="/workspace").exit_code != 0
    assert runtime.run(["sh", "-c", "echo fine >.venv/cfg"], workdir="/workspace").exit_code == 0
    assert [path.name for path in (workspace / ".venv" / "bin").iterdir()] == ["tool"]
