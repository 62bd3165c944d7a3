"""`ohsandbox conversations`: what lies on disk, for a person to look at, repair and delete."""

# ruff: noqa: T201 - a command prints
from __future__ import annotations

import json
import re
import shlex
import sys
import threading
import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from ohsandbox.cli.prompt import confirm
from ohsandbox.cli.rendering.tables import print_table
from ohsandbox.cli.rendering.text import cut, safe_line, size
from ohsandbox.cli.rendering.view import open_view
from ohsandbox.conversation.storage.catalog import (
    StoredConversation,
    find_stored,
    list_stored,
    read_stored,
    size_of,
)
from ohsandbox.conversation.storage.deletion import ConversationDeleter
from ohsandbox.errors import ConversationOpenError, OhsandboxError, UsageError
from ohsandbox.events import ConversationStatus
from ohsandbox.paths import conversations_dir
from ohsandbox.persistence import LogFollower, holder_of, repair_log, stream_events

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from ohsandbox.events import SDKEvent

POLL_S = 0.2
"""How often a followed log is looked at."""
MAX_TITLE_CHARS = 80
"""Enough to know it again; `show` has the whole message."""
ENGINE_WAIT_S = 1.0
"""An engine that takes longer to list its containers is not waited for: the list is of files."""

MAX_AGE_S = 100 * 365 * 86400
"""The calendar of Python ends 2000 years ago."""

_AGE = re.compile(r"(\d{1,6})(min|h|d|w)")
_SECONDS = {"min": 60, "h": 3600, "d": 86400, "w": 7 * 86400}


# --- list -----------------------------------------------------------------------------------------


def list_conversations(root: Path | None, *, as_json: bool, limit: int) -> int:
    """Print what is in root; limit 0 is all, and JSON is always all.

    Raises:
        UsageError: HOME is not set, and root not given.
    """
    found = list_stored(root or conversations_dir())
    containers = _containers() if found else {}
    if as_json:
        print(json.dumps([_fields(one, containers.get(one.id)) for one in found], indent=2))
    elif not found:
        print("No conversations.")
    else:
        shown = found[:limit] if limit else found
        _print(shown, containers)
        if len(shown) < len(found):
            print(f"{len(found) - len(shown)} older ones are not shown; --limit 0 shows all.")
    return 0


def _fields(one: StoredConversation, container: str | None) -> dict[str, object]:
    facts = {"open_in_process": one.holder, "fault": one.fault, "container": container, "directory": str(one.directory)}
    return one.metadata.model_dump(mode="json") | {"state": _status(one)} | facts


def _print(shown: Sequence[StoredConversation], containers: dict[str, str]) -> None:
    rows = [
        (
            one.id,
            age_of(one.metadata.updated_at),
            _status(one),
            str(one.metadata.steps),
            "" if one.metadata.cost_usd is None else f"${one.metadata.cost_usd:.4f}",
            containers.get(one.id, ""),
            one.metadata.model or "",
            cut(one.metadata.title or "", MAX_TITLE_CHARS),
        )
        for one in shown
    ]
    print_table(("ID", "AGE", "STATUS", "STEPS", "COST", "CONTAINER", "MODEL", "TITLE"), rows)


def _status(one: StoredConversation) -> str:
    """One word on where a conversation stands: also that a process died with it."""
    if one.fault is not None:
        return "unreadable"
    status = one.metadata.status
    if status is ConversationStatus.RUNNING:
        return f"running in {one.holder}" if one.holder else "interrupted"
    word = status.value.lower().replace("_", " ")
    return f"{word}, open in {one.holder}" if one.holder else word


def age_of(when: datetime) -> str:
    """How long ago, in the largest unit that fits."""
    seconds = max(0, int((datetime.now(UTC) - when).total_seconds()))
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds // length} {unit}"
    return f"{seconds} s"


def _containers() -> dict[str, str]:
    """The state of each conversation's container, as far as an engine says so at once."""
    found: dict[str, str] = {}

    def ask() -> None:
        from ohsandbox.runtime.factory import open_inventory  # noqa: PLC0415 - 0.1 s, in this thread's time

        try:
            with open_inventory() as inventory:
                listed = inventory.list_sandboxes()
            for info in listed:
                if info.conversation and found.get(info.conversation) != "running":
                    found[info.conversation] = info.state
        except (OhsandboxError, OSError):
            return  # no engine, no containers

    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(ENGINE_WAIT_S)
    return dict(found)


# --- show -----------------------------------------------------------------------------------------


def show_conversation(wanted: str, root: Path | None, *, as_json: bool, follow: bool, no_tui: bool) -> int:
    """Print the events of a conversation; follow goes on until no process has it open.

    Raises:
        LogCorruptError: its log is damaged; what stands before the damage was shown.
        UsageError: the conversation does not exist.
    """
    directory = find_stored(root or conversations_dir(), wanted)
    if as_json:
        _read(directory, _print_json, follow=follow)
        return 0
    one = read_stored(directory)
    print(f"Conversation {one.id}, begun {one.metadata.created_at.astimezone():%Y-%m-%d %H:%M}", flush=True)
    _read(directory, open_view(no_tui=no_tui, stored=True).show, follow=follow)
    _print_sums(read_stored(directory), wanted, root)
    return 0


def _read(directory: Path, take: Callable[[SDKEvent], None], *, follow: bool) -> None:
    if not follow:
        stream_events(directory, take)
        return
    with LogFollower(directory) as log:
        is_open = True
        while is_open:
            is_open = holder_of(directory) is not None  # asked before the reading: so nothing is missed at the end
            for event in log.new():
                take(event)
            sys.stdout.flush()
            if is_open:
                time.sleep(POLL_S)


def _print_json(event: SDKEvent) -> None:
    print(json.dumps(event.model_dump(mode="json", exclude={"data"}) | {"data": event.data}))  # pydantic nests 255 deep


def _print_sums(one: StoredConversation, wanted: str, root: Path | None) -> None:
    known = one.metadata
    tokens = known.prompt_tokens + known.completion_tokens
    parts = [_status(one), f"{known.steps} steps", f"{known.calls} calls", f"{tokens:,} tokens"]
    if known.cost_usd is not None:
        parts.append(f"${known.cost_usd:.4f}")
    print(safe_line(" · ".join([*parts, known.model or "", str(one.directory)]), limit_chars=1000))
    where = "" if root is None else f" --dir {shlex.quote(str(root))}"
    for name in one.sub_agents:
        print(safe_line(f"Its sub-agent: ohsandbox conversations show{where} {shlex.quote(f'{wanted}/{name}')}"))


# --- repair ---------------------------------------------------------------------------------------


def repair_conversation(wanted: str, root: Path | None) -> int:
    """Cut a damaged log, and say what was lost.

    Raises:
        ConversationOpenError: a process has it open.
        LogWriteError: the disk is full or broken.
        UsageError: the conversation does not exist.
    """
    directory = find_stored(root or conversations_dir(), wanted)
    done = repair_log(directory, conversation_id=directory.name)
    if done.copy is None:
        print(f"The log of {directory.name} is sound: {done.kept} records. Nothing was changed.")
        return 0
    print(f"The log of {directory.name} was cut after its first {done.kept} records: {done.reason}.")
    print(f"Lost to it: {done.lost_bytes} bytes, with {done.whole_lost} whole records after the damage.")
    print(f"The log as it was: {safe_line(done.copy, limit_chars=1000)}")
    return 0


# --- delete ---------------------------------------------------------------------------------------


def delete_conversations(
    wanted: Sequence[str], root: Path | None, *, older_than: str | None, everything: bool, yes: bool
) -> int:
    """Delete what was named, or what is old, or all; those that a process has open are left, and told at the end.

    Raises:
        ConversationOpenError: some are open.
        UsageError: not exactly one of the three was given, one is not there, or nobody can be asked.
    """
    root = root or conversations_dir()
    if sum((bool(wanted), older_than is not None, everything)) != 1:
        raise UsageError("Say which to delete: give ids, or --older-than AGE, or --all.")
    if wanted:
        doomed = list(dict.fromkeys(find_stored(root, name) for name in wanted))
    else:
        before = None if older_than is None else datetime.now(UTC) - _age(older_than)
        doomed = [one.directory for one in list_stored(root) if before is None or one.metadata.updated_at < before]
    if not doomed:
        print("Nothing to delete.")
        return 0
    if not yes and not _agreed(doomed):
        print("Nothing was deleted.")
        return 1
    _delete(doomed)
    return 0


def _delete(doomed: Sequence[Path]) -> None:
    still_open: list[str] = []
    with ConversationDeleter() as deleting:
        for directory in doomed:
            try:
                done = deleting.delete(directory)
            except ConversationOpenError:
                still_open.append(f"{directory.name} (process {holder_of(directory)})")
                continue
            also = safe_line(f", {', '.join(done.removed)}", limit_chars=1000) if done.removed else ""
            print(f"deleted {directory.name}: {size(done.freed_bytes)}{also}")
            for line in done.left:
                print(safe_line(line, limit_chars=1000), file=sys.stderr)
    if still_open:
        raise ConversationOpenError(f"Not deleted, because open: {', '.join(still_open)}. Close them there first.")


def _agreed(doomed: Sequence[Path]) -> bool:
    """A person's word.

    Raises:
        UsageError: there is nobody to ask.
    """
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise UsageError(
            f"{len(doomed)} conversations would be deleted, and there is no terminal to confirm at. Use --yes."
        )
    for directory in doomed:
        print(safe_line(f"{directory.name}  {read_stored(directory).metadata.title or ''}"))
    freed = size(sum(map(size_of, doomed)))
    return confirm(f"Delete {len(doomed)} conversation{'' if len(doomed) == 1 else 's'}, {freed}, for good?")


def _age(text: str) -> timedelta:
    found = _AGE.fullmatch(text.strip())
    if found is None:
        raise UsageError(f"Invalid --older-than {text!r}: expected a number and min, h, d or w, as in 30d.")
    seconds = int(found[1]) * _SECONDS[found[2]]
    if seconds > MAX_AGE_S:
        raise UsageError(f"Invalid --older-than {text!r}: expected at most a hundred years, as in 30d.")
    return timedelta(seconds=seconds)
