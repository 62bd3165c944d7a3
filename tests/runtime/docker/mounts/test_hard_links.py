"""Files of a bound directory that have names outside of it: a sandbox changes none of these."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ohsandbox.cli.rendering.text import progress_text
from ohsandbox.errors import UsageError
from ohsandbox.runtime.docker import DockerRuntime, SandboxLimits
from ohsandbox.runtime.docker.mounts import hard_links
from ohsandbox.runtime.docker.mounts.bind_mounts import binds_of
from ohsandbox.runtime.docker.mounts.guard import guard
from ohsandbox.runtime.mount_text import Mount

if TYPE_CHECKING:
    from collections.abc import Callable

    from ohsandbox.runtime.docker.mounts.bind_mounts import Bind
    from ohsandbox.runtime.docker.mounts.guard_mounts import LinkedFile
    from ohsandbox.runtime.results import PullProgress

PACKAGE = ".venv/lib/python3/site-packages/pkg"
OWNER = 12345


def _inode(path: Path) -> int:
    return path.stat().st_ino


def _owned(*directories: Path) -> None:
    """Give the files to an ordinary user where we are root: a sandbox's processes are the owner's."""
    for directory in directories if os.getuid() == 0 else ():
        for path in [directory, *directory.rglob("*")]:
            os.chown(path, OWNER, OWNER, follow_symlinks=False)


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    """A package tool's cache with two files, of which the executable one is reported when it changes."""
    cache = tmp_path / "cache"
    cache.mkdir()
    (cache / "a.py").write_text("A = 1\n")
    (cache / "b.py").write_text("B = 1\n")
    (cache / "b.py").chmod(0o755)
    return cache


@pytest.fixture
def project(tmp_path: Path, cache: Path) -> Path:
    """A workspace whose virtual environment is linked to the cache, as uv and pnpm do it."""
    project = tmp_path / "project"
    (project / PACKAGE).mkdir(parents=True)
    (project / "own.py").write_text("own\n")
    for name in ("a.py", "b.py"):
        (project / PACKAGE / name).hardlink_to(cache / name)
    _owned(project, cache)
    return project


def _bind(*directories: Path, read_only: bool = False, **options: object) -> tuple[Bind, ...]:
    mounts = [Mount(source=str(path), target=f"/w{n}", read_only=read_only) for n, path in enumerate(directories)]
    return binds_of(mounts, "guarded", **options)  # type: ignore[arg-type]


# --- in a sandbox ---


@pytest.mark.docker
@pytest.mark.one_engine
@pytest.mark.parametrize("mode", ["keep", "separate"])
def test_what_a_sandbox_appends_reaches_a_name_outside_only_if_links_are_kept(
    project: Path, cache: Path, sandbox: Callable[..., DockerRuntime], mode: str
) -> None:
    with sandbox(workspace=project, hard_links=mode) as runtime:
        appended = runtime.execute(f"echo 'import evil' >> {PACKAGE}/a.py; cat {PACKAGE}/a.py")
        notes = " ".join(runtime.workspace_notes)
        reported = [change.path for change in runtime.workspace_changes().changes]
    assert appended.output.split() == ["A", "=", "1", "import", "evil"]
    assert ("evil" in (cache / "a.py").read_text()) is (mode == "keep")
    assert "'.venv/lib/python3/site-packages/pkg' (2 files, " in notes
    assert ("--hard-links keep" in notes) is (mode == "keep")
    assert reported == []  # also not of the files that were replaced before the start


@pytest.mark.docker
@pytest.mark.one_engine
def test_a_mount_counts_as_the_workspace_does(
    project: Path, cache: Path, tmp_path: Path, sandbox: Callable[..., DockerRuntime]
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    _owned(other)
    with sandbox(workspace=other, mounts=[f"{project}:/more"]) as runtime:
        runtime.execute(f"echo evil > /more/{PACKAGE}/a.py")
    assert (cache / "a.py").read_text() == "A = 1\n"


@pytest.mark.docker
@pytest.mark.one_engine
@pytest.mark.parametrize("mode", ["keep", "separate"])
def test_what_is_guarded_is_not_written_by_a_name_of_it_in_another_mount(
    tmp_path: Path, sandbox: Callable[..., DockerRuntime], mode: str
) -> None:
    repository, other = tmp_path / "repository", tmp_path / "other"
    other.mkdir()
    subprocess.run(["git", "init", "-q", repository], check=True)
    (other / "name").hardlink_to(repository / ".git" / "config")
    _owned(repository, other)
    with sandbox(workspace=repository, mounts=[f"{other}:/other"], hard_links=mode) as runtime:
        assert runtime.execute("echo evil >> /other/name").exit_code == 0
    assert "evil" not in (repository / ".git" / "config").read_text()
    assert "evil" in (other / "name").read_text()


@pytest.mark.docker
@pytest.mark.one_engine
def test_a_local_clone_and_its_origin_stay_sound_when_the_sandbox_overwrites_objects(
    tmp_path: Path, sandbox: Callable[..., DockerRuntime]
) -> None:
    def git(directory: Path, *arguments: str) -> str:
        environment = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", "EMAIL": "a@b"}
        argv = ["git", "-c", "safe.directory=*", "-c", "user.name=x", *arguments]
        return subprocess.run(argv, cwd=directory, env=environment, capture_output=True, text=True, check=True).stdout

    origin, clone = tmp_path / "origin", tmp_path / "clone"
    origin.mkdir()
    git(origin, "init", "-q", "-b", "main")
    (origin / "a").write_text("a\n")
    git(origin, "add", "a")
    git(origin, "commit", "-q", "-m", "first")
    git(tmp_path, "clone", "-q", "--local", "origin", "clone")
    packed = [path for path in (clone / ".git/objects").rglob("*") if path.is_file() and path.stat().st_nlink > 1]
    assert packed  # git has linked them
    _owned(origin, clone)
    with sandbox(workspace=clone) as runtime:
        assert git(clone, "fsck", "--strict") == git(origin, "fsck", "--strict") == ""
        runtime.execute("chmod -R u+w .git/objects; for file in $(find .git/objects -type f); do echo x >$file; done")
    assert git(origin, "fsck", "--strict") == ""
    with pytest.raises(subprocess.CalledProcessError):
        git(clone, "fsck", "--strict")


@pytest.mark.docker
@pytest.mark.one_engine
def test_a_sandbox_that_is_resumed_is_separated_from_what_was_linked_meanwhile(
    project: Path, cache: Path, sandbox: Callable[..., DockerRuntime]
) -> None:
    sandbox(workspace=project, conversation="hard-links").leave()
    (project / "new.py").hardlink_to(cache / "b.py")
    again = DockerRuntime("ohsandbox-base:debian", workspace=project, conversation="hard-links")
    with contextlib.closing(again):
        assert again.resume().how == "same"
        assert "'.' (1 file" in " ".join(again.workspace_notes)
        again.execute("echo evil >> new.py")
    assert (project / "new.py").read_text() == "B = 1\nevil\n"
    assert (cache / "b.py").read_text() == "B = 1\n"


# --- what is separated ---


def test_the_copy_has_content_mode_owner_times_and_attributes_of_the_file(project: Path, cache: Path) -> None:
    linked, outside = project / PACKAGE / "a.py", cache / "a.py"
    outside.chmod(0o751)
    os.utime(outside, ns=(1_000_000_001, 2_000_000_002))
    os.setxattr(outside, "user.note", b"kept")
    before = linked.stat()
    _bind(project)
    after = linked.stat()
    assert after.st_ino != before.st_ino == _inode(outside)
    assert (after.st_mode, after.st_uid, after.st_gid) == (before.st_mode, before.st_uid, before.st_gid)
    assert after.st_mtime_ns == before.st_mtime_ns
    assert os.getxattr(linked, "user.note") == b"kept"
    assert linked.read_bytes() == outside.read_bytes()
    assert sorted(path.name for path in linked.parent.iterdir()) == ["a.py", "b.py"]


def test_the_next_start_finds_nothing_to_do(project: Path) -> None:
    assert _bind(project)[0].hard_links
    inode = _inode(project / PACKAGE / "a.py")
    assert _bind(project)[0].hard_links == ""
    assert _inode(project / PACKAGE / "a.py") == inode


def test_files_linked_only_within_what_is_bound_stay_as_they_are(tmp_path: Path) -> None:
    for name in ("first/deep", "second"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "first/a").write_text("a")
    for name in ("first/deep/b", "second/c"):
        (tmp_path / name).hardlink_to(tmp_path / "first/a")
    binds = _bind(tmp_path / "first", tmp_path / "second")
    assert [bind.hard_links for bind in binds] == ["", ""]
    assert _inode(tmp_path / "first/deep/b") == _inode(tmp_path / "second/c") == _inode(tmp_path / "first/a")


def test_names_of_one_file_in_the_workspace_stay_names_of_one_file(project: Path, cache: Path) -> None:
    (project / "again.py").hardlink_to(cache / "a.py")
    _bind(project)
    assert _inode(project / "again.py") == _inode(project / PACKAGE / "a.py") != _inode(cache / "a.py")
    assert (cache / "a.py").stat().st_nlink == 1


def test_a_directory_that_is_only_read_stays_as_it_is(project: Path, cache: Path) -> None:
    assert _bind(project, read_only=True)[0].hard_links == ""
    assert _inode(project / PACKAGE / "a.py") == _inode(cache / "a.py")


def test_what_the_guard_makes_read_only_stays_as_it_is(project: Path, cache: Path) -> None:
    (project / ".vscode").mkdir()
    (project / ".vscode/tasks.json").hardlink_to(cache / "a.py")
    (project / PACKAGE / "a.py").unlink()
    _bind(project)
    assert _inode(project / ".vscode/tasks.json") == _inode(cache / "a.py")
    assert _inode(project / PACKAGE / "b.py") != _inode(cache / "b.py")


def test_a_link_in_the_place_of_a_directory_is_not_followed(project: Path, tmp_path: Path) -> None:
    """A program that swaps a directory between the walk and the copy makes us write nowhere else."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "a.py").write_text("theirs")
    files: list[LinkedFile] = []
    guard(str(project), "guarded", linked=files)
    (project / PACKAGE).rename(tmp_path / "moved")
    (project / PACKAGE).symlink_to(outside)
    _, changed = hard_links.separate(files, free_bytes=None)
    assert changed == [f"{project}/{PACKAGE}/a.py", f"{project}/{PACKAGE}/b.py"]
    assert [path.name for path in outside.iterdir()] == ["a.py"]
    assert (outside / "a.py").read_text() == "theirs"


def test_a_file_that_was_replaced_since_the_walk_keeps_its_new_content(project: Path) -> None:
    files: list[LinkedFile] = []
    guard(str(project), "guarded", linked=files)
    for name in ("a.py", "b.py"):
        (project / PACKAGE / name).unlink()
    (project / PACKAGE / "a.py").write_text("newer")
    _, changed = hard_links.separate(files, free_bytes=None)
    assert len(changed) == 2
    assert [path.name for path in (project / PACKAGE).iterdir()] == ["a.py"]
    assert (project / PACKAGE / "a.py").read_text() == "newer"


def test_two_sandboxes_that_start_at_once_in_one_workspace_both_find_it_separated(project: Path, cache: Path) -> None:
    for number in range(300):
        (cache / f"{number}.py").write_text(str(number))
        (project / PACKAGE / f"{number}.py").hardlink_to(cache / f"{number}.py")
        (project / f"{number}.py").hardlink_to(cache / f"{number}.py")
    with ThreadPoolExecutor(2) as starts:
        list(starts.map(lambda _: _bind(project), range(2)))
    assert {path.stat().st_nlink for path in cache.iterdir()} == {1}
    assert _bind(project)[0].hard_links == ""
    assert [(project / f"{number}.py").read_text() for number in range(300)] == [str(number) for number in range(300)]


def test_a_copy_has_the_holes_of_the_file_and_holes_take_no_part_of_the_bounds(
    project: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (cache / "a.py").open("r+b") as file:
        file.seek(64 << 20)
        file.write(b"middle")
        file.truncate(128 << 20)
    monkeypatch.setattr(hard_links, "MAX_COPY_BYTES", 1 << 20)
    _bind(project)
    copy = project / PACKAGE / "a.py"
    assert copy.read_bytes() == (cache / "a.py").read_bytes()
    assert copy.stat().st_blocks == (cache / "a.py").stat().st_blocks


def test_a_file_of_which_no_block_is_counted_yet_takes_its_whole_size(
    project: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So a file looks on ZFS until it is written to the disk: here it is a hole."""
    with (cache / "a.py").open("wb") as file:
        file.truncate(2 << 20)
    assert (cache / "a.py").stat().st_blocks == 0
    monkeypatch.setattr(hard_links, "MAX_COPY_BYTES", 1 << 20)
    with pytest.raises(UsageError, match=r"that takes 2\.\d MB"):
        _bind(project)


def test_the_progress_of_large_copies_is_told(project: Path, cache: Path) -> None:
    (cache / "a.py").write_bytes(os.urandom(40 << 20))
    told: list[PullProgress] = []
    _bind(project, progress=told.append)
    assert [progress.done_bytes >> 20 for progress in told] == [16, 32]
    assert progress_text(told[0]) == f"hard-linked files of {str(project)!r}: copying 17 MB of 42 MB"


@pytest.mark.skipif(not hasattr(os, "O_TMPFILE"), reason="only Linux has files without a name")
def test_a_start_that_is_killed_while_it_copies_leaves_nothing_behind(project: Path, cache: Path) -> None:
    (cache / "a.py").write_bytes(os.urandom(40 << 20))
    script = f"""
import os, signal
from ohsandbox.runtime.docker.mounts.bind_mounts import binds_of
from ohsandbox.runtime.mount_text import Mount
binds_of([Mount({str(project)!r}, "/w")], "guarded", progress=lambda _: os.kill(os.getpid(), signal.SIGKILL))
"""
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == -signal.SIGKILL
    assert sorted(path.name for path in (project / PACKAGE).iterdir()) == ["a.py", "b.py"]
    assert _inode(project / PACKAGE / "a.py") == _inode(cache / "a.py")
    assert _bind(project)[0].hard_links


@pytest.mark.skipif(os.getuid() != 0 or not shutil.which("mkfs.btrfs"), reason="needs root and mkfs.btrfs")
def test_where_the_file_system_shares_blocks_the_bounds_do_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk, where = tmp_path / "disk.img", tmp_path / "disk"
    where.mkdir()
    with disk.open("wb") as image:
        image.truncate(200 << 20)
    subprocess.run(["mkfs.btrfs", "-q", disk], check=True, capture_output=True)
    subprocess.run(["mount", "-o", "loop", disk, where], check=True)
    try:
        (where / "cache").write_bytes(os.urandom(1 << 20))
        (where / "project").mkdir()
        (where / "project/file").hardlink_to(where / "cache")
        monkeypatch.setattr(hard_links, "MAX_COPY_BYTES", 0)
        assert _bind(where / "project", free_bytes=1 << 40)[0].hard_links
        assert (where / "project/file").read_bytes() == (where / "cache").read_bytes()
    finally:
        subprocess.run(["umount", where], check=True)


# --- what is refused ---


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
@pytest.mark.parametrize(
    ("owner", "mode", "told"), [(0, 0o777, "it belongs to another user"), (OWNER, 0o755, "Permission denied")]
)
def test_what_the_caller_cannot_replace_is_refused_with_the_directory_and_a_remedy(
    owner: int, mode: int, told: str
) -> None:
    with tempfile.TemporaryDirectory() as top:  # that of pytest is closed to others
        cache, project = Path(top) / "cache", Path(top) / "project"
        (project / "lib").mkdir(parents=True)
        cache.write_text("shared")
        (project / "lib/file").hardlink_to(cache)
        os.chown(cache, owner, owner)
        (project / "lib").chmod(mode)
        Path(top).chmod(0o755)
        os.seteuid(OWNER)
        try:
            with pytest.raises(UsageError, match=told) as refused:
                binds_of([Mount(source=str(project), target="/w")], "rw")
        finally:
            os.seteuid(0)
        assert "'lib' (1 file, 0.0 MB)" in str(refused.value)
        assert "--hard-links keep" in str(refused.value)
        assert [path.name for path in (project / "lib").iterdir()] == ["file"]


def test_copies_that_would_fill_the_disk_are_refused_and_nothing_is_changed(project: Path, cache: Path) -> None:
    with pytest.raises(UsageError, match="must stay free") as refused:
        _bind(project, free_bytes=1 << 60)
    assert "'.venv/lib/python3/site-packages/pkg' (2 files, 0.0 MB)" in str(refused.value)
    assert str(refused.value).endswith("--hard-links keep (hard_links='keep').")
    assert _inode(project / PACKAGE / "a.py") == _inode(cache / "a.py")


def test_copies_over_the_bound_are_refused(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hard_links, "MAX_COPY_BYTES", 11)
    with pytest.raises(UsageError, match=r"at most 0\.0 MB are copied"):
        _bind(project)
    monkeypatch.setattr(hard_links, "MAX_COPY_BYTES", 12)
    assert _bind(project)[0].hard_links


def test_the_floor_of_the_sandboxs_limits_counts(project: Path) -> None:
    runtime = DockerRuntime(workspace=project, limits=SandboxLimits(free_bytes=1 << 40), hard_links="separate")
    assert runtime._options.limits.free_bytes == 1 << 40
    assert runtime._options.hard_links == "separate"
