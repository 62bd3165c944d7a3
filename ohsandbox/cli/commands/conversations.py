"""`ohsandbox conversations`, `cost` and `view`: list, show, export, repair and delete stored conversations."""

# ruff: noqa: T201 - a command prints
from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import sys
import threading
import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, BinaryIO

import typer

from ohsandbox.cli.entrypoint import INTERRUPTED
from ohsandbox.cli.prompts.prompt import is_agreed, person_present
from ohsandbox.cli.rendering.cost import cost_fields, cost_table
from ohsandbox.cli.rendering.headless import json_line, line_schema, open_view
from ohsandbox.cli.rendering.markdown import MarkdownExport
from ohsandbox.cli.rendering.tables import open_console, print_json, print_table
from ohsandbox.cli.rendering.text import age, safe_line, say, size, truncated
from ohsandbox.cli.rendering.view import IMAGES_NAME
from ohsandbox.cli.viewer.hosting import has_browser, hosted_at, open_browser, open_file
from ohsandbox.cli.viewer.page import facts_of_conversation, printable_title, write_page
from ohsandbox.conversation.cost import cost_of
from ohsandbox.conversation.storage import (
    ConversationDeleter,
    StoredConversation,
    find_stored,
    list_stored,
    read_stored,
    size_of,
    stored_before,
)
from ohsandbox.errors import ConversationOpenError, LogCorruptError, OhsandboxError, UsageError
from ohsandbox.events import ConversationStatus
from ohsandbox.paths import conversations_dir
from ohsandbox.persistence import LogFollower, encode_record, holder_of, repair_log, stream_events
from ohsandbox.private_files import new_file, opened_dir
from ohsandbox.runtime.factory import open_inventory
from ohsandbox.text import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from ohsandbox.events import SDKEvent

POLL_S = 0.2
"""Interval, in seconds, at which a followed log is read."""
MAX_TITLE_CHARS = 80
"""Longest title in the list; `show` prints the whole message."""
ENGINE_WAIT_S = 1.0
"""How long, in seconds, the list waits for the engine's containers. The conversations themselves are files."""
MAX_AGE_S = 100 * 365 * 86400
"""Largest accepted age, in seconds; Python's calendar cannot represent dates much further back."""
_SECRETS_NOTE = (
    "It holds all that the agent was told and has seen, files and outputs among them. "
    "Look for keys and passwords in it before you pass it on."
)
_AGE = re.compile(r"(\d{1,6})(min|h|d|w)")
_SECONDS = {"min": 60, "h": 3600, "d": 86400, "w": 7 * 86400}


# --- list -----------------------------------------------------------------------------------------


def list_conversations(root: Path | None, *, as_json: bool, limit: int) -> int:
    """Print the conversations in root; limit 0 prints all, and JSON always contains all."""
    conversations = list_stored(root or conversations_dir())
    containers = _containers() if conversations else {}
    if as_json:
        print_json(_fields(conversation, containers.get(conversation.id)) for conversation in conversations)
        return 0
    if not conversations:
        print("No conversations.")
        return 0
    shown = conversations[:limit] if limit else conversations
    rows = [
        (
            conversation.id,
            age(conversation.metadata.updated_at),
            _status(conversation),
            str(conversation.metadata.steps),
            _cost(conversation),
            containers.get(conversation.id, ""),
            conversation.metadata.model or "",
            truncated(conversation.metadata.title or "", MAX_TITLE_CHARS),
        )
        for conversation in shown
    ]
    print_table(("ID", "AGE", "STATUS", "STEPS", "COST", "CONTAINER", "MODEL", "TITLE"), rows)
    if len(shown) < len(conversations):
        print(f"{len(conversations) - len(shown)} older ones are not shown; --limit 0 shows all.")
    return 0


def _fields(conversation: StoredConversation, container: str | None) -> dict[str, Any]:
    more_fields = {
        "open_in_process": conversation.holder,
        "fault": conversation.fault,
        "container": container,
        "directory": str(conversation.directory),
    }
    return conversation.metadata.model_dump(mode="json") | {"state": _status(conversation)} | more_fields


def _status(conversation: StoredConversation) -> str:
    """Return the conversation's state in one word, also if its process died."""
    if conversation.fault is not None:
        return "unreadable"
    status = conversation.metadata.status
    if status is ConversationStatus.RUNNING:
        return f"running in {conversation.holder}" if conversation.holder else "interrupted"
    word = status.value.lower().replace("_", " ")
    return f"{word}, open in {conversation.holder}" if conversation.holder else word


def _cost(conversation: StoredConversation) -> str:
    return "" if conversation.metadata.cost_usd is None else f"${conversation.metadata.cost_usd:.4f}"


def show_cost(wanted: str, root: Path | None, *, as_json: bool) -> int:
    """Print the cost of a conversation, by turn and in total."""
    cost = cost_of(find_stored(root or conversations_dir(), wanted))
    if as_json:
        print(json.dumps(cost_fields(cost), indent=2))
    else:
        open_console().print(cost_table(cost), soft_wrap=True)
    return 0


def _containers() -> dict[str, str]:
    """Return the state of each conversation's container, if the engine answers in time."""
    states: dict[str, str] = {}

    def ask() -> None:
        try:
            with open_inventory() as inventory:
                listed = inventory.list_sandboxes()
            for info in listed:
                if info.conversation and states.get(info.conversation) != "running":
                    states[info.conversation] = info.state
        except (OhsandboxError, OSError):
            return  # no engine, no containers

    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(ENGINE_WAIT_S)
    return dict(states)


# --- show and export ------------------------------------------------------------------------------


def show_conversation(wanted: str, root: Path | None, *, as_json: bool, follow: bool, no_tui: bool) -> int:
    """Print the events of a conversation; with follow, continue until no process has it open."""
    directory = find_stored(root or conversations_dir(), wanted)
    if as_json:
        _read(directory, lambda event: print(json_line(event)), follow=follow)
        return 0
    conversation = read_stored(directory)
    print(f"Conversation {conversation.id}, begun {_date(conversation.metadata.created_at)}", flush=True)
    view = open_view(no_tui=no_tui, stored=True)
    view.images_dir = directory / IMAGES_NAME
    _read(directory, view.show, follow=follow)
    conversation = read_stored(directory)
    metadata, cost = conversation.metadata, _cost(conversation)
    parts = [
        _status(conversation),
        counted(metadata.steps, "step"),
        counted(metadata.calls, "call"),
        counted(_tokens(conversation), "token"),
    ]
    parts += [*([cost] if cost else []), metadata.model or "", str(directory)]
    print(safe_line(" · ".join(parts), limit_chars=1000))
    dir_option = "" if root is None else f" --dir {shlex.quote(str(root))}"
    for name in conversation.sub_agents:
        print(safe_line(f"Its sub-agent: ohsandbox conversations show{dir_option} {shlex.quote(f'{wanted}/{name}')}"))
    return 0


def _read(directory: Path, take: Callable[[SDKEvent], None], *, follow: bool) -> None:
    if not follow:
        stream_events(directory, take)
        return
    is_open = True
    try:
        with LogFollower(directory) as log:
            while is_open:
                is_open = holder_of(directory) is not None  # asked before the reading: so nothing is missed at the end
                for event in log.new():
                    take(event)
                sys.stdout.flush()
                if is_open:
                    time.sleep(POLL_S)
    except KeyboardInterrupt:  # the way to leave it
        raise typer.Exit(INTERRUPTED) from None


def print_event_schema() -> int:
    """Print the JSON Schema of an event and of a run's result."""
    print(json.dumps(line_schema(), indent=2))
    return 0


def _tokens(conversation: StoredConversation) -> int:
    return conversation.metadata.prompt_tokens + conversation.metadata.completion_tokens


def _date(when: datetime) -> str:
    return f"{when.astimezone():%Y-%m-%d %H:%M}"


def export_conversation(wanted: str, root: Path | None, *, output: Path | None, form: str, force: bool) -> int:
    """Write a conversation to output (mode 0600), or to stdout."""
    conversation = read_stored(find_stored(root or conversations_dir(), wanted))
    export = MarkdownExport()
    with _opened_output(output, conversation, force=force) as out:
        if form == "html":
            write_page(out, conversation.directory)
        elif form == "jsonl":
            stream_events(conversation.directory, lambda event: _write(out, encode_record(event, None)))
        else:
            out.write(_heading(conversation).encode())
            stream_events(
                conversation.directory,
                lambda event: _write(out, "".join(f"{part}\n\n" for part in export.paragraphs(event)).encode()),
            )
    count = counted(conversation.metadata.events, "event")
    written = "" if output is None else f"{safe_line(output, limit_chars=1000)}: {count}. "
    print(f"{written}{_SECRETS_NOTE}", file=sys.stderr)
    return 0


def _write(out: BinaryIO, data: bytes) -> None:
    out.write(data)


def _heading(conversation: StoredConversation) -> str:
    metadata, cost = conversation.metadata, _cost(conversation)
    return (
        f"# {safe_line(metadata.title or conversation.id)}\n\n"
        f"Conversation {conversation.id}, begun {_date(metadata.created_at)}, last event {_date(metadata.updated_at)}; "
        f"model {safe_line(metadata.model or 'unknown')}; {counted(metadata.steps, 'step')}, "
        f"{counted(_tokens(conversation), 'token')}{cost and f', {cost}'}.\n\n"
    )


@contextlib.contextmanager
def _opened_output(
    output: Path | None, one: StoredConversation, *, force: bool, within: bool = False
) -> Iterator[BinaryIO]:
    """Open the output. A file appears once it is complete, or with the readable part of a damaged log.

    Args:
        output: None is stdout.
        one: the conversation that is written.
        force: replace an existing file.
        within: the file may lie in the conversation's own directory.

    Raises:
        UsageError: the output may not, or cannot, be written.
        LogCorruptError: the block raised it; the file has been written.
    """
    if output is None:
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    if not within and output.resolve().is_relative_to(one.directory.resolve()):
        raise UsageError(f"File {str(output)!r} would lie in the conversation itself. Name another place.")
    if os.path.lexists(output) and not (force and output.is_file()):
        remedy = "Name a file" if output.is_dir() else "Name another one, or say --force"
        raise UsageError(f"File {str(output)!r} already exists. {remedy}.")
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


# --- repair ---------------------------------------------------------------------------------------


def repair_conversation(wanted: str, root: Path | None) -> int:
    """Truncate a damaged log and report what was lost."""
    directory = find_stored(root or conversations_dir(), wanted)
    repair = repair_log(directory, conversation_id=directory.name)
    if repair.copy is None:
        print(f"The log of {directory.name} is sound: {repair.kept} records. Nothing was changed.")
        return 0
    print(f"The log of {directory.name} was cut after its first {repair.kept} records: {repair.reason}.")
    print(f"Lost to it: {repair.lost_bytes} bytes, with {repair.whole_lost} whole records after the damage.")
    print(f"The log as it was: {safe_line(repair.copy, limit_chars=1000)}")
    return 0


# --- delete ---------------------------------------------------------------------------------------


def delete_conversations(
    wanted: Sequence[str], root: Path | None, *, older_than: str | None, everything: bool, yes: bool
) -> int:
    """Delete the named, the old, or all conversations; skip and finally report those that a process has open."""
    root = root or conversations_dir()
    if sum((bool(wanted), older_than is not None, everything)) != 1:
        raise UsageError("Say which to delete: give ids, or --older-than AGE, or --all.")
    if wanted:
        doomed = list(dict.fromkeys(find_stored(root, name) for name in wanted))
    else:
        stored = list_stored(root) if older_than is None else stored_before(root, datetime.now(UTC) - _age(older_than))
        doomed = [conversation.directory for conversation in stored]
    if not doomed:
        print("Nothing to delete.")
        return 0
    if not yes:
        if person_present():
            for directory in doomed:
                print(safe_line(f"{directory.name}  {read_stored(directory).metadata.title or ''}"))
        count, freed = len(doomed), size(sum(map(size_of, doomed)))
        question = f"Delete {count} conversation{'' if count == 1 else 's'}, {freed}, for good?"
        if not is_agreed(question, what=f"{counted(count, 'conversation')} would be deleted", yes=False):
            print("Nothing was deleted.")
            return 1
    _delete(doomed)
    return 0


def _delete(doomed: Sequence[Path]) -> None:
    still_open: list[str] = []
    with ConversationDeleter() as deleting:
        for directory in doomed:
            try:
                deletion = deleting.delete(directory)
            except ConversationOpenError:
                still_open.append(f"{directory.name} (process {holder_of(directory)})")
                continue
            also = safe_line(f", {', '.join(deletion.removed)}", limit_chars=1000) if deletion.removed else ""
            print(f"deleted {directory.name}: {size(deletion.freed_bytes)}{also}")
            for line in deletion.left:
                print(safe_line(line, limit_chars=1000), file=sys.stderr)
    if still_open:
        raise ConversationOpenError(f"Not deleted, because open: {', '.join(still_open)}. Close them there first.")


def _age(text: str) -> timedelta:
    match = _AGE.fullmatch(text.strip())
    if match is None:
        raise UsageError(f"Invalid --older-than {text!r}: expected a number and min, h, d or w, as in 30d.")
    seconds = int(match[1]) * _SECONDS[match[2]]
    if seconds > MAX_AGE_S:
        raise UsageError(f"Invalid --older-than {text!r}: expected at most a hundred years, as in 30d.")
    return timedelta(seconds=seconds)


# --- ohsandbox view -------------------------------------------------------------------------------

_PAGE_NAME = "view.html"
"""Name of the page in the conversation's directory; it is deleted with the conversation."""
MAX_PATH_CHARS = 5000


def view_conversation(
    wanted: str, root: Path | None, *, output: Path | None, serve: bool | None, port: int | None, opens: bool | None
) -> int:
    """Write the page to output (mode 0600) or the conversation's directory and print its path, or serve it.

    Args:
        wanted: the conversation.
        root: the directory of all; None is that of the state directory.
        output: None is the conversation's own directory.
        serve: None serves it while a process has it open, or at a port that is named, where output is none.
        port: to serve it at; 0 and None take a free one.
        opens: None opens it in a browser where a person and a browser with a window are there and output is none.
    """
    if serve and output is not None:
        raise UsageError("--serve and --output exclude each other. Use one of them.")
    if port is not None and (serve is False or output is not None):
        written = "--file" if serve is False else "--output"
        raise UsageError(f"--port and {written} exclude each other: a file is not served. Use one of them.")
    directory = find_stored(root or conversations_dir(), wanted)
    if serve or (serve is None and output is None and (port is not None or holder_of(directory) is not None)):
        return _serve(directory, port=port or 0, opens=opens)
    path = output or directory / _PAGE_NAME
    with _opened_output(path, read_stored(directory), force=True, within=output is None) as out:
        write_page(out, directory)
    print(safe_line(path.resolve(), limit_chars=MAX_PATH_CHARS), flush=True)
    if output is not None:
        say(_SECRETS_NOTE)
    _open(lambda: open_file(path), opens=False if output is not None and opens is None else opens)
    return 0


def _serve(directory: Path, *, port: int, opens: bool | None) -> int:
    """Serve the page until Ctrl-C. If a run with `--view` has the conversation open, print its address instead."""
    from ohsandbox.cli.viewer.control import PageControl  # noqa: PLC0415 - only `view --serve` needs a server
    from ohsandbox.cli.viewer.server import PageServer  # noqa: PLC0415 - only `view --serve` needs a server

    if (address := hosted_at(directory)) is not None:
        page_address = address
        print(page_address, flush=True)
        _open(lambda: open_browser(page_address, directory), opens=opens)
        return 0
    conversation = read_stored(directory)
    with PageServer(
        directory,
        PageControl(directory),
        title=printable_title(conversation),
        facts=facts_of_conversation(conversation),
        port=port,
    ) as server:
        print(server.address, flush=True)
        say("This page only reads. Ctrl-C ends it.")
        _open(lambda: open_browser(server.address, directory), opens=opens)
        threading.Event().wait()
    return 0


def _open(open_it: Callable[[], bool], *, opens: bool | None) -> None:
    """Open the page; with opens=None, only if a person and a browser with a window are there."""
    if not (opens or (opens is None and sys.stdout.isatty() and has_browser())):
        return
    if not open_it() and opens:
        raise UsageError("No browser was found. Open what is printed above, or set BROWSER.")
