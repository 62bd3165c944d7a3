"""`ReplayLLM`: a model that answers what a recorded conversation's model answered."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from ohsandbox.errors import UsageError
from ohsandbox.llm.errors import ScriptError
from ohsandbox.llm.repair import text_of
from ohsandbox.llm.turns import answer, position

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from ohsandbox.llm.events import OnEvent
    from ohsandbox.llm.model import Message, ToolChoice, ToolParam
    from ohsandbox.llm.response import ChatResponse


class ReplayLLM:
    """A model that repeats recorded answers in order; it satisfies `ChatModel` and needs no key.

    Args:
        answers: assistant messages in OpenAI form, oldest first.
        name: what it is called.
        strict: end the run when what the assistant has said in the conversation is not what was replayed.
    """

    def __init__(self, answers: Sequence[Message], *, name: str = "replay", strict: bool = False) -> None:
        self._answers = tuple(answers)
        self._name = name
        self._strict = strict

    @classmethod
    def load(cls, path: str | Path, *, strict: bool = False) -> Self:
        """The model of a conversation's `sdk_events.jsonl`, or of the directory it is in.

        Raises:
            UsageError: it cannot be read, or holds no answer of a model.
        """
        file = Path(path).expanduser()
        file = file / "sdk_events.jsonl" if file.is_dir() else file
        answers = answers_from_events(_events(file))
        if not answers:
            raise UsageError(f"The recording {str(file)!r} holds no answer of a model; name another one.")
        return cls(answers, name=f"replay:{path}", strict=strict)

    @property
    def name(self) -> str:
        """`replay:` and the recording."""
        return self._name

    @property
    def note(self) -> str:
        """That no model is asked."""
        return f"replayed model: {len(self._answers)} recorded answers, no model is asked."

    def preload(self) -> None:
        """Nothing is slow here."""

    def cancel(self) -> None:
        """Nothing is ever under way."""

    def send(
        self,
        messages: Sequence[Message],
        tools: Sequence[ToolParam] = (),  # noqa: ARG002 - the recording knows what it calls
        tool_choice: ToolChoice = "auto",  # noqa: ARG002
        *,
        on_event: OnEvent | None = None,
    ) -> ChatResponse:
        """The recorded answer after those that the conversation holds.

        Raises:
            ScriptError: the recording is over, or (strict) the conversation went another way.
        """
        index = position(messages)
        if index >= len(self._answers):
            raise ScriptError(f"The recording {self._name!r} is over after {len(self._answers)} answers.")
        if self._strict:
            self._compare(messages)
        return answer(self._answers[index], model=self._name, messages=messages, on_event=on_event)

    def _compare(self, messages: Sequence[Message]) -> None:
        said = (message for message in messages if message.get("role") == "assistant")
        for number, (was, now) in enumerate(zip(self._answers, said, strict=False), start=1):
            if _gist(was) != _gist(now):
                raise ScriptError(
                    f"The conversation differs from the recording {self._name!r} at answer {number}: "
                    f"{_gist(now)!r:.150} is not {_gist(was)!r:.150}."
                )


def _gist(message: Message) -> tuple[str, ...]:
    """What the message does: the tools it calls with their arguments, or else its text."""
    functions = [call["function"] for call in message.get("tool_calls") or ()]
    called = tuple(f"{function['name']} {function['arguments']}" for function in functions)
    return called or (text_of(message.get("content")) or "",)


def answers_from_events(events: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The assistant messages of a log: events `assistant_message` and `tool_call`, put together by `response_id`.

    The text is that of the `assistant_message`, or the `thought` of the first `tool_call`.
    """
    answers: dict[str, dict[str, Any]] = {}
    for number, event in enumerate(events):
        data = event.get("data") or {}
        if event.get("type") not in {"assistant_message", "tool_call"}:
            continue
        key = data.get("response_id") or f"event {number}"
        message = answers.setdefault(key, {"role": "assistant", "content": "", "tool_calls": []})
        message["content"] = message["content"] or data.get("content") or data.get("thought") or ""
        if event["type"] == "tool_call":
            function = {"name": data.get("name"), "arguments": data.get("arguments") or ""}
            message["tool_calls"].append({"id": data.get("tool_call_id"), "type": "function", "function": function})
    return list(answers.values())


def _events(file: Path) -> list[Mapping[str, Any]]:
    """The events of a log. A last line that is cut off, as a crash leaves it, is left out."""
    try:
        lines = [line for line in file.read_bytes().splitlines() if line.strip()]
    except OSError as error:
        raise UsageError(f"The recording {str(file)!r} cannot be read: {error.strerror}.") from None
    events: list[Mapping[str, Any]] = []
    for number, line in enumerate(lines, start=1):
        try:
            event = json.loads(line)
        except ValueError:
            if number == len(lines):
                break
            raise UsageError(f"The recording {str(file)!r} is damaged in line {number}: no JSON.") from None
        if isinstance(event, dict):
            events.append(event)
    return events
