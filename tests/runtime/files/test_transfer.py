"""A sandbox whose tar lies, and a host whose files move."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import tarfile
import time
import tracemalloc
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ohsandbox.errors import SandboxFileError, ToolError
from ohsandbox.paths import state_dir
from ohsandbox.runtime.files import transfer, unpack
from ohsandbox.testing import FakeRuntime

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ohsandbox.runtime.base import Runtime


@pytest.fixture
def fake() -> Iterator[FakeRuntime]:
    with FakeRuntime() as runtime:
        yield runtime


@pytest.fixture
def tar_is(fake: FakeRuntime, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Put a script in tar's place."""

    def replace(script: str) -> None:
        fake.write_bytes("bin/tar", f"#!/bin/sh\n{script}\n".encode(), mode=0o755)
        monkeypatch.setattr(transfer, "_SCRIPT", f"PATH={fake.workdir}/bin:$PATH\n{transfer._SCRIPT}")

    fake.run(["mkdir", "tree"])
    return replace


def archive(*members: tuple[str, bytes, str], data: bytes = b"evil") -> bytes:
    """A tar of (name, type, linkname)."""
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w") as made:
        for name, kind, linkname in (("./", tarfile.DIRTYPE, ""), *members):
            info = tarfile.TarInfo(name)
            info.type, info.linkname, info.mode = kind, linkname, 0o4777
            info.size = len(data) if kind == tarfile.REGTYPE else 0
            made.addfile(info, io.BytesIO(data) if info.size else None)
    return raw.getvalue()


FILE, LINK, HARD, DIRECTORY = tarfile.REGTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.DIRTYPE


@pytest.mark.parametrize(
    "members",
    [
        [("../evil", FILE, "")],
        [("/evil", FILE, "")],
        [("a/../../evil", FILE, "")],
        [("link", LINK, ".."), ("link/evil", FILE, "")],
        [("link", LINK, "/"), ("link/evil", FILE, "")],
        [("d", DIRECTORY, ""), ("d/l", LINK, ".."), ("d/m", LINK, "l/../.."), ("d/m/evil", FILE, "")],
        [("hard", HARD, "/etc/passwd"), ("up", HARD, "../victim"), ("self", HARD, "self")],
        [("a", FILE, ""), ("a/evil", FILE, "")],
        [("d", DIRECTORY, ""), ("d", LINK, "/"), ("d/evil", FILE, "")],
        [("dev", tarfile.CHRTYPE, ""), ("blk", tarfile.BLKTYPE, ""), ("pipe", tarfile.FIFOTYPE, "")],
    ],
)
def test_nothing_of_a_hostile_archive_lands_outside(
    members: list[tuple[str, bytes, str]], fake: FakeRuntime, tar_is: Callable[[str], None], tmp_path: Path
) -> None:
    (tmp_path / "victim").write_text("good")
    fake.write_bytes("evil.tar", archive(*members))
    tar_is(f"exec cat {fake.workdir}/evil.tar")
    fake.download("tree", tmp_path / "host" / "out")
    assert {path.name for path in tmp_path.iterdir()} == {"victim", "host"}
    assert [path.name for path in (tmp_path / "host").iterdir()] == ["out"]
    assert (tmp_path / "victim").read_text() == "good"
    for path in (tmp_path / "host" / "out").rglob("*"):
        assert path.resolve().is_relative_to(tmp_path / "host" / "out")
        assert not path.lstat().st_mode & 0o7000
        assert path.is_file() or path.is_dir() or path.is_symlink()


@pytest.mark.parametrize(
    "script",
    [
        "head -c 30000 /dev/urandom",
        "exit 0",
        "echo tar: boom >&2; exit 3",
        "exec cat /dev/zero",
        "exec yes",
        "/usr/bin/tar -cf - /etc | head -c 700",
        "kill -9 $$",
    ],
)
def test_a_tar_that_lies_is_a_typed_error_and_nothing_lands(
    script: str, fake: FakeRuntime, tar_is: Callable[[str], None], tmp_path: Path
) -> None:
    tar_is(script)
    began = time.monotonic()
    with pytest.raises(SandboxFileError) as caught:
        fake.download("tree", tmp_path / "out")
    assert caught.value.errno == errno.EIO
    assert time.monotonic() - began < 30
    assert [*tmp_path.iterdir()] == []


@pytest.mark.parametrize("kind", [tarfile.GNUTYPE_LONGNAME, tarfile.XHDTYPE])
def test_a_header_of_gigabytes_costs_no_memory(
    kind: bytes, fake: FakeRuntime, tar_is: Callable[[str], None], tmp_path: Path
) -> None:
    info = tarfile.TarInfo("././@LongLink")
    info.type, info.size = kind, 8 * 1024**3
    fake.write_bytes("head", info.tobuf(tarfile.GNU_FORMAT))
    tar_is(f"cat {fake.workdir}/head; exec cat /dev/zero")
    with pytest.raises(SandboxFileError):
        fake.download("tree", tmp_path / "out")


def test_a_tar_that_stops_is_given_up(
    fake: FakeRuntime, tar_is: Callable[[str], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unpack, "STALL_S", 0.3)
    monkeypatch.setattr(transfer, "STALL_S", 0.3)
    tar_is("exec sleep 60")
    (tmp_path / "f").write_bytes(b"x" * 5_000_000)
    with pytest.raises(SandboxFileError) as caught:
        fake.download("tree", tmp_path / "out")
    assert caught.value.errno == errno.ETIMEDOUT
    with pytest.raises(SandboxFileError) as caught:
        fake.upload(tmp_path, "up")
    assert caught.value.errno == errno.ETIMEDOUT


def test_a_tar_that_moves_a_byte_now_and_then_is_given_up_in_the_end(
    fake: FakeRuntime, tar_is: Callable[[str], None], tmp_path: Path
) -> None:
    (tmp_path / "f").write_bytes(b"x" * 50_000_000)
    fake.write_bytes("none.tar", archive()[:512])
    limits = transfer.TransferLimits(timeout_s=1)
    tar_is(f"cat {fake.workdir}/none.tar; while :; do printf '\\0'; sleep 0.1; done")
    with pytest.raises(SandboxFileError, match="not transferred in 1 s") as caught:
        fake.download("tree", tmp_path / "out", limits=limits)
    assert caught.value.errno == errno.ETIMEDOUT
    tar_is("while dd bs=1 count=1 of=/dev/null 2>/dev/null; do sleep 0.1; done")
    with pytest.raises(SandboxFileError, match="not transferred in 1 s"):
        fake.upload(tmp_path, "up", limits=limits)
    assert not (tmp_path / "out").exists()


def test_an_upload_to_a_tar_that_talks_for_ever_ends(
    fake: FakeRuntime, tar_is: Callable[[str], None], tmp_path: Path
) -> None:
    tar_is("exec cat /dev/zero")
    (tmp_path / "f").write_bytes(b"1")
    with pytest.raises(SandboxFileError):
        fake.upload(tmp_path, "up")


def test_an_image_without_tar_is_told_so(fake: FakeRuntime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake.run(["mkdir", "tree"])
    monkeypatch.setattr(transfer, "_SCRIPT", f"PATH=/nowhere\n{transfer._SCRIPT}")
    with pytest.raises(SandboxFileError, match="no `tar`"):
        fake.download("tree", tmp_path / "out")
    with pytest.raises(SandboxFileError, match="no `tar`"):
        fake.upload(tmp_path, "tree")


def test_a_file_that_grows_past_its_header_is_still_a_whole_archive(fake: FakeRuntime, tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(b"x")
    entry = next(transfer._SourceTree(tmp_path, "/t")._entries())
    (tmp_path / "log").write_bytes(b"xyz")
    fake.upload(tmp_path, "t")
    assert (entry.facts.st_size, fake.read_bytes("t/log")) == (1, b"xyz")


def test_an_unreadable_host_file_is_told_as_the_hosts(fake: FakeRuntime, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(*_: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", "/secret")

    monkeypatch.setattr(transfer, "_add_file", denied)
    with pytest.raises(PermissionError, match="On this machine"):
        fake.upload(Path(__file__), "t")


@pytest.mark.parametrize(
    ("members", "kept"),
    [
        ([("a", FILE, ""), ("b", HARD, "a"), ("a", FILE, "")], {"a": "new", "b": "old"}),
        ([("a", LINK, "b"), ("a", FILE, ""), ("b", FILE, "")], {"a": "old", "b": "new"}),
        ([("a", FILE, ""), ("a", LINK, "b"), ("b", FILE, "")], {"a": "old", "b": "new"}),
    ],
    ids=["the later file", "a file after a symlink", "a file before a symlink"],
)
def test_of_members_with_one_name_one_is_kept_whole(
    members: list[tuple[str, bytes, str]], kept: dict[str, str], tmp_path: Path
) -> None:
    raw, contents = io.BytesIO(), iter([b"old", b"new"])
    with tarfile.open(fileobj=raw, mode="w") as made:
        for name, kind, linkname in members:
            info = tarfile.TarInfo(name)
            info.type, info.linkname, info.size = kind, linkname, 3 * (kind == FILE)
            made.addfile(info, io.BytesIO(next(contents)) if kind == FILE else None)
    raw.seek(0)
    tree = unpack._StagedTree(tmp_path, unpack.Meter(unpack.TransferLimits(), "Download"))
    with tarfile.open(fileobj=raw) as found:
        for member in found:
            tree.add(found, member)
    tree.settle()
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == kept


@pytest.mark.parametrize("is_full", [False, True])
def test_a_download_to_another_file_system_copies_directories_and_leaves_no_part_of_a_file(
    is_full: bool,  # noqa: FBT001
    fake: FakeRuntime,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def elsewhere(*_: object, **__: object) -> None:
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))

    replace = os.replace

    def only_here(old: str, new: str, *, src_dir_fd: int, dst_dir_fd: int) -> None:
        if is_full or src_dir_fd != dst_dir_fd:
            raise OSError(errno.EXDEV if src_dir_fd != dst_dir_fd else errno.ENOSPC, "refused")
        replace(old, new, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd)

    fake.run(["sh", "-c", "mkdir -p t/d; echo x >t/d/f; chmod 750 t/d"])
    monkeypatch.setattr(os, "rename", elsewhere)
    monkeypatch.setattr(os, "replace", only_here)
    with contextlib.suppress(OSError):
        fake.download("t", tmp_path / "out")
    found = {str(path.relative_to(tmp_path / "out")) for path in (tmp_path / "out").rglob("*")}
    assert found == ({"d"} if is_full else {"d", "d/f"})
    assert (tmp_path / "out" / "d").stat().st_mode & 0o777 == 0o750


def test_limits_are_counted_before_they_are_reached(tmp_path: Path) -> None:
    meter = unpack.Meter(unpack.TransferLimits(members=1), "Upload")
    meter.count("a", 1)
    with pytest.raises(ToolError, match="more than 1 members"):
        meter.count("b", 1)
    assert [*tmp_path.iterdir()] == []


DEEP = "/".join("abcdefgh")


MANY_DIRECTORIES = [(f"{number}/{DEEP}/f", FILE, "") for number in range(12)]


@pytest.mark.parametrize(
    ("members", "limits"),
    [
        (MANY_DIRECTORIES, transfer.TransferLimits(members=100)),
        (MANY_DIRECTORIES, transfer.TransferLimits(total_bytes=400_000)),
        ([(f"{number}", FILE, "") for number in range(25)], transfer.TransferLimits(total_bytes=99_999)),
        (
            [("f", FILE, ""), *((f"{number}", HARD, "f") for number in range(25))],
            transfer.TransferLimits(total_bytes=99_999),
        ),
        ([(f"{number}", LINK, "t" * 60) for number in range(25)], transfer.TransferLimits(total_bytes=99_999)),
    ],
)
def test_a_download_counts_what_it_makes_here_rather_than_what_was_sent(
    members: list[tuple[str, bytes, str]],
    limits: transfer.TransferLimits,
    fake: FakeRuntime,
    tar_is: Callable[[str], None],
    tmp_path: Path,
) -> None:
    fake.write_bytes("many.tar", archive(*members))
    tar_is(f"exec cat {fake.workdir}/many.tar")
    with pytest.raises(ToolError, match=r"Download refused: more than \d+ (members|bytes in all)"):
        fake.download("tree", tmp_path / "out", limits=limits)
    assert [*tmp_path.iterdir()] == []
    assert [*(state_dir() / "staging").iterdir()] == []


def test_directories_that_are_sent_are_counted_once(fake: FakeRuntime, tmp_path: Path) -> None:
    fake.run(["sh", "-c", f"mkdir -p t/{DEEP}; echo 1 >t/{DEEP}/f"])
    assert fake.download("t", tmp_path / "out", limits=transfer.TransferLimits(members=10)) == []
    assert (tmp_path / "out" / DEEP / "f").read_text() == "1\n"


def test_a_symlink_whose_target_no_system_takes_is_left_out(
    fake: FakeRuntime, tar_is: Callable[[str], None], tmp_path: Path
) -> None:
    fake.write_bytes("long.tar", archive(("long", LINK, "t/" * 3000), ("f", FILE, "")))
    tar_is(f"exec cat {fake.workdir}/long.tar")
    [left_out] = fake.download("tree", tmp_path / "out")
    assert left_out == ("long", "a symlink whose target is longer than 4095 bytes")
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["f"]


@pytest.mark.slow
def test_words_of_global_headers_are_not_kept(fake: FakeRuntime, tar_is: Callable[[str], None], tmp_path: Path) -> None:
    raw = io.BytesIO()
    for number in range(30):
        raw.write(tarfile.TarInfo.create_pax_global_header({f"OHS.{number}.{word}": "x" for word in range(10_000)}))
        raw.write(tarfile.TarInfo(f"{number}").tobuf(tarfile.USTAR_FORMAT))
    fake.write_bytes("words.tar", archive()[:512] + raw.getvalue() + bytes(1024))
    tar_is(f"exec cat {fake.workdir}/words.tar")
    tracemalloc.start()
    try:
        fake.download("tree", tmp_path / "out")
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len([*(tmp_path / "out").iterdir()]) == 30
    assert peak_bytes < 15 * 1024**2


@pytest.mark.parametrize(
    ("path", "linkname", "inside"),
    [
        ("a", "b", True),
        ("d/a", "../b", True),
        ("a", "..", False),
        ("d/a", "../..", False),
        ("d/a", "x/../..", False),
        ("a", "/etc", False),
        ("a", "x/..", False),
    ],
)
def test_a_symlink_stays_inside_whatever_the_others_are(path: str, linkname: str, inside: bool) -> None:  # noqa: FBT001
    assert unpack._stays_inside(path, linkname) is inside


@pytest.mark.docker
@pytest.mark.parametrize("image", ["debian", "nonroot", "busybox", "hostile"])
def test_a_download_that_is_refused_ends_its_tar(image: str, flavour: Callable[[str], Runtime], tmp_path: Path) -> None:
    runtime = flavour(image)
    runtime.run(["sh", "-c", "dd if=/dev/zero of=/tmp/big bs=1 count=0 seek=15G"])
    with pytest.raises(ToolError, match="refused"):
        runtime.download("/tmp/big", tmp_path / "big")
    assert b"tar" not in runtime.run(["sh", "-c", "cat /proc/[0-9]*/comm; rm /tmp/big"]).stdout.split()


def test_what_alone_is_over_a_limit_is_left_out_of_a_download_that_says_so_and_the_rest_comes(
    fake: FakeRuntime, tmp_path: Path
) -> None:
    fake.run(["sh", "-c", "mkdir -p t/a/b/c/d t/a/b/c/e; touch t/a/b/c/d/f t/a/b/c/e/f t/a/s; printf 12345 >t/big"])
    limits = transfer.TransferLimits(file_bytes=4, depth=3, leaves_out=True)
    left_out = fake.download("t", tmp_path / "got", limits=limits)
    assert sorted(left_out) == [
        ("./a/b/c/d", "over 3 directories deep"),
        ("./a/b/c/e", "over 3 directories deep"),
        ("./big", "5 bytes, over the limit of 4"),
    ]
    assert sorted(str(path.relative_to(tmp_path / "got")) for path in (tmp_path / "got").rglob("*")) == [
        "a", "a/b", "a/b/c", "a/s"
    ]  # fmt: skip


def test_bytes_that_are_left_out_count_for_the_whole(fake: FakeRuntime, tmp_path: Path) -> None:
    fake.run(["sh", "-c", "mkdir t; truncate -s 1M t/sparse"])
    limits = transfer.TransferLimits(file_bytes=4, total_bytes=1000, leaves_out=True)
    with pytest.raises(ToolError, match="more than 1000 bytes in all"):
        fake.download("t", tmp_path / "got", limits=limits)
    assert not (tmp_path / "got").exists()


def test_a_flood_of_names_below_one_that_is_too_deep_or_too_long_is_one_name() -> None:
    meter = unpack.Meter(unpack.TransferLimits(depth=2, name_bytes=20, leaves_out=True), "Download")
    for number in range(100):
        assert not meter.admit(f"./a/b/x/{number}", 0)
        assert not meter.admit(f"./long/{'n' * 20}{number}", 0)
    assert meter.left_out == {"./a/b/x": "over 2 directories deep", "./long": "a name of over 20 bytes"}
