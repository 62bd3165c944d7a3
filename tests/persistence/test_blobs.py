from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ohsandbox import events
from ohsandbox.errors import LogCorruptError
from ohsandbox.events import SDKEvent
from ohsandbox.persistence import LOG_NAME, EventLog, LogWriteError, encode_record, read_events

if TYPE_CHECKING:
    from collections.abc import Callable

LONG = "x" * 300_000


def write(directory: Path, *texts: str) -> None:
    with EventLog(directory, conversation_id="c") as log:
        for text in texts:
            log.append(events.user_message(text))


def contents(directory: Path) -> list[str]:
    return [event.data["content"] for event in read_events(directory)]


def blob_of(directory: Path) -> Path:
    [blob] = (directory / "blobs").iterdir()
    return blob


def test_long_text_goes_apart_once_and_comes_back(tmp_path: Path) -> None:
    long = "é" * 300_000
    with EventLog(tmp_path, conversation_id="c") as log:
        bodies = [
            events.tool_result(
                tool_call_id="1",
                name="x",
                result=events.ToolResult.ok(long),
                images=["short", long],
                details={"a/~b": 1},
            ),
            events.notice(code="x", message="", **{"a/~b": {"~1": [long]}}),
        ]
        written = [log.append(body) for body in bodies]
    assert read_events(tmp_path) == written
    blob = blob_of(tmp_path)
    assert stat.S_IMODE(blob.stat().st_mode) == 0o600
    assert (tmp_path / LOG_NAME).stat().st_size < 2000


def replace_by_fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


@pytest.mark.parametrize("harm", [Path.unlink, lambda path: path.write_bytes(b"x"), replace_by_fifo])
def test_lost_long_text_is_told_in_its_place(tmp_path: Path, harm: Callable[[Path], object]) -> None:
    write(tmp_path, "first", "x" * 300_000)
    blob = blob_of(tmp_path)
    harm(blob)
    first, lost = contents(tmp_path)
    assert first == "first"
    assert str(blob) in lost


def test_damaged_long_text_is_mended_when_it_is_said_again(tmp_path: Path) -> None:
    write(tmp_path, LONG)
    blob_of(tmp_path).write_bytes(b"x")
    write(tmp_path, LONG)
    assert contents(tmp_path) == [LONG, LONG]


def test_place_for_long_texts_that_cannot_be_made_stops_the_log_like_a_full_disk(tmp_path: Path) -> None:
    (tmp_path / "blobs").write_text("in the way")
    with EventLog(tmp_path, conversation_id="c") as log:
        with pytest.raises(LogWriteError, match="cannot be written"):
            log.append(events.user_message(LONG))
        with pytest.raises(LogWriteError):
            log.append(events.user_message("short"))
    assert contents(tmp_path) == []


@pytest.mark.parametrize("name", ["/etc/passwd", "../../secret", "", "A" * 64])
def test_log_of_somebody_else_names_no_file_outside(tmp_path: Path, name: str) -> None:
    write(tmp_path, LONG)
    [event] = read_events(tmp_path)

    class Elsewhere:
        def store(self, data: dict[str, object]) -> tuple[dict[str, object], dict[str, str]]:
            return data | {"content": ""}, {"/content": name}

    line = encode_record(SDKEvent.model_validate(event.model_dump()), Elsewhere())  # type: ignore[arg-type]
    (tmp_path / LOG_NAME).write_bytes(line)
    with pytest.raises(LogCorruptError, match="names no long text"):
        read_events(tmp_path)
