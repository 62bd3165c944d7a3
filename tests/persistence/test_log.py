from __future__ import annotations

import json
import os
import random
import shutil
import stat
import subprocess
import sys
import threading
import warnings
import zlib
from datetime import UTC, datetime, tzinfo
from pathlib import Path
from typing import TYPE_CHECKING, Self

import pytest

from ohsandbox import events
from ohsandbox.errors import ConversationOpenError, LogCorruptError, UsageError
from ohsandbox.events import SDKEvent
from ohsandbox.events.event import unchecked
from ohsandbox.persistence import (
    LOG_NAME,
    EventLog,
    LogFollower,
    LogWriteError,
    encode_record,
    read_events,
    repair_log,
    stream_events,
)
from ohsandbox.persistence.blobs import Blobs
from ohsandbox.persistence.recency import JOURNAL_NAME
from ohsandbox.persistence.records import decode_record
from tests.processes import running

if TYPE_CHECKING:
    from collections.abc import Callable

WRITER = """
import sys
from ohsandbox import events
from ohsandbox.persistence import EventLog
log = EventLog(sys.argv[1], conversation_id="c")
while True:
    print(log.append(events.user_message("x" * 300)).seq, flush=True)
"""


def write(directory: Path, *texts: str) -> bytes:
    with EventLog(directory, conversation_id="c") as log:
        for text in texts:
            log.append(events.user_message(text))
    return (directory / LOG_NAME).read_bytes()


def contents(directory: Path) -> list[str]:
    return [event.data["content"] for event in read_events(directory) if event.type == "user_message"]


def test_events_come_back_as_they_were_written(tmp_path: Path) -> None:
    with EventLog(tmp_path, conversation_id="c") as log:
        written = [log.append(events.user_message(text)) for text in ("a", "\u2028 é \U0001f600 \0", "x" * 3_000_000)]
    assert read_events(tmp_path) == written
    assert read_events(tmp_path / LOG_NAME) == written


def test_record_is_one_ascii_line_in_the_envelope(tmp_path: Path) -> None:
    first, second = write(tmp_path, "é\n", "b").splitlines()
    assert first.isascii()
    assert set(json.loads(first)) == {"type", "ts", "conversation_id", "data", "seq", "version", "crc"}
    assert set(json.loads(second)) == {"type", "ts", "conversation_id", "data", "seq", "crc"}


def test_cut_at_every_byte_loads_the_longest_prefix_and_takes_appends(tmp_path: Path) -> None:
    whole = write(tmp_path / "whole", "a", "b", "c")
    for length in range(len(whole)):
        directory = tmp_path / "cut"
        directory.mkdir()
        (directory / LOG_NAME).write_bytes(whole[:length])
        kept = ["a", "b", "c"][: whole[:length].count(b"\n")]
        assert contents(directory) == kept
        write(directory, "new")
        assert contents(directory) == [*kept, "new"]
        torn = length - (whole.rfind(b"\n", 0, length) + 1)
        assert sum(path.stat().st_size for path in directory.glob("sdk_events.torn-*")) == torn
        shutil.rmtree(directory)


def test_repair_is_told_by_a_notice(tmp_path: Path) -> None:
    whole = write(tmp_path, "a", "b")
    (tmp_path / LOG_NAME).write_bytes(whole[:-5])
    taken: list[SDKEvent] = []
    EventLog(tmp_path, conversation_id="c", take=taken.append).close()
    assert [event.type for event in taken] == ["user_message", "notice"]
    assert taken[-1].data["code"] == "LogRepaired"


def test_tail_of_zeros_is_cut(tmp_path: Path) -> None:
    whole = write(tmp_path, "a")
    (tmp_path / LOG_NAME).write_bytes(whole + bytes(4096))
    write(tmp_path, "b")
    assert contents(tmp_path) == ["a", "b"]


def test_page_of_zeros_inside_the_last_record_is_cut(tmp_path: Path) -> None:
    whole = write(tmp_path, "a", "x" * 9000)
    start = whole.index(b"xxxx")
    (tmp_path / LOG_NAME).write_bytes(whole[:start] + bytes(4096) + whole[start + 4096 :])
    assert contents(tmp_path) == ["a"]


def test_zeros_before_the_last_record_are_damage(tmp_path: Path) -> None:
    first, second = write(tmp_path, "x" * 9000, "b").splitlines(keepends=True)
    (tmp_path / LOG_NAME).write_bytes(first[:4096] + bytes(4096) + first[8192:] + second)
    with pytest.raises(LogCorruptError, match="byte 0, record 0"):
        read_events(tmp_path)


@pytest.mark.slow
def test_no_flipped_bit_goes_unseen(tmp_path: Path) -> None:
    whole = write(tmp_path, "a", "b", "c")
    last_newline = len(whole) - 1
    generator = random.Random(7)
    for _ in range(1500):
        position, bit = generator.randrange(len(whole)), generator.randrange(8)
        damaged = bytearray(whole)
        damaged[position] ^= 1 << bit
        (tmp_path / LOG_NAME).write_bytes(bytes(damaged))
        if position == last_newline:
            assert contents(tmp_path) == ["a", "b"]
        else:
            with pytest.raises((LogCorruptError, UsageError)):
                read_events(tmp_path)


def test_damage_in_the_middle_names_offset_and_remedy_and_changes_nothing(tmp_path: Path) -> None:
    whole = write(tmp_path, "a", "b", "c")
    offset = whole.index(b"\n") + 1
    damaged = whole.replace(b'"content":"b"', b'"content":"B"')
    (tmp_path / LOG_NAME).write_bytes(damaged)
    with pytest.raises(LogCorruptError, match=f"byte {offset}, record 1.*conversations repair"):
        EventLog(tmp_path, conversation_id="c")
    assert (tmp_path / LOG_NAME).read_bytes() == damaged


def test_missing_record_is_damage(tmp_path: Path) -> None:
    lines = write(tmp_path, "a", "b", "c").splitlines(keepends=True)
    (tmp_path / LOG_NAME).write_bytes(lines[0] + lines[2])
    with pytest.raises(LogCorruptError, match="not record 1"):
        read_events(tmp_path)


def test_newer_version_is_refused_with_a_hint(tmp_path: Path) -> None:
    whole = write(tmp_path, "a").replace(b'"version":1', b'"version":2')
    (tmp_path / LOG_NAME).write_bytes(whole)
    with pytest.raises(UsageError, match=r"version 2.*Upgrade"):
        EventLog(tmp_path, conversation_id="c")


@pytest.mark.slow
def test_killed_writer_loses_no_acknowledged_event(tmp_path: Path) -> None:
    code = """
import os, random, signal, sys
from ohsandbox import events
from ohsandbox.persistence import EventLog, read_events
generator, lost = random.Random(11), 0
for _ in range(100):
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        with EventLog(sys.argv[1], conversation_id="c") as log:
            while True:
                event = log.append(events.user_message("x" * generator.randrange(9000)))
                os.write(writing, event.seq.to_bytes(4, "big"))
    os.close(writing)
    acknowledged = b"".join(os.read(reading, 4) for _ in range(generator.randrange(1, 20)))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    while more := os.read(reading, 65536):
        acknowledged += more
    os.close(reading)
    lost += len(read_events(sys.argv[1])) <= int.from_bytes(acknowledged[-4:], "big")
print("rounds that lost something:", lost)
"""
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True)
    assert done.stdout == "rounds that lost something: 0\n"


def test_second_process_is_refused_and_a_dead_one_is_not_in_the_way(tmp_path: Path) -> None:
    with running([sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE) as writer:
        assert writer.stdout is not None
        writer.stdout.readline()
        with pytest.raises(ConversationOpenError, match=f"process {writer.pid}"):
            EventLog(tmp_path, conversation_id="c")
        writer.kill()
    EventLog(tmp_path, conversation_id="c").close()


def test_threads_share_a_log(tmp_path: Path) -> None:
    with EventLog(tmp_path, conversation_id="c") as log:
        writers = [
            threading.Thread(target=lambda: [log.append(events.user_message("x")) for _ in range(50)]) for _ in range(4)
        ]
        for writer in writers:
            writer.start()
        for writer in writers:
            writer.join()
    assert [event.seq for event in read_events(tmp_path)] == list(range(200))


def test_full_disk_is_a_typed_error_and_the_log_ends_on_a_whole_record(tmp_path: Path) -> None:
    code = """
import resource, sys
from ohsandbox import events
from ohsandbox.persistence import EventLog, LogWriteError
log = EventLog(sys.argv[1], conversation_id="c")
log.append(events.user_message("a"))
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
for text in ("x" * 5000, "b"):
    try:
        log.append(events.user_message(text))
    except LogWriteError as error:
        print(error)
"""
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True)
    assert done.stdout.count("cannot be written: File too large") == 2
    assert contents(tmp_path) == ["a"]
    assert (tmp_path / LOG_NAME).read_bytes().endswith(b"\n")


def test_disk_without_space_is_a_typed_error_and_the_log_goes_on_when_there_is_some(tmp_path: Path) -> None:
    code = """
import os, sys
from pathlib import Path
from ohsandbox import events
from ohsandbox.persistence import EventLog, LogWriteError, read_events
directory = Path(sys.argv[1])
log = EventLog(directory / "c", conversation_id="c")
log.append(events.user_message("a"))
for text in ("x" * 200_000, "x" * 300_000, "b"):
    try:
        log.append(events.user_message(text))
    except LogWriteError as error:
        print(error)
    log.close()
    log = EventLog(directory / "c", conversation_id="c")
print([event.data["content"] for event in read_events(directory / "c")])
"""
    inside = 'mount -t tmpfs -o size=100k none "$1" && exec "$2" -c "$3" "$1"'
    argv = ["unshare", "-Urm", "sh", "-c", inside, "sh", str(tmp_path), sys.executable, code]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if "unshare" in done.stderr or "mount" in done.stderr:
        pytest.skip(f"no small disk can be mounted here: {done.stderr[:100]}")
    assert done.stderr == ""
    assert done.stdout.count("cannot be written: No space left on device") == 2
    assert done.stdout.endswith("['a', 'b']\n")


def test_failed_sync_stops_the_log_for_good(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: int) -> None:
        raise OSError(28, os.strerror(28))

    with EventLog(tmp_path, conversation_id="c") as log:
        log.append(events.user_message("a"))
        monkeypatch.setattr("ohsandbox.persistence.log.sync_data", fail)
        with pytest.raises(LogWriteError, match="No space left"):
            log.append(events.user_message("b"))
        monkeypatch.undo()
        with pytest.raises(LogWriteError):
            log.append(events.user_message("c"))
    assert contents(tmp_path) == ["a"]


def add_a_line(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"{}\n")


@pytest.mark.parametrize(("harm", "said"), [(Path.unlink, "removed"), (add_a_line, "changed by another program")])
def test_log_that_is_no_longer_ours_takes_no_event(tmp_path: Path, harm: Callable[[Path], None], said: str) -> None:
    with EventLog(tmp_path, conversation_id="c") as log:
        log.append(events.user_message("a"))
        harm(log.path)
        for _ in range(2):
            with pytest.raises(LogWriteError, match=f"was {said}"):
                log.append(events.user_message("b"))


def test_log_that_cannot_be_read_is_a_typed_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError(5, os.strerror(5))

    monkeypatch.setattr("ohsandbox.persistence.log.scan_log", fail)
    with pytest.raises(LogWriteError, match="cannot be opened: Input/output error"):
        EventLog(tmp_path, conversation_id="c")


def test_interrupt_during_a_write_leaves_a_log_that_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(_: int) -> None:
        raise KeyboardInterrupt

    with EventLog(tmp_path, conversation_id="c") as log:
        log.append(events.user_message("a"))
        monkeypatch.setattr("ohsandbox.persistence.log.sync_data", interrupt)
        with pytest.raises(KeyboardInterrupt):
            log.append(events.user_message("b"))
        monkeypatch.undo()
        log.append(events.user_message("c"))
    assert contents(tmp_path) == ["a", "c"]


def make_symlink(path: Path) -> None:
    path.with_name("other").write_bytes(b"")
    path.symlink_to(path.with_name("other"))


@pytest.mark.parametrize("make", [make_symlink, Path.mkdir, os.mkfifo])
def test_log_that_is_no_regular_file_is_refused(tmp_path: Path, make: object) -> None:
    assert callable(make)
    make(tmp_path / LOG_NAME)
    for attempt in (lambda: EventLog(tmp_path, conversation_id="c"), lambda: read_events(tmp_path / LOG_NAME)):
        with pytest.raises(UsageError):
            attempt()


@pytest.mark.parametrize("umask", [0o000, 0o777])
def test_modes_are_private_whatever_the_umask(tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        write(tmp_path / "root" / "c", "a")
    finally:
        os.umask(before)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "root").rglob("*")}
    assert modes == {"c": 0o700, LOG_NAME: 0o600, "lock": 0o600, JOURNAL_NAME: 0o600}
    assert stat.S_IMODE((tmp_path / "root").stat().st_mode) == 0o700


def test_file_system_without_locks_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(37, "No locks available")

    monkeypatch.setattr("ohsandbox.private_files.fcntl.flock", refuse)
    taken: list[SDKEvent] = []
    EventLog(tmp_path, conversation_id="c", take=taken.append).close()
    assert taken[0].data["code"] == "NoLock"


def test_closed_log_takes_no_event_and_leaves_no_descriptor(tmp_path: Path) -> None:
    before = len(list(Path("/dev/fd").iterdir()))
    log = EventLog(tmp_path, conversation_id="c")
    log.close()
    log.close()
    with pytest.raises(LogWriteError, match="is closed"):
        log.append(events.user_message("x"))
    assert len(list(Path("/dev/fd").iterdir())) == before


def test_order_is_by_number_when_the_clock_is_set_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Clock(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> Self:
            return cls(2026, 1, 1, 12, next(minutes), tzinfo=tz)

    minutes = iter((30, 10, 20))
    monkeypatch.setattr("ohsandbox.persistence.log.datetime", Clock)
    write(tmp_path, "a", "b", "c")
    assert contents(tmp_path) == ["a", "b", "c"]


def test_no_program_that_is_started_inherits_the_log_or_its_lock(tmp_path: Path) -> None:
    with EventLog(tmp_path, conversation_id="c") as log:
        log.append(events.user_message("a"))
        child = subprocess.Popen(["sleep", "60"], close_fds=False)
    try:
        opened = [str(path.readlink()) for path in Path(f"/proc/{child.pid}/fd").iterdir()]
        assert not [name for name in opened if name.startswith(str(tmp_path))]
        EventLog(tmp_path, conversation_id="c").close()
    finally:
        child.kill()
        child.wait()


def newer(directory: Path, *, event_type: str = "telemetry") -> bytes:
    """A log whose second record only a newer version knows, and has fields of."""
    write(directory, "a", "b", "c")
    path = directory / LOG_NAME
    first, second, third = path.read_bytes().splitlines(keepends=True)
    body = second.replace(b'"user_message"', json.dumps(event_type).encode()).rpartition(b',"crc"')[0]
    body = body.replace(b'"data":{', b'"parent":[1],"data":{"usage":[],"response_id":{},"new":{"a":[1,null]},')
    path.write_bytes(first + body + b',"crc":"%08x"}\n' % zlib.crc32(body) + third)
    return path.read_bytes()


def test_an_event_of_a_newer_version_is_kept_and_the_log_goes_on(tmp_path: Path) -> None:
    before = newer(tmp_path)
    assert repair_log(tmp_path, conversation_id="c").copy is None
    assert write(tmp_path, "d").startswith(before)
    found = read_events(tmp_path)
    assert [event.type for event in found] == ["user_message", "telemetry", "user_message", "user_message"]
    assert found[1].data["new"] == {"a": [1, None]}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert SDKEvent.model_validate_json(found[1].model_dump_json()) == found[1]
    again = decode_record(encode_record(found[1], None)[:-1], seq=1, blobs=Blobs(tmp_path))
    assert again == found[1]


def test_what_is_no_event_is_damage_still(tmp_path: Path) -> None:
    body = b'{"type":7,"ts":"2026-01-01T00:00:00+00:00","conversation_id":"c","data":{},"seq":0'
    (tmp_path / LOG_NAME).write_bytes(body + b',"crc":"%08x"}\n' % zlib.crc32(body))
    with pytest.raises(LogCorruptError, match="it is not an event"):
        read_events(tmp_path)


@pytest.mark.parametrize("blank", [b"\n", b"\n\n", b" \n", b"\r\n", b"  ", b"\n\t\n "])
def test_blank_lines_are_nothing(tmp_path: Path, blank: bytes) -> None:
    whole = write(tmp_path, "a", "b")
    lines = whole.splitlines(keepends=True)
    path = tmp_path / LOG_NAME
    path.write_bytes(whole + blank)
    assert contents(tmp_path) == ["a", "b"]
    assert repair_log(tmp_path, conversation_id="c").copy is None
    write(tmp_path, "c")
    assert contents(tmp_path) == ["a", "b", "c"]
    assert [path.name for path in tmp_path.iterdir() if path.name not in {LOG_NAME, "lock"}] == []
    if blank.endswith(b"\n"):
        path.write_bytes(blank + lines[0] + blank + lines[1])
        assert contents(tmp_path) == ["a", "b"]
        with LogFollower(tmp_path) as log:
            assert [event.seq for event in log.new()] == [0, 1]


def test_a_torn_record_after_a_blank_line_is_cut_and_damage_is_damage(tmp_path: Path) -> None:
    whole = write(tmp_path, "a", "b")
    path = tmp_path / LOG_NAME
    path.write_bytes(whole[:-9].replace(b"\n", b"\n\n"))
    assert contents(tmp_path) == ["a"]
    write(tmp_path, "c")
    assert contents(tmp_path) == ["a", "c"]
    path.write_bytes(whole + b"\nx\n")
    with pytest.raises(LogCorruptError, match=f"byte {len(whole) + 1}, record 2"):
        read_events(tmp_path)


@pytest.mark.parametrize(
    ("event_type", "data", "read"),
    [
        ("user_message", {"content": 7}, lambda event: event.data["content"].strip()),
        ("status_update", {}, lambda event: event.data["status"]),
        ("checkpoint", {"id": "i", "label": "", "workspace": "x"}, lambda event: event.data["workspace"].get("path")),
    ],
)
def test_fields_of_another_type_below_a_right_checksum_are_told_of(
    event_type: str, data: dict[str, object], read: Callable[[SDKEvent], None], tmp_path: Path
) -> None:
    event = unchecked(event_type, ts=datetime.now(UTC), conversation_id="c", seq=0, data=data)
    (tmp_path / LOG_NAME).write_bytes(encode_record(event, None))
    with pytest.raises(LogCorruptError, match=rf"did not write, record 0 \('{event_type}'\): data"):
        stream_events(tmp_path, read)
    with pytest.raises(LogCorruptError):
        EventLog(tmp_path, conversation_id="c", take=read)


def test_an_error_of_whoever_reads_a_sound_event_stays_theirs(tmp_path: Path) -> None:
    with EventLog(tmp_path, conversation_id="c") as log:
        log.append(events.user_message("hi"))
    with pytest.raises(KeyError, match="theirs"):
        stream_events(tmp_path, lambda event: event.data["theirs"])
