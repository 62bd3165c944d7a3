"""The approvals of a session: the questions during a run, the modes of asking, and `/approvals`."""

# ruff: noqa: T201 - it talks to a person
from __future__ import annotations

import getpass
import json
from typing import TYPE_CHECKING, NamedTuple

from ohsandbox.cli.prompts.approval_prompt import ONE_BY_ONE, FilesNow, ask_approval, count_of
from ohsandbox.cli.prompts.prompt import AnsweredElsewhere, Typed, answer_to
from ohsandbox.cli.rendering.text import say
from ohsandbox.conversation.approvals.policy import POLICIES
from ohsandbox.conversation.approvals.scopes import ExactCall, PendingCall
from ohsandbox.errors import UsageError
from ohsandbox.events import ConversationStatus
from ohsandbox.private_files import read_regular, write_atomically

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from ohsandbox.conversation import Conversation
    from ohsandbox.conversation.approvals.decisions import Decision
    from ohsandbox.conversation.approvals.policy import PolicyName
    from ohsandbox.conversation.approvals.scopes import Approval

_POLICY_NAME = "confirm"
"""Name of the file, beside the log, that holds the confirmation policy."""
COMMAND = "/approvals"


def answer_at_terminal(conversation: Conversation) -> bool:
    """Show the pending calls and ask until each has an answer; return whether the run continues.

    Raises:
        KeyboardInterrupt: Ctrl-C; calls without an answer stay pending.
    """

    def waiting() -> frozenset[str]:
        return frozenset(call.tool_call_id for call in conversation.pending)

    def decide(decision: Decision) -> None:
        asked_ids = waiting()
        try:
            if decision.approved:
                conversation.confirm(decision.tool_call_ids, by=user(), scope=decision.scope)
            else:
                conversation.reject(decision.reason, decision.tool_call_ids, by=user())
        except UsageError:
            if {*(decision.tool_call_ids or asked_ids)} <= waiting():
                raise
            raise AnsweredElsewhere from None

    def read(question: str) -> Typed:
        asked_ids = waiting()
        return answer_to(question, until=lambda: not asked_ids <= waiting())

    files = FilesNow(lambda: conversation.runtime, conversation.directory)
    return settle_approvals(lambda: conversation.pending, decide, read=read, files=files)


def settle_approvals(
    waiting: Callable[[], list[PendingCall]],
    decide: Callable[[Decision], None],
    *,
    read: Callable[[str], Typed] = answer_to,
    files: FilesNow,
) -> bool:
    """Ask until no call that is pending now is left; return False if the person leaves some open.

    Once the last one is answered the run goes on in its own thread, and may come to wait for other calls at any moment:
    those have not been shown, so they are not asked about here, and a yes names what it is for.
    """
    known_ids = {call.tool_call_id for call in waiting()}
    one_by_one = False
    while pending := [call for call in waiting() if call.tool_call_id in known_ids]:
        calls = pending[:1] if one_by_one else pending
        try:
            decision = ask_approval(calls, read=read, files=files)
            if decision is None:
                return False
            if decision == ONE_BY_ONE:
                one_by_one = True
                continue
            names = tuple(call.tool_call_id for call in calls) if decision.approved or one_by_one else None
            decide(decision._replace(tool_call_ids=names))
        except AnsweredElsewhere:
            print("(It was answered elsewhere.)")
    return True


def print_waiting(conversation: Conversation) -> None:
    """Print how to answer, if calls are pending."""
    if conversation.status() is ConversationStatus.WAITING_FOR_CONFIRMATION:
        count = len(conversation.pending)
        verb = "waits" if count == 1 else "wait"
        say(f"{count_of(count)} {verb} for confirmation. Answer: ohsandbox confirm {conversation.id}")


def keep_policy(directory: Path, name: str) -> None:
    """Save the policy's name with the conversation, so that a resumed run asks about the same calls."""
    if name != (kept_policy(directory) or "never"):
        write_atomically(directory / _POLICY_NAME, f"{name}\n".encode())


def kept_policy(directory: Path) -> str | None:
    """Return the saved policy name; None if none was saved. If it cannot be read, the policy asks about everything."""
    try:
        name = read_regular(directory / _POLICY_NAME).decode("ascii", "replace").strip()
    except FileNotFoundError:
        return None
    except OSError:
        return "always"
    return name if name in POLICIES else "always"


def user() -> str:
    """Return the user's name for the log."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # no such user id, no variable
        return "user"


def list_or_revoke_live(conversation: Conversation, arguments: Sequence[str], tell: Callable[[str], None]) -> None:
    """Run `/approvals` with the arguments that a person typed."""
    match arguments:
        case []:
            list_approvals(conversation.approvals, tell)
        case ["revoke", "all"]:
            for approval in conversation.approvals:
                conversation.revoke(approval.number, by=user())
            tell("No approval is in force.")
        case ["revoke", number] if number.isascii() and number.isdecimal():
            try:
                conversation.revoke(int(number[:9]), by=user())
            except UsageError as error:
                tell(str(error))
            else:
                tell(f"Approval {number} is revoked.")
        case _:
            tell(f"{COMMAND} lists what is allowed from now on; {COMMAND} revoke N, or revoke all, takes it back.")


def list_approvals(approvals: Sequence[Approval], tell: Callable[[str], None]) -> None:
    """Call tell with a line for each approval."""
    if not approvals:
        tell("No approval is in force.")
    for approval in approvals:
        exact = (
            f": {json.dumps(approval.scope.arguments, ensure_ascii=False)}"
            if isinstance(approval.scope, ExactCall)
            else ""
        )
        tell(f"{approval.number}  by {approval.by}: {approval.scope}{exact}")


class Mode(NamedTuple):
    """How a confirmation policy is described to the user."""

    short: str
    """Text for the bottom line."""
    asks: str
    """Text that follows "asks about"."""
    told: str
    """Text that is shown when the mode becomes active."""


MODES: dict[PolicyName, Mode] = {
    "never": Mode("asks nothing", "nothing before it runs", "nothing is asked before it runs"),
    "risky": Mode("asks risky", "risky calls", "risky calls are asked about before they run"),
    "medium": Mode(
        "asks unknown", "risky calls, and what no rule can judge", "risky calls, and what no rule can judge, are asked"
    ),
    "always": Mode("asks all", "every call", "every call is asked about before it runs"),
    "plan": Mode(
        "plan mode",
        "risky looks; what may change something is refused (plan mode)",
        "plan mode: the agent only looks, and presents a plan",
    ),
}
_CYCLE: tuple[PolicyName, ...] = ("never", "risky", "always", "plan")


def next_mode(now: PolicyName, *, isolated: bool) -> PolicyName:
    """Return the mode after this one. On the host, no key alone leads to `never`; that takes `/mode never`."""
    names: Sequence[PolicyName] = [name for name in _CYCLE if isolated or name != "never"]
    if now not in names:
        return "always" if now == "medium" else names[0]
    return names[(names.index(now) + 1) % len(names)]
