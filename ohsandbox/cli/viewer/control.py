"""Actions of a live page: answer, stop, send a message. An answer identifies the question by a digest of its text."""

from __future__ import annotations

import hashlib
import hmac
import json
import math
import threading
from time import monotonic
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict

from ohsandbox.cli.prompts.approval_prompt import FILE_COLUMNS, FilesNow, kind_of, show_calls
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
    """A person's answer, as the page sends it."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    digest: str
    """Digest of the question."""
    approved: bool
    reason: str = ""
    scope: int | None = None
    """Index of the chosen scope among those that the question offered."""


class PageControl:
    """The state of a conversation for its page, and the allowed actions. It is called from several threads.

    This base class is for a conversation on disk that this process does not have open: no action is allowed.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def state(self) -> dict[str, Any]:
        """Return `status`, a word; `can`, the allowed actions; `why`, a sentence if none; `question`, or None."""
        status = "closed" if holder_of(self._directory) is None else "open elsewhere"
        return {"status": status, "can": [], "why": self._why(), "question": None}

    def answer(self, answer: PageAnswer) -> None:  # noqa: ARG002 - none will do
        """Decide the calls of the question with this digest.

        Raises:
            UsageError: that question is not the current one, or it was shown too short a time.
        """
        raise UsageError(self._why())

    def send_message(self, text: str) -> None:  # noqa: ARG002 - none will do
        """Send the agent a message.

        Raises:
            UsageError: this process does not have the conversation open.
        """
        raise UsageError(self._why())

    def stop(self) -> None:
        """Stop the agent.

        Raises:
            UsageError: this process does not have the conversation open.
        """
        raise UsageError(self._why())

    def _why(self) -> str:
        if (holder := holder_of(self._directory)) is None:
            return f"Nobody has it open. To go on: ohsandbox run --view --resume {self._directory.name}"
        return f"Process {holder} has it open; answer there. `ohsandbox run --view` can be answered from its page."


class ConversationControl(PageControl):
    """The actions on a conversation of this process."""

    def __init__(self, conversation: Conversation, *, user: str, begin: Callable[[str], None] | None = None) -> None:
        """Control a started conversation.

        Args:
            conversation: the started conversation.
            user: name of the person who answers, for the log.
            begin: handles a message as if it were typed at the terminal; None allows messages only during a run.
        """
        super().__init__(conversation.directory)
        self._conversation, self._user, self._begin = conversation, user, begin
        self._guard = threading.Lock()
        self._shown: dict[str, float] = {}
        """When each question was first sent to a page."""
        self._asked: tuple[list[str], dict[str, Any]] | None = None
        """The ids of the pending calls, and the question about them."""

    def state(self) -> dict[str, Any]:
        """See `PageControl`."""
        status = self._conversation.status()
        is_running = status is ConversationStatus.RUNNING
        pending = self._conversation.pending if status is ConversationStatus.WAITING_FOR_CONFIRMATION else []
        can = [*(["stop"] if is_running else []), *(["say"] if is_running or self._begin is not None else [])]
        reason = "" if "say" in can else "The terminal has the next word." if not pending else ""
        word = status.value.lower().replace("_", " ")
        question = self._question(pending) if pending else None
        return {"status": word, "can": [*can, *(["answer"] if pending else [])], "why": reason, "question": question}

    def _question(self, pending: Sequence[PendingCall]) -> dict[str, Any]:
        """Return the question about these calls, as it was shown first: files are read once for each question."""
        ids = [call.tool_call_id for call in pending]
        with self._guard:
            if self._asked is None or self._asked[0] != ids:
                self._asked = ids, self._made_question(ids, pending)
                self._shown.setdefault(self._asked[1]["digest"], monotonic())
            return self._asked[1]

    def _made_question(self, ids: Sequence[str], pending: Sequence[PendingCall]) -> dict[str, Any]:
        shown = show_calls(
            pending,
            files=FilesNow(lambda: self._conversation.runtime, self._conversation.directory),
            columns=FILE_COLUMNS,
            max_rows=math.inf,
        )
        scopes = [safe_line(scope, limit_chars=_MAX_SCOPE_CHARS) for scope in _offered(pending)]
        digest = hashlib.sha256(json.dumps([ids, shown.rows, scopes]).encode()).hexdigest()
        return {
            "digest": digest,
            "count": len(pending),
            "rows": [(kind_of(row), row) for row in shown.rows],
            "scopes": scopes if shown.is_whole else [],
            "is_whole": shown.is_whole,
        }

    def answer(self, answer: PageAnswer) -> None:
        """Decide the calls that were shown and no other; see `PageControl`."""
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
        scopes = _offered(pending) if self._question(pending)["is_whole"] else ()
        if answer.scope is not None and not 0 <= answer.scope < len(scopes):
            raise UsageError(
                f"Invalid scope {answer.scope}: {len(scopes)} were offered. Reload the page and choose again."
            )
        self._conversation.confirm(ids, by=self._user, scope=None if answer.scope is None else scopes[answer.scope])

    def send_message(self, text: str) -> None:
        """Send the message, which a running agent gets with its next request; see `PageControl`."""
        if not text.strip():
            raise UsageError("The message is empty. Write what to do.")
        if self._begin is not None:
            self._begin(text)
        elif self._conversation.status() is ConversationStatus.RUNNING:
            self._conversation.send_message(text)
        else:
            raise UsageError("No run is on, and the terminal has the next word. Write it there.")

    def stop(self) -> None:
        """Stop the agent and return when it has stopped; see `PageControl`."""
        self._conversation.stop()


def _offered(pending: Sequence[PendingCall]) -> Sequence[Any]:
    """Return the scopes that may be allowed from now on, offered only for a single call, as at the terminal."""
    return offers(pending[0]) if len(pending) == 1 else ()
