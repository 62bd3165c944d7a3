"""The page of a conversation as one file, which loads nothing."""

from __future__ import annotations

import math
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from ohsandbox.cli.rendering.text import safe_line
from ohsandbox.cli.viewer.changes import changes_block
from ohsandbox.cli.viewer.entries import EntryMaker, as_script_data
from ohsandbox.cli.viewer.network_entries import NetworkEntries
from ohsandbox.conversation.storage import StoredConversation, read_stored
from ohsandbox.errors import LogCorruptError, UsageError
from ohsandbox.html_page import open_templates
from ohsandbox.persistence import stream_events
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
