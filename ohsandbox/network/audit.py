"""What was asked of the network and decided: kept in memory, told to listeners, and a line of JSON each in a file."""

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
from ohsandbox.network.listeners import NetworkListeners
from ohsandbox.private_files import open_regular, write_all
from ohsandbox.text import encodable, quoted_line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

Protocol = Literal["https", "http", "tcp", "forward", "host port"]
"""`tcp` is a connection at a port of its own, whose bytes are not known."""


KEPT = 1000
"""Decisions that stay in memory; older ones are summed up by host, and the totals are of all."""
MAX_SUMS = 1000
"""Hosts whose older decisions are summed up, half of them for what was refused: nobody forgets by asking for many."""
MAX_FILE_BYTES = 1024 * 1024
"""Largest file, some 4,000 decisions; the previous file is kept as well."""
MAX_METHOD_CHARS, MAX_REASON_CHARS = 20, 300
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}", re.ASCII)
_FOLDER = "network"


@dataclass(frozen=True)
class NetworkDecision:
    """One decision about a connection or a request.

    Attributes:
        time: seconds since the epoch.
        host: the name that was asked for; "" where there was none. Foreign text, at most 253 printable characters.
        port: the port; 0 where there was none.
        protocol: what was asked for.
        method: of the HTTP request, `CONNECT` for a tunnel; "" where there is none.
        allowed: what was decided.
        reason: why, the second half of a sentence that begins with the host.
        rule: the rule that allowed it.
        sent_bytes: from the sandbox; final when the connection has ended.
        received_bytes: to the sandbox; likewise.
        number: of the decision in its log, from 1 on.
        count: how many alike it stands for: 1, more where older ones of a host are summed up, and 0 for the bytes of a
            connection whose decision is summed up elsewhere.
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
    """Totals of all decisions of a log."""

    allowed: int = 0
    refused: int = 0
    sent_bytes: int = 0
    received_bytes: int = 0


class AuditLog:
    """The decisions about one sandbox. All methods may be called from any thread.

    Args:
        name: of the sandbox: the file is `network/NAME.jsonl` in the state directory, mode 0600, and at most
            MAX_FILE_BYTES large; the one before it is `NAME.1.jsonl`. None keeps no file.

    Raises:
        UsageError: the name is not a name of a file, or the directory cannot be made.
    """

    def __init__(self, name: str | None = None) -> None:
        self._path = None if name is None else audit_path(name)
        self._guard = threading.Lock()
        self._file: int | None = None
        self._size = 0
        self._number = 0
        self._token = secrets.token_hex(4)  # numbers begin anew in each process
        self._kept: OrderedDict[int, NetworkDecision] = OrderedDict()
        self._sums: _Sums = {}
        self._totals = _NetworkTotals()
        self._listeners: NetworkListeners[[NetworkDecision]] = NetworkListeners()
        self.problem = ""
        """Why decisions are in memory only, where the file could not be written; one line."""

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
        """Keep a decision and tell the listeners; foreign text in it is cut and has no control characters."""
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
        self._listeners.tell(decision)  # what is recorded is decided
        return decision

    def finish(self, decision: NetworkDecision, *, sent_bytes: int, received_bytes: int) -> None:
        """Record how many bytes went over an allowed connection that has ended."""
        done = dataclasses.replace(decision, sent_bytes=sent_bytes, received_bytes=received_bytes)
        with self._guard:
            if decision.number in self._kept:
                self._kept[decision.number] = done
            else:
                _sum_up(self._sums, dataclasses.replace(done, count=0))
            self._add(sent_bytes=sent_bytes, received_bytes=received_bytes)
            self._write("end", dataclasses.replace(done, time=time.time()))

    @property
    def decisions(self) -> tuple[NetworkDecision, ...]:
        """The last KEPT, the oldest first, after sums of those before by host: at most MAX_SUMS."""
        with self._guard:
            return (*self._sums.values(), *self._kept.values())

    @property
    def totals(self) -> _NetworkTotals:
        """The totals of all decisions; bytes of connections that have ended."""
        return self._totals

    def on_decision(self, listener: Callable[[NetworkDecision], None]) -> Callable[[], None]:
        """Call listener with each decision, in the thread that made it; what is returned ends that.

        The listener must return at once; what it raises is logged.
        """
        return self._listeners.add(listener)

    def close(self) -> None:
        """Close the file; decisions that come later open it again."""
        with self._guard:
            self._close()

    def _add(self, **more: int) -> None:
        sums = {name: getattr(self._totals, name) + number for name, number in more.items()}
        self._totals = dataclasses.replace(self._totals, **sums)

    def _write(self, event: str, told: NetworkDecision) -> None:
        if self._path is None:
            return
        line = _line(self._token, event, told)
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
        """Begin a new file; returns the lines with which it begins: the sums of what the file before the last held."""
        assert self._path is not None  # noqa: S101 - the caller writes to it
        self._close()
        sums: _Sums = {}
        for one in _decisions_in([_older(self._path)]):
            _sum_up(sums, one)
        self._path.replace(_older(self._path))
        log, lines, rest = f"{self._token}.{secrets.token_hex(4)}", bytearray(), _Sums()
        for number, one in enumerate(sorted(sums.values(), key=lambda one: not one.allowed), 1):
            if len(lines) < MAX_FILE_BYTES // 2:
                lines += _line(log, "decision", dataclasses.replace(one, number=number))
            else:
                _sum_up(rest, _of_many(one))
        for number, one in enumerate(rest.values(), 1):
            lines += _line(log, "decision", dataclasses.replace(one, number=-number))
        return bytes(lines)

    def _close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None


_Sums = dict[tuple[str, int, str, bool, str], NetworkDecision]


def _sum_up(sums: _Sums, one: NetworkDecision) -> None:
    """Add a decision to the sum of its host; beyond the bounds, to that of all other hosts, whose name is ""."""
    key = (one.host, one.port, one.protocol, one.allowed, one.rule)
    if key not in sums and len(sums) >= (MAX_SUMS if one.allowed else MAX_SUMS // 2):
        one = _of_many(one)
        key = ("", 0, one.protocol, one.allowed, "")
    before = sums.get(key)
    if before is not None:
        one = dataclasses.replace(
            one, time=max(one.time, before.time), count=one.count + before.count,
            sent_bytes=one.sent_bytes + before.sent_bytes, received_bytes=one.received_bytes + before.received_bytes,
        )  # fmt: skip
    sums[key] = one


def _of_many(one: NetworkDecision) -> NetworkDecision:
    return dataclasses.replace(one, host="", port=0, rule="", reason="many hosts")


def _line(log: str, event: str, told: NetworkDecision) -> bytes:
    record = {"log": log, "event": event, **dataclasses.asdict(told)}
    return json.dumps(record, separators=(",", ":")).encode() + b"\n"


def _clean(text: str, limit_chars: int) -> str:
    return quoted_line(encodable(text[: 4 * limit_chars]), limit_chars=limit_chars)


def audit_path(name: str) -> Path:
    """Where the decisions about the sandbox of that name are kept.

    Raises:
        UsageError: it is not a name of a file, or the directory cannot be made.
    """
    if not _NAME.fullmatch(name):
        raise UsageError(f"Invalid name of a sandbox {name[:80]!r}: expected letters, digits, '_', '.' and '-'")
    return paths.subdirectory(_FOLDER) / f"{name}.jsonl"


def _older(path: Path) -> Path:
    return path.with_name(f"{path.stem}.1.jsonl")


def read_decisions(name: str) -> tuple[NetworkDecision, ...]:
    """The decisions that stand in the files of a sandbox, the oldest first, with the bytes of those that have ended.

    Lines that are damaged are left out. No decision at all is an empty tuple.

    Raises:
        UsageError: as `audit_path`, or a file is not a regular one.
    """
    path = audit_path(name)
    return _decisions_in([_older(path), path])


def shortened(decisions: Sequence[NetworkDecision], most: int) -> tuple[NetworkDecision, ...]:
    """The newest of decisions, `most` of them, after sums of the older ones by host."""
    cut, sums = max(0, len(decisions) - most), _Sums()
    for one in decisions[:cut]:
        _sum_up(sums, one)
    return (*sums.values(), *decisions[cut:])


def _decisions_in(files: Iterable[Path]) -> tuple[NetworkDecision, ...]:
    """Return the decisions in the files of one sandbox, those of the older file first."""
    found: dict[tuple[str, int], NetworkDecision] = {}
    for file in files:
        for line in _lines(file):
            record = _record(line)
            if not record:
                continue
            key = (str(record.get("log")), record["number"])
            told = NetworkDecision(**{name: record[name] for name in _FIELDS})
            if record["event"] == "decision":
                found[key] = told
            else:  # of a decision that is summed up, only the bytes are to be counted
                known = found.get(key, dataclasses.replace(told, count=0))
                found[key] = dataclasses.replace(known, sent_bytes=told.sent_bytes, received_bytes=told.received_bytes)
    return tuple(sorted(found.values(), key=lambda one: one.time))


def audit_logs() -> dict[str, float]:
    """When each log was written last, in seconds since the epoch, by the name of its sandbox; the newest first.

    Raises:
        UsageError: the directory cannot be made.
    """
    found: dict[str, float] = {}
    for file in paths.subdirectory(_FOLDER).glob("*.jsonl"):
        name = file.name.removesuffix(".jsonl").removesuffix(".1")
        with contextlib.suppress(OSError):
            found[name] = max(found.get(name, 0.0), file.lstat().st_mtime)
    return dict(sorted(found.items(), key=lambda one: one[1], reverse=True))


def remove_audit_log(name: str) -> None:
    """Remove what is kept of a sandbox, if anything is.

    Raises:
        UsageError: as `audit_path`.
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
    """What a line says; empty where it is none of ours."""
    try:
        record = json.loads(line)
        fits = record["event"] in {"decision", "end"} and all(
            type(record[name]) in kinds for name, kinds in _FIELDS.items()
        )
    except (ValueError, TypeError, KeyError, RecursionError):
        return {}
    return record if fits else {}


_FIELDS: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(("host", "protocol", "method", "reason", "rule"), (str,)),
    **dict.fromkeys(("port", "number", "count", "sent_bytes", "received_bytes"), (int,)),
    "time": (int, float),
    "allowed": (bool,),
}
