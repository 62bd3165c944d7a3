"""Asking the person before the agent acts: at the terminal of a run, and for `ohsandbox confirm` from another."""

# ruff: noqa: T201 - a command prints
from __future__ import annotations

import getpass
import json
from typing import TYPE_CHECKING, Any

from ohsandbox.cli.approval_prompt import PersonRequest, ask, count_of, shown
from ohsandbox.cli.entrypoint import WAITING
from ohsandbox.cli.prompt import Typed, answer_to, person_present
from ohsandbox.conversation.approvals import POLICIES, Approvals, Decision, PendingCall, pending_of
from ohsandbox.conversation.log import ConversationLog
from ohsandbox.conversation.storage.catalog import find_stored
from ohsandbox.errors import UsageError
from ohsandbox.paths import conversations_dir
from ohsandbox.private_files import write_atomically

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from ohsandbox.cli.options import ConfirmOptions
    from ohsandbox.conversation import Conversation

POLICY_NAME = "confirm"
"""Beside the log."""


def answer_at_terminal(conversation: Conversation) -> bool:
    """Show what waits and ask until each call has its answer; whether the run goes on.

    Raises:
        KeyboardInterrupt: Ctrl-C; what has no answer goes on waiting.
    """

    def decide(decision: Decision) -> None:
        if decision.approved:
            conversation.confirm(decision.tool_call_ids, by=who(), scope=decision.scope)
        else:
            conversation.reject(decision.reason, decision.tool_call_ids, by=who())

    return settle(lambda: conversation.pending, decide)


def waiting_line(conversation: Conversation) -> str:
    """How to answer, on one line."""
    count = len(conversation.pending)
    verb = "waits" if count == 1 else "wait"
    return f"{count_of(count)} {verb} for confirmation. Answer: ohsandbox confirm {conversation.id}"


def keep_policy(directory: Path, name: str) -> None:
    """Keep the policy's name with the conversation, so that who resumes it is asked about the same."""
    if name != (kept_policy(directory) or "never"):
        write_atomically(directory / POLICY_NAME, f"{name}\n".encode())


def kept_policy(directory: Path) -> str | None:
    """The name that was kept; None where none was. One that cannot be read asks about everything."""
    try:
        name = (directory / POLICY_NAME).read_text(encoding="ascii", errors="replace").strip()
    except FileNotFoundError:
        return None
    except OSError:
        return "always"
    return name if name in POLICIES else "always"


def answer_stored(wanted: str, options: ConfirmOptions, *, root: Path | None = None) -> int | str:
    """Show what waits in a conversation on disk, and store the answer that options give or the person at the terminal.

    Returns:
        The conversation's id where the run can go on; else the exit code: 0 nothing more to do, 6 it waits still.

    Raises:
        UsageError: the conversation does not exist, no call waits, or options contradict each other.
        ConversationOpenError: another process has it.
    """
    if options.yes and options.no:
        raise UsageError("--yes and --no exclude each other. Use one of them.")
    if options.as_json and (options.yes or options.no):
        raise UsageError("--json prints the pending calls without answering. Leave out --json, or --yes and --no.")
    if options.unseen and not options.yes:
        raise UsageError("--unseen needs --yes. Use both, or neither.")
    if options.reason and not options.no:
        raise UsageError("--reason needs --no. Use both, or neither.")
    directory = find_stored(root or conversations_dir(), wanted)
    log = ConversationLog(directory, conversation_id=directory.name)
    approvals = Approvals(log)
    log.open(approvals.standing.add)
    try:
        pending = pending_of(log.history)
        if not pending and not log.history.held.is_decided:
            raise UsageError(f"Nothing waits for confirmation in conversation {directory.name!r}.")
        if options.as_json:
            print(json.dumps([_fields(call) for call in pending], indent=2))
            return WAITING if pending else 0
        if pending:
            _store_answers(approvals, options)
        if log.history.held.waiting:
            return WAITING
    finally:
        log.close()
    return 0 if options.no_run else directory.name


def who() -> str:
    """The person, for the log."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # no such user id, no variable
        return "user"


def settle(
    waiting: Callable[[], list[PendingCall]],
    decide: Callable[[Decision], None],
    *,
    read: Callable[[str], Typed] = answer_to,
) -> bool:
    """Ask until nothing of what waits now does; False where the person leaves some open.

    Once the last one is answered the run goes on in its own thread, and may come to wait for other calls at any moment:
    those have not been shown, so they are not asked about here, and a yes names what it is for.
    """
    known = {call.tool_call_id for call in waiting()}
    one_by_one = False
    while pending := [call for call in waiting() if call.tool_call_id in known]:
        asked = pending[:1] if one_by_one else pending
        said = ask(asked, read=read)
        if said is None:
            return False
        if isinstance(said, PersonRequest):
            one_by_one = True
            continue
        names = tuple(call.tool_call_id for call in asked) if said.approved or one_by_one else None
        decide(said._replace(tool_call_ids=names))
    return True


def _store_answers(approvals: Approvals, options: ConfirmOptions) -> None:
    """The answer that options give, or the person's. What is piped into stdin answers nothing.

    Raises:
        UsageError: --yes would allow what was not shown.
    """
    if not (options.yes or options.no) and person_present(no_tui=False):
        settle(lambda: approvals.pending, lambda decision: approvals.decide(decision, by=who()))
        return
    seen = shown(approvals.pending)
    print(seen.text, flush=True)
    if options.yes and seen.unseen_rows and not options.unseen:
        raise UsageError(
            f"{seen.unseen_rows:,} rows of what waits were not shown, so --yes allows nothing. "
            "Look at all of it with --json, or at a terminal without --yes; or say --yes --unseen."
        )
    if options.yes or options.no:
        approvals.decide(Decision(approved=options.yes, reason=options.reason), by=who())


def _fields(call: PendingCall) -> dict[str, Any]:
    return {**call._asdict(), "risk": call.risk.value, "why": list(call.why)}
