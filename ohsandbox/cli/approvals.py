"""`ohsandbox approvals` and `/approvals`: what a person allowed from now on, listed and revoked."""

# ruff: noqa: T201 - a command prints
from __future__ import annotations

import json
from typing import TYPE_CHECKING

from ohsandbox.cli.confirm import who
from ohsandbox.cli.rendering.text import safe_line
from ohsandbox.conversation.approvals import Approvals, ExactCall
from ohsandbox.conversation.approvals.scopes import StandingApprovals
from ohsandbox.conversation.log import ConversationLog
from ohsandbox.conversation.storage.catalog import find_stored
from ohsandbox.errors import UsageError
from ohsandbox.paths import conversations_dir
from ohsandbox.persistence import stream_events

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from ohsandbox.conversation import Conversation
    from ohsandbox.conversation.approvals import Approval

COMMAND = "/approvals"
_USAGE = f"{COMMAND} lists what is allowed from now on; {COMMAND} revoke N, or revoke all, takes it back."
_MAX_CHARS = 1000


def list_or_revoke(wanted: str, root: Path | None, *, revoke: Sequence[int], revoke_all: bool, as_json: bool) -> int:
    """Print the approvals of a stored conversation, or revoke some.

    Raises:
        ConversationOpenError: approvals are to be revoked, and another process has the conversation.
        LogCorruptError: its log is damaged.
        UsageError: the conversation or approval does not exist.
    """
    if revoke_all and revoke:
        raise UsageError("--revoke and --revoke-all exclude each other. Use one of them.")
    directory = find_stored(root or conversations_dir(), wanted)
    if revoke or revoke_all:
        _revoke_stored(directory, revoke)
        return 0
    standing = StandingApprovals()
    stream_events(directory, standing.add)
    if as_json:
        print(json.dumps([_fields(one) for one in standing.in_force], indent=2))
        return 0
    for line in _listed(standing.in_force):
        print(safe_line(line, limit_chars=_MAX_CHARS))
    return 0


def take_command(conversation: Conversation, line: str, say: Callable[[str], None]) -> None:
    """What a person typed that begins with `/approvals`."""
    match line.split()[1:]:
        case []:
            for told in _listed(conversation.approvals):
                say(told)
        case ["revoke", "all"]:
            for one in conversation.approvals:
                conversation.revoke(one.number, by=who())
            say("No approval is in force.")
        case ["revoke", number] if number.isascii() and number.isdecimal():
            try:
                conversation.revoke(int(number[:9]), by=who())
            except UsageError as error:
                say(str(error))
            else:
                say(f"Approval {number} is revoked.")
        case _:
            say(_USAGE)


def line_of(one: Approval) -> str:
    """An approval, an exact call with its arguments, to be made fit for printing."""
    exact = f": {json.dumps(one.scope.arguments, ensure_ascii=False)}" if isinstance(one.scope, ExactCall) else ""
    return f"{one.number}  by {one.by}: {one.scope}{exact}"


def _listed(approvals: Sequence[Approval]) -> list[str]:
    if not approvals:
        return ["No approval is in force."]
    return [line_of(one) for one in approvals]


def _revoke_stored(directory: Path, numbers: Sequence[int]) -> None:
    log = ConversationLog(directory, conversation_id=directory.name)
    approvals = Approvals(log)
    log.open(approvals.standing.add)
    try:
        for number in numbers or [one.number for one in approvals.standing.in_force]:
            approvals.revoke(number, by=who())
            print(f"Approval {number} is revoked.")
    finally:
        log.close()


def _fields(one: Approval) -> dict[str, object]:
    return {"number": one.number, "by": one.by, "text": str(one.scope), "scope": one.scope.model_dump()}
