"""What a live page is told: the entries of a log that grows, with those of its sub-agents, as they are stored."""

from __future__ import annotations

import contextlib
import math
from typing import TYPE_CHECKING, Any, NamedTuple

from ohsandbox.cli.viewer.entries import EntryMaker
from ohsandbox.cli.viewer.network_entries import NetworkEntries
from ohsandbox.cli.viewer.page import MAX_DEPTH
from ohsandbox.errors import LogCorruptError, UsageError
from ohsandbox.persistence import LOG_NAME, LogFollower
from ohsandbox.persistence.layout import AGENTS_NAME

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MAX_ENTRIES = 500
"""Of one message to the page: it draws them at once, and the first of many are wanted soon."""


class Batch(NamedTuple):
    """Entries of one conversation, in their order."""

    name: str
    """"" for the first, the path of a sub-agent below it else."""
    entries: list[dict[str, Any]]


class LogFeed:
    """Follows a conversation's log and those of its sub-agents; `close` it."""

    def __init__(self, directory: Path) -> None:
        """Nothing has to be there yet."""
        self._logs = {"": _FollowedLog(directory)}

    def new(self) -> Iterator[Batch]:
        """What was stored since the last time; a log that cannot be read on ends with an entry that says so."""
        names = [*self._logs]
        for name in names:  # which grows
            log = self._logs[name]
            entries: list[dict[str, Any]] = []
            for entry in log.new():
                if agent := entry.get("agent"):
                    inner = f"{name}/{agent}" if name else agent
                    if inner not in self._logs and inner.count("/") < MAX_DEPTH:
                        self._logs[inner] = _FollowedLog(log.directory / AGENTS_NAME / agent)
                        names.append(inner)
                entries.append(entry)
                if len(entries) >= MAX_ENTRIES:
                    yield Batch(name, entries)
                    entries = []
            if entries:
                yield Batch(name, entries)

    def close(self) -> None:
        """Close the files. Twice is fine."""
        for log in self._logs.values():
            log.close()


class _FollowedLog:
    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._maker = EntryMaker()
        self._network = NetworkEntries(directory)
        self._follower: LogFollower | None = None
        self._has_failed = False
        self._next = 0

    def new(self) -> Iterator[dict[str, Any]]:
        if self._has_failed or (self._follower is None and not (self.directory / LOG_NAME).exists()):
            return
        try:
            if self._follower is None:
                self._follower = LogFollower(self.directory)
            self._network.read()
            for event in self._follower.new():
                yield from self._network.before(self._next - 1, event.ts.timestamp() * 1000)
                self._next = event.seq + 1
                if (entry := self._maker.entry(event)) is not None:
                    yield entry
            yield from self._network.before(self._next - 1, math.inf)
        except (LogCorruptError, UsageError) as error:
            self._has_failed = True
            yield self._maker.fault(self._next, error)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            if self._follower is not None:
                self._follower.close()
