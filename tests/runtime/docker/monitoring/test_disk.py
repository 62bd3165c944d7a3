"""The floor under a disk's free space, on small file systems of the tests' own."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from ohsandbox.errors import SandboxUnavailable
from ohsandbox.runtime import disk_space
from ohsandbox.runtime.docker.config.container_config import GIB, MIB, SandboxLimits
from ohsandbox.runtime.docker.monitoring import disk
from ohsandbox.runtime.docker.monitoring.process_writes import ProcessWrites

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from ohsandbox.runtime.docker.runtime import DockerRuntime

pytestmark = [pytest.mark.one_engine, pytest.mark.timeout(600)]

IMAGE = "ohsandbox-base:debian"
HANG_S = 240.0
"""Generous: a killed writer returns in a second or two on an idle machine."""
FLOOR_BYTES = 2 * GIB
"""The floor of a disk as people have them: a busy machine needs some of it until a monitor's turn comes."""
needs_mounts = pytest.mark.skipif(
    os.getuid() != 0 or not shutil.which("mkfs.ext4"), reason="a file system of our own needs root and mkfs.ext4"
)


@pytest.fixture
def volume(tmp_path: Path) -> Iterator[Callable[..., Path]]:
    """Makes and mounts small ext4 file systems: `volume(mib, inodes)`."""
    mounted: list[Path] = []

    def make(mib: int = 1024, inodes: int = 65536) -> Path:
        where = tmp_path / f"volume{len(mounted)}"
        where.mkdir()
        backing = where.with_suffix(".img")
        with backing.open("wb") as file:
            file.truncate(mib * MIB)
        subprocess.run(["mkfs.ext4", "-q", "-m0", "-N", str(inodes), backing], check=True)
        subprocess.run(["mount", "-o", "loop", backing, where], check=True)
        mounted.append(where)
        return where

    yield make
    for where in mounted:
        subprocess.run(["umount", "-l", where], check=True)
        where.with_suffix(".img").unlink()


@pytest.fixture
def inside(sandbox: Any, volume: Callable[..., Path]) -> Callable[..., DockerRuntime]:
    """A sandbox whose workspace is a new small file system."""

    def start(*, where: Path | None = None, limits: SandboxLimits | None = None, **size: int) -> DockerRuntime:
        return sandbox(workspace=where or volume(**size), user="0", limits=limits)  # type: ignore[no-any-return]

    return start


def free(where: Path | None) -> float:
    """The share of a file system that is free."""
    assert where is not None
    found = disk_space.measure(where)
    return found.free_bytes / found.total_bytes


def test_the_floor_is_two_gibibytes_or_a_tenth_of_a_small_disk() -> None:
    big, small = (disk_space.DiskSpace(total, total, 10**7, 10**7) for total in (100 * GIB, 5 * GIB))
    assert disk_space.floor_bytes(big, None) == 2 * GIB
    assert disk_space.floor_bytes(small, None) == 5 * GIB // 10
    assert disk_space.floor_bytes(small, 7) == 7
    assert disk_space.shortage(small._replace(free_bytes=GIB), None) is None
    told = disk_space.shortage(big._replace(free_bytes=GIB), None)
    assert told == "has 1.00 GiB free, less than the 2.00 GiB that must stay free"
    assert "inodes for 99999 more files" in str(disk_space.shortage(big._replace(free_files=99_999), None))
    assert disk_space.shortage(big._replace(free_files=0, total_files=0), None) is None  # btrfs has no such number


CHAIN = """
$SIG{CHLD} = "IGNORE";
syscall(157, 36, 1, 0, 0, 0);  # prctl(PR_SET_CHILD_SUBREAPER) of x86_64: it reaps, and is charged with nothing
$block = "x" x (8 << 20);
if (!fork) { while (1) { $n++; open F, ">", "c$n"; syswrite F, $block; close F; exit if fork } }
sleep 999;
"""
"""Writes by a chain of processes that each live for 10 ms."""


@needs_mounts
@pytest.mark.docker
@pytest.mark.parametrize(
    "command",
    [
        "dd if=/dev/zero of=big bs=1M",
        "yes > big",
        "while :; do i=$((i + 1)); head -c 2M /dev/zero > f$i; done",
        "bash -c 'while :; do i=$((i + 1)); head -c 2M /dev/zero > f$i; done'",
        "env -i setsid --wait dd if=/dev/zero of=big bs=1M",
        "for i in 1 2 3 4 5 6 7 8; do dd if=/dev/zero of=b$i bs=1M & done; wait",
        pytest.param(
            f"perl -e '{CHAIN}'", marks=pytest.mark.skipif(platform.machine() != "x86_64", reason="its system call")
        ),
    ],
    ids=["one", "yes", "children", "children of bash", "another session", "eight", "a chain"],
)
def test_what_fills_the_workspaces_disk_is_killed_before_it_is_full(
    inside: Callable[..., DockerRuntime], command: str
) -> None:
    runtime = inside(mib=2560, limits=SandboxLimits(free_bytes=FLOOR_BYTES))
    runtime.execute("true")
    told = runtime.execute(command, timeout_s=HANG_S)
    assert not told.timed_out
    assert f"The disk of '{runtime.host_workspace}' has " in str(told.notice)
    assert "killed" in str(told.notice)
    assert free(runtime.host_workspace) > 0.01
    cleared = runtime.execute("cd /workspace && rm -rf ./* && echo cleared")
    assert cleared.output == "cleared\n"
    deadline = time.monotonic() + HANG_S
    while runtime.execute("dd if=/dev/zero of=again bs=1M count=200 2>/dev/null").exit_code:
        assert time.monotonic() < deadline


@pytest.mark.slow
@needs_mounts
@pytest.mark.docker
def test_what_uses_up_the_inodes_is_killed(inside: Callable[..., DockerRuntime]) -> None:
    runtime = inside(inodes=400_000)
    assert runtime.run(["true"]).notice is None
    told = runtime.run(["sh", "-c", "for i in $(seq 500000); do : > $i; done"], timeout_s=HANG_S)
    assert not told.timed_out
    assert "inodes for " in str(told.notice)
    assert str(told.notice) in str(runtime.execute("true").notice), "a shell tells it too"
    assert runtime.host_workspace is not None
    assert disk_space.measure(runtime.host_workspace).free_files > 100


LINKS = """
import os
for directory in range(1000):
    os.mkdir(f"d{directory}")
    open(f"f{directory}", "w")
    for number in range(60000):
        os.link(f"f{directory}", f"d{directory}/{number:0250}")
"""
"""Makes 15 MB of directory blocks for each two inodes."""


@pytest.mark.slow
@needs_mounts
@pytest.mark.docker
@pytest.mark.parametrize(
    "command",
    [
        f"python3 -c '{LINKS}'",
        "python3 -c 'import os\nfor number in range(400000): os.mkdir(str(number))'",
        "mkdir d; : > f; while :; do i=$((i + 1)); ln f d/$(printf %0250d $i); done",
    ],
    ids=["links", "directories", "links of a shell"],
)
def test_what_fills_the_disk_with_directories_and_names_is_killed(
    inside: Callable[..., DockerRuntime], volume: Callable[..., Path], command: str
) -> None:
    """Their blocks are charged to no process."""
    where = volume(mib=2048, inodes=500_000)
    floor_bytes = disk_space.measure(where).free_bytes - MIB
    limits = SandboxLimits(free_bytes=floor_bytes)
    runtime, other = inside(where=where, limits=limits), inside(where=where, limits=limits)
    other.execute("(while :; do : </proc/self/status; done) & echo $! > pid; X=kept")
    told = runtime.execute(command, timeout_s=HANG_S)
    assert not told.timed_out
    assert f"The disk of '{where}' has " in str(told.notice)
    assert "killed" in str(told.notice)
    assert disk_space.measure(where).free_bytes > floor_bytes - 1024 * MIB
    assert other.execute('kill -0 "$(cat pid)" && echo $X').output == "kept\n"


@pytest.mark.slow
@needs_mounts
@pytest.mark.docker
def test_only_the_sandbox_that_writes_is_stopped(
    inside: Callable[..., DockerRuntime], volume: Callable[..., Path]
) -> None:
    """Each `dd` empties the file, and with it the disk: the loop is stopped all the same."""
    where = volume()
    (where / "a").mkdir()
    (where / "b").mkdir()
    limits = SandboxLimits(free_bytes=800 * MIB)
    writer, other = inside(where=where / "a", limits=limits), inside(where=where / "b", limits=limits)
    other.execute("(while :; do sleep 0.1; done) & echo $! > pid; X=kept")
    told = writer.execute("while :; do dd if=/dev/zero of=big bs=1M; done", timeout_s=HANG_S)
    assert not told.timed_out
    assert "killed" in str(told.notice)
    told = other.execute('kill -0 "$(cat pid)" && echo $X')
    assert told.output == "kept\n"


@pytest.mark.slow
@needs_mounts
@pytest.mark.docker
def test_a_run_in_the_background_is_found_and_the_next_result_tells(inside: Callable[..., DockerRuntime]) -> None:
    runtime = inside()
    runtime.execute("(sleep 1; exec setsid dd if=/dev/zero of=big bs=1M oflag=dsync) >/dev/null 2>&1 &")
    deadline = time.monotonic() + HANG_S
    while not (told := runtime.execute("sleep 0.5")).notice:
        assert time.monotonic() < deadline
    assert "dd (" in str(told.notice)
    while runtime.execute("cat /proc/[0-9]*/comm | grep -x dd").exit_code == 0:  # killed, it still waits for the disk
        assert time.monotonic() < deadline


@needs_mounts
@pytest.mark.docker
def test_below_the_floor_a_new_sandbox_is_refused_and_a_floor_of_zero_is_none(
    inside: Callable[..., DockerRuntime], volume: Callable[..., Path]
) -> None:
    where = volume(mib=64, inodes=1000)
    (where / "fill").write_bytes(os.urandom(52 * MIB))
    (where / "work").mkdir()
    runtime = inside(where=where / "work")
    for _ in range(2):
        with pytest.raises(SandboxUnavailable, match=r"The disk of '.*' has .* must stay free.* Free some"):
            runtime.run(["true"])
    assert inside(where=where / "work", limits=SandboxLimits(free_bytes=0)).execute("true").exit_code == 0
    assert inside(where=where / "work", limits=SandboxLimits(free_bytes=MIB)).execute("true").exit_code == 0


@pytest.mark.docker
def test_another_users_writer_is_found_and_killed_through_its_own_user(sandbox: Any) -> None:
    """The space is injected: it is short as soon as the writer has begun."""
    runtime = sandbox(limits=SandboxLimits(free_bytes=0, file_bytes=256 * MIB))
    runtime.execute(
        "su nobody -s /bin/sh -c 'while :; do dd if=/dev/zero of=/tmp/b bs=1M count=20 conv=fsync; done' 2>/dev/null &"
    )
    plenty = disk_space.DiskSpace(50 * GIB, 100 * GIB, 0, 0)
    watch = disk.DiskMonitor(
        [disk.FileSystem("The engine's disk", lambda: plenty._replace(free_bytes=GIB))], runtime, least=None
    )
    deadline = time.monotonic() + HANG_S
    theirs = "grep -l bs=1[M] /proc/[0-9]*/cmdline"  # not our own worker, of the same user
    while not runtime.execute(theirs).output:
        assert time.monotonic() < deadline
    notices = ""
    while (told := runtime.execute(theirs)).output:
        watch.look()
        notices += str(told.notice)
        assert time.monotonic() < deadline
    assert "(" in notices + str(told.notice) + str(runtime.execute("true").notice)
    assert watch.kills


def test_a_shell_that_is_charged_with_one_killed_child_after_another_is_spared() -> None:
    watch = disk.DiskMonitor([], None, least=None)  # type: ignore[arg-type]  # it kills nothing here
    watch._killed = {("", 2), ("", 3)}

    def writers(shell_mib: int, *children: int) -> list[disk.Writer]:
        shell = ProcessWrites(0, shell_mib * MIB, 0, 0, "0:0", "bash")
        child = ProcessWrites(100 * MIB, 100 * MIB, 0, 0, "0:0", "dd")
        return watch._writers({("", 1): shell} | {("", pid): child for pid in children}, fell=True, of_files=False)

    assert [writers(100, 3), writers(200)] == [[], []]
    assert [writers(201), writers(202)] == [[], [("", 1)]]  # it goes on with no child that was killed


@pytest.mark.docker
def test_the_watch_ends_with_the_sandbox(sandbox: Any) -> None:
    runtime = sandbox()
    runtime.execute("true")
    name = "ohsandbox-disk"
    before = [one for one in threading.enumerate() if one.name == name]
    runtime.close()
    assert len([one for one in threading.enumerate() if one.name == name]) == len(before) - 1


@pytest.mark.docker
def test_an_engine_elsewhere_is_asked_from_inside(sandbox: Any) -> None:
    runtime = sandbox()
    [place] = disk.writable_file_systems(runtime._require_sandbox().container.engine, {}, {}, (), runtime)
    asked = place.ask()
    assert asked is not None
    assert not place.near
    here = disk_space.measure("/var/lib/docker")
    assert asked.total_bytes == here.total_bytes
    assert asked.total_files == here.total_files


@pytest.mark.docker
def test_one_file_has_a_greatest_size_for_every_exec_and_user(sandbox: Any) -> None:
    runtime = sandbox(limits=SandboxLimits(file_bytes=16 * MIB))
    for user in (None, "nobody"):
        told = runtime.run(["dd", "if=/dev/zero", f"of=/tmp/{user}", "bs=1M", "count=20"], user=user)
        assert told.cause == "signal 25" or told.exit_code == 153
        assert len(runtime.read_bytes(f"/tmp/{user}")) == 16 * MIB
    assert runtime.run(["sh", "-c", "ulimit -f unlimited"]).exit_code != 0
    assert runtime.run(["truncate", "-s", "17M", "/tmp/sparse"]).exit_code != 0
    assert "files of at most 0.015625 GiB" in runtime.describe()["limits"]
