"""Reading, writing, listing, uploading and downloading, as RUNTIME.md ("Files") promises them."""

from __future__ import annotations

import contextlib
import errno
import os
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

from ohsandbox.errors import SandboxFileError, ToolError, UsageError
from ohsandbox.runtime.transfer import TransferLimits
from ohsandbox.testing.conformance.case import case

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ohsandbox.runtime.base import Runtime

_SOON_S = 2.0
"""What is refused is refused at once, whatever its size."""


@contextlib.contextmanager
def _scratch(runtime: Runtime) -> Iterator[str]:
    """A directory of the case's own in the sandbox."""
    path = runtime.run(["mktemp", "-d"]).stdout.decode().strip()
    try:
        yield path
    finally:
        runtime.run(["/bin/sh", "-c", 'chmod -R u+rwx "$1"; rm -rf "$1"', "sh", path])


@contextlib.contextmanager
def _host_directory() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="ohsandbox-case-") as path:
        yield Path(path)


def _sh(runtime: Runtime, directory: str, script: str) -> str:
    result = runtime.run(["/bin/sh", "-c", script], workdir=directory, timeout_s=60)
    assert result.exit_code == 0, result
    return result.stdout.decode("utf-8", "surrogateescape")


def _mode(runtime: Runtime, path: str) -> str:
    return runtime.run(["stat", "-c", "%a", path]).stdout.decode().strip()


def _refused(
    number: int, kind: type[Exception], act: Callable[[], object], *, within_s: float = _SOON_S
) -> SandboxFileError:
    """The error of act, which must be ours, of that errno, the builtin too, and quick."""
    began = time.monotonic()
    try:
        act()
    except SandboxFileError as error:
        took = time.monotonic() - began
        assert took < within_s, f"refused after {took:.1f} s: {error}"
        assert isinstance(error, kind), repr(error)
        assert error.errno == number, repr(error)
        assert ".ohs-" not in str(error), str(error)
        assert "eval" not in str(error), str(error)
        return error
    raise AssertionError(f"not refused; wanted errno {errno.errorcode[number]}")


def _round_trip(runtime: Runtime, data: bytes) -> None:
    with _scratch(runtime) as here:
        runtime.write_bytes(f"{here}/f", data)
        assert runtime.read_bytes(f"{here}/f") == data


# --- bytes ------------------------------------------------------------------------------------


@case()
def file_keeps_a_missing_final_newline(runtime: Runtime) -> None:
    _round_trip(runtime, b"no newline at the end")


@case()
def file_keeps_its_trailing_newlines_and_carriage_returns(runtime: Runtime) -> None:
    _round_trip(runtime, b"\xef\xbb\xbfa\r\nb\nc\r\n\n\n")


@case()
def file_keeps_every_byte_value(runtime: Runtime) -> None:
    _round_trip(runtime, bytes(range(256)) * 3)


@case()
def file_of_no_bytes_is_empty(runtime: Runtime) -> None:
    _round_trip(runtime, b"")


@case()
def file_sizes_around_the_inline_limit_come_back_whole(runtime: Runtime) -> None:
    for size in (1, 65535, 65536, 65537, 131072, 131073):
        _round_trip(runtime, os.urandom(size))


@case()
def file_with_one_line_of_50_mb_comes_back_whole(runtime: Runtime) -> None:
    with _scratch(runtime) as here:
        data = b"x" * 50_000_000
        runtime.write_bytes(f"{here}/f", data)
        assert runtime.read_bytes(f"{here}/f") == data


@case()
def file_names_are_literal(runtime: Runtime) -> None:
    names = [
        "a b", "a\nb", "it's", '"', "$(id)", "`id`", "a;b", "a|b", "-rf", "-", "*", ".[!.]*", "\\n", "~", "e\u0301",
        "x\udcff", ".hidden", "..two", "n\nerrno EACCES", "tab\t", "".join(chr(0xDC00 + byte) for byte in range(128, 160)),
    ]  # fmt: skip
    with _scratch(runtime) as here:
        for name in names:
            runtime.write_bytes(f"{here}/{name}", os.fsencode(name))
        assert [entry.name for entry in runtime.list_dir(here)] == sorted(names)
        for name in names:
            assert runtime.read_bytes(f"{here}/{name}") == os.fsencode(name)


@case()
def file_of_proc_is_read_whole_though_its_size_is_zero(runtime: Runtime) -> None:
    assert b"processor" in runtime.read_bytes("/proc/cpuinfo")


@case()
def relative_paths_stand_in_the_workdir(runtime: Runtime) -> None:
    with _scratch(runtime) as here:
        runtime.write_bytes(f"{here}/f", b"1")
        above = "../" * runtime.workdir.strip("/").count("/") + ("../" if runtime.workdir != "/" else "")
        assert runtime.read_bytes(f"{above}{here.lstrip('/')}/f") == b"1"


# --- limits -----------------------------------------------------------------------------------


@case()
def file_at_the_limit_is_read_and_one_byte_more_is_efbig(runtime: Runtime) -> None:
    with _scratch(runtime) as here:
        runtime.write_bytes(f"{here}/f", b"x" * 1000)
        assert len(runtime.read_bytes(f"{here}/f", limit_bytes=1000)) == 1000  # noqa: PLR2004 - what was written
        _refused(errno.EFBIG, OSError, lambda: runtime.read_bytes(f"{here}/f", limit_bytes=999))


@case()
def sparse_file_of_20_gb_is_efbig_in_two_seconds(runtime: Runtime) -> None:
    with _scratch(runtime) as here:
        _sh(runtime, here, "dd if=/dev/zero of=f bs=1 count=0 seek=20G 2>&1")
        _refused(errno.EFBIG, OSError, lambda: runtime.read_bytes(f"{here}/f"))


# --- what is no regular file ------------------------------------------------------------------


@case()
def missing_file_is_file_not_found(runtime: Runtime) -> None:
    with _scratch(runtime) as here:
        error = _refused(errno.ENOENT, FileNotFoundError, lambda: runtime.read_bytes(f"{here}/none"))
        assert error.filename == f"{here}/none"


@case()
def directory_as_file_is_is_a_directory(runtime: Runtime) -> None:
    with _scratch(runtime) as here:
        _refused(errno.EISDIR, IsADirectoryError, lambda: runtime.read_bytes(here))
        _refused(errno.EISDIR, IsADirectoryError, lambda: runtime.write_bytes(here, b"x"))
        _refused(errno.EISDIR, IsADirectoryError, lambda: runtime.write_bytes(f"{here}/new/", b"x"))


@case()
def file_as_directory_is_not_a_directory(runtime: Runtime) -> None:
    with _scratch(runtime) as here:
        runtime.write_bytes(f"{here}/f", b"old")
        _refused(errno.ENOTDIR, NotADirectoryError, lambda: runtime.read_bytes(f"{here}/f/x"))
        _refused(errno.ENOTDIR, NotADirectoryError, lambda: runtime.write_bytes(f"{here}/f/x/y", b"new"))
        _refused(errno.ENOTDIR, NotADirectoryError, lambda: runtime.list_dir(f"{here}/f"))
        assert runtime.read_bytes(f"{here}/f") == b"old"


@case()
def name_over_255_bytes_is_enametoolong(runtime: Runtime) -> None:
    _refused(errno.ENAMETOOLONG, OSError, lambda: runtime.read_bytes("x" * 256))
    _refused(errno.ENAMETOOLONG, OSError, lambda: runtime.write_bytes("x" * 256, b""))


@case()
def fifo_and_device_are_refused_within_a_second(runtime: Runtime) -> None:
    with _scratch(runtime) as here:
        _sh(runtime, here, "mkfifo p && ln -s p link")
        for path in (f"{here}/p", f"{here}/link", "/dev/zero", "/dev/tty", "/dev/stdin"):
            _refused(errno.EINVAL, OSError, lambda path=path: runtime.read_bytes(path), within_s=1)  # type: ignore[misc]
            _refused(errno.EINVAL, OSError, lambda path=path: runtime.write_bytes(path, b"x"), within_s=1)  # type: ignore[misc]


@case()
def symlink_chain_is_followed_and_stays_a_symlink(runtime: Runtime) -> None:
    with _scratch(runtime) as here:
        _sh(runtime, here, "echo old >f && ln -s f a && ln -s a b && ln -s b c")
        runtime.write_bytes(f"{here}/c", b"new")
        assert runtime.read_bytes(f"{here}/f") == runtime.read_bytes(f"{here}/b") == b"new"
        assert {entry.name for entry in runtime.list_dir(here) if entry.kind == "symlink"} == {"a", "b", "c"}


@case()
def dangling_symlink_is_not_found_and_written_through(runtime: Runtime) -> None:
    with _scratch(runtime) as here:
        _sh(runtime, here, "ln -s target link && ln -s none/target deep")
        _refused(errno.ENOENT, FileNotFoundError, lambda: runtime.read_bytes(f"{here}/link"))
        _refused(errno.ENOENT, FileNotFoundError, lambda: runtime.write_bytes(f"{here}/deep", b"x"))
        runtime.write_bytes(f"{here}/link", b"made")
        assert runtime.read_bytes(f"{here}/target") == b"made"


@case()
def symlink_loop_is_eloop(runtime: Runtime) -> None:
    with _scratch(runtime) as here:
        _sh(runtime, here, "ln -s a b && ln -s b a")
        _refused(errno.ELOOP, OSError, lambda: runtime.read_bytes(f"{here}/a"))
        _refused(errno.ELOOP, OSError, lambda: runtime.write_bytes(f"{here}/a", b"x"))
        _refused(errno.ELOOP, OSError, lambda: runtime.list_dir(f"{here}/a"))


# --- writing ----------------------------------------------------------------------------------


@case()
def missing_parents_are_made(runtime: Runtime) -> None:
    with _scratch(runtime) as here:
        runtime.write_bytes(f"{here}/a/b/c", b"1")
        assert (_mode(runtime, f"{here}/a"), _mode(runtime, f"{here}/a/b/c")) == ("755", "644")


@case()
def rewritten_file_keeps_its_mode_and_loses_setuid(runtime: Runtime) -> None:
    with _scratch(runtime) as here:
        for before, after in (("755", "755"), ("600", "600"), ("664", "664"), ("4755", "755")):
            _sh(runtime, here, f"rm -f f; echo old >f; chmod {before} f")
            runtime.write_bytes(f"{here}/f", b"new")
            assert _mode(runtime, f"{here}/f") == after


@case()
def mode_asked_for_is_given_whatever_the_umask(runtime: Runtime) -> None:
    with _scratch(runtime) as here:
        for mode in (0o600, 0o666, 0o755, 0o777, 0o400, 0o4755):
            runtime.write_bytes(f"{here}/{mode:o}", b"x", mode=mode)
            assert _mode(runtime, f"{here}/{mode:o}") == f"{mode:o}"


@case(needs={"root", "users"})
def rewritten_file_keeps_its_owner(runtime: Runtime) -> None:
    with _scratch(runtime) as here:
        _sh(runtime, here, "echo old >f; chown 65534:65534 f; chmod 640 f")
        runtime.write_bytes(f"{here}/f", b"new")
        assert _sh(runtime, here, "stat -c '%u:%g %a' f") == "65534:65534 640\n"


@case(needs={"root", "users"})
def file_belongs_to_the_user_asked_for(runtime: Runtime) -> None:
    with _scratch(runtime) as here:
        _sh(runtime, here, "chmod 777 .")
        runtime.write_bytes(f"{here}/d/f", b"x", user=65534)
        assert _sh(runtime, here, "stat -c %u d d/f") == "65534\n65534\n"


@case(needs={"root", "users"})
def a_users_own_rights_decide(runtime: Runtime) -> None:
    with _scratch(runtime) as here:
        _sh(runtime, here, "echo old >f; chmod 600 f; mkdir d; chmod 700 d; chmod 777 .")
        for path in (f"{here}/f", f"{here}/d/f"):
            _refused(errno.EACCES, PermissionError, lambda path=path: runtime.read_bytes(path, user=65534))  # type: ignore[misc]
            _refused(errno.EACCES, PermissionError, lambda path=path: runtime.write_bytes(path, b"x", user=65534))  # type: ignore[misc]
        _refused(errno.EACCES, PermissionError, lambda: runtime.list_dir(f"{here}/d", user=65534))
        assert runtime.read_bytes(f"{here}/f") == b"old\n"


@case(needs={"root", "users"})
def read_only_file_in_a_writable_directory_is_a_permission_error(runtime: Runtime) -> None:
    with _scratch(runtime) as here:
        _sh(runtime, here, "chmod 777 .; echo old >f; chmod 444 f; chown 65534 f")
        _refused(errno.EACCES, PermissionError, lambda: runtime.write_bytes(f"{here}/f", b"x", user=65534))
        assert _sh(runtime, here, "cat f; ls -A") == "old\nf\n"


@case(needs={"root", "users"})
def writable_file_in_a_read_only_directory_is_written_in_place(runtime: Runtime) -> None:
    with _scratch(runtime) as here:
        _sh(runtime, here, "chmod 755 .; echo old >f; chmod 666 f")
        runtime.write_bytes(f"{here}/f", b"new", user=65534)
        assert _sh(runtime, here, "cat f; stat -c ' %u %a' f; ls -A") == "new 0 666\nf\n"


@case()
def hard_links_keep_the_old_bytes(runtime: Runtime) -> None:
    with _scratch(runtime) as here:
        _sh(runtime, here, "echo old >f; ln f other")
        runtime.write_bytes(f"{here}/f", b"new")
        assert runtime.read_bytes(f"{here}/other") == b"old\n"


@case()
def proc_takes_no_file_and_the_message_names_none_of_ours(runtime: Runtime) -> None:
    _refused(errno.ENOENT, FileNotFoundError, lambda: runtime.write_bytes("/proc/ohsandbox-none", b"x"))


@case()
def two_writers_leave_the_bytes_of_one_and_nothing_else(runtime: Runtime) -> None:
    with _scratch(runtime) as here:
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


@case()
def list_tells_kind_size_and_mode_of_each_entry(runtime: Runtime) -> None:
    with _scratch(runtime) as here:
        _sh(runtime, here, "printf 12345 >f; chmod 640 f; mkdir d; ln -s none l; mkfifo p")
        found = {entry.name: entry for entry in runtime.list_dir(here)}
        assert {name: entry.kind for name, entry in found.items()} == {
            "d": "directory", "f": "file", "l": "symlink", "p": "other",
        }  # fmt: skip
        assert (found["f"].size_bytes, found["f"].mode) == (5, 0o640)
        assert abs(found["f"].modified_at.timestamp() - time.time()) < 3600  # noqa: PLR2004 - clocks may differ a little


@case()
def list_of_an_empty_directory_is_empty(runtime: Runtime) -> None:
    with _scratch(runtime) as here:
        assert runtime.list_dir(here) == []
        _refused(errno.ENOENT, FileNotFoundError, lambda: runtime.list_dir(f"{here}/none"))


@case()
def list_of_10_000_entries_is_whole_and_quick(runtime: Runtime) -> None:
    with _scratch(runtime) as here:
        _sh(runtime, here, "i=0; while [ $i -lt 10000 ]; do : >$i; i=$((i+1)); done")
        began = time.monotonic()
        assert len({entry.name for entry in runtime.list_dir(here)}) == 10_000  # noqa: PLR2004 - what was made
        assert time.monotonic() - began < _SOON_S


# --- trees ------------------------------------------------------------------------------------


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


@case(needs={"tar"})
def tree_goes_up_and_comes_down_as_it_was(runtime: Runtime) -> None:
    with _scratch(runtime) as here, _host_directory() as host:
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


@case(needs={"tar"})
def uploaded_contents_merge_into_the_target(runtime: Runtime) -> None:
    with _scratch(runtime) as here, _host_directory() as host:
        _sh(runtime, here, "mkdir d; echo keep >d/mine; echo old >d/f")
        (host / "f").write_bytes(b"new")
        runtime.upload(host, f"{here}/d")
        assert _sh(runtime, here, "cat d/mine d/f") == "keep\nnew"


@case(needs={"tar"})
def single_file_keeps_exactly_the_name_given(runtime: Runtime) -> None:
    with _scratch(runtime) as here, _host_directory() as host:
        (host / "a").write_bytes(b"1")
        runtime.upload(host / "a", f"{here}/made/-new name")
        assert [entry.name for entry in runtime.list_dir(f"{here}/made")] == ["-new name"]
        runtime.download(f"{here}/made/-new name", host / "deep" / "b")
        assert (host / "deep" / "b").read_bytes() == b"1"


@case(needs={"tar"})
def single_file_onto_a_directory_is_refused_on_both_sides(runtime: Runtime) -> None:
    with _scratch(runtime) as here, _host_directory() as host:
        (host / "a").write_bytes(b"1")
        _sh(runtime, here, "mkdir d; echo 1 >f")
        _refused(errno.EISDIR, IsADirectoryError, lambda: runtime.upload(host / "a", f"{here}/d"))
        _refused(errno.EISDIR, IsADirectoryError, lambda: runtime.download(f"{here}/f", host))


@case(needs={"tar", "isolated", "root"})
def tests_at_the_root_are_possible(runtime: Runtime) -> None:
    with _host_directory() as host:
        (host / "t.py").write_bytes(b"1")
        runtime.upload(host, "/tests")
        assert runtime.read_bytes("/tests/t.py") == b"1"
        runtime.run(["rm", "-r", "/tests"])


@case(needs={"tar", "root", "users"})
def uploaded_files_belong_to_the_user_asked_for(runtime: Runtime) -> None:
    with _scratch(runtime) as here, _host_directory() as host:
        _sh(runtime, here, "chmod 777 .")
        (host / "f").write_bytes(b"1")
        runtime.upload(host, f"{here}/d", user=65534)
        assert _sh(runtime, here, "stat -c %u d d/f") == "65534\n65534\n"
        _sh(runtime, here, "chmod 755 .")
        _refused(errno.EACCES, PermissionError, lambda: runtime.upload(host, f"{here}/e", user=65534))


@case(needs={"tar"})
def upload_leaves_out_what_is_no_file_and_says_so(runtime: Runtime) -> None:
    with _scratch(runtime) as here, _host_directory() as host:
        os.mkfifo(host / "pipe")
        (host / "su").write_bytes(b"1")
        (host / "su").chmod(0o4755)
        assert runtime.upload(host, f"{here}/d") == ["pipe"]
        assert _sh(runtime, here, "stat -c '%n %a' d/*") == "d/su 755\n"


@case(needs={"tar"})
def download_leaves_out_what_leads_outside_and_says_so(runtime: Runtime) -> None:
    with _scratch(runtime) as here, _host_directory() as host:
        _sh(
            runtime,
            here,
            "mkdir t t/d; mkfifo t/p; ln -s / t/root; ln -s ../.. t/up; ln -s d/../../.. t/esc; ln -s d t/in",
        )
        notes = runtime.download(f"{here}/t", host / "t")
        assert sorted(note.split("'")[1].removeprefix("./") for note in notes) == ["esc", "p", "root", "up"]
        assert sorted(os.listdir(host / "t")) == ["d", "in"]


@case(needs={"tar"})
def download_never_writes_through_a_symlink(runtime: Runtime) -> None:
    with _scratch(runtime) as here, _host_directory() as host:
        _sh(runtime, here, "mkdir -p t/d; echo evil >t/d/f; echo evil >t/g")
        (host / "victim").mkdir()
        (host / "victim" / "f").write_bytes(b"good")
        (host / "target").mkdir()
        (host / "target" / "d").symlink_to(host / "victim")
        (host / "target" / "g").symlink_to(host / "victim" / "f")
        runtime.download(f"{here}/t", host / "target")
        assert (host / "victim" / "f").read_bytes() == b"good"
        assert (host / "target" / "d" / "f").read_bytes() == b"evil\n"
        (host / "itself").symlink_to(host / "victim")
        with contextlib.suppress(UsageError):
            runtime.download(f"{here}/t", host / "itself")
            raise AssertionError("a target that is a symlink was followed")


@case(needs={"tar"})
def transfer_over_a_limit_leaves_nothing(runtime: Runtime) -> None:
    with _scratch(runtime) as here, _host_directory() as host:
        _sh(runtime, here, "mkdir -p t/a/b; printf 12345 >t/a/b/f")
        runtime.download(f"{here}/t", host / "src")
        for limits in (
            TransferLimits(members=2), TransferLimits(total_bytes=4), TransferLimits(file_bytes=4),
            TransferLimits(depth=1), TransferLimits(name_bytes=3),
        ):  # fmt: skip
            for move in (
                lambda limits=limits: runtime.download(f"{here}/t", host / "x", limits=limits),  # type: ignore[misc]
                lambda limits=limits: runtime.upload(host / "src", f"{here}/x", limits=limits),  # type: ignore[misc]
            ):
                try:
                    move()
                except ToolError as error:
                    assert "limit" in str(error) or "more than" in str(error)  # noqa: PT017 - no pytest here
                else:
                    raise AssertionError(f"{limits} let it pass")
        assert [path.name for path in host.iterdir()] == ["src"]
        _refused(errno.ENOENT, FileNotFoundError, lambda: runtime.list_dir(f"{here}/x"))


@case(needs={"tar"})
def missing_sources_are_typed_errors(runtime: Runtime) -> None:
    with _scratch(runtime) as here, _host_directory() as host:
        _refused(errno.ENOENT, FileNotFoundError, lambda: runtime.download(f"{here}/none", host / "x"))
        try:
            runtime.upload(host / "none", f"{here}/x")
        except UsageError:
            return
        raise AssertionError("an upload of nothing was not refused")
