from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from ohsandbox.conversation.store import ConversationMetadata, write_metadata
from ohsandbox.errors import UsageError
from ohsandbox.persistence import DirectoryLock, EventLog, open_regular, write_atomically
from ohsandbox.persistence.files import copy_apart

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


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
