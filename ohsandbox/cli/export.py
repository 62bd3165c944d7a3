"""`ohsandbox conversations export`: one file that needs no other."""

# ruff: noqa: T201 - a command prints
from __future__ import annotations

import contextlib
import os
import sys
from typing import TYPE_CHECKING, BinaryIO

from ohsandbox.cli.rendering.markdown import markdown
from ohsandbox.cli.rendering.text import safe_line
from ohsandbox.conversation.storage.catalog import find_stored, read_stored
from ohsandbox.errors import LogCorruptError, UsageError
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


def export_conversation(wanted: str, root: Path | None, *, output: Path | None, form: str, force: bool) -> int:
    """Write a conversation to output (mode 0600), or to stdout.

    Raises:
        LogCorruptError: its log is damaged; what stands before the damage was written.
        UsageError: the conversation does not exist, or output is there already or cannot be written.
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
