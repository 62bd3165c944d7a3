"""`ReplayLLM`: a model that answers what a recorded conversation's model answered."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from ohsandbox.errors import UsageError
from ohsandbox.llm.errors import ScriptError
from ohsandbox.llm.response_parsing import content_text
from ohsandbox.llm.scripted import position, scripted_answer

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from ohsandbox.llm.chat import ChatResponse, Message, OnEvent, ToolChoice, ToolParam


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

    @property
    def context_tokens(self) -> int | None:
        """Nothing is ever too long."""
        return None

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
        return scripted_answer(self._answers[index], model=self._name, messages=messages, on_event=on_event)

    def _compare(self, messages: Sequence[Message]) -> None:
        said = (message for message in messages if message.get("role") == "assistant")
        for number, (was, now) in enumerate(zip(self._answers, said, strict=False), start=1):
            if _gist(was) != _gist(now):
                raise ScriptError(
                    f"The conversation differs from the recording {self._name!r} at answer {number}: "
                    f"{_gist(now)!r:.150} is not {_gist(was)!r:.150}."
                )


def _gist(message: Message) -> tuple[str, ...]:
    """What the message does: the arguments of its calls, or else its text.

    A conversation keeps "{}" for arguments that are not a JSON object, and its own name for a tool called by an alias.
    """
    arguments = [str(call["function"]["arguments"]) for call in message.get("tool_calls") or ()]
    return tuple(text if _is_object(text) else "{}" for text in arguments) or (
        content_text(message.get("content")) or "",
    )


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False


def answers_from_events(events: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The assistant messages of a log, as the model sent them: its events `assistant_message` and `tool_call`.

    Calls of one `response_id` are one message, unless a `call_index` of 0 says that another begins: some servers give
    every answer the same id. The text is that of the `assistant_message`, or the `thought` of the first call.
    """
    answers: list[dict[str, Any]] = []
    newest: object = None
    for event in events:
        data = event.get("data") or {}
        if event.get("type") not in {"assistant_message", "tool_call"}:
            continue
        if not answers or data.get("response_id") != newest or data.get("call_index") == 0 or "content" in data:
            answers.append({"role": "assistant", "content": "", "tool_calls": []})
            newest = data.get("response_id")
        answers[-1]["content"] = answers[-1]["content"] or data.get("content") or data.get("thought") or ""
        if event["type"] == "tool_call":
            answers[-1]["tool_calls"].append(_call(data))
    return answers


def _call(data: Mapping[str, Any]) -> dict[str, Any]:
    """What the model sent, where the conversation had to mend it, stands in `raw_name` and `raw_arguments`."""
    arguments = data.get("raw_arguments", data.get("arguments"))
    function = {"name": data.get("raw_name", data.get("name")), "arguments": arguments or ""}
    return {"id": data.get("tool_call_id"), "type": "function", "function": function}


def _events(file: Path) -> list[Mapping[str, Any]]:
    """The events of a log. A last line that is cut off, as a crash leaves it, is left out."""
    try:
        lines = [line for line in file.read_bytes().splitlines() if line.strip()]
    except OSError as error:
        raise UsageError(f"The recording {str(file)!r} cannot be read: {error.strerror}. Name another.") from None
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
