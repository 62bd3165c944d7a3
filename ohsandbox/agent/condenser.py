"""Condensers shorten the messages for the model; the log keeps all of them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, Self

from ohsandbox.schema import Action
from ohsandbox.strict_json import load_json
from ohsandbox.tool import cut_middle

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

Message = dict[str, Any]

_SUMMARY_SYSTEM = (
    "You keep the notes of a software agent whose conversation has become too long. You are given its older part. "
    "Write what the agent must still know to go on: the user's request and every constraint in it; what was done and "
    "found, with exact file paths, commands, names and figures; what failed and why; what is left to do. "
    "Leave out what no longer matters. Write plain notes, no greeting, at most 1,000 words."
)

MAX_RESULT_CHARS = 4_000
"""Maximum number of characters of a message for the summarizing model: its beginning and end are kept."""

_MAX_PROMPT_CHARS = 200_000
"""Maximum length of the prompt, about 50,000 tokens: fits the smallest context window of models for agents."""


class Ask(Protocol):
    """Asks the model a question outside of the conversation."""

    def __call__(self, prompt: str, *, system: str = "") -> str:
        """Return the answer's text."""


class Condensation(NamedTuple):
    """The messages to drop from the request, and the note in their place."""

    keep_first: int
    """Number of messages to keep at the beginning, without the system message."""
    dropped: int
    """Number of messages to drop after them."""
    summary: str
    """The text in their place; may be empty."""

    @property
    def action(self) -> CondensationAction:
        """The condensation as an action."""
        return CondensationAction(keep_first=self.keep_first, dropped=self.dropped, summary=self.summary)


class CondensationAction(Action):
    """A condensation in the log, as an action on the messages."""

    keep_first: int
    dropped: int
    summary: str

    @classmethod
    def from_event(cls, data: Mapping[str, Any]) -> Self:
        """Return the action in the data of a `condensation` event, which also has a reason."""
        return cls.model_validate({name: data[name] for name in cls.model_fields})

    def apply(self, messages: Sequence[Message]) -> list[Message]:
        """Return the condensed messages: the beginning, a note in place of the dropped ones, the rest."""
        note = f"[Of this conversation {self.dropped} older messages are no longer shown.]"
        message = {"role": "user", "content": f"{note}\n{self.summary}" if self.summary else note}
        return [*messages[: self.keep_first], message, *messages[self.keep_first + self.dropped :]]


class Condenser(ABC):
    """Selects the messages to drop when the conversation is too long for the model."""

    @abstractmethod
    def condense(self, messages: Sequence[Message], ask: Ask) -> Condensation | None:
        """Select the messages to drop; None if none can be dropped.

        Args:
            messages: the conversation in OpenAI form, without the system message.
            ask: asks the model, for condensers that summarize.

        Raises:
            ModelError: the model was asked and gave no answer.
        """


class WindowCondenser(Condenser):
    """Keeps the beginning and the newest messages, and drops those in between."""

    def __init__(self, *, keep_first: int = 1, keep_last: int = 40) -> None:
        self._keep_first = keep_first
        self._keep_last = keep_last

    def condense(self, messages: Sequence[Message], ask: Ask) -> Condensation | None:
        """Drop the middle, with each call and its results together; of at most `keep_last` messages, the older half."""
        first = self._keep_first
        end = _end(messages, first, keep_last=min(self._keep_last, len(messages) // 2))
        return Condensation(first, end - first, self._summary(messages[first:end], ask)) if end > first else None

    def _summary(self, dropped: Sequence[Message], ask: Ask) -> str:  # noqa: ARG002 - a subclass asks
        return f"{len(dropped)} older messages were left out. Look again at what you need of them."


class SummarizingCondenser(WindowCondenser):
    """Drops the same messages as `WindowCondenser`, and puts the model's summary of them in their place."""

    def _summary(self, dropped: Sequence[Message], ask: Ask) -> str:
        text = "\n\n".join(_as_text(message) for message in dropped)
        return ask(cut_middle(text, limit_chars=_MAX_PROMPT_CHARS), system=_SUMMARY_SYSTEM).strip()


def _end(messages: Sequence[Message], keep_first: int, *, keep_last: int) -> int:
    """Return the last index at or before the newest keep_last messages that separates no call from its results.

    A result, and its images, belong to the message before them.
    """
    end = len(messages) - keep_last
    while keep_first < end < len(messages):
        role, content = messages[end]["role"], messages[end]["content"]
        if role == "assistant" or (role == "user" and isinstance(content, str)):
            break
        end -= 1
    return end


def _as_text(message: Message) -> str:
    content = message["content"]
    text = content if isinstance(content, str) else " ".join(part.get("text", "[image]") for part in content)
    if message["role"] == "tool":
        result = load_json(text)
        text = str(result.get("error") or result.get("output") or "")
    calls = "".join(
        f"\n-> {call['function']['name']} {cut_middle(call['function']['arguments'], limit_chars=MAX_RESULT_CHARS)}"
        for call in message.get("tool_calls", ())
    )
    return f"{message['role']}: {cut_middle(text, limit_chars=MAX_RESULT_CHARS)}{calls}"
