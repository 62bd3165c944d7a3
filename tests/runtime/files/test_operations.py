"""Files under attack and out of space, and the words of tools that became errors."""

from __future__ import annotations

import errno
import re
import threading
from typing import TYPE_CHECKING, Any

import pytest

from ohsandbox.errors import SandboxFileError
from ohsandbox.runtime.files import operations
from ohsandbox.runtime.process.worker import Worker
from ohsandbox.testing import FakeRuntime
from ohsandbox.testing.conformance.case import is_running, number_nobody_sleeps

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from ohsandbox.runtime.base import Runtime
    from ohsandbox.runtime.process.worker import CallResult


@pytest.fixture
def fake() -> Iterator[FakeRuntime]:
    with FakeRuntime() as runtime:
        yield runtime


@pytest.mark.parametrize(
    ("said", "number"),
    [
        (b"ohs-1: 1: eval: cannot create /x/.ohs-2.tmp: Permission denied\n", errno.EACCES),
        (b"ohs-1: eval: line 0: can't create /proc/x: nonexistent directory\n", errno.ENOENT),
        (b"ohs-1: 1: eval: cannot open /x: No such file\n", errno.ENOENT),
        (b"dd: error writing 'standard output': No space left on device\n0+1 records in\n", errno.ENOSPC),
        (b"mkdir: can't create directory '/x': Read-only file system\n", errno.EROFS),
        (b"ls: /a: Permission denied/b: Symbolic link loop\n", errno.ELOOP),
        (b"ohs: 1: exec: tar: not found\n", errno.ENOSYS),
        (b"ohs: line 3: tar: command not found\n", errno.ENOSYS),
        (b"errno EISDIR\n", errno.EISDIR),
        (b"errno __name__\n", errno.EIO),
        (b"no word of ours\xff\n", errno.EIO),
        (b"", errno.EIO),
    ],
)
def test_words_of_the_sandbox_become_an_errno(said: bytes, number: int) -> None:
    error = operations.error_of(said, 1, "/x")
    assert (error.errno, error.filename) == (number, "/x")
    assert "ohs" not in str(error)


@pytest.mark.parametrize(
    ("said", "remedy"),
    [
        (b"sh: 1: Cannot fork\n", "End some processes: the sandbox is at its limit of processes."),
        (b"sh: can't fork: Resource temporarily unavailable\n", "the sandbox is at its limit of processes."),
        (b"sh: can't fork: Cannot allocate memory\n", "End some processes: the sandbox is at its limit of memory."),
    ],
)
def test_a_limit_that_was_reached_is_named(said: bytes, remedy: str) -> None:
    assert str(operations.error_of(said, 1, "/x")).endswith(remedy)


def test_names_in_what_a_tool_says_do_not_decide_the_errno() -> None:
    assert operations.error_of(b"cat: /Permission denied: Is a directory\n", 1, "/x").errno == errno.EISDIR


def test_entries_that_vanish_while_we_list_are_left_out() -> None:
    stdout = b"./a\0./b\nc\0./d\0\x0081a4 1 2 ./b\nc\n41ed 3 4 ./d\n"
    found = operations.parse_list(stdout)
    assert [(entry.name, entry.kind) for entry in found] == [
        ("b\nc", "file"),
        ("d", "directory"),
    ]


def test_a_time_that_no_calendar_holds_is_still_listed() -> None:
    assert operations.parse_list(b"./a\0\x0081a4 1 99999999999999 ./a\n")[0].modified_at.year == 9999


@pytest.mark.parametrize("path", ["", "a\0b", "\ud800", "x" * 256, "a/" * 2048, r"C:\foo", r"\\host\x"])
def test_impossible_paths_are_refused_before_the_sandbox_is_asked(path: str) -> None:
    with pytest.raises(SandboxFileError):
        operations.check_path(path)


def test_each_write_has_a_temporary_name_of_its_own() -> None:
    names = {re.findall(rb"\.ohs-\w{16}\.tmp", operations.write_body("/f", 1, None))[0] for _ in range(100)}
    assert len(names) == 100


def test_a_symlink_planted_at_the_temporary_name_is_not_followed(
    fake: FakeRuntime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    victim = tmp_path / "victim"
    victim.write_text("good")
    monkeypatch.setattr("secrets.token_hex", lambda size: "0" * 2 * size)
    fake.run(["ln", "-s", str(victim), f".ohs-{'0' * 16}.tmp"])
    with pytest.raises(SandboxFileError):
        fake.write_bytes("f", b"evil")
    assert victim.read_text() == "good"


def test_a_directory_that_changes_can_be_listed(fake: FakeRuntime) -> None:
    fake.run(["sh", "-c", "for i in $(seq 300); do : >$i; done"])
    end = threading.Event()

    def churn() -> None:
        while not end.is_set():
            fake.run(["sh", "-c", "rm -f 1*; for i in $(seq 100 150); do : >$i; done"])

    thread = threading.Thread(target=churn)
    thread.start()
    found = [{entry.name for entry in fake.list_dir(".")} for _ in range(20)]
    end.set()
    thread.join()
    assert all({str(number) for number in range(200, 301)} <= names for names in found)


@pytest.mark.parametrize("begins", ["", "echo begun;"])
def test_a_read_that_blocks_is_given_up_and_nothing_of_it_stays(
    fake: FakeRuntime, monkeypatch: pytest.MonkeyPatch, begins: str
) -> None:
    number = number_nobody_sleeps()
    monkeypatch.setattr(operations, "READ_STALL_S", 0.3)  # /proc/kmsg, or a FIFO in the file's place
    monkeypatch.setattr(operations, "read_body", lambda *_, **__: f"({begins} exec sleep {number})".encode())
    with pytest.raises(SandboxFileError, match="gave nothing for") as caught:
        fake.read_bytes("f")
    assert caught.value.errno == errno.ETIMEDOUT
    assert not is_running(fake, f"sleep {number}")
    assert fake.run(["echo", "ok"]).stdout == b"ok\n"


def test_a_file_over_the_limit_is_not_moved(fake: FakeRuntime, monkeypatch: pytest.MonkeyPatch) -> None:
    fake.run(["dd", "if=/dev/zero", "of=f", "bs=1", "count=0", "seek=64M"])
    moved: list[int] = []
    finish = Worker.finish

    def counted(worker: Worker, *words: Any, **options: Any) -> CallResult:
        outcome = finish(worker, *words, **options)
        moved.append(len(outcome.stdout))
        return outcome

    monkeypatch.setattr(Worker, "finish", counted)
    with pytest.raises(SandboxFileError, match="larger than the limit of 67108863 bytes") as caught:
        fake.read_bytes("f", limit_bytes=(64 << 20) - 1)
    assert caught.value.errno == errno.EFBIG
    assert sum(moved) < 2 << 20
    assert len(fake.read_bytes("f", limit_bytes=64 << 20)) == 64 << 20


@pytest.mark.docker
@pytest.mark.parametrize("image", ["debian", "busybox"])
@pytest.mark.parametrize("size", [4000, 3_000_000])
def test_a_full_disk_leaves_the_old_file_and_no_other(image: str, size: int, flavour: Callable[[str], Runtime]) -> None:
    runtime = flavour(image)
    full = "/dev/shm"  # a tmpfs of the container's own; filled up to its last page here
    runtime.write_bytes(f"{full}/f", b"old")
    runtime.run(["sh", "-c", f"cat /dev/zero >{full}/filler"])
    try:
        with pytest.raises(SandboxFileError) as caught:
            runtime.write_bytes(f"{full}/f", b"x" * size)
        assert caught.value.errno == errno.ENOSPC
        assert runtime.read_bytes(f"{full}/f") == b"old"
        assert {entry.name for entry in runtime.list_dir(full)} == {"f", "filler"}
    finally:
        runtime.run(["rm", f"{full}/f", f"{full}/filler"])


@pytest.mark.docker
def test_a_directory_is_not_listed_as_empty_where_stat_tells_nothing(flavour: Callable[[str], Runtime]) -> None:
    """As gVisor of 2022 does with statx(2) of coreutils 9."""
    runtime = flavour("debian")
    runtime.run(["mv", "/usr/bin/stat", "/usr/bin/stat.kept"])
    try:
        runtime.write_bytes("/usr/bin/stat", b"#!/bin/sh\necho 'stat: Invalid argument' >&2; exit 1\n", mode=0o755)
        with pytest.raises(SandboxFileError, match=r"tools failed.*'/etc'"):
            runtime.list_dir("/etc")
    finally:
        runtime.run(["mv", "/usr/bin/stat.kept", "/usr/bin/stat"])
    assert runtime.list_dir("/etc")


@pytest.mark.docker
def test_a_mount_point_is_written_in_place(flavour: Callable[[str], Runtime]) -> None:
    runtime = flavour("debian")
    before = runtime.read_bytes("/etc/hosts")
    runtime.write_bytes("/etc/hosts", before + b"127.0.0.9 added\n")
    assert runtime.read_bytes("/etc/hosts") == before + b"127.0.0.9 added\n"
    runtime.write_bytes("/etc/hosts", before)


@pytest.mark.docker
def test_a_read_only_file_system_is_erofs(flavour: Callable[[str], Runtime]) -> None:
    for path in ("/sys/x", "/proc/sys/kernel/x", "/proc/sys/kernel/hostname"):
        with pytest.raises(OSError, match=path) as caught:
            flavour("debian").write_bytes(path, b"x")
        assert caught.value.errno in (errno.EROFS, errno.ENOENT)
