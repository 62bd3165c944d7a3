"""The model of a conversation and its input: another model, a condensation, a notice."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Self

from ohsandbox import events
from ohsandbox.arguments import expect, expect_method
from ohsandbox.conversation.storage.metadata import MODEL_CHANGED
from ohsandbox.errors import UsageError

if TYPE_CHECKING:
    from ohsandbox.conversation.config import ConversationConfig
    from ohsandbox.conversation.log import ConversationLog
    from ohsandbox.conversation.run.run_thread import RunThread
    from ohsandbox.llm import ChatModel
    from ohsandbox.persistence.log import LogPosition


class ModelControl(ABC):
    """The methods of a conversation that change its model and what the model reads."""

    _config: ConversationConfig
    _log: ConversationLog
    _run_thread: RunThread
    _run_began: LogPosition

    @abstractmethod
    def start(self) -> Self: ...  # noqa: D102

    def compact(self) -> None:
        """Start condensing the model's input, by the agent's condenser; `wait` waits for the end.

        The log keeps all events. A `condensation` event says what was left out; if the conversation is too short, there
        is none.

        Raises:
            UsageError: a run is active, or calls wait for a person.
            OhsandboxError: as for `start`.
        """
        self.start()
        self._run_began = self._log.position
        if self._log.history.unanswered or not self._run_thread.compact():
            raise UsageError("The conversation runs, or waits for an answer. Stop it, or answer first.")

    def use_model(self, model: ChatModel) -> None:
        """Use another model from the next request on; it is logged, and a resumed conversation uses it, too.

        Raises:
            UsageError: it is not a model, its price is unknown and the cost is limited, or a run is active.
            OhsandboxError: as for `start`.
        """
        expect_method("model", model, "send", "a model")
        self.start()
        with self._log.lock:
            if self._run_thread.is_on:
                raise UsageError("The conversation runs. Stop it before you give it another model.")
            self._config.use_model(model)
            if self._log.has_events:
                message = f"The model is {model.name} from now on."
                self._log.emit(events.notice(code=MODEL_CHANGED, message=message, model=model.name))

    def notify_model(self, message: str) -> None:
        """Show the model a notice with its next request. It is not a message of the user, and starts nothing.

        Raises:
            UsageError: message is not a str.
            OhsandboxError: as for `start`.
        """
        expect("message", message, str, optional=False)
        self.start()
        self._log.emit(events.notice(code="Notified", message=message, to_model=True, for_person=False))
