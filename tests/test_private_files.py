from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ohsandbox.conversation.storage.metadata import ConversationMetadata, write_metadata
from ohsandbox.errors import UsageError
from ohsandbox.persistence import DirectoryLock, EventLog
from ohsandbox.private_files import (
    copy_apart,
    create_locked,
    locked,
    make_private_dir,
    open_locked,
    open_regular,
    write_atomically,
)

if TYPE_CHECKING:
    from collections.abc import Callable


ROOT = Path(__file__).parents[1]


HOLD = """
import pathlib, sys, time
from ohsandbox.private_files import open_locked
held = open_locked(pathlib.Path(sys.argv[1]), create=True)
print(held, flush=True)
time.sleep(60)
"""


def _metadata(directory: Path) -> None:
    write_metadata(directory, ConversationMetadata(conversation_id="c", created_at="2026-01-01T00:00:00Z"))


def _copy(directory: Path) -> None:
    with (directory.parent / "source").open("wb+") as file:
        copy_apart(file.fileno(), directory / "aside")


@pytest.mark.parametrize(
    "write",
    [
        lambda directory: write_atomically(directory / "f", b"x"),
        lambda directory: open_regular(directory / "f", os.O_WRONLY | os.O_CREAT, name="F"),
        lambda directory: create_locked(directory / "f", b"x"),
        lambda directory: DirectoryLock(directory, name="c"),
        lambda directory: EventLog(directory, conversation_id="c"),
        _metadata,
        _copy,
    ],
)
def test_nothing_is_written_through_a_directory_that_is_a_link(tmp_path: Path, write: Callable[[Path], object]) -> None:
    outside, directory = tmp_path / "outside", tmp_path / "c"
    outside.mkdir()
    directory.symlink_to(outside)
    with pytest.raises((OSError, UsageError)):
        write(directory)
    assert list(outside.iterdir()) == []


@pytest.mark.parametrize("name", ["a", "a/b"])
def test_from_a_directory_on_no_link_is_followed(tmp_path: Path, name: str) -> None:
    (tmp_path / "c" / "a" / "b").mkdir(parents=True)
    write_atomically(tmp_path / "c" / "a" / "b" / "f", b"x", inside=tmp_path / "c")
    outside = tmp_path / "outside"
    (tmp_path / "c" / name).rename(outside)
    (tmp_path / "c" / name).symlink_to(outside)
    with pytest.raises(OSError, match=r"Not a directory|symbolic"):
        write_atomically(tmp_path / "c" / "a" / "b" / "f", b"y", inside=tmp_path / "c")
    with pytest.raises(UsageError, match="cannot be opened"):
        open_regular(tmp_path / "c" / "a" / "b" / "f", os.O_RDONLY, name="F", inside=tmp_path / "c")
    assert b"y" not in b"".join(path.read_bytes() for path in outside.rglob("f"))


def test_a_file_that_cannot_be_replaced_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "f").mkdir()
    with pytest.raises(OSError, match="directory"):
        write_atomically(tmp_path / "f", b"x")
    assert [path.name for path in tmp_path.iterdir()] == ["f"]


def test_a_file_is_replaced_by_one_that_others_cannot_read(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"old")
    path.chmod(0o644)
    for durable in (True, False):
        write_atomically(path, b"new", durable=durable)
        assert (path.read_bytes(), stat.S_IMODE(path.stat().st_mode)) == (b"new", 0o600)
    assert [*tmp_path.iterdir()] == [path]


def test_a_lock_is_held_by_one_until_it_is_closed(tmp_path: Path) -> None:
    assert open_locked(tmp_path / "lock", create=False) is None
    held = open_locked(tmp_path / "lock", create=True)
    assert held is not None
    assert open_locked(tmp_path / "lock", create=True) is None
    os.close(held)
    again = open_locked(tmp_path / "lock", create=False)
    assert again is not None
    os.close(again)
    assert stat.S_IMODE((tmp_path / "lock").stat().st_mode) == 0o600


def test_a_lock_file_that_is_a_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "lock").symlink_to(tmp_path / "outside")
    with pytest.raises(OSError, match="symbolic"):
        open_locked(tmp_path / "lock", create=True)
    with pytest.raises(OSError, match="symbolic"), locked(tmp_path / "lock"):
        pass
    assert not (tmp_path / "outside").exists()


def test_who_waits_for_a_lock_is_told_once_and_gets_it_when_its_holder_dies(tmp_path: Path) -> None:
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path / "lock")],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert holder.stdout is not None
    holder.stdout.readline()
    waits: list[int] = []

    def kill() -> None:
        waits.append(holder.pid)
        holder.kill()

    with locked(tmp_path / "lock", on_wait=kill):
        assert open_locked(tmp_path / "lock", create=True) is None
    holder.stdout.close()
    holder.wait()
    assert waits == [holder.pid]


def test_a_new_file_is_complete_and_locked_when_it_has_its_name(tmp_path: Path) -> None:
    descriptor = create_locked(tmp_path / "f", b"all")
    assert [(path.name, path.read_bytes(), stat.S_IMODE(path.stat().st_mode)) for path in tmp_path.iterdir()] == [
        ("f", b"all", 0o600)
    ]
    assert open_locked(tmp_path / "f", create=False) is None
    os.pwrite(descriptor, b"ALL", 0)
    os.close(descriptor)
    assert (tmp_path / "f").read_bytes() == b"ALL"


def test_nothing_is_left_of_a_locked_file_that_could_not_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    before = len([*Path("/dev/fd").iterdir()])
    monkeypatch.setattr("ohsandbox.private_files.write_all", fail)
    with pytest.raises(OSError, match="No space"):
        create_locked(tmp_path / "f", b"all")
    assert [*tmp_path.iterdir()] == []
    assert len([*Path("/dev/fd").iterdir()]) == before


def test_the_mode_of_a_directory_is_not_changed_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir(mode=0o755)
    (tmp_path / "images").symlink_to(tmp_path / "outside")
    with pytest.raises(UsageError):
        make_private_dir(tmp_path / "images")
    assert stat.S_IMODE((tmp_path / "outside").stat().st_mode) == 0o755
