"""What a conversation's sandbox asked the network for, as entries of its page: what was blocked, and a table of all."""

from __future__ import annotations

import contextlib
import math
from collections import deque
from typing import TYPE_CHECKING, Any

from ohsandbox.cli.network_words import decision_word, target_of
from ohsandbox.cli.rendering.text import safe_line, size
from ohsandbox.cli.viewer.entries import note_block
from ohsandbox.errors import UsageError
from ohsandbox.network.audit import audit_path, read_decisions
from ohsandbox.paths import conversations_dir

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from ohsandbox.network.audit import NetworkDecision

MAX_HOSTS_BESIDE = 20
"""Blocked hosts beside one event; the table has the others."""
_PART = 0.01
"""Of the number of the event before: these entries are no events, and stand between two."""


class NetworkEntries:
    """Of one conversation, between the entries of its events."""

    def __init__(self, directory: Path) -> None:
        """Read what is kept of the conversation; nothing where it lies elsewhere."""
        self._path: Path | None = None
        self._name = directory.name
        if directory.resolve().parent == conversations_dir().resolve():
            with contextlib.suppress(UsageError):  # a name of no log
                self._path = audit_path(self._name)
        self._state: tuple[int, int] | None = None
        self._decisions: tuple[NetworkDecision, ...] = ()
        self._blocked: deque[NetworkDecision] = deque()
        self._known_until = -math.inf
        self._place = (-1, 0)
        """The last event that hosts stand behind, and how many do."""
        self.read()

    def read(self) -> None:
        """Look for decisions since the last time; nothing is read where nothing was written."""
        if self._path is None:
            return
        with contextlib.suppress(UsageError, OSError):  # it is not there yet, or cannot be read
            found = self._path.stat()
            if (state := (found.st_size, found.st_mtime_ns)) == self._state:
                return
            self._state, self._decisions = state, read_decisions(self._name)
            fresh = [one for one in self._decisions if not one.allowed and one.time > self._known_until]
            self._blocked.extend(sorted(fresh, key=lambda one: one.time))
            self._known_until = max([self._known_until, *(one.time for one in fresh)])

    def before(self, number: int, ended_ms: float) -> Iterator[dict[str, Any]]:
        """An entry for each host that was blocked until ended_ms, in ms since 1970; number is the last event's."""
        found: dict[str, list[NetworkDecision]] = {}
        while self._blocked and self._blocked[0].time * 1000 <= ended_ms:
            one = self._blocked.popleft()
            found.setdefault(f"{target_of(one)} ({one.reason})", []).append(one)
        first = self._place[1] if self._place[0] == number else 0
        for place, (text, group) in enumerate([*found.items()][: MAX_HOSTS_BESIDE - first], first + 1):
            self._place = (number, place)
            count = _count(group)
            times = f", {count} times" if count > 1 else ""
            note = note_block("network", safe_line(f"Blocked: {text}{times}", limit_chars=500), warns=True)
            at = round(group[0].time * 1000)
            yield {"n": round(number + place * _PART, 2), "t": at, "type": "blocked", "blocks": [note]}

    def table(self, number: int, at_ms: int) -> dict[str, Any] | None:
        """The last entry: a row for each host and decision; None where nothing was asked for."""
        if not self._decisions:
            return None
        from ohsandbox.cli.net import grouped  # noqa: PLC0415 - what it needs is slow to import
        from ohsandbox.cli.rendering.tables import aligned  # noqa: PLC0415 - as above

        rows: list[tuple[str, ...]] = [("HOST", "DECISION", "TIMES", "SENT", "RECEIVED", "WHY")]
        for group in grouped(self._decisions):
            first = group[0]
            counts = (size(sum(one.sent_bytes for one in group)), size(sum(one.received_bytes for one in group)))
            why = f"by {first.rule}" if first.allowed and first.rule else first.reason
            host, decided = safe_line(target_of(first)), decision_word(first)
            rows.append((host, decided, str(_count(group)), *counts, safe_line(why)))
        blocked = _count([one for one in self._decisions if not one.allowed])
        hosts = len({one.host for one in self._decisions})
        text = f"Network: {_count(self._decisions)} requests to {hosts} hosts, {blocked} blocked"
        note = note_block("network", text, details=aligned(rows, right=(2, 3, 4), heading=True).plain)
        return {"n": round(number + 0.99, 2), "t": at_ms, "type": "network", "blocks": [note]}


def _count(decisions: Sequence[NetworkDecision]) -> int:
    return sum(one.count for one in decisions)
