"""The page of a conversation: as one file, which loads nothing, and what a live one is told as its log grows."""

from __future__ import annotations

import contextlib
import math
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

from ohsandbox.cli.rendering.text import safe_line
from ohsandbox.cli.viewer.changes import changes_block
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
"""In this order they are the page's one script."""
MAX_DEPTH = 8
"""Of sub-agents of sub-agents; a log of ours has fewer."""


def write_page(out: BinaryIO, directory: Path) -> None:
    """Write the page of a stored conversation, with its sub-agents.

    Raises:
        LogCorruptError: its log is damaged; the page is whole, with the events before that, and says so.
        UsageError: its log is not there, or of a newer version; nothing was written.
    """
    faults: list[OhsandboxError] = []
    one, conversations = read_stored(directory), [*_conversations(directory, faults)]
    pieces = page(title_of(one), facts_of(one), conversations, live=False)
    out.writelines(piece.encode("utf-8", "replace") for piece in pieces)
    if faults:
        raise faults[0]


def page(title: str, facts: str, conversations: Iterable[tuple[str, Iterable[str]]], *, live: bool) -> Iterator[str]:
    """The page in pieces; each conversation has a name, "" for the first, and its entries as `as_script_data`."""
    made = _environment().get_template("page.html")
    return made.generate(
        title=title, facts=facts, conversations=conversations, live=live, policy=content_policy(live=live)
    )


def content_policy(*, live: bool) -> str:
    """What the page may load and run: its own style sheet and script, images in it, and when live its own server."""
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


def title_of(one: StoredConversation) -> str:
    """What the conversation is called, printable."""
    return safe_line(one.metadata.title or one.id)


def facts_of(one: StoredConversation) -> str:
    """A line on what it is; what changes while it runs is not in it."""
    began = f"{one.metadata.created_at.astimezone():%Y-%m-%d %H:%M}"
    return " · ".join(filter(None, [f"conversation {one.id}", safe_line(one.metadata.model or ""), f"begun {began}"]))


@cache
def _environment() -> jinja2.Environment:
    return open_templates(Path(__file__).parent / "assets", scripts=SCRIPTS)


def _conversations(
    directory: Path, faults: list[OhsandboxError], name: str = "", depth: int = 0
) -> Iterator[tuple[str, list[str]]]:
    """The conversation and its sub-agents, those by their paths."""
    yield name, _entries(directory, faults, is_first=not name)
    for agent in read_stored(directory).sub_agents if depth < MAX_DEPTH else ():
        inner = f"{name}/{agent}" if name else agent
        yield from _conversations(directory / AGENTS_NAME / agent, faults, inner, depth + 1)


def _entries(directory: Path, faults: list[OhsandboxError], *, is_first: bool) -> list[str]:
    """Of one log; a fault of it is its last entry."""
    maker, network, last, at_ms = EntryMaker(), NetworkEntries(directory), 0, 0.0
    made: list[str] = []

    def take(event: SDKEvent) -> None:
        nonlocal last, at_ms
        at_ms = event.ts.timestamp() * 1000
        made.extend(map(as_script_data, network.before(last, at_ms)))
        last = event.seq
        if (entry := maker.entry(event)) is not None:
            made.append(as_script_data(entry))

    try:
        stream_events(directory, take)
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
"""Of one message to the page: it draws them at once, and the first of many are wanted soon."""


class _Batch(NamedTuple):
    """Entries of one conversation, in their order."""

    name: str
    """"" for the first, the path of a sub-agent below it else."""
    entries: list[dict[str, Any]]


class LogFeed:
    """Follows a conversation's log and those of its sub-agents; `close` it."""

    def __init__(self, directory: Path) -> None:
        """Nothing has to be there yet."""
        self._logs = {"": _FollowedLog(directory)}

    def new(self) -> Iterator[_Batch]:
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
                    yield _Batch(name, entries)
                    entries = []
            if entries:
                yield _Batch(name, entries)

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
