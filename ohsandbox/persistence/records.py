"""One event as one line: pure ASCII JSON that ends in its own checksum.

    {"type":...,"ts":...,"conversation_id":...,"data":{...},"seq":7,"crc":"0a1b2c3d"}

The first record also carries `"version":1`, and one with long texts `"blobs":{"/result/output":"<sha256>"}`: those
stand in files of their own, under the JSON pointers into `data` that are given. The crc is the CRC-32 of every byte
before `,"crc"`, compared as text: comparing numbers lets a bit flip that only changes a hex digit's case pass. A line
of the first four keys alone, which another program wrote, is read as well; no flipped bit makes one of ours.
"""

from __future__ import annotations

import json
import math
import shlex
import zlib
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from pydantic import ValidationError

from ohsandbox.errors import LogCorruptError, UsageError
from ohsandbox.events import SDKEvent
from ohsandbox.events.event import DATA, unchecked
from ohsandbox.paths import conversations_dir
from ohsandbox.persistence.blobs import MIN_BLOB_CHARS, Blobs
from ohsandbox.strict_json import load_json

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

_LOG_VERSION = 1

_ZERO_RUN = bytes(16)
"""Zero bytes that mark a torn record: a flipped bit can make one zero byte, never sixteen in a row."""

_YEARS = (1900, 9000)
"""Years outside this range cannot be expressed in every time zone; no clock is that wrong."""

_BARE_KEYS = {"type", "ts", "conversation_id", "data"}

_CRC_BYTES = len(b',"crc":"01234567"}')


class Scan(NamedTuple):
    """The result of reading a log."""

    records: int
    """Number of valid records from the beginning."""
    end_offset: int
    """Offset of the end of the last of them."""
    rest_bytes: int
    """Number of bytes that follow, without blank lines: a record that a crash tore or that is being written, or damage
    and everything after it.
    """
    damage: str | None
    """Why the bytes that follow are damaged; None if they are torn, or if nothing follows."""
    whole_after: int
    """Number of records after the damage with a correct checksum."""


def encode_record(event: SDKEvent, blobs: Blobs | None) -> bytes:
    """Return the event's line with its newline; long texts go to blobs first, or stay in the line if it is None.

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
        fields["version"] = _LOG_VERSION
    body = _encode(fields)
    if blobs is not None and len(body) > MIN_BLOB_CHARS:
        fields["data"], places = blobs.store(event.data)
        if places:
            fields["blobs"] = places
            body = _encode(fields)
    return body + _seal(body) + b"\n"


def _encode(fields: dict[str, Any]) -> bytes:
    return json.dumps(fields, ensure_ascii=True, allow_nan=False, separators=(",", ":")).encode("ascii")[:-1]


def _float_or_null(text: str) -> float | None:
    number = float(text)
    return number if math.isfinite(number) else None


_LENIENT = json.JSONDecoder(parse_constant=lambda _: None, parse_float=_float_or_null)
"""Decodes NaN, Infinity and 1e999, which `encode_record` never writes, as null: JSON has no such values."""


def decode_record(line: bytes, *, seq: int, blobs: Blobs) -> SDKEvent:
    """Return the event of a line without its newline; types of newer versions are accepted too.

    Raises:
        ValueError: the checksum, the JSON or the sequence number is wrong.
    """
    if not _is_sealed(line):
        return _bare_record(line, seq=seq)
    fields = _LENIENT.decode(line.decode("utf-8", "surrogatepass"))
    if fields.pop("seq") != seq:
        raise ValueError(f"it is not record {seq}")
    data, kind, conversation_id = fields["data"], fields["type"], fields["conversation_id"]
    if not (isinstance(kind, str) and isinstance(data, dict) and isinstance(conversation_id, str)):
        raise TypeError(f"it is not an event: {str(kind)[:100]!r}")
    if "blobs" in fields:
        blobs.restore(data, fields["blobs"])
    ts = datetime.fromisoformat(fields["ts"])
    if ts.tzinfo is None or not _YEARS[0] <= ts.year <= _YEARS[1]:
        raise ValueError(f"it has no time that can be shown: {fields['ts']!r}")
    return unchecked(kind, ts=ts, conversation_id=conversation_id, seq=seq, data=data)


def _bare_record(line: bytes, *, seq: int) -> SDKEvent:
    """Return the event of a line without a checksum, with exactly an event's four keys: another program wrote it.

    Fields missing in its data get defaults; a time without a zone is UTC.

    Raises:
        ValueError: the line has other keys, so it is a changed record of ours; or its data is invalid.
    """
    try:
        fields = _LENIENT.decode(line.decode("utf-8", "surrogatepass"))
    except ValueError:
        fields = None
    if not isinstance(fields, dict) or fields.keys() != _BARE_KEYS:
        raise ValueError("its checksum does not match")
    ts = datetime.fromisoformat(fields["ts"])
    fields["ts"] = ts if ts.tzinfo is not None else ts.replace(tzinfo=UTC)
    if not _YEARS[0] <= ts.year <= _YEARS[1]:
        raise ValueError(f"it has no time that can be shown: {ts}")
    try:
        event = SDKEvent.model_validate({**fields, "seq": seq})
    except ValidationError as error:
        fault = error.errors(include_url=False, include_input=False)[0]
        raise ValueError(f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}") from None
    known = DATA.get(event.type)
    return event if known is None else event.model_copy(update={"data": known.completed(event.data)})


def scan_log(lines: Iterable[bytes], *, path: Path, take: Callable[[SDKEvent], None]) -> Scan:
    """Read a whole log, line by line, and pass each event to take.

    Blank lines, which an editor may leave, are ignored. A last line without its newline was torn by a crash or is being
    written, and one with a run of zeros in it was torn (a page that never reached the disk). Any other bad record was
    changed after it was written: that is damage. The events before it are taken.

    Raises:
        LogCorruptError: take has failed at an event whose fields are not of their type.
        UsageError: a newer version wrote the log.
    """
    offset = blank = seq = 0
    blobs = Blobs(path.parent)
    stream = iter(lines)
    for line in stream:
        if is_blank(line):
            blank += len(line)
            continue
        if seq == 0:
            check_version(line, path)
        try:
            event = _decode_line(line, seq=seq, blobs=blobs)
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
            return _scan_result(line, stream, Scan(seq, offset + blank, len(line), str(error), 0))
        try:
            take(event)
        except Exception as error:
            refuse_malformed(event, path, error)
            raise
        offset, blank = offset + blank + len(line), 0
        seq += 1
    return Scan(seq, offset, 0, None, 0)


def refuse_malformed(event: SDKEvent, path: Path, error: Exception) -> None:
    """Pass unless an event's fields, which its checksum vouches for, explain an error of whoever has read them.

    Checking each event while a log is read would take more time than the reading; see `events.event.unchecked`.

    Raises:
        LogCorruptError: they are not of their type: another program wrote the record.
    """
    try:
        SDKEvent.model_validate(event.model_dump())
    except (ValidationError, RecursionError) as reason:
        fault = "nested too deep"
        if isinstance(reason, ValidationError):
            first = reason.errors(include_url=False, include_input=False)[0]
            fault = f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
        raise LogCorruptError(
            f"Log {str(path)!r} holds an event that ohsandbox did not write, record {event.seq} ({event.type[:40]!r}): "
            f"{fault}. Start a new conversation."
        ) from error


def _scan_result(bad: bytes, stream: Iterable[bytes], found: Scan) -> Scan:
    """Return the result up to a bad line, with what follows it."""
    if not bad.endswith(b"\n"):  # nothing followed when it was read; later bytes were written meanwhile
        return found._replace(damage=None)
    rest_bytes, whole_after = found.rest_bytes, 0
    for line in stream:
        rest_bytes += len(line)
        whole_after += line.endswith(b"\n") and _is_sealed(line[:-1])
    is_torn = rest_bytes == len(bad) and _ZERO_RUN in bad
    return found._replace(rest_bytes=rest_bytes, whole_after=whole_after, damage=None if is_torn else found.damage)


def check_sound(found: Scan, path: Path) -> Scan:
    """Return the result unless it is damaged.

    Raises:
        LogCorruptError: the log is damaged; the message has offset and remedy.
    """
    if found.damage is None:
        return found
    raise LogCorruptError(
        f"Log {str(path)!r} is damaged at byte {found.end_offset}, record {found.records}: {found.damage}. "
        f"The {found.records} records before it are good: to go on from there, run `{_repair_command(path.parent)}`."
    )


def _repair_command(directory: Path) -> str:
    """Return the repair command, with `--dir` if the conversation is not at its usual place."""
    root = directory.absolute().parent
    try:
        is_usual = root == conversations_dir()
    except UsageError:
        is_usual = False
    where = "" if is_usual else f" --dir {shlex.quote(str(root))}"
    return f"ohsandbox conversations repair{where} {shlex.quote(directory.absolute().name)}"


def _decode_line(line: bytes, *, seq: int, blobs: Blobs) -> SDKEvent:
    if not line.endswith(b"\n"):
        raise ValueError("it has no end")
    return decode_record(line[:-1], seq=seq, blobs=blobs)


def is_blank(line: bytes) -> bool:
    """Whether a line contains only white space."""
    return not line.strip()


def _is_sealed(line: bytes) -> bool:
    """Whether a line without its newline ends in the checksum of the preceding bytes."""
    return line[-_CRC_BYTES:] == _seal(line[:-_CRC_BYTES])


def _seal(body: bytes) -> bytes:
    return b',"crc":"%08x"}' % zlib.crc32(body)


def check_version(line: bytes, path: Path) -> None:
    """Check that a log's first line has a supported version; damage is reported elsewhere.

    Raises:
        UsageError: the version is newer.
    """
    try:
        version = load_json(line).get("version")
    except (ValueError, AttributeError):
        return
    if isinstance(version, int) and version > _LOG_VERSION:
        raise UsageError(
            f"Log {str(path)!r} has version {version}; this ohsandbox reads up to {_LOG_VERSION}. Upgrade ohsandbox."
        )
