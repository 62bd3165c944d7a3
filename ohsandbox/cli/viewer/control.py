"""What a live page may do: answer, stop, say something. An answer names the question by a digest of all it showed."""

from __future__ import annotations

import hashlib
import hmac
import json
import threading
from time import monotonic
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict

from ohsandbox.cli.prompts.approval_prompt import rows_of
from ohsandbox.cli.prompts.prompt import QUIET_S
from ohsandbox.cli.rendering.text import safe_line
from ohsandbox.conversation.approvals.scopes import offers
from ohsandbox.errors import UsageError
from ohsandbox.events import ConversationStatus
from ohsandbox.persistence import holder_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from ohsandbox.conversation import Conversation
    from ohsandbox.conversation.approvals.scopes import PendingCall

_MAX_SCOPE_CHARS = 1000


class PageAnswer(BaseModel):
    """What a person clicked, as the page sends it."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    digest: str
    """Of the question."""
    approved: bool
    reason: str = ""
    scope: int | None = None
    """The place of a scope among those that the question offered."""


class PageControl:
    """What a page is told of the conversation beside its log, and what it may do. Called from several threads.

    This one is of a conversation on disk, which this process does not have open: nothing may be done.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def state(self) -> dict[str, Any]:
        """`status`, a word; `can`, what may be done; `why`, a sentence where nothing may; `question`, or None."""
        status = "closed" if holder_of(self._directory) is None else "open elsewhere"
        return {"status": status, "can": [], "why": self._why(), "question": None}

    def answer(self, answer: PageAnswer) -> None:  # noqa: ARG002 - none will do
        """Decide what the question of that digest asked.

        Raises:
            UsageError: something else waits by now, or nothing; or it was shown too short a time.
        """
        raise UsageError(self._why())

    def say(self, text: str) -> None:  # noqa: ARG002 - none will do
        """Send the agent a message.

        Raises:
            UsageError: nobody here can.
        """
        raise UsageError(self._why())

    def stop(self) -> None:
        """Stop what the agent does.

        Raises:
            UsageError: nobody here can.
        """
        raise UsageError(self._why())

    def _why(self) -> str:
        if (holder := holder_of(self._directory)) is None:
            return f"Nobody has it open. To go on: ohsandbox run --view --resume {self._directory.name}"
        return f"Process {holder} has it open; answer there. `ohsandbox run --view` can be answered from its page."


class ConversationControl(PageControl):
    """A conversation of this process."""

    def __init__(self, conversation: Conversation, *, user: str, begin: Callable[[str], None] | None = None) -> None:
        """Control it.

        Args:
            conversation: started.
            user: who answers, for the log.
            begin: takes a message as if it were typed at the terminal; None reaches only a run that is on.
        """
        super().__init__(conversation.directory)
        self._conversation, self._user, self._begin = conversation, user, begin
        self._guard = threading.Lock()
        self._shown: dict[str, float] = {}
        """When each question was first given to a page."""

    def state(self) -> dict[str, Any]:
        """See `PageControl`."""
        status = self._conversation.status()
        is_running = status is ConversationStatus.RUNNING
        pending = self._conversation.pending if status is ConversationStatus.WAITING_FOR_CONFIRMATION else []
        can = [*(["stop"] if is_running else []), *(["say"] if is_running or self._begin is not None else [])]
        why = "" if "say" in can else "The terminal has the next word." if not pending else ""
        word = status.value.lower().replace("_", " ")
        question = self._question(pending) if pending else None
        return {"status": word, "can": [*can, *(["answer"] if pending else [])], "why": why, "question": question}

    def _question(self, pending: Sequence[PendingCall]) -> dict[str, Any]:
        rows = rows_of(pending)
        scopes = [safe_line(scope, limit_chars=_MAX_SCOPE_CHARS) for scope in _offered(pending)]
        ids = [call.tool_call_id for call in pending]
        digest = hashlib.sha256(json.dumps([ids, rows, scopes]).encode()).hexdigest()
        with self._guard:
            self._shown.setdefault(digest, monotonic())
        return {"digest": digest, "count": len(pending), "rows": rows, "scopes": scopes}

    def answer(self, answer: PageAnswer) -> None:
        """See `PageControl`; the calls that were shown are decided, and no other."""
        pending = self._conversation.pending
        with self._guard:
            shown_at = self._shown.get(answer.digest)
        if not pending or not hmac.compare_digest(str(self._question(pending)["digest"]), answer.digest):
            raise UsageError("What waits is not what was shown, or was answered elsewhere. Look at it again.")
        if shown_at is None or monotonic() - shown_at < QUIET_S:
            raise UsageError("The question was shown too short a time to be read. Look at it again.")
        ids = [call.tool_call_id for call in pending]
        if not answer.approved:
            self._conversation.reject(answer.reason, ids, by=self._user)
            return
        scopes = _offered(pending)
        if answer.scope is not None and not 0 <= answer.scope < len(scopes):
            raise UsageError(f"Invalid scope {answer.scope}: {len(scopes)} were offered.")
        self._conversation.confirm(ids, by=self._user, scope=None if answer.scope is None else scopes[answer.scope])

    def say(self, text: str) -> None:
        """See `PageControl`: a run that is on hears it with its next request."""
        if not text.strip():
            raise UsageError("The message is empty. Write what to do.")
        if self._begin is not None:
            self._begin(text)
        elif self._conversation.status() is ConversationStatus.RUNNING:
            self._conversation.send_message(text)
        else:
            raise UsageError("No run is on, and the terminal has the next word. Write it there.")

    def stop(self) -> None:
        """See `PageControl`; returns when it has stopped."""
        self._conversation.stop()


def _offered(pending: Sequence[PendingCall]) -> Sequence[Any]:
    """What may be allowed from now on: of one call alone, as at the terminal."""
    return offers(pending[0]) if len(pending) == 1 else ()
