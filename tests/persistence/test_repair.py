from __future__ import annotations

import shutil
import stat
from typing import TYPE_CHECKING

import pytest

from ohsandbox import events
from ohsandbox.errors import ConversationOpenError, LogCorruptError, LogWriteError, UsageError
from ohsandbox.persistence import LOG_NAME, EventLog, read_events, repair_log

if TYPE_CHECKING:
    from pathlib import Path

TEXTS = ("a", "b", "c", "d")


@pytest.fixture
def damaged(tmp_path: Path) -> Path:
    with EventLog(tmp_path, conversation_id="c") as log:
        for text in TEXTS:
            log.append(events.user_message(text))
    path = tmp_path / LOG_NAME
    path.write_bytes(path.read_bytes().replace(b'"content":"b"', b'"content":"B"'))
    return tmp_path


def contents(directory: Path) -> list[str]:
    return [event.data.get("content", event.type) for event in read_events(directory)]


def test_log_is_cut_before_the_damage_kept_as_it_was_and_goes_on(damaged: Path) -> None:
    before = (damaged / LOG_NAME).read_bytes()
    done = repair_log(damaged, conversation_id="c")
    assert (done.kept, done.whole_lost, done.reason) == (1, 2, "its checksum does not match")
    assert done.lost_bytes == len(before) - (before.index(b"\n") + 1)
    assert done.copy is not None
    assert done.copy.read_bytes() == before
    assert stat.S_IMODE(done.copy.stat().st_mode) == 0o600
    with EventLog(damaged, conversation_id="c") as log:
        log.append(events.user_message("e"))
    assert contents(damaged) == ["a", "notice", "e"]


def test_every_place_of_damage_is_repaired_to_what_stands_before_it(damaged: Path) -> None:
    sound = (damaged / LOG_NAME).read_bytes().replace(b'"B"', b'"b"')
    starts = [0, *[at + 1 for at, byte in enumerate(sound) if byte == ord("\n")]]
    for position in range(0, len(sound), 7):
        data = bytearray(sound)
        data[position] ^= 1
        (damaged / LOG_NAME).write_bytes(bytes(data))
        kept = sum(start <= position for start in starts) - 1
        assert repair_log(damaged, conversation_id="c").kept == kept
        assert contents(damaged) == [*TEXTS[:kept], "notice"]


def test_sound_log_is_left_as_it_is(tmp_path: Path) -> None:
    EventLog(tmp_path, conversation_id="c").close()
    with EventLog(tmp_path, conversation_id="c") as log:
        log.append(events.user_message("a"))
    before = (tmp_path / LOG_NAME).read_bytes()
    done = repair_log(tmp_path, conversation_id="c")
    assert (done.kept, done.copy) == (1, None)
    assert (tmp_path / LOG_NAME).read_bytes() == before
    assert {path.name for path in tmp_path.iterdir()} == {LOG_NAME, "lock"}


def test_open_log_is_not_repaired(tmp_path: Path) -> None:
    with EventLog(tmp_path, conversation_id="c"), pytest.raises(ConversationOpenError):
        repair_log(tmp_path, conversation_id="c")


def test_missing_log_is_a_usage_error_and_nothing_is_made(tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        repair_log(tmp_path, conversation_id="c")
    assert list(tmp_path.iterdir()) == []


def test_full_disk_leaves_the_damaged_log_untouched(damaged: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    before = (damaged / LOG_NAME).read_bytes()
    monkeypatch.setattr("ohsandbox.private_files.write_all", fail)
    with pytest.raises(LogWriteError, match="No space left"):
        repair_log(damaged, conversation_id="c")
    assert (damaged / LOG_NAME).read_bytes() == before
    assert {path.name for path in damaged.iterdir()} == {LOG_NAME, "lock"}


def test_command_in_the_message_names_place_and_conversation(damaged: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        LogCorruptError, match=f"`ohsandbox conversations repair --dir {damaged.parent} {damaged.name}`"
    ):
        read_events(damaged)
    usual = damaged / "home" / ".ohsandbox" / "conversations" / "c"
    usual.mkdir(parents=True)
    shutil.copy(damaged / LOG_NAME, usual / LOG_NAME)
    monkeypatch.setenv("OHSANDBOX_HOME", str(damaged / "home" / ".ohsandbox"))
    with pytest.raises(LogCorruptError, match="`ohsandbox conversations repair c`"):
        read_events(usual)
