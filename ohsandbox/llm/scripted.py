"""Two models that need no key: `ScriptedLLM` follows a file, `ReplayLLM` repeats a recorded conversation.

Both choose the answer by the number of assistant messages in the request: they keep no state, so a conversation can be
resumed, forked or shared. A script is JSON: {"turns": [TURN, ...]}, optionally with "note"; or a list of turns; or one
turn a line (JSON Lines).

    TURN = {
        "content": "What the model says.",                              optional
        "tool_calls": [{"name": "execute_bash", "arguments": {...}}],   optional; arguments may be a raw string
        "expect": "text",            optional: must occur in the newest tool result, or the run ends
        "expect_regex": "pattern"    optional: must be found in it (Python's `re`, multi-line)
    }

`expect` checks what happened: without it a script would continue after a command that failed in the sandbox.
"""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import suppress
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from ohsandbox.arguments import expect, expect_path, wrong_type
from ohsandbox.errors import UsageError
from ohsandbox.llm.chat import DeltaEvent, OnEvent
from ohsandbox.llm.error_mapping import masked_line
from ohsandbox.llm.errors import ScriptError
from ohsandbox.llm.response_parsing import call_ids, content_text, read_answer
from ohsandbox.private_files import MAX_CONTENT_BYTES, read_regular
from ohsandbox.strict_json import is_object, load_json, parse_json

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ohsandbox.llm.chat import ChatResponse, Message, OnEvent, ToolChoice, ToolParam


_SHIPPED = ("demo",)
"""Names of the scripts in `ohsandbox/llm/scripts`."""


class _ScriptPart(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class ScriptedCall(_ScriptPart):
    """A tool call of a turn."""

    name: str
    arguments: dict[str, Any] | str = Field(default_factory=dict)
    """A string is passed on unchanged, so that a script can be malformed on purpose."""


class Turn(_ScriptPart):
    """One answer."""

    content: str = ""
    tool_calls: tuple[ScriptedCall, ...] = ()
    expect: str | None = None
    expect_regex: str | None = None

    @field_validator("expect_regex")
    @classmethod
    def _compiles(cls, pattern: str | None) -> str | None:
        try:
            re.compile(pattern or "")
        except re.error as error:
            raise ValueError(f"invalid regular expression: {error}") from error
        return pattern

    def missed(self, result: str) -> str | None:
        """Return what the script expects in the newest tool result and is missing there."""
        if self.expect is not None and self.expect not in result:
            return self.expect
        if self.expect_regex is None or re.search(self.expect_regex, result, re.MULTILINE):
            return None
        return self.expect_regex


class ModelScript(_ScriptPart):
    """The file."""

    turns: Annotated[tuple[Turn, ...], Field(min_length=1)]
    note: str = ""


class _RecordedLLM(ABC):
    """A `ChatModel` whose answers are known: nothing is slow, can be cancelled, or exceeds a limit."""

    context_tokens: int | None = None

    def __init__(self, name: str, note: str) -> None:
        self._name = name
        self._note = note

    @property
    def name(self) -> str:
        """The kind of model and its file."""
        return self._name

    @property
    def note(self) -> str:
        """A note that no model is asked."""
        return self._note

    def preload(self) -> None:  # noqa: B027 - nothing to load
        """Do nothing."""

    def cancel(self) -> None:  # noqa: B027 - no request to break off
        """Do nothing."""

    def send(
        self,
        messages: Sequence[Message],
        tools: Sequence[ToolParam] = (),  # noqa: ARG002 - the file knows what it calls
        tool_choice: ToolChoice = "auto",  # noqa: ARG002
        *,
        on_event: OnEvent | None = None,
    ) -> ChatResponse:
        """Return the answer after those that the conversation holds; its text is reported in one piece.

        Raises:
            ScriptError: the file has no further answer, or does not fit the conversation.
        """
        message = self._answer(sum(message.get("role") == "assistant" for message in messages), messages)
        choice = {"message": message, "finish_reason": "tool_calls" if message.get("tool_calls") else "stop"}
        fields = {"model": self._name, "choices": [choice]}
        response = read_answer(fields, used_ids=call_ids(messages), cost_usd=0.0)
        if on_event and response.message.content:
            on_event(DeltaEvent(text=response.message.content))
        return response

    @abstractmethod
    def _answer(self, index: int, messages: Sequence[Message]) -> dict[str, Any]:
        """Return the assistant message that follows `index` earlier ones, in OpenAI form."""


class ScriptedLLM(_RecordedLLM):
    """A model that answers from a script; it satisfies `ChatModel` and needs no key.

    Args:
        script: the turns, each a mapping of the keys `content`, `tool_calls`, `expect` and `expect_regex`; or a
            complete script.
        name: the model's name, in the log.

    Raises:
        UsageError: the script is malformed, or has no turn; the message says where.
    """

    def __init__(self, script: ModelScript | Sequence[Mapping[str, Any]], *, name: str = "scripted") -> None:
        expect("script", script, (ModelScript, list, tuple), "Read a file: ScriptedLLM.load(path).", optional=False)
        if not isinstance(script, ModelScript):
            script = _checked({"turns": script}, name=name)
        note = f"scripted model: the answers come from a file, no model is asked. {script.note}"
        super().__init__(name, note.strip())
        self._script = script

    @classmethod
    def load(cls, source: str | Path) -> Self:
        """Load a shipped script by its name, or a file.

        Raises:
            UsageError: the file is missing or malformed; the message says where.
        """
        expect_path("source", source)
        name = f"scripted:{source}"
        return cls(parse_script(_read(source), name=name), name=name)

    def _answer(self, index: int, messages: Sequence[Message]) -> dict[str, Any]:
        turns = self._script.turns
        if index >= len(turns):
            raise ScriptError(f"The script {self._name!r} is over after {len(turns)} turns; add one to it.")
        turn = turns[index]
        newest = next((message for message in reversed(messages) if message.get("role") == "tool"), {})
        result = content_text(newest.get("content")) or ""
        if missed := turn.missed(result):
            raise ScriptError(
                f"Turn {index + 1} of {self._name!r}: the script expected {missed!r} in the last tool result, which "
                f"was {masked_line(result)!r}. Run it in the sandbox it was written for, or change its `expect`."
            )
        calls = [{"type": "function", "function": call.model_dump()} for call in turn.tool_calls]
        return {"role": "assistant", "content": turn.content, "tool_calls": calls}


def parse_script(text: str, *, name: str) -> ModelScript:
    """Parse the script in text; messages use name.

    Raises:
        UsageError: text is malformed.
    """
    try:
        parsed = _parsed(text)
    except ValueError as error:
        raise UsageError(f"Invalid script {name!r}: neither JSON nor JSON Lines ({error}). Correct it.") from None
    return _checked(parsed, name=name)


def _checked(parsed: Mapping[str, Any], *, name: str) -> ModelScript:
    try:
        return ModelScript.model_validate(parsed)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        field = ".".join(str(part) for part in first["loc"])
        raise UsageError(f"Invalid script {name!r} at {field or 'its top'}: {first['msg']}. Correct it.") from None


def _parsed(text: str) -> Mapping[str, Any]:
    try:
        whole = parse_json(text)
    except json.JSONDecodeError as error:
        lines = [line for line in text.splitlines() if line.strip()]
        if len(lines) > 1 and lines[0].rstrip().endswith("}"):
            with suppress(json.JSONDecodeError):
                return {"turns": [parse_json(line) for line in lines]}
        raise error from None
    if isinstance(whole, list):
        return {"turns": whole}
    is_turn = isinstance(whole, dict) and "turns" not in whole
    return {"turns": [whole]} if is_turn else whole


def _read(source: str | Path) -> str:
    if source in _SHIPPED:
        return resources.files("ohsandbox.llm").joinpath("scripts", f"{source}.json").read_text(encoding="utf-8")
    try:
        return Path(source).expanduser().read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        shipped = ", ".join(_SHIPPED)
        raise UsageError(f"The script {str(source)!r} cannot be read: {reason}. Shipped scripts: {shipped}.") from None


class ReplayLLM(_RecordedLLM):
    """A model that repeats recorded answers in order; it satisfies `ChatModel` and needs no key.

    Args:
        answers: assistant messages in OpenAI form, oldest first.
        name: the model's name, in the log.
        strict: end the run if the assistant's messages in the conversation differ from the replayed ones.
    """

    def __init__(self, answers: Sequence[Message], *, name: str = "replay", strict: bool = False) -> None:
        if isinstance(answers, str | bytes) or not isinstance(answers, Sequence):
            raise wrong_type("answers", answers, "a list of messages", "Read a file: ReplayLLM.load(path).")
        super().__init__(name, f"replayed model: {len(answers)} recorded answers, no model is asked.")
        self._answers = tuple(answers)
        self._strict = strict

    @classmethod
    def load(cls, path: str | Path, *, strict: bool = False) -> Self:
        """Load a conversation's `sdk_events.jsonl`, or that of a directory.

        Raises:
            UsageError: the file cannot be read, or holds no answer of a model.
        """
        expect_path("path", path)
        file = Path(path).expanduser()
        file = file / "sdk_events.jsonl" if file.is_dir() else file
        answers = answers_from_events(_events(file))
        if not answers:
            raise UsageError(f"Recording {str(file)!r} is without an answer of a model. Name another one.")
        return cls(answers, name=f"replay:{path}", strict=strict)

    def _answer(self, index: int, messages: Sequence[Message]) -> dict[str, Any]:
        if index >= len(self._answers):
            raise ScriptError(f"The recording {self._name!r} is over after {len(self._answers)} answers.")
        answers_sent = (message for message in messages if self._strict and message.get("role") == "assistant")
        for number, (was, now) in enumerate(
            zip(map(_gist, self._answers), map(_gist, answers_sent), strict=False), start=1
        ):
            if was != now:
                raise ScriptError(
                    f"The conversation differs from the recording {self._name!r} at answer {number}: "
                    f"{now!r:.150} is not {was!r:.150}."
                )
        return dict(self._answers[index])


def answers_from_events(events: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return a log's assistant messages as the model sent them, from events `assistant_message` and `tool_call`.

    Calls of one `response_id` are one message, unless a `call_index` of 0 shows that another begins: some servers give
    every answer the same id. The text is that of the `assistant_message`, or the `thought` of the first call. If the
    conversation had to repair a call, `raw_name` and `raw_arguments` hold what the model sent.
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
            name, arguments = (data.get(f"raw_{key}", data.get(key)) for key in ("name", "arguments"))
            call = {"id": data.get("tool_call_id"), "type": "function"}
            answers[-1]["tool_calls"].append(call | {"function": {"name": name, "arguments": arguments or ""}})
    return answers


def _gist(message: Message) -> tuple[str, ...]:
    """Return what to compare of a message: the arguments of its calls, or else its text.

    A conversation stores "{}" for arguments that are not a JSON object, and the tool's own name for an alias.
    """
    arguments = [str(call["function"]["arguments"]) for call in message.get("tool_calls") or ()]
    return tuple(text if is_object(text) else "{}" for text in arguments) or (
        content_text(message.get("content")) or "",
    )


def _events(file: Path) -> list[Mapping[str, Any]]:
    """Read the events of a log. Ignores an incomplete last line, which a crash leaves."""
    try:
        data = read_regular(file, limit_bytes=MAX_CONTENT_BYTES, follow=True)
    except OSError as error:
        raise UsageError(f"Recording {str(file)!r} cannot be read: {error.strerror}. Name another one.") from None
    lines = [line for line in data.splitlines() if line.strip()]
    events: list[Any] = []
    for number, line in enumerate(lines, start=1):
        try:
            events.append(load_json(line))
        except ValueError:
            if number < len(lines):
                raise UsageError(
                    f"Invalid JSON in line {number} of recording {str(file)!r}. Name another one."
                ) from None
    return [event for event in events if isinstance(event, dict)]
