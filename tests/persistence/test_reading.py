from __future__ import annotations

import random
import shutil
import threading
from typing import TYPE_CHECKING

import pytest

from ohsandbox import events
from ohsandbox.errors import LogCorruptError, UsageError
from ohsandbox.persistence import LOG_NAME, EventLog, LogFollower, read_events
from ohsandbox.persistence.reading import tail_events
from ohsandbox.persistence.records import scan_log

if TYPE_CHECKING:
    from pathlib import Path

    from ohsandbox.events import SDKEvent


def test_reader_beside_a_writer_never_sees_half_a_record(tmp_path: Path) -> None:
    counts: list[int] = []
    stop = threading.Event()

    def read() -> None:
        while not stop.is_set():
            counts.append(len(read_events(tmp_path)))

    with EventLog(tmp_path, conversation_id="c") as log:
        log.append(events.user_message("first"))
        reader = threading.Thread(target=read)
        reader.start()
        for number in range(300):
            log.append(events.user_message("x" * (2000 if number % 10 else 250_000)))
        stop.set()
        reader.join()
    assert counts == sorted(counts)
    assert counts


def test_record_that_is_completed_while_it_is_read_is_no_damage(tmp_path: Path) -> None:
    with EventLog(tmp_path, conversation_id="c") as log:
        for text in "abc":
            log.append(events.user_message(text))
    first, second, third = (tmp_path / LOG_NAME).read_bytes().splitlines(keepends=True)
    taken: list[SDKEvent] = []
    found = scan_log([first, second[:50], second[50:], third], path=tmp_path / LOG_NAME, take=taken.append)
    assert found.damage is None
    assert [event.data["content"] for event in taken] == ["a"]


def test_follower_gives_each_event_once_however_the_bytes_arrive(tmp_path: Path) -> None:
    with EventLog(tmp_path / "whole", conversation_id="c") as log:
        written = [log.append(events.user_message(text)) for text in ("a", "é" * 3000, "x" * 300_000, "b")]
    shutil.copytree(tmp_path / "whole" / "blobs", tmp_path / "blobs")
    data = (tmp_path / "whole" / LOG_NAME).read_bytes()
    generator, seen = random.Random(5), list[object]()
    with (tmp_path / LOG_NAME).open("wb", buffering=0) as file, LogFollower(tmp_path) as follower:
        while data:
            count = generator.randrange(1, 400)
            file.write(data[:count])
            data = data[count:]
            seen += follower.new()
    assert seen == written


def test_follower_refuses_damage_and_a_log_that_was_cut(tmp_path: Path) -> None:
    with EventLog(tmp_path, conversation_id="c") as log:
        log.append(events.user_message("a"))
        log.append(events.user_message("b"))
    path = tmp_path / LOG_NAME
    whole = path.read_bytes()
    with LogFollower(tmp_path) as follower:
        assert len(list(follower.new())) == 2
        path.write_bytes(whole[:10])
        with pytest.raises(UsageError, match="was cut"):
            list(follower.new())
    path.write_bytes(whole.replace(b'"b"', b'"B"'))
    with LogFollower(tmp_path) as follower, pytest.raises(LogCorruptError, match="record 1"):
        list(follower.new())


def test_the_tail_of_a_log_is_its_last_whole_events(tmp_path: Path) -> None:
    assert tail_events(tmp_path, limit_bytes=1000) == []
    with EventLog(tmp_path, conversation_id="c") as log:
        for number in range(100):
            log.append(events.user_message(f"message {number}"))
    whole = read_events(tmp_path)
    with (tmp_path / LOG_NAME).open("ab") as file:
        file.write(b'not an event\n{"type":"user_mess')
    found = tail_events(tmp_path, limit_bytes=1000)
    assert 0 < len(found) < 10
    assert found == whole[-len(found) :]
    assert tail_events(tmp_path, limit_bytes=10**6) == whole


WRITTEN_BY_0_1_0 = """\
{"type":"user_message","ts":"2026-11-23T10:12:14.957179+00:00","conversation_id":"c","data":{"content":"first"},"seq":0,"version":1,"crc":"5701e3c1"}
{"type":"user_message","ts":"2026-11-23T10:12:14.962616+00:00","conversation_id":"c","data":{"content":"b"},"seq":1,"crc":"7e1449a6"}
"""


def test_a_log_of_the_first_release_is_read_and_goes_on(tmp_path: Path) -> None:
    """These bytes are on people's disks: who changes the format reads them still."""
    (tmp_path / LOG_NAME).write_text(WRITTEN_BY_0_1_0)

    with EventLog(tmp_path, conversation_id="c") as log:
        log.append(events.user_message("new"))

    assert [event.data["content"] for event in read_events(tmp_path)] == ["first", "b", "new"]
    assert (tmp_path / LOG_NAME).read_text().startswith(WRITTEN_BY_0_1_0)
