"""`ohsandbox confirm` and `ohsandbox approvals`: what a stored conversation waits for, and what it may do."""

# ruff: noqa: T201 - a command prints
from __future__ import annotations

import contextlib
from functools import cache
from typing import TYPE_CHECKING, Any

from ohsandbox.cli.entrypoint import WAITING
from ohsandbox.cli.prompts.approval_prompt import FilesNow, print_rows, show_calls
from ohsandbox.cli.prompts.prompt import person_present
from ohsandbox.cli.rendering.tables import print_json
from ohsandbox.cli.rendering.text import safe_line
from ohsandbox.cli.sandbox.runtime import make_runtime
from ohsandbox.cli.session.approvals import list_approvals, settle_approvals, user
from ohsandbox.cli.session.resume import stored_options
from ohsandbox.conversation.approvals.decisions import Approvals, Decision, pending_of
from ohsandbox.conversation.approvals.scopes import StandingApprovals
from ohsandbox.conversation.environment.conversation_environment import ResumeState, resume_runtime
from ohsandbox.conversation.log import ConversationLog
from ohsandbox.conversation.storage import find_stored
from ohsandbox.errors import UsageError
from ohsandbox.paths import conversations_dir
from ohsandbox.persistence import stream_events

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from ohsandbox.cli.options.per_command import ConfirmOptions
    from ohsandbox.conversation.approvals.scopes import Approval
    from ohsandbox.events import SDKEvent
    from ohsandbox.runtime.base import Runtime

_MAX_APPROVAL_CHARS = 1000


# --- confirm --------------------------------------------------------------------------------------


def answer_stored(wanted: str, options: ConfirmOptions) -> int | str:
    """Show the pending calls of a stored conversation, and store the answer from the options or from the terminal.

    Returns:
        The conversation's id if the run can continue; else the exit code: 0 nothing to do, 6 calls are pending.
    """
    if options.yes and options.no:
        raise UsageError("--yes and --no exclude each other. Use one of them.")
    if options.as_json and (options.yes or options.no):
        raise UsageError("--json prints the pending calls without answering. Leave out --json, or --yes and --no.")
    if options.unseen and not options.yes:
        raise UsageError("--unseen needs --yes. Use both, or neither.")
    if options.reason and not options.no:
        raise UsageError("--reason needs --no. Use both, or neither.")
    directory = find_stored(conversations_dir(), wanted)
    past = ResumeState()
    with contextlib.ExitStack() as stack:
        log, approvals = stack.enter_context(_opened(directory, past.add))
        pending = pending_of(log.history)
        if not pending and not log.history.held.is_decided:
            raise UsageError(
                f"Nothing waits for confirmation in conversation {directory.name!r}. "
                "`ohsandbox conversations list` shows which wait."
            )
        if options.as_json:
            calls = ({**call._asdict(), "risk": call.risk.value, "why": [*call.why]} for call in pending)
            print_json({name: call[name] for name in call if name != "hint"} for call in calls)
            return WAITING if pending else 0
        if pending:
            _store_answers(approvals, options, _stored_files(directory, past, stack))
        elif (options.yes or options.no) and any(call.approved is options.no for call in log.history.held.all):
            raise UsageError(
                f"What waited in conversation {directory.name!r} was answered already: "
                f"{'--yes' if options.yes else '--no'} has no effect. "
                f"See `ohsandbox conversations show {directory.name}`; `ohsandbox confirm {directory.name}` goes on."
            )
        if log.history.held.waiting:
            return WAITING
    return 0 if options.no_run else directory.name


def _stored_files(directory: Path, past: ResumeState, stack: contextlib.ExitStack) -> FilesNow:
    """Return a function that reads the files of the conversation's sandbox, which it starts at the first call.

    The sandbox is the one in which the run would go on, and is left for it as it was.
    """

    @cache
    def started() -> Runtime:
        where = stored_options(directory)
        if where is None:
            raise UsageError("The conversation has no sandbox of its own.")
        runtime = make_runtime(where, directory.name)
        runtime.reports_changes_later = True
        resume_runtime(runtime, past)
        is_new = runtime.resumed is None or runtime.resumed.how == "new"
        stack.callback(runtime.close if is_new else runtime.leave)
        return runtime

    return FilesNow(started, directory)


def _store_answers(approvals: Approvals, options: ConfirmOptions, files: FilesNow) -> None:
    """Store the answer from the options or from the person at the terminal. Piped stdin is not an answer."""
    if not (options.yes or options.no) and person_present():
        settle_approvals(lambda: approvals.pending, lambda decision: approvals.decide(decision, by=user()), files=files)
        return
    shown_calls = show_calls(approvals.pending, files=files)
    print_rows(shown_calls.text.split("\n"))
    if options.yes and not shown_calls.is_whole and not options.unseen:
        unseen = [
            *([f"{shown_calls.unseen_rows:,} rows of what waits"] if shown_calls.unseen_rows else []),
            *(["the text that it removes"] if shown_calls.unknown_files else []),
        ]
        raise UsageError(
            f"Not shown: {' and '.join(unseen)}; so --yes allows nothing. "
            "Look at all of it with --json, or at a terminal without --yes; or say --yes --unseen."
        )
    if options.yes or options.no:
        approvals.decide(Decision(approved=options.yes, reason=options.reason), by=user())


@contextlib.contextmanager
def _opened(directory: Path, *readers: Callable[[SDKEvent], None]) -> Iterator[tuple[ConversationLog, Approvals]]:
    log = ConversationLog(directory, conversation_id=directory.name)
    approvals = Approvals(log)
    log.open(approvals.standing.add, *readers)
    try:
        yield log, approvals
    finally:
        log.close()


# --- approvals ------------------------------------------------------------------------------------


def list_or_revoke(wanted: str, root: Path | None, *, revoke: Sequence[int], revoke_all: bool, as_json: bool) -> int:
    """Print the approvals of a stored conversation, or revoke some of them."""
    if revoke_all and revoke:
        raise UsageError("--revoke and --revoke-all exclude each other. Use one of them.")
    directory = find_stored(root or conversations_dir(), wanted)
    if revoke or revoke_all:
        with _opened(directory) as (_, approvals):
            for number in revoke or [approval.number for approval in approvals.standing.in_force]:
                approvals.revoke(number, by=user())
                print(f"Approval {number} is revoked.")
        return 0
    standing = StandingApprovals()
    stream_events(directory, standing.add)
    if as_json:
        print_json(_fields(approval) for approval in standing.in_force)
    else:
        list_approvals(standing.in_force, lambda line: print(safe_line(line, limit_chars=_MAX_APPROVAL_CHARS)))
    return 0


def _fields(approval: Approval) -> dict[str, Any]:
    return {
        "number": approval.number,
        "by": approval.by,
        "text": str(approval.scope),
        "scope": approval.scope.model_dump(),
    }
