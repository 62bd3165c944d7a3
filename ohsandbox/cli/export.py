"""`ohsandbox conversations export`: one file that needs no other."""

# ruff: noqa: T201 - a command prints
from __future__ import annotations

import contextlib
import os
import re
import sys
from typing import TYPE_CHECKING, BinaryIO

from ohsandbox.cli.rendering.events import call_of, outcome_of
from ohsandbox.cli.rendering.text import safe, safe_line
from ohsandbox.conversation.storage.catalog import MALFORMED, find_stored, read_stored
from ohsandbox.errors import LogCorruptError, UsageError
from ohsandbox.events import KNOWN_TYPES
from ohsandbox.paths import conversations_dir
from ohsandbox.persistence import encode_record, stream_events
from ohsandbox.private_files import new_file, opened_dir

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from datetime import datetime
    from pathlib import Path

    from ohsandbox.conversation.storage.catalog import StoredConversation
    from ohsandbox.events import SDKEvent

SECRETS_NOTE = (
    "It holds all that the agent was told and has seen, files and outputs among them. "
    "Look for keys and passwords in it before you pass it on."
)

_LONG_FENCE = re.compile(r"`{3,}")
_IMAGE = re.compile(r"data:image/[a-z0-9.+-]+;base64,[A-Za-z0-9+/=]+")


def export_conversation(wanted: str, root: Path | None, *, output: Path | None, form: str, force: bool) -> int:
    """Write a conversation to output (mode 0600), or to stdout.

    Raises:
        LogCorruptError: its log is damaged; what stands before the damage was written.
        UsageError: there is no such conversation, or output is there already or cannot be written.
    """
    one = read_stored(find_stored(root or conversations_dir(), wanted))
    with _opened(output, one, force=force) as out:
        if form == "jsonl":
            _write(one.directory, out, lambda event: encode_record(event, None))
        else:
            out.write(_heading(one).encode())
            _write(one.directory, out, lambda event: "".join(f"{part}\n\n" for part in markdown(event)).encode())
    if output is not None:
        print(f"{safe_line(output, limit_chars=1000)}: {one.metadata.events} events. {SECRETS_NOTE}", file=sys.stderr)
    else:
        print(SECRETS_NOTE, file=sys.stderr)
    return 0


def markdown(event: SDKEvent) -> list[str]:
    """Its blocks; none for what a reader does not miss."""
    if event.type not in KNOWN_TYPES:
        return [f"> An event of a newer ohsandbox: {safe_line(event.type)}"]
    blocks = _BLOCKS.get(event.type)
    try:
        return [] if blocks is None else blocks(event)
    except MALFORMED as error:
        return [f"> Event {event.seq} ({event.type}) cannot be shown: {safe_line(repr(error))}"]


def _said(event: SDKEvent) -> list[str]:
    who = "Person" if event.type == "user_message" else "Agent"
    return [f"## {who}, {event.ts.astimezone():%H:%M:%S}", safe(event.data["content"])]


def _call(event: SDKEvent) -> list[str]:
    heading = [] if event.data["call_index"] else [f"## Agent, {event.ts.astimezone():%H:%M:%S}"]
    thought = event.data.get("thought")
    call = call_of(event)
    shown = call.text if call.answer else f"**{safe_line(event.data['name'])}**\n\n{fenced(call.text)}"
    passed = [f"> Allowed by approval {event.data['approval']}."] if "approval" in event.data else []
    return [*heading, *([safe(thought)] if thought else []), shown, *passed]


def _result(event: SDKEvent) -> list[str]:
    outcome = outcome_of(event)
    images = [
        f"![An image that the tool returned]({url})" if _IMAGE.fullmatch(url) else "(an image)"
        for url in event.data.get("images", [])
    ]
    if event.data["name"] == "finish" and outcome.ok:
        return images  # its message stands in the call
    return [", ".join(filter(None, ["Result", outcome.ending])) + ":", fenced(outcome.text), *images]


def _told(event: SDKEvent) -> list[str]:
    return [f"> {event.type}: {safe_line(event.data.get('message', ''), limit_chars=1000)}"]


def _condensed(event: SDKEvent) -> list[str]:
    summary = fenced(safe(event.data.get("summary", "")))
    return ["> From here on the model was shown this for what stands above:", summary]


def _confirmed(event: SDKEvent) -> list[str]:
    data = event.data
    word = "allowed" if data.get("approved") else "refused"
    return [f"> {word} by {safe_line(data.get('by', ''))}: {safe_line(data.get('reason', ''), limit_chars=1000)}"]


def _approved(event: SDKEvent) -> list[str]:
    data = event.data
    return [f"> Approval {data['number']} by {safe_line(data['by'])}: from now on {safe_line(data['text'])}."]


def _revoked(event: SDKEvent) -> list[str]:
    return [f"> Approval {event.data['number']} was revoked by {safe_line(event.data['by'])}."]


_BLOCKS: dict[str, Callable[[SDKEvent], list[str]]] = {
    "user_message": _said,
    "assistant_message": _said,
    "tool_call": _call,
    "tool_result": _result,
    "error": _told,
    "notice": _told,
    "retry": _told,
    "condensation": _condensed,
    "confirmation": _confirmed,
    "approval": _approved,
    "approval_revoked": _revoked,
}


def fenced(text: str) -> str:
    """A code block that text cannot end."""
    longest = max(map(len, _LONG_FENCE.findall(text)), default=2)
    fence = "`" * (longest + 1)
    return f"{fence}\n{text.rstrip(chr(10))}\n{fence}"


def _heading(one: StoredConversation) -> str:
    known = one.metadata
    cost = "" if known.cost_usd is None else f", ${known.cost_usd:.4f}"
    tokens = known.prompt_tokens + known.completion_tokens
    return (
        f"# {safe_line(known.title or one.id)}\n\n"
        f"Conversation {one.id}, begun {_date(known.created_at)}, last event {_date(known.updated_at)}; "
        f"model {safe_line(known.model or 'unknown')}; {known.steps} steps, {tokens:,} tokens{cost}.\n\n"
    )


def _write(directory: Path, out: BinaryIO, form: Callable[[SDKEvent], bytes]) -> None:
    def put(event: SDKEvent) -> None:
        out.write(form(event))

    stream_events(directory, put)


@contextlib.contextmanager
def _opened(output: Path | None, one: StoredConversation, *, force: bool) -> Iterator[BinaryIO]:
    """Where to write. A file appears when it is whole, or holds what a damaged log had before the damage."""
    if output is None:
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    if output.resolve().is_relative_to(one.directory.resolve()):
        raise UsageError(f"File {str(output)!r} would lie in the conversation itself. Name another place.")
    if os.path.lexists(output) and not (force and output.is_file()):
        remedy = "Name a file" if output.is_dir() else "Name another one, or say --force"
        raise UsageError(f"File {str(output)!r} is there already. {remedy}.")
    try:
        damage: LogCorruptError | None = None
        with opened_dir(output.parent.resolve()) as parent, new_file(parent, output.name) as file:
            try:
                yield file
            except LogCorruptError as error:
                damage = error
        if damage is not None:
            raise damage
    except OSError as error:
        raise UsageError(
            f"File {str(output)!r} cannot be written: {error.strerror}. Name another file with --output."
        ) from error


def _date(when: datetime) -> str:
    return f"{when.astimezone():%Y-%m-%d %H:%M}"
