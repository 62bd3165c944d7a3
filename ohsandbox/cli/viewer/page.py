"""The page of a conversation as one self-contained file, and the updates of a live page."""

from __future__ import annotations

import contextlib
import math
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

from ohsandbox.cli.rendering.text import safe_line
from ohsandbox.cli.viewer.changes_entry import changes_block
from ohsandbox.cli.viewer.entries import EntryMaker, NetworkEntries, as_script_data
from ohsandbox.conversation.storage import StoredConversation, read_stored
from ohsandbox.errors import LogCorruptError, UsageError
from ohsandbox.html_page import open_templates
from ohsandbox.persistence import LOG_NAME, LogFollower, stream_events
from ohsandbox.persistence.layout import AGENTS_NAME

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import jinja2

    from ohsandbox.errors import OhsandboxError
    from ohsandbox.events import SDKEvent

SCRIPTS = ("elements.js", "entry.js", "timeline.js", "log.js", "live.js")
"""The page's scripts, concatenated in this order."""
MAX_DEPTH = 8
"""Deepest nesting of sub-agents that is shown; our own logs have less."""


def write_page(out: BinaryIO, directory: Path) -> None:
    """Write the page of a stored conversation, with its sub-agents.

    Raises:
        LogCorruptError: the log is damaged; the page is complete up to the damage, and says so.
        UsageError: the log is missing or of a newer version; nothing was written.
    """
    faults: list[OhsandboxError] = []
    one, conversations = read_stored(directory), [*_conversations(directory, faults)]
    pieces = page(printable_title(one), facts_of_conversation(one), conversations, live=False)
    out.writelines(piece.encode("utf-8", "replace") for piece in pieces)
    if faults:
        raise faults[0]


def page(title: str, facts: str, conversations: Iterable[tuple[str, Iterable[str]]], *, live: bool) -> Iterator[str]:
    """Yield the page in pieces; each conversation has a name, "" for the first, and its entries as `as_script_data`."""
    made = _environment().get_template("page.html")
    return made.generate(
        title=title, facts=facts, conversations=conversations, live=live, policy=content_policy(live=live)
    )


def content_policy(*, live: bool) -> str:
    """Return the content policy: own style sheet, script and images; for a live page also its server."""
    known = _environment().globals
    parts = [
        "default-src 'none'",
        f"style-src '{known['style_hash']}'",
        f"script-src '{known['script_hash']}'",
        "img-src data:",
        *(["connect-src 'self'"] if live else []),
        "base-uri 'none'",
        "form-action 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    ]
    return "; ".join(parts)


def printable_title(one: StoredConversation) -> str:
    """Return the conversation's title, printable."""
    return safe_line(one.metadata.title or one.id)


def facts_of_conversation(one: StoredConversation) -> str:
    """Return a line of facts that do not change during a run."""
    began = f"{one.metadata.created_at.astimezone():%Y-%m-%d %H:%M}"
    return " · ".join(filter(None, [f"conversation {one.id}", safe_line(one.metadata.model or ""), f"begun {began}"]))


@cache
def _environment() -> jinja2.Environment:
    return open_templates(Path(__file__).parent / "assets", scripts=SCRIPTS)


def _conversations(
    directory: Path, faults: list[OhsandboxError], name: str = "", depth: int = 0
) -> Iterator[tuple[str, list[str]]]:
    """Yield the conversation and its sub-agents, those named by their paths."""
    yield name, _entries(directory, faults, is_first=not name)
    for agent in read_stored(directory).sub_agents if depth < MAX_DEPTH else ():
        inner = f"{name}/{agent}" if name else agent
        yield from _conversations(directory / AGENTS_NAME / agent, faults, inner, depth + 1)


def _entries(directory: Path, faults: list[OhsandboxError], *, is_first: bool) -> list[str]:
    """Yield the entries of one log; if the log is faulty, the last entry says so."""
    maker, network, last, at_ms = EntryMaker(), NetworkEntries(directory), 0, 0.0
    made: list[str] = []

    def on_event(event: SDKEvent) -> None:
        nonlocal last, at_ms
        at_ms = event.ts.timestamp() * 1000
        made.extend(map(as_script_data, network.before(last, at_ms)))
        last = event.seq
        if (entry := maker.entry(event)) is not None:
            made.append(as_script_data(entry))

    try:
        stream_events(directory, on_event)
    except (LogCorruptError, UsageError) as error:
        if is_first and isinstance(error, UsageError):
            raise
        faults.append(error)
        made.append(as_script_data(maker.fault(last + 1, error)))
    made.extend(map(as_script_data, network.before(last, math.inf)))
    if is_first and (block := changes_block(directory)) is not None:
        made.append(
            as_script_data({"n": round(last + 0.98, 2), "t": round(at_ms), "type": "changes", "blocks": [block]})
        )
    if (table := network.table(last, round(at_ms))) is not None:
        made.append(as_script_data(table))
    return made


# --- live -----------------------------------------------------------------------------------------

MAX_ENTRIES = 500
"""Largest number of entries in one message to the page, which draws a message at once."""


class _Batch(NamedTuple):
    """Entries of one conversation, in order."""

    name: str
    """The name: "" for the first conversation, else the path of a sub-agent below it."""
    entries: list[dict[str, Any]]


class LogFeed:
    """Follows the logs of a conversation and its sub-agents until `close`."""

    def __init__(self, directory: Path) -> None:
        """Prepare to follow a directory, which need not exist yet."""
        self._logs = {"": _FollowedLog(directory)}

    def new(self) -> Iterator[_Batch]:
        """Yield the entries stored since the last call; an unreadable log ends with an entry that says so."""
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
                    yield _Batch(name, entries)
                    entries = []
            if entries:
                yield _Batch(name, entries)

    def close(self) -> None:
        """Close the files. A second call does nothing."""
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
