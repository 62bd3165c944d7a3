"""Uploading and downloading."""
# ruff: noqa: S101, D103 - cases are tests: their names are sentences, their values literal

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

from ohsandbox.errors import ToolError, UsageError
from ohsandbox.runtime.files.transfer import TransferLimits
from ohsandbox.testing.conformance.case import needs
from ohsandbox.testing.conformance.scratch import host_directory, refused, scratch, sh

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from ohsandbox.runtime.base import Runtime


def _refusal_of(act: Callable[[], object]) -> str:
    """What the refusal of act says."""
    try:
        act()
    except (ToolError, UsageError) as error:
        return str(error)
    raise AssertionError("it was not refused")


def _make_tree(root: Path) -> None:
    (root / "d" / "empty").mkdir(parents=True)
    (root / "d" / "run me.sh").write_bytes(b"#!/bin/sh\n")
    (root / "d" / "run me.sh").chmod(0o755)
    (root / "e\u0301\n-rf").write_bytes(b"\0\xff")
    (root / "secret").write_bytes(b"s")
    (root / "secret").chmod(0o600)
    (root / "link").symlink_to("d/run me.sh")
    (root / "hard").hardlink_to(root / "secret")
    (root / "closed").mkdir()
    (root / "closed" / "f").write_bytes(b"in a closed directory")
    (root / "closed").chmod(0o555)


@needs("tar")
def tree_goes_up_and_comes_down_as_it_was(runtime: Runtime) -> None:
    with scratch(runtime) as here, host_directory() as host:
        (host / "src").mkdir()
        _make_tree(host / "src")
        assert runtime.upload(host / "src", f"{here}/new/tree") == []
        assert runtime.download(f"{here}/new/tree", host / "back") == []
        for path in (host / "src").rglob("*"):
            twin = host / "back" / path.relative_to(host / "src")
            assert twin.is_symlink() == path.is_symlink()
            assert twin.lstat().st_mode | 0o700 == path.lstat().st_mode | 0o700
            assert path.is_dir() or twin.read_bytes() == path.read_bytes()
        (host / "src" / "closed").chmod(0o755)


@needs("tar")
def uploaded_contents_merge_into_the_target(runtime: Runtime) -> None:
    with scratch(runtime) as here, host_directory() as host:
        sh(runtime, here, "mkdir d; echo keep >d/mine; echo old >d/f")
        (host / "f").write_bytes(b"new")
        runtime.upload(host, f"{here}/d")
        assert sh(runtime, here, "cat d/mine d/f") == "keep\nnew"


@needs("tar")
def single_file_keeps_exactly_the_name_given(runtime: Runtime) -> None:
    with scratch(runtime) as here, host_directory() as host:
        (host / "a").write_bytes(b"1")
        runtime.upload(host / "a", f"{here}/made/-new name")
        assert [entry.name for entry in runtime.list_dir(f"{here}/made")] == ["-new name"]
        runtime.download(f"{here}/made/-new name", host / "deep" / "b")
        assert (host / "deep" / "b").read_bytes() == b"1"


@needs("tar")
def single_file_onto_a_directory_is_refused_on_both_sides(runtime: Runtime) -> None:
    with scratch(runtime) as here, host_directory() as host:
        (host / "a").write_bytes(b"1")
        sh(runtime, here, "mkdir d; echo 1 >f")
        refused(errno.EISDIR, IsADirectoryError, lambda: runtime.upload(host / "a", f"{here}/d"))
        refused(errno.EISDIR, IsADirectoryError, lambda: runtime.download(f"{here}/f", host))


@needs("tar", "isolated", "root")
def tests_at_the_root_are_possible(runtime: Runtime) -> None:
    with host_directory() as host:
        (host / "t.py").write_bytes(b"1")
        runtime.upload(host, "/tests")
        assert runtime.read_bytes("/tests/t.py") == b"1"
        runtime.run(["rm", "-r", "/tests"])


@needs("tar", "root", "users")
def uploaded_files_belong_to_the_user_asked_for(runtime: Runtime) -> None:
    with scratch(runtime) as here, host_directory() as host:
        sh(runtime, here, "chmod 777 .")
        (host / "f").write_bytes(b"1")
        runtime.upload(host, f"{here}/d", user=65534)
        assert sh(runtime, here, "stat -c %u d d/f") == "65534\n65534\n"
        sh(runtime, here, "chmod 755 .")
        refused(errno.EACCES, PermissionError, lambda: runtime.upload(host, f"{here}/e", user=65534))


@needs("tar")
def upload_leaves_out_what_is_no_file_and_says_so(runtime: Runtime) -> None:
    with scratch(runtime) as here, host_directory() as host:
        os.mkfifo(host / "pipe")
        (host / "su").write_bytes(b"1")
        (host / "su").chmod(0o4755)
        assert runtime.upload(host, f"{here}/d") == ["pipe"]
        assert sh(runtime, here, "stat -c '%n %a' d/*") == "d/su 755\n"


@needs("tar")
def download_leaves_out_what_leads_outside_and_says_so(runtime: Runtime) -> None:
    with scratch(runtime) as here, host_directory() as host:
        sh(
            runtime,
            here,
            "mkdir t t/d; mkfifo t/p; ln -s / t/root; ln -s ../.. t/up; ln -s d/../../.. t/esc; ln -s d t/in",
        )
        notes = runtime.download(f"{here}/t", host / "t")
        assert sorted(note.path.removeprefix("./") for note in notes) == ["esc", "p", "root", "up"]
        assert sorted(path.name for path in (host / "t").iterdir()) == ["d", "in"]


@needs("tar")
def download_never_writes_through_a_symlink(runtime: Runtime) -> None:
    with scratch(runtime) as here, host_directory() as host:
        sh(runtime, here, "mkdir -p t/d; echo evil >t/d/f; echo evil >t/g")
        (host / "victim").mkdir()
        (host / "victim" / "f").write_bytes(b"good")
        (host / "target").mkdir()
        (host / "target" / "d").symlink_to(host / "victim")
        (host / "target" / "g").symlink_to(host / "victim" / "f")
        runtime.download(f"{here}/t", host / "target")
        assert (host / "victim" / "f").read_bytes() == b"good"
        assert (host / "target" / "d" / "f").read_bytes() == b"evil\n"
        (host / "itself").symlink_to(host / "victim")
        assert "is a symlink" in _refusal_of(lambda: runtime.download(f"{here}/t", host / "itself"))


@needs("tar")
def transfer_over_a_limit_leaves_nothing(runtime: Runtime) -> None:
    with scratch(runtime) as here, host_directory() as host:
        sh(runtime, here, "mkdir -p t/a/b; printf 12345 >t/a/b/f")
        runtime.download(f"{here}/t", host / "src")
        for limits in (
            TransferLimits(members=2), TransferLimits(total_bytes=4), TransferLimits(file_bytes=4),
            TransferLimits(depth=1), TransferLimits(name_bytes=3),
        ):  # fmt: skip
            assert "refused" in _refusal_of(lambda: runtime.download(f"{here}/t", host / "x", limits=limits))  # noqa: B023 - called at once
            assert "refused" in _refusal_of(lambda: runtime.upload(host / "src", f"{here}/x", limits=limits))  # noqa: B023 - called at once
        assert [path.name for path in host.iterdir()] == ["src"]
        refused(errno.ENOENT, FileNotFoundError, lambda: runtime.list_dir(f"{here}/x"))


@needs("tar")
def missing_sources_are_typed_errors(runtime: Runtime) -> None:
    with scratch(runtime) as here, host_directory() as host:
        refused(errno.ENOENT, FileNotFoundError, lambda: runtime.download(f"{here}/none", host / "x"))
        refused(errno.ENOENT, FileNotFoundError, lambda: runtime.upload(host / "none", f"{here}/x"))
