"""`Approvals`: the calls that wait for a user, and the decisions, which are events of the log."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from ohsandbox import events
from ohsandbox.arguments import expect_texts, wrong_type
from ohsandbox.conversation.approvals.scopes import (
    AnyScope,
    Approval,
    CallScope,
    EditsUnder,
    PendingCall,
    StandingApprovals,
    check_scope,
    covers,
    edited_path,
    goes_through_link,
)
from ohsandbox.errors import UsageError
from ohsandbox.strict_json import load_json
from ohsandbox.tools import hint_of

if TYPE_CHECKING:
    from ohsandbox.agent import History
    from ohsandbox.conversation.log import ConversationLog
    from ohsandbox.events import EventBody
    from ohsandbox.runtime.base import Runtime

_NOBODY_THERE = (
    "A sub-agent cannot ask the user, and this call needs to be allowed. Say in your answer what is to be done: the "
    "agent you work for can do it, and ask."
)

_SPOKE_INSTEAD = "They wrote a message instead of allowing it; it follows."


class Decision(NamedTuple):
    """A user's decision on waiting calls."""

    approved: bool
    reason: str = ""
    """The reason for the model if the calls are rejected."""
    tool_call_ids: Sequence[str] | None = None
    """None is all waiting calls; rejecting all also stops the calls of the same response that needed no approval."""
    scope: CallScope | None = None
    """If approved: what to allow from now on, too. It must cover each of the calls."""


ApprovalCallback = Callable[[Sequence[PendingCall]], Decision | None]
"""Asks the user, in the run's thread. None leaves the decision open: the run ends, and the calls wait."""


class Approvals:
    """The pending calls and standing approvals of one conversation."""

    def __init__(self, log: ConversationLog, *, ask: ApprovalCallback | None = None) -> None:
        """Create it for a conversation's log; ask is the conversation's `confirm`.

        Raises:
            UsageError: ask is not a function.
        """
        if ask is not None and not callable(ask):
            policy = f"A policy goes by another name: confirmation={ask!r}." if isinstance(ask, str) else ""
            raise wrong_type("confirm", ask, "a function that is given the calls that wait", policy)
        self._log = log
        self.callback = ask
        """Asks the user; None if nobody can be asked during the run."""
        self.standing = StandingApprovals()
        """The approvals in force, kept up to date with the events of the log."""

    @property
    def pending(self) -> list[PendingCall]:
        """The pending calls, in the order of the response."""
        with self._log.lock:
            return pending_of(self._log.history)

    def decide(self, decision: Decision, *, by: str) -> None:
        """Store the decision; nothing runs yet.

        Raises:
            UsageError: no call waits, or the decision names one that does not wait or that its scope does not cover.
            LogWriteError: the decision could not be stored, and has no effect.
        """
        expect_texts("tool_call_ids", decision.tool_call_ids)
        with self._log.lock:
            held_calls = self._log.history.held
            waiting = [call.tool_call_id for call in held_calls.waiting]
            if not waiting:
                raise UsageError(
                    f"Nothing waits for confirmation in conversation {self._log.conversation_id!r}. Send a message."
                )
            named = waiting if decision.tool_call_ids is None else list(decision.tool_call_ids)
            if unknown := [name for name in named if name not in waiting]:
                raise UsageError(f"Call {unknown[0]!r} does not wait for confirmation. These do: {', '.join(waiting)}.")
            if decision.tool_call_ids is None and not decision.approved:
                named = [call.tool_call_id for call in held_calls.all if call.approved is None]
            number = None
            if decision.approved and decision.scope is not None:
                for call in self.pending:
                    if call.tool_call_id in named and not covers(decision.scope, call):
                        raise UsageError(
                            f"This scope does not cover call {call.tool_call_id!r}: {decision.scope}. "
                            "Use one that does, or None."
                        )
                number = self.grant(decision.scope, by=by).number
            self._log.emit(
                events.confirmation(
                    tool_call_ids=named,
                    approved=decision.approved,
                    reason=decision.reason.strip(),
                    by=by,
                    approval=number,
                )
            )

    def grant(self, scope: AnyScope, *, by: str) -> Approval:
        """Allow what scope covers from now on, until the approval is revoked.

        Raises:
            UsageError: the scope names no directory, or a call that hides characters.
            LogWriteError: the approval could not be stored, and has no effect.
        """
        check_scope(scope)
        with self._log.lock:
            number = self.standing.last_number + 1
            self._emit(events.approval(number=number, scope=scope.model_dump(), text=str(scope), by=by))
            return self.standing.in_force[-1]

    def revoke(self, number: int, *, by: str) -> Approval:
        """Revoke a standing approval; calls that it would have allowed wait for the user.

        Raises:
            UsageError: no approval of that number is in force.
            LogWriteError: the revocation could not be stored, and has no effect.
        """
        with self._log.lock:
            in_force = {approval.number: approval for approval in self.standing.in_force}
            if number not in in_force:
                some = ", ".join(map(str, in_force)) or "none"
                raise UsageError(f"Approval {number} is not in force. In force: {some}.")
            self._emit(events.approval_revoked(number=number, by=by))
            return in_force[number]

    def approval_for(self, call: PendingCall, runtime: Runtime | None) -> int | None:
        """Return the number of an approval that lets the call pass; None if the user has to be asked."""
        with self._log.lock:
            approvals = self.standing.covering(call)
        for approval in approvals:
            path = edited_path(call) if isinstance(approval.scope, EditsUnder) else None
            if path is None or (runtime is not None and not goes_through_link(runtime, path)):
                return approval.number
        return None

    def _emit(self, body: EventBody) -> None:
        self.standing.add(self._log.emit(body))

    def give_way(self) -> None:
        """Reject all waiting calls, because the user wrote a message instead."""
        if self.pending:
            self.decide(Decision(approved=False, reason=_SPOKE_INSTEAD), by="message")

    def ask_for_subagent(self, pending: Sequence[PendingCall]) -> Decision:
        """Ask the callback about a sub-agent's calls; reject them if there is no callback or it decides nothing."""
        decision = None if self.callback is None else self.callback(pending)
        return Decision(approved=False, reason=_NOBODY_THERE) if decision is None else decision

    def ask(self) -> bool:
        """Ask the callback until no call waits; return False if it leaves some open, or there is no callback.

        Raises:
            UsageError: the callback names calls that do not wait.
            Exception: any error of the callback; the calls still wait.
        """
        while pending := self.pending:
            decision = None if self.callback is None else self.callback(pending)
            if decision is None:
                return False
            with self._log.lock:
                if self.pending:  # another thread may have answered meanwhile
                    self.decide(decision, by="callback")
        return True


def pending_of(history: History) -> list[PendingCall]:
    """Return the calls that wait for a user, according to a log's history."""
    return [
        PendingCall(
            call.tool_call_id,
            call.name,
            load_json(call.arguments),
            call.verdict.risk,
            call.verdict.why,
            hint_of(call.name, {"hint": call.hint, "arguments": call.arguments}),
        )
        for call in history.held.waiting
    ]
