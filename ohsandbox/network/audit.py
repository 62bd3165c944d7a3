"""The log of network decisions of a sandbox: kept in memory, passed to listeners, and written as lines of JSON."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
import secrets
import threading
import time
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from ohsandbox import paths
from ohsandbox.errors import UsageError
from ohsandbox.network.addresses import MAX_HOST_CHARS
from ohsandbox.network.listeners import Listeners
from ohsandbox.private_files import open_regular, write_all
from ohsandbox.strict_json import load_json
from ohsandbox.text import encodable, quoted_line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

Protocol = Literal["https", "http", "tcp", "forward", "host port"]
"""`tcp` is a connection to another port than 80 and 443; its content is not examined."""


KEPT = 1000
"""Number of decisions in memory; older ones are replaced by sums."""
MAX_SUMS = 1000
"""Number of sums in memory. Refusals get a new sum only below the half, which leaves room for allowed hosts."""
MAX_FILE_BYTES = 1024 * 1024
"""Size at which a new file is begun: about 4,000 decisions. The previous file is kept as well."""
MAX_METHOD_CHARS, MAX_REASON_CHARS = 20, 300
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}", re.ASCII)
_FOLDER = "network"


@dataclass(frozen=True)
class NetworkDecision:
    """One decision about a connection or a request.

    Attributes:
        time: seconds since the epoch.
        host: the requested name, at most 253 printable characters, chosen by the sandbox; "" if there was none.
        port: the requested port; 0 if there was none.
        protocol: the requested protocol.
        method: the method of the HTTP request, `CONNECT` for a tunnel; "" if there was none.
        allowed: whether it was allowed.
        reason: the reason, as the predicate of a sentence whose subject is the host.
        rule: the rule that allowed it; "" if none did.
        sent_bytes: bytes from the sandbox; 0 until the connection has ended.
        received_bytes: bytes to the sandbox; 0 until the connection has ended.
        number: the number of the decision in its log, from 1; negative for a sum over many hosts in a file.
        count: the number of decisions that this object stands for: 1, more for a sum, and 0 for the bytes of a
            connection whose decision is part of another sum.
    """

    time: float
    host: str
    port: int
    protocol: Protocol
    method: str = ""
    allowed: bool = False
    reason: str = ""
    rule: str = ""
    sent_bytes: int = 0
    received_bytes: int = 0
    number: int = 0
    count: int = 1


@dataclass(frozen=True)
class _NetworkTotals:
    """Totals of all decisions of a log; the bytes are those of connections that have ended."""

    allowed: int = 0
    refused: int = 0
    sent_bytes: int = 0
    received_bytes: int = 0


class AuditLog:
    """The network decisions of one sandbox. Thread-safe.

    Args:
        name: the sandbox's name. The file is `network/NAME.jsonl` in the state directory, with mode 0600; when it
            reaches MAX_FILE_BYTES it becomes `NAME.1.jsonl`. None writes no file.

    Raises:
        UsageError: the name is not a valid file name, or the directory cannot be created.
    """

    def __init__(self, name: str | None = None) -> None:
        self._path = None if name is None else audit_path(name)
        self._guard = threading.Lock()
        self._file: int | None = None
        self._size = 0
        self._number = 0
        self._token = secrets.token_hex(4)  # numbers start at 1 in each process
        self._kept: OrderedDict[int, NetworkDecision] = OrderedDict()
        self._sums: _Sums = {}
        self._totals = _NetworkTotals()
        self._listeners: Listeners[[NetworkDecision]] = Listeners()
        self.problem = ""
        """Why decisions are kept in memory only, in one line; "" while the file can be written."""

    def record(
        self,
        host: str,
        port: int,
        protocol: Protocol,
        *,
        allowed: bool,
        reason: str,
        rule: str = "",
        method: str = "",
    ) -> NetworkDecision:
        """Store a decision and pass it to the listeners. Texts are cut to their limits, without control characters."""
        with self._guard:
            self._number += 1
            decision = NetworkDecision(
                time=time.time(),
                host=_clean(host, MAX_HOST_CHARS),
                port=port,
                protocol=protocol,
                method=_clean(method, MAX_METHOD_CHARS),
                allowed=allowed,
                reason=_clean(reason, MAX_REASON_CHARS),
                rule=rule,
                number=self._number,
            )
            self._kept[decision.number] = decision
            if len(self._kept) > KEPT:
                _sum_up(self._sums, self._kept.popitem(last=False)[1])
            self._add(allowed=int(allowed), refused=int(not allowed))
            self._write("decision", decision)
        self._listeners.notify(decision)
        return decision

    def finish(self, decision: NetworkDecision, *, sent_bytes: int, received_bytes: int) -> None:
        """Record how many bytes went over an allowed connection that has ended."""
        finished = dataclasses.replace(decision, sent_bytes=sent_bytes, received_bytes=received_bytes)
        with self._guard:
            if decision.number in self._kept:
                self._kept[decision.number] = finished
            else:
                _sum_up(self._sums, dataclasses.replace(finished, count=0))
            self._add(sent_bytes=sent_bytes, received_bytes=received_bytes)
            self._write("end", dataclasses.replace(finished, time=time.time()))

    @property
    def decisions(self) -> tuple[NetworkDecision, ...]:
        """Sums of older decisions by host, then the last KEPT decisions, oldest first."""
        with self._guard:
            return (*self._sums.values(), *self._kept.values())

    @property
    def totals(self) -> _NetworkTotals:
        """The totals of all decisions so far."""
        return self._totals

    def on_decision(self, listener: Callable[[NetworkDecision], None]) -> Callable[[], None]:
        """Call listener with each decision, in the thread that records it; return a function that removes the listener.

        The listener must return at once; its exceptions are logged.
        """
        return self._listeners.add(listener)

    def close(self) -> None:
        """Close the file; the next decision opens it again."""
        with self._guard:
            self._close()

    def _add(self, **more: int) -> None:
        sums = {name: getattr(self._totals, name) + number for name, number in more.items()}
        self._totals = dataclasses.replace(self._totals, **sums)

    def _write(self, event: str, decision: NetworkDecision) -> None:
        if self._path is None:
            return
        line = _line(self._token, event, decision)
        try:
            if self._file is not None and self._size + len(line) > MAX_FILE_BYTES:
                line = self._rotate() + line
            if self._file is None:
                self._file = open_regular(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, name="Network log")
                self._size = os.fstat(self._file).st_size
            write_all(self._file, line)
            self._size += len(line)
            self.problem = ""
        except (OSError, UsageError) as error:
            self.problem = f"The network log {str(self._path)!r} cannot be written: {error}"

    def _rotate(self) -> bytes:
        """Begin a new file; return its first lines: the sums of the file that is dropped."""
        assert self._path is not None  # noqa: S101 - the caller writes to it
        self._close()
        sums: _Sums = {}
        for decision in _decisions_in([_older(self._path)]):
            _sum_up(sums, decision)
        self._path.replace(_older(self._path))
        log, lines, remainder = f"{self._token}.{secrets.token_hex(4)}", bytearray(), _Sums()
        for number, decision in enumerate(sorted(sums.values(), key=lambda decision: not decision.allowed), 1):
            if len(lines) < MAX_FILE_BYTES // 2:
                lines += _line(log, "decision", dataclasses.replace(decision, number=number))
            else:
                _sum_up(remainder, _of_many(decision))
        for number, decision in enumerate(remainder.values(), 1):
            lines += _line(log, "decision", dataclasses.replace(decision, number=-number))
        return bytes(lines)

    def _close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None


_Sums = dict[tuple[str, int, str, bool, str], NetworkDecision]


def _sum_up(sums: _Sums, decision: NetworkDecision) -> None:
    """Add a decision to the sum of its host, or beyond the limits to the sum of many hosts, whose name is ""."""
    key = (decision.host, decision.port, decision.protocol, decision.allowed, decision.rule)
    if key not in sums and len(sums) >= (MAX_SUMS if decision.allowed else MAX_SUMS // 2):
        decision = _of_many(decision)
        key = ("", 0, decision.protocol, decision.allowed, "")
    previous = sums.get(key)
    if previous is not None:
        decision = dataclasses.replace(
            decision, time=max(decision.time, previous.time), count=decision.count + previous.count,
            sent_bytes=decision.sent_bytes + previous.sent_bytes,
            received_bytes=decision.received_bytes + previous.received_bytes,
        )  # fmt: skip
    sums[key] = decision


def _of_many(decision: NetworkDecision) -> NetworkDecision:
    return dataclasses.replace(decision, host="", port=0, rule="", reason="many hosts")


def _line(log: str, event: str, decision: NetworkDecision) -> bytes:
    record = {"log": log, "event": event, **dataclasses.asdict(decision)}
    return json.dumps(record, separators=(",", ":")).encode() + b"\n"


def _clean(text: str, limit_chars: int) -> str:
    return quoted_line(encodable(text[: 4 * limit_chars]), limit_chars=limit_chars)


def audit_path(name: str) -> Path:
    """Return the path of a sandbox's log, and create its directory.

    Raises:
        UsageError: the name is not a valid file name, or the directory cannot be created.
    """
    if not _NAME.fullmatch(name):
        raise UsageError(f"Invalid sandbox name {name[:80]!r}: use up to 128 letters, digits, '_', '.' and '-'.")
    return paths.subdirectory(_FOLDER) / f"{name}.jsonl"


def _older(path: Path) -> Path:
    return path.with_name(f"{path.stem}.1.jsonl")


def read_decisions(name: str) -> tuple[NetworkDecision, ...]:
    """Return the decisions in the files of a sandbox, oldest first; an empty tuple if there are none.

    Damaged lines are skipped.

    Raises:
        UsageError: as for `audit_path`, or a file cannot be opened or is not a regular file.
    """
    path = audit_path(name)
    return _decisions_in([_older(path), path])


def summarized(decisions: Sequence[NetworkDecision], most: int) -> tuple[NetworkDecision, ...]:
    """Return sums of the older decisions by host, then the newest `most` decisions."""
    older_count, sums = max(0, len(decisions) - most), _Sums()
    for decision in decisions[:older_count]:
        _sum_up(sums, decision)
    return (*sums.values(), *decisions[older_count:])


def _decisions_in(files: Iterable[Path]) -> tuple[NetworkDecision, ...]:
    """Return the decisions in the files of one sandbox, oldest first."""
    decisions: dict[tuple[str, int], NetworkDecision] = {}
    for file in files:
        for line in _lines(file):
            record = _record(line)
            if not record:
                continue
            key = (str(record.get("log")), record["number"])
            decision = NetworkDecision(**{name: record[name] for name in _FIELDS})
            if record["event"] == "decision":
                decisions[key] = decision
            else:  # only the bytes count if the decision itself is part of a sum
                previous = decisions.get(key, dataclasses.replace(decision, count=0))
                decisions[key] = dataclasses.replace(
                    previous, sent_bytes=decision.sent_bytes, received_bytes=decision.received_bytes
                )
    return tuple(sorted(decisions.values(), key=lambda decision: decision.time))


def audit_logs() -> dict[str, float]:
    """Return the time of each log's last change, in seconds since the epoch, by sandbox name; the newest first.

    Raises:
        UsageError: the directory cannot be created.
    """
    times: dict[str, float] = {}
    for file in paths.subdirectory(_FOLDER).glob("*.jsonl"):
        name = file.name.removesuffix(".jsonl").removesuffix(".1")
        with contextlib.suppress(OSError):
            times[name] = max(times.get(name, 0.0), file.lstat().st_mtime)
    return dict(sorted(times.items(), key=lambda item: item[1], reverse=True))


def remove_audit_log(name: str) -> None:
    """Remove the log files of a sandbox, if there are any.

    Raises:
        UsageError: as for `audit_path`.
    """
    path = audit_path(name)
    for file in (path, _older(path)):
        with contextlib.suppress(OSError):
            file.unlink()


def _lines(path: Path) -> list[bytes]:
    if not path.exists():
        return []
    with os.fdopen(open_regular(path, os.O_RDONLY, name="Network log"), "rb") as file:
        return file.read(2 * MAX_FILE_BYTES).splitlines()


def _record(line: bytes) -> dict[str, Any]:
    """Return the record in a line, or {} if the line is not one of a log."""
    try:
        record = load_json(line)
        fits = record["event"] in {"decision", "end"} and all(
            type(record[name]) in kinds for name, kinds in _FIELDS.items()
        )
    except (ValueError, TypeError, KeyError):
        return {}
    return record if fits else {}


_FIELDS: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(("host", "protocol", "method", "reason", "rule"), (str,)),
    **dict.fromkeys(("port", "number", "count", "sent_bytes", "received_bytes"), (int,)),
    "time": (int, float),
    "allowed": (bool,),
}
