"""Owners of checkpoints: only a deletion that was noted counts as one, wherever the state directory is now."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING

import pytest

from ohsandbox.runtime import owners

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def conversation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of a conversation in a state directory."""
    monkeypatch.setenv("OHSANDBOX_HOME", str(tmp_path / "state"))
    directory = tmp_path / "state" / "conversations" / "one"
    directory.mkdir(parents=True, mode=0o700)
    (tmp_path / "state").chmod(0o700)
    return directory


def test_an_owner_that_is_not_there_was_not_deleted_unless_somebody_said_so(conversation: Path) -> None:
    name = owners.owner_name(conversation)
    shutil.rmtree(conversation)
    assert (owners.is_there(name), owners.is_deleted(name)) == (False, False)
    owners.note_deletion(conversation)
    assert owners.is_deleted(name)


def test_a_moved_state_directory_still_has_its_owners_and_its_deletions(
    conversation: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deleted = conversation.with_name("two")
    owners.note_deletion(deleted)
    names = owners.owner_name(conversation), owners.owner_name(deleted)
    (tmp_path / "state").rename(tmp_path / "moved")
    monkeypatch.setenv("OHSANDBOX_HOME", str(tmp_path / "moved"))
    assert [owners.is_there(name) for name in names] == [True, False]
    assert [owners.is_deleted(name) for name in names] == [False, True]


def test_a_path_of_an_earlier_version_whose_home_moved_cannot_be_found(conversation: Path, tmp_path: Path) -> None:
    earlier = str(tmp_path / "before" / "conversations" / "one")
    assert owners.owner_directory(earlier) == tmp_path / "before" / "conversations" / "one"
    assert (owners.is_there(earlier), owners.is_deleted(earlier)) == (False, False)
    assert owners.owner_directory(str(conversation)) == conversation


def test_a_directory_that_a_link_leads_to_has_one_name(
    conversation: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "state")
    name = owners.owner_name(conversation)
    monkeypatch.setenv("OHSANDBOX_HOME", str(tmp_path / "link"))
    assert owners.owner_name(conversation) == owners.owner_name(tmp_path / "link" / "conversations" / "one") == name


def test_a_note_of_an_owner_that_was_brought_back_goes_and_those_of_the_deleted_stay(conversation: Path) -> None:
    deleted = conversation.with_name("two")
    for directory in (conversation, deleted):
        owners.note_deletion(directory)
    owners.keep_notes_of([owners.owner_name(conversation), owners.owner_name(deleted)])
    shutil.rmtree(conversation)
    assert not owners.is_deleted(owners.owner_name(conversation))
    assert owners.is_deleted(owners.owner_name(deleted))
    owners.keep_notes_of([])
    assert not owners.is_deleted(owners.owner_name(deleted))


def test_a_process_that_has_ended_was_deleted() -> None:
    assert not owners.is_deleted(f"/proc/{os.getpid()}/root/tmp")
    assert owners.is_deleted("/proc/0/root/tmp")
