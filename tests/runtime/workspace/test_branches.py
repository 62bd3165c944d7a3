"""Trees for branches of a repository: what comes back, and what a hostile tree or repository cannot do."""

from __future__ import annotations

import hashlib
import os
import subprocess
import zlib
from contextlib import nullcontext
from typing import TYPE_CHECKING

import pytest

from ohsandbox import DockerRuntime
from ohsandbox.cli.commands import branches as commands
from ohsandbox.cli.options.shared import SandboxOptions
from ohsandbox.errors import UsageError
from ohsandbox.runtime.docker.mounts.mount_policy import check_directory
from ohsandbox.runtime.workspace import branches
from ohsandbox.runtime.workspace import git as our_git
from ohsandbox.runtime.workspace.branches import (
    fetch_branch,
    find_branches,
    merge_into_checkout,
    open_branch,
    remove_tree,
    work_of,
)

if TYPE_CHECKING:
    from pathlib import Path

IMAGE = "ohsandbox-base:debian"


@pytest.fixture(autouse=True)
def _own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OHSANDBOX_HOME", str(tmp_path / "own-state"))


def git(directory: Path, *arguments: str) -> str:
    env = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", "GIT_CONFIG_NOSYSTEM": "1", "EMAIL": "a@b"}
    who = ("-c", "safe.directory=*", "-c", "user.name=x")
    done = subprocess.run(["git", *who, *arguments], cwd=directory, env=env, capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.fixture
def project(tmp_path: Path) -> Path:
    directory = tmp_path / "project"
    directory.mkdir()
    git(directory, "init", "-q", "-b", "main")
    (directory / "a").write_text("a\n")
    (directory / "kept.log").write_text("1\n")
    (directory / ".gitignore").write_text("*.log\nbuild/\n")
    git(directory, "add", "-f", "a", "kept.log", ".gitignore")
    git(directory, "commit", "-q", "-m", "first")
    return directory


def diff(branch: branches.Branch, work: branches.BranchWork) -> bytes:
    found = bytearray()

    def take(piece: bytes) -> bool:
        found.extend(piece)
        return True

    branches.diff(branch, work, take)
    return bytes(found)


def state_of(directory: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(directory.rglob("*")) if path.is_file()}


def test_two_branches_are_apart_and_both_come_back(project: Path) -> None:
    before = state_of(project)
    one, two = open_branch(project, "fix/one"), open_branch(project, "two")
    (one.tree / "a").write_text("one\n")
    (one.tree / "build").mkdir()
    (one.tree / "build/junk").write_text("")
    (two.tree / "b").write_text("two\n")
    git(two.tree, "add", "b")
    git(two.tree, "commit", "-q", "-m", "second")
    (two.tree / "kept.log").write_text("2\n")
    assert state_of(project) == before
    assert [branch.name for branch in find_branches(project)] == ["fix/one", "two"]
    for branch, commits, lines in ((one, 0, [b"+one"]), (two, 1, [b"+two", b"+2"])):
        with work_of(branch) as work:
            assert (work.commits, work.is_dirty) == (commits, True)
            assert [line for line in diff(branch, work).splitlines() if line[:1] == b"+" and line[1:2] != b"+"] == lines
            fetch_branch(branch, work)
        assert merge_into_checkout(branch)
    assert [(project / name).read_text() for name in ("a", "b", "kept.log")] == ["one\n", "two\n", "2\n"]
    assert git(project, "status", "--short") == ""
    assert open_branch(project, "two") == two


def test_what_was_brought_is_known_and_more_of_it_follows(project: Path) -> None:
    branch = open_branch(project, "two")
    for text in ("1\n", "2\n"):
        (branch.tree / "a").write_text(text)
        for _ in range(2):  # the second time nothing is new
            with work_of(branch) as work:
                fetch_branch(branch, work)
        assert merge_into_checkout(branch)
        assert (project / "a").read_text() == text
    with work_of(branch) as work:
        assert git(project, "rev-parse", "two") == work.commit


def test_neither_a_conflict_nor_files_of_the_person_lose_anything(project: Path) -> None:
    branch = open_branch(project, "two")
    (branch.tree / "a").write_text("theirs\n")
    (project / "a").write_text("mine\n")
    for commit in (False, True):
        if commit:
            git(project, "commit", "-qam", "mine")
        with work_of(branch) as work:
            fetch_branch(branch, work)
        assert not merge_into_checkout(branch)
        assert (project / "a").read_text() == "mine\n"
        assert git(project, "show", "two:a") == "theirs"
    git(project, "checkout", "-q", "two")
    git(project, "commit", "-q", "--allow-empty", "-m", "of the person's")
    (branch.tree / "a").write_text("more\n")
    with work_of(branch) as work, pytest.raises(UsageError, match="has other commits, is checked out there"):
        fetch_branch(branch, work)


def test_work_that_is_nowhere_else_is_dropped_only_by_a_persons_word(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    branch = open_branch(project, "two")
    (branch.tree / "b").write_text("")
    with pytest.raises(UsageError, match="0 commits and what is not committed would be lost"):
        commands.drop_branch("two", None, yes=False)
    assert commands.merge_branch("two", None, yes=True) == 0
    assert commands.drop_branch("two", project, yes=False) == 0
    assert "is removed" in capsys.readouterr().out
    assert not branch.directory.exists()
    with pytest.raises(UsageError, match="No branch 'two' has a tree"):
        commands.drop_branch("two", None, yes=True)


@pytest.mark.parametrize("name", ["", "-x", "--upload-pack=x", "a..b", "../x", "a/../b", "a b", "a.lock", "a\nb"])
def test_a_name_that_git_would_read_otherwise_is_refused(project: Path, name: str) -> None:
    with pytest.raises(UsageError):
        open_branch(project, name)
    assert find_branches() == []


def test_a_repository_without_a_commit_is_told_with_the_remedy(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q", "-b", "main", "new")
    with pytest.raises(UsageError, match=r"has no commit for a branch to begin with\. Run `git commit`"):
        open_branch(tmp_path / "new", "x")
    assert find_branches() == []


def test_a_repository_that_borrows_or_lies_elsewhere_is_refused(project: Path, tmp_path: Path) -> None:
    git(tmp_path, "clone", "-q", "--shared", str(project), "borrowing")
    git(project, "worktree", "add", "-q", str(tmp_path / "tree"))
    for name, told in (("borrowing", "it borrows objects"), ("tree", "its .git is not a directory")):
        with pytest.raises(UsageError, match=told):
            open_branch(tmp_path / name, "x")
    with pytest.raises(UsageError, match="is in no git repository"):
        open_branch(tmp_path, "x")


def test_a_repository_where_the_sandbox_has_its_tree_is_refused(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container whose project is mounted at /workspace."""
    monkeypatch.setattr("ohsandbox.runtime.workspace.branches.WORKSPACE", str(project))

    with pytest.raises(UsageError, match="Mount or move the repository elsewhere"):
        open_branch(project, "x")
    assert find_branches() == []


def hostile(directory: Path, canary: Path) -> None:
    """Everything in a repository by which git runs a program."""
    run = f"touch {canary}"
    with (directory / "config").open("a") as file:
        file.write(
            f'[core]\n\tfsmonitor = "{run}"\n\thooksPath = hooks\n\tsshCommand = "{run}"\n\tpager = "{run}"\n'
            f'[filter "x"]\n\tclean = "{run}"\n\tsmudge = "{run}"\n[diff "x"]\n\ttextconv = "{run}"\n'
            f'[uploadpack]\n\tpackObjectsHook = "{run}"\n[include]\n\tpath = more\n'
        )
    (directory / "more").write_text(f'[core]\n\tfsmonitor = "{run}"\n')
    (directory / "hooks").mkdir(exist_ok=True)
    for name in ("post-checkout", "pre-commit", "reference-transaction", "post-merge", "post-index-change"):
        hook = directory / "hooks" / name
        hook.write_text(f"#!/bin/sh\n{run}\n")
        hook.chmod(0o755)


def test_nothing_of_a_hostile_tree_or_repository_runs_here(project: Path, tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    (project / ".gitattributes").write_text("* filter=x diff=x\n")
    git(project, "add", ".gitattributes")
    git(project, "commit", "-q", "-m", "attributes")
    hostile(project / ".git", canary)
    branch = open_branch(project, "two")
    assert not canary.exists()
    inner = branch.tree / "inner"
    inner.mkdir()
    git(inner, "init", "-q")
    git(inner, "commit", "-q", "--allow-empty", "-m", "x")
    git(branch.tree, "add", "inner")
    git(branch.tree, "commit", "-q", "-m", "a submodule")
    hostile(inner / ".git", canary)
    hostile(branch.tree / ".git", canary)
    (branch.tree / "a").write_text("changed\n")
    with work_of(branch) as work:
        assert diff(branch, work)
        fetch_branch(branch, work)
    assert not canary.exists()
    git(inner, "status")
    assert canary.exists()


def test_a_tree_with_links_and_other_objects_brings_nothing_from_outside(project: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.mkdir()
    git(secret, "init", "-q")
    (secret / "key").write_text("hidden\n")
    git(secret, "add", "key")
    git(secret, "commit", "-q", "-m", "hidden")
    head = git(secret, "rev-parse", "HEAD")
    branch = open_branch(project, "two")
    (branch.tree / ".git/objects/info/alternates").write_text(f"{secret}/.git/objects\n")
    (branch.tree / "stolen").symlink_to(secret, target_is_directory=True)
    (branch.tree / "out").symlink_to(secret / "key")
    with work_of(branch) as work:
        assert b"hidden" not in diff(branch, work)
    (branch.tree / ".git/refs/heads/two").write_text(head + "\n")
    with pytest.raises(UsageError), work_of(branch) as work:
        pass
    (branch.tree / ".git/refs/heads/two").unlink()
    (branch.tree / ".git/refs/heads/two").symlink_to(secret / "key")
    with pytest.raises(UsageError, match="has no such branch any more"), work_of(branch) as work:
        pass


@pytest.mark.docker
def test_a_sandbox_works_in_its_tree_and_only_reads_the_repositorys_objects(project: Path) -> None:
    where = SandboxOptions(workspace=project, branch="two").checked()
    assert where.branch is None
    branch = find_branches(project)[0]
    assert check_directory(branch.tree) == str(branch.tree)
    with pytest.raises(UsageError, match="is refused"):
        check_directory(branch.directory)
    with DockerRuntime(IMAGE, workspace=where.workspaces, mounts=where.mount or []) as runtime:
        objects = branch.objects
        look = f"cat a; ls {objects} >/dev/null && echo reads; touch {objects}/x || ls {project}/.git"
        said = runtime.execute(look).output
        runtime.execute("echo more >b; echo x >.git/hooks/pre-commit")
    assert said.split()[:2] == ["a", "reads"]
    assert said.split()[-1:] == ["objects"]
    assert not (branch.tree / ".git/hooks/pre-commit").exists()
    with work_of(branch) as work:
        assert b"+more" in diff(branch, work)
    remove_tree(branch)


PROGRAMS = {
    "smudge": '[filter "a=b"]\n\tsmudge = {run}\n\trequired\n',
    "process": '[filter "a=b"]\n\tprocess = {run}\n\trequired = true\n',
    "protocol": '[protocol "ext"]\n\tallow = always\n[url "ext::{script} "]\n\tinsteadOf = /\n',
    "options": '[branch "main"]\n\tmergeoptions = -S --no-ff\n[gpg]\n\tprogram = {script}\n',
    "signature": "[gpg]\n\tprogram = {script}\n[log]\n\tshowSignature\n[merge]\n\tverifySignatures\n",
    "hooks": "[core]\n\thooksPath = {script}.d\n\tfsmonitor = {run}\n\talternateRefsCommand = {run}\n",
    "tree": "[core]\n\tworktree = {elsewhere}\n",
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_nothing_runs_and_no_other_directory_is_written_because_of_a_repository_s_own_configuration(
    project: Path, tmp_path: Path, name: str
) -> None:
    """It may be an archive's, or another user's: git's own check of owners is not made here."""
    canary, elsewhere, script = tmp_path / "canary-ran", tmp_path / "elsewhere", tmp_path / "run.sh"
    elsewhere.mkdir()
    script.write_text(f"#!/bin/sh\ntouch {canary}\ncat\n")
    script.chmod(0o755)
    said = PROGRAMS[name].format(run=f"touch {canary}; cat", script=script, elsewhere=elsewhere)
    with (project / ".git/config").open("a") as config:
        config.write(said)
    branch = open_branch(project, "fix")
    (branch.tree / ".gitattributes").write_text("*.f filter=a=b\n")
    (branch.tree / "new.f").write_text("new\n")
    is_refused = name == "protocol"
    with work_of(branch) as work, pytest.raises(UsageError) if is_refused else nullcontext():
        fetch_branch(branch, work)
    assert merge_into_checkout(branch) is not is_refused
    assert (project / "new.f").exists() is not is_refused
    assert not canary.exists()
    assert [*elsewhere.iterdir()] == []


def test_a_partial_clone_is_refused(project: Path) -> None:
    git(project, "config", "remote.origin.promisor", "true")
    with pytest.raises(UsageError, match="partial clone"):
        open_branch(project, "fix")


def test_an_object_that_is_mostly_a_hole_does_not_fill_the_disk(project: Path) -> None:
    branch = open_branch(project, "fix")
    (branch.tree / ".git/objects/ab").mkdir(parents=True)
    with (branch.tree / ".git/objects/ab" / ("c" * 38)).open("wb") as file:
        file.truncate(1 << 43)
    with pytest.raises(UsageError, match="over half of what is free"), work_of(branch):
        pass


@pytest.mark.slow
def test_an_object_that_is_small_on_disk_and_large_in_memory_is_not_read(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    branch = open_branch(project, "fix")
    tree = git(branch.tree, "rev-parse", "HEAD^{tree}")
    body = f"tree {tree}\nauthor a <a> 0 +0000\ncommitter a <a> 0 +0000\n\n".encode() + bytes(256 * 2**20)
    commit = b"commit %d\0" % len(body) + body
    name = hashlib.sha1(commit).hexdigest()
    place = branch.tree / ".git/objects" / name[:2] / name[2:]
    place.parent.mkdir(exist_ok=True)
    place.write_bytes(zlib.compress(commit, 1))
    (branch.tree / ".git/refs/heads/fix").write_text(name)
    monkeypatch.setattr(our_git, "MEMORY_BYTES", 128 * 2**20)
    with pytest.raises(UsageError, match="git needs over 128 MiB of memory"), work_of(branch):
        pass


def test_a_diff_is_read_no_further_than_somebody_wants(project: Path) -> None:
    branch, sizes = open_branch(project, "fix"), list[int]()

    def take(piece: bytes) -> bool:
        sizes.append(len(piece))
        return False

    (branch.tree / "b").write_text("b\n" * 8 * 2**20)
    with work_of(branch) as work:
        branches.diff(branch, work, take)
    assert [0 < size <= 2**20 for size in sizes] == [True]
