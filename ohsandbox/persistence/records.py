"""One event as one line: pure ASCII JSON that ends in its own checksum.

    {"type":...,"ts":...,"conversation_id":...,"data":{...},"seq":7,"crc":"0a1b2c3d"}

The first record also carries `"version":1`, and one with long texts `"blobs":{"/result/output":"<sha256>"}`: those
stand in files of their own, under the JSON pointers into `data` that are given. The crc is the CRC-32 of every byte
before `,"crc"`, compared as text: comparing numbers lets a bit flip that only changes a hex digit's case pass.
"""

from __future__ import annotations

import json
import zlib
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple, get_args

from ohsandbox.errors import LogCorruptError, UsageError
from ohsandbox.events import EventType, SDKEvent
from ohsandbox.persistence.blobs import MIN_BLOB_CHARS, Blobs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

LOG_VERSION = 1

_TYPES = frozenset(get_args(EventType))

_ZERO_RUN = bytes(16)
"""One flipped bit can make one zero byte of a record, never sixteen in a row."""

_CRC_BYTES = len(b',"crc":"01234567"}')


class Scan(NamedTuple):
    """What a log holds."""

    records: int
    """So many good records."""
    end_offset: int
    """Where the last good record ends; what follows was torn by a crash."""
    torn_bytes: int


def encode_record(event: SDKEvent, blobs: Blobs) -> bytes:
    """The event's line, newline included; its long texts are in blobs when this returns.

    Raises:
        OSError: a long text could not be written.
    """
    fields: dict[str, Any] = {
        "type": event.type,
        "ts": event.ts.isoformat(),
        "conversation_id": event.conversation_id,
        "data": event.data,
        "seq": event.seq,
    }
    if event.seq == 0:
        fields["version"] = LOG_VERSION
    body = _encode(fields)
    if len(body) > MIN_BLOB_CHARS:
        fields["data"], places = blobs.stow(event.data)
        if places:
            fields["blobs"] = places
            body = _encode(fields)
    return body + _seal(body) + b"\n"


def _encode(fields: dict[str, Any]) -> bytes:
    return json.dumps(fields, ensure_ascii=True, allow_nan=False, separators=(",", ":")).encode("ascii")[:-1]


def decode_record(line: bytes, *, seq: int, blobs: Blobs) -> SDKEvent:
    """The event of a line without its newline.

    Raises:
        ValueError: the checksum, the JSON or the sequence number is wrong.
    """
    body, seal = line[:-_CRC_BYTES], line[-_CRC_BYTES:]
    if seal != _seal(body):
        raise ValueError("its checksum does not match")
    fields = json.loads(line)
    if fields.pop("seq") != seq:
        raise ValueError(f"it is not record {seq}")
    data, kind, conversation_id = fields["data"], fields["type"], fields["conversation_id"]
    if kind not in _TYPES or not isinstance(data, dict) or not isinstance(conversation_id, str):
        raise ValueError(f"it is no event of a type that this ohsandbox knows: {str(kind)[:100]!r}")
    if "blobs" in fields:
        blobs.restore(data, fields["blobs"])
    # what the checksum vouches for is not validated again: that would take two thirds of the time of loading a log
    ts = datetime.fromisoformat(fields["ts"])
    return SDKEvent.model_construct(type=kind, ts=ts, conversation_id=conversation_id, seq=seq, data=data)


def scan(lines: Iterable[bytes], *, path: Path, take: Callable[[SDKEvent], None]) -> Scan:
    """Read a whole log, line by line, and give each event to take.

    A last line without its newline was torn by a crash, and so was one with a run of zeros in it (a page that never
    reached the disk). Any other bad record was changed after it was written: that is damage.

    Raises:
        LogCorruptError: damage; the message names offset and remedy. The events before it were taken.
        UsageError: a newer version wrote the log.
    """
    offset = seq = 0
    blobs = Blobs(path.parent)
    stream = iter(lines)
    for line in stream:
        if seq == 0:
            _check_version(line, path)
        try:
            event = _decode_line(line, seq=seq, blobs=blobs)
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
            rest = sum(map(len, stream))
            if rest or not _looks_torn(line):
                raise _corrupt(path, offset=offset, seq=seq, reason=str(error)) from None
            return Scan(seq, offset, len(line))
        take(event)
        offset += len(line)
        seq += 1
    return Scan(seq, offset, 0)


def _decode_line(line: bytes, *, seq: int, blobs: Blobs) -> SDKEvent:
    if not line.endswith(b"\n"):
        raise ValueError("it has no end")
    return decode_record(line[:-1], seq=seq, blobs=blobs)


def _looks_torn(line: bytes) -> bool:
    return not line.endswith(b"\n") or _ZERO_RUN in line


def _seal(body: bytes) -> bytes:
    return b',"crc":"%08x"}' % zlib.crc32(body)


def _check_version(line: bytes, path: Path) -> None:
    try:
        version = json.loads(line).get("version")
    except (ValueError, AttributeError, RecursionError):
        return
    if isinstance(version, int) and version > LOG_VERSION:
        raise UsageError(
            f"Log {str(path)!r} has version {version}; this ohsandbox reads up to {LOG_VERSION}. Upgrade ohsandbox."
        )


def _corrupt(path: Path, *, offset: int, seq: int, reason: str) -> LogCorruptError:
    return LogCorruptError(
        f"Log {str(path)!r} is damaged at byte {offset}, record {seq}: {reason}. The {seq} records before it are good: "
        f"to go on from there, copy the file and run `truncate -s {offset} {path}`."
    )
