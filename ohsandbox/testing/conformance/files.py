"""Reading, writing and listing files."""
# ruff: noqa: S101, D103, PLR2004 - cases are tests: their names are sentences, their values literal

from __future__ import annotations

import contextlib
import errno
import os
import threading
import time
from typing import TYPE_CHECKING

from ohsandbox.testing.conformance.case import needs
from ohsandbox.testing.conformance.scratch import mode_of, refused, scratch, sh, soon

if TYPE_CHECKING:
    from collections.abc import Callable

    from ohsandbox.runtime.base import Runtime


def _keeps(*contents: bytes) -> Callable[[Runtime], None]:
    """The case that a file comes back as it was written."""

    def check(runtime: Runtime) -> None:
        for data in contents:
            with scratch(runtime) as here:
                runtime.write_bytes(f"{here}/f", data)
                assert runtime.read_bytes(f"{here}/f") == data

    return check


# --- bytes ------------------------------------------------------------------------------------


file_keeps_a_missing_final_newline = _keeps(b"no newline at the end")
file_keeps_its_trailing_newlines_and_carriage_returns = _keeps(b"\xef\xbb\xbfa\r\nb\nc\r\n\n\n")
file_keeps_every_byte_value = _keeps(bytes(range(256)) * 3)
file_of_no_bytes_is_empty = _keeps(b"")
file_sizes_around_the_inline_limit_come_back_whole = _keeps(
    *(os.urandom(size) for size in (1, 65535, 65536, 65537, 131072, 131073))
)


def file_with_one_line_of_50_mb_comes_back_whole(runtime: Runtime) -> None:
    with scratch(runtime) as here:
        data = b"x" * 50_000_000
        runtime.write_bytes(f"{here}/f", data)
        assert runtime.read_bytes(f"{here}/f") == data


def file_names_are_literal(runtime: Runtime) -> None:
    names = [
        "a b", "a\nb", "it's", '"', "$(id)", "`id`", "a;b", "a|b", "-rf", "-", "*", ".[!.]*", "\\n", "~", "e\u0301",
        "x\udcff", ".hidden", "..two", "n\nerrno EACCES", "tab\t",
        "".join(chr(0xDC00 + byte) for byte in range(128, 160)),
    ]  # fmt: skip
    with scratch(runtime) as here:
        for name in names:
            runtime.write_bytes(f"{here}/{name}", os.fsencode(name))
        assert [entry.name for entry in runtime.list_dir(here)] == sorted(names)
        for name in names:
            assert runtime.read_bytes(f"{here}/{name}") == os.fsencode(name)


def file_of_proc_is_read_whole_though_its_size_is_zero(runtime: Runtime) -> None:
    assert b"processor" in runtime.read_bytes("/proc/cpuinfo")


def relative_paths_stand_in_the_workdir(runtime: Runtime) -> None:
    with scratch(runtime) as here:
        runtime.write_bytes(f"{here}/f", b"1")
        above = "../" * runtime.workdir.strip("/").count("/") + ("../" if runtime.workdir != "/" else "")
        assert runtime.read_bytes(f"{above}{here.lstrip('/')}/f") == b"1"


# --- limits -----------------------------------------------------------------------------------


def file_at_the_limit_is_read_and_one_byte_more_is_efbig(runtime: Runtime) -> None:
    with scratch(runtime) as here:
        runtime.write_bytes(f"{here}/f", b"x" * 1000)
        assert len(runtime.read_bytes(f"{here}/f", limit_bytes=1000)) == 1000
        refused(errno.EFBIG, OSError, lambda: runtime.read_bytes(f"{here}/f", limit_bytes=999))


def sparse_file_of_15_gb_is_efbig_in_two_seconds(runtime: Runtime) -> None:
    with scratch(runtime) as here:
        sh(runtime, here, "dd if=/dev/zero of=f bs=1 count=0 seek=15G 2>&1")
        refused(errno.EFBIG, OSError, lambda: runtime.read_bytes(f"{here}/f"))


# --- what is not a regular file ------------------------------------------------------------------


def missing_file_is_file_not_found(runtime: Runtime) -> None:
    with scratch(runtime) as here:
        error = refused(errno.ENOENT, FileNotFoundError, lambda: runtime.read_bytes(f"{here}/none"))
        assert error.filename == f"{here}/none"


def directory_as_file_is_is_a_directory(runtime: Runtime) -> None:
    with scratch(runtime) as here:
        refused(errno.EISDIR, IsADirectoryError, lambda: runtime.read_bytes(here))
        refused(errno.EISDIR, IsADirectoryError, lambda: runtime.write_bytes(here, b"x"))
        refused(errno.EISDIR, IsADirectoryError, lambda: runtime.write_bytes(f"{here}/new/", b"x"))


def file_as_directory_is_not_a_directory(runtime: Runtime) -> None:
    with scratch(runtime) as here:
        runtime.write_bytes(f"{here}/f", b"old")
        refused(errno.ENOTDIR, NotADirectoryError, lambda: runtime.read_bytes(f"{here}/f/x"))
        refused(errno.ENOTDIR, NotADirectoryError, lambda: runtime.write_bytes(f"{here}/f/x/y", b"new"))
        refused(errno.ENOTDIR, NotADirectoryError, lambda: runtime.list_dir(f"{here}/f"))
        assert runtime.read_bytes(f"{here}/f") == b"old"


def name_over_255_bytes_is_enametoolong(runtime: Runtime) -> None:
    refused(errno.ENAMETOOLONG, OSError, lambda: runtime.read_bytes("x" * 256))
    refused(errno.ENAMETOOLONG, OSError, lambda: runtime.write_bytes("x" * 256, b""))


def fifo_and_device_are_refused_within_a_second(runtime: Runtime) -> None:
    with scratch(runtime) as here:
        sh(runtime, here, "mkfifo p && ln -s p link")
        for path in (f"{here}/p", f"{here}/link", "/dev/zero", "/dev/tty", "/dev/stdin"):
            refused(errno.EINVAL, OSError, lambda path=path: runtime.read_bytes(path), within_s=1)  # type: ignore[misc]
            refused(errno.EINVAL, OSError, lambda path=path: runtime.write_bytes(path, b"x"), within_s=1)  # type: ignore[misc]


def symlink_chain_is_followed_and_stays_a_symlink(runtime: Runtime) -> None:
    with scratch(runtime) as here:
        sh(runtime, here, "echo old >f && ln -s f a && ln -s a b && ln -s b c")
        runtime.write_bytes(f"{here}/c", b"new")
        assert runtime.read_bytes(f"{here}/f") == runtime.read_bytes(f"{here}/b") == b"new"
        assert {entry.name for entry in runtime.list_dir(here) if entry.kind == "symlink"} == {"a", "b", "c"}


def dangling_symlink_is_not_found_and_written_through(runtime: Runtime) -> None:
    with scratch(runtime) as here:
        sh(runtime, here, "ln -s target link && ln -s none/target deep")
        refused(errno.ENOENT, FileNotFoundError, lambda: runtime.read_bytes(f"{here}/link"))
        refused(errno.ENOENT, FileNotFoundError, lambda: runtime.write_bytes(f"{here}/deep", b"x"))
        runtime.write_bytes(f"{here}/link", b"made")
        assert runtime.read_bytes(f"{here}/target") == b"made"


def symlink_loop_is_eloop(runtime: Runtime) -> None:
    with scratch(runtime) as here:
        sh(runtime, here, "ln -s a b && ln -s b a")
        refused(errno.ELOOP, OSError, lambda: runtime.read_bytes(f"{here}/a"))
        refused(errno.ELOOP, OSError, lambda: runtime.write_bytes(f"{here}/a", b"x"))
        refused(errno.ELOOP, OSError, lambda: runtime.list_dir(f"{here}/a"))


# --- writing ----------------------------------------------------------------------------------


def missing_parents_are_made(runtime: Runtime) -> None:
    with scratch(runtime) as here:
        runtime.write_bytes(f"{here}/a/b/c", b"1")
        assert (mode_of(runtime, f"{here}/a"), mode_of(runtime, f"{here}/a/b/c")) == ("755", "644")


def rewritten_file_keeps_its_mode_and_loses_setuid(runtime: Runtime) -> None:
    with scratch(runtime) as here:
        for before, after in (("755", "755"), ("600", "600"), ("664", "664"), ("4755", "755")):
            sh(runtime, here, f"rm -f f; echo old >f; chmod {before} f")
            runtime.write_bytes(f"{here}/f", b"new")
            assert mode_of(runtime, f"{here}/f") == after


def mode_asked_for_is_given_whatever_the_umask(runtime: Runtime) -> None:
    with scratch(runtime) as here:
        for mode in (0o600, 0o666, 0o755, 0o777, 0o400, 0o4755):
            runtime.write_bytes(f"{here}/{mode:o}", b"x", mode=mode)
            assert mode_of(runtime, f"{here}/{mode:o}") == f"{mode:o}"


@needs("root", "users")
def rewritten_file_keeps_its_owner(runtime: Runtime) -> None:
    with scratch(runtime) as here:
        sh(runtime, here, "echo old >f; chown 65534:65534 f; chmod 640 f")
        runtime.write_bytes(f"{here}/f", b"new")
        assert sh(runtime, here, "stat -c '%u:%g %a' f") == "65534:65534 640\n"


@needs("root", "users")
def file_belongs_to_the_user_asked_for(runtime: Runtime) -> None:
    with scratch(runtime) as here:
        sh(runtime, here, "chmod 777 .")
        runtime.write_bytes(f"{here}/d/f", b"x", user=65534)
        assert sh(runtime, here, "stat -c %u d d/f") == "65534\n65534\n"


@needs("root", "users")
def a_users_own_rights_decide(runtime: Runtime) -> None:
    with scratch(runtime) as here:
        sh(runtime, here, "echo old >f; chmod 600 f; mkdir d; chmod 700 d; chmod 777 .")
        for path in (f"{here}/f", f"{here}/d/f"):
            refused(errno.EACCES, PermissionError, lambda path=path: runtime.read_bytes(path, user=65534))  # type: ignore[misc]
            refused(errno.EACCES, PermissionError, lambda path=path: runtime.write_bytes(path, b"x", user=65534))  # type: ignore[misc]
        refused(errno.EACCES, PermissionError, lambda: runtime.list_dir(f"{here}/d", user=65534))
        assert runtime.read_bytes(f"{here}/f") == b"old\n"


@needs("root", "users")
def read_only_file_in_a_writable_directory_is_a_permission_error(runtime: Runtime) -> None:
    with scratch(runtime) as here:
        sh(runtime, here, "chmod 777 .; echo old >f; chmod 444 f; chown 65534 f")
        refused(errno.EACCES, PermissionError, lambda: runtime.write_bytes(f"{here}/f", b"x", user=65534))
        assert sh(runtime, here, "cat f; ls -A") == "old\nf\n"


@needs("root", "users")
def writable_file_in_a_read_only_directory_is_written_in_place(runtime: Runtime) -> None:
    with scratch(runtime) as here:
        sh(runtime, here, "chmod 755 .; echo old >f; chmod 666 f")
        runtime.write_bytes(f"{here}/f", b"new", user=65534)
        assert sh(runtime, here, "cat f; stat -c ' %u %a' f; ls -A") == "new 0 666\nf\n"


def hard_links_keep_the_old_bytes(runtime: Runtime) -> None:
    with scratch(runtime) as here:
        sh(runtime, here, "echo old >f; ln f other")
        runtime.write_bytes(f"{here}/f", b"new")
        assert runtime.read_bytes(f"{here}/other") == b"old\n"


def proc_takes_no_file_and_the_message_names_none_of_ours(runtime: Runtime) -> None:
    refused(errno.ENOENT, FileNotFoundError, lambda: runtime.write_bytes("/proc/ohsandbox-none", b"x"))


def two_writers_leave_the_bytes_of_one_and_nothing_else(runtime: Runtime) -> None:
    with scratch(runtime) as here:
        texts = [bytes([65 + number]) * 20_000 for number in range(4)]

        def write(text: bytes) -> None:
            for _ in range(5):
                runtime.write_bytes(f"{here}/f", text)

        threads = [threading.Thread(target=write, args=(text,)) for text in texts]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            with contextlib.suppress(FileNotFoundError):
                assert runtime.read_bytes(f"{here}/f") in texts
        assert runtime.read_bytes(f"{here}/f") in texts
        assert [entry.name for entry in runtime.list_dir(here)] == ["f"]


# --- listing ----------------------------------------------------------------------------------


def list_tells_kind_size_and_mode_of_each_entry(runtime: Runtime) -> None:
    with scratch(runtime) as here:
        sh(runtime, here, "printf 12345 >f; chmod 640 f; mkdir d; ln -s none l; mkfifo p")
        found = {entry.name: entry for entry in runtime.list_dir(here)}
        assert {name: entry.kind for name, entry in found.items()} == {
            "d": "directory", "f": "file", "l": "symlink", "p": "other",
        }  # fmt: skip
        assert (found["f"].size_bytes, found["f"].mode) == (5, 0o640)
        assert abs(found["f"].modified_at.timestamp() - time.time()) < 3600


def list_of_an_empty_directory_is_empty(runtime: Runtime) -> None:
    with scratch(runtime) as here:
        assert runtime.list_dir(here) == []
        refused(errno.ENOENT, FileNotFoundError, lambda: runtime.list_dir(f"{here}/none"))


def list_of_10_000_entries_is_whole_and_quick(runtime: Runtime) -> None:
    with scratch(runtime) as here:
        sh(runtime, here, "i=0; while [ $i -lt 10000 ]; do : >$i; i=$((i+1)); done")
        with soon():
            assert len({entry.name for entry in runtime.list_dir(here)}) == 10_000
