"""`ScriptedLLM`: a model that follows a file.

The file is JSON: {"turns": [TURN, ...]}, optionally with "note"; or a list of turns; or one turn a line (JSON Lines).

    TURN = {
        "content": "What the model says.",                              optional
        "tool_calls": [{"name": "execute_bash", "arguments": {...}}],   optional; arguments may be a raw string
        "expect": "text",            optional: must occur in the newest tool result, or the run ends
        "expect_regex": "pattern"    optional: must be found in it (Python's `re`, multi-line)
    }

The turn is the one after as many assistant messages as the conversation holds. `expect` keeps a script honest: it
cannot act as if something had happened in the sandbox that did not.
"""

from __future__ import annotations

import json
import re
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from ohsandbox.errors import UsageError
from ohsandbox.llm.chat import DeltaEvent, OnEvent
from ohsandbox.llm.errors import ScriptError
from ohsandbox.llm.response_parsing import call_ids, content_text, read_answer
from ohsandbox.llm.text import one_line
from ohsandbox.strict_json import parse

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ohsandbox.llm.chat import ChatResponse, Message, OnEvent, ToolChoice, ToolParam


SHIPPED = ("demo",)
"""Names of the scripts in `ohsandbox/llm/scripts`."""


class _ScriptPart(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class ScriptedCall(_ScriptPart):
    """A tool call of a turn."""

    name: str
    arguments: dict[str, Any] | str = Field(default_factory=dict)
    """A string is passed on as it is, so that a script can be malformed on purpose."""


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
            raise ValueError(f"no regular expression: {error}") from error
        return pattern

    def accepts(self, result: str) -> bool:
        """Whether the newest tool result is what the script was written for."""
        if self.expect is not None and self.expect not in result:
            return False
        return self.expect_regex is None or re.search(self.expect_regex, result, re.MULTILINE) is not None

    def to_llm_dict(self) -> dict[str, Any]:
        """The OpenAI-shaped assistant message."""
        calls = [{"type": "function", "function": call.model_dump()} for call in self.tool_calls]
        return {"role": "assistant", "content": self.content, "tool_calls": calls}


class ModelScript(_ScriptPart):
    """The file."""

    turns: Annotated[tuple[Turn, ...], Field(min_length=1)]
    note: str = ""


class ScriptedLLM:
    """A model that answers from a script; it satisfies `ChatModel` and needs no key."""

    def __init__(self, script: ModelScript, *, name: str = "scripted") -> None:
        self._script = script
        self._name = name

    @classmethod
    def load(cls, source: str | Path) -> Self:
        """The model of a shipped script, by its name, or of a file.

        Raises:
            UsageError: the file is missing or malformed; the message says where.
        """
        name = f"scripted:{source}"
        return cls(parse_script(_read(source), name=name), name=name)

    @property
    def name(self) -> str:
        """`scripted:` and the script."""
        return self._name

    @property
    def note(self) -> str:
        """That no model is asked."""
        about = f" {self._script.note}" if self._script.note else ""
        return f"scripted model: the answers come from a file, no model is asked.{about}"

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
        tools: Sequence[ToolParam] = (),  # noqa: ARG002 - the script knows what it calls
        tool_choice: ToolChoice = "auto",  # noqa: ARG002
        *,
        on_event: OnEvent | None = None,
    ) -> ChatResponse:
        """The turn after those that the conversation holds.

        Raises:
            ScriptError: the script is over, or the newest tool result is not what it expects.
        """
        index = position(messages)
        if index >= len(self._script.turns):
            raise ScriptError(
                f"The script {self._name!r} is over after {len(self._script.turns)} turns; add one to it."
            )
        turn = self._script.turns[index]
        result = _last_result(messages)
        if not turn.accepts(result):
            raise ScriptError(self._mismatch(index, turn, result))
        return scripted_answer(turn.to_llm_dict(), model=self._name, messages=messages, on_event=on_event)

    def _mismatch(self, index: int, turn: Turn, result: str) -> str:
        wanted = turn.expect if turn.expect is not None and turn.expect not in result else turn.expect_regex
        return (
            f"Turn {index + 1} of {self._name!r}: the script expected {wanted!r} in the last tool result, which was "
            f"{one_line(result)!r}. Run it in the sandbox it was written for, or change its `expect`."
        )


def parse_script(text: str, *, name: str) -> ModelScript:
    """The script in text; name is for messages.

    Raises:
        UsageError: text is malformed.
    """
    try:
        return ModelScript.model_validate(_parsed(text))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise UsageError(f"Invalid script {name!r} at {where or 'its top'}: {first['msg']}. Correct it.") from None
    except ValueError as error:
        raise UsageError(f"Invalid script {name!r}: neither JSON nor JSON Lines ({error}). Correct it.") from None


def _parsed(text: str) -> Mapping[str, Any]:
    try:
        whole = parse(text)
    except json.JSONDecodeError as error:
        lines = [line for line in text.splitlines() if line.strip()]
        if not (len(lines) > 1 and lines[0].rstrip().endswith("}")):
            raise
        return {"turns": _lines(lines, whole_error=error)}
    if isinstance(whole, list):
        return {"turns": whole}
    is_turn = isinstance(whole, dict) and "turns" not in whole
    return {"turns": [whole]} if is_turn else whole


def _lines(lines: list[str], *, whole_error: json.JSONDecodeError) -> list[Any]:
    try:
        return [parse(line) for line in lines]
    except json.JSONDecodeError:
        raise whole_error from None


def _read(source: str | Path) -> str:
    if source in SHIPPED:
        return resources.files("ohsandbox.llm").joinpath("scripts", f"{source}.json").read_text(encoding="utf-8")
    try:
        return Path(source).expanduser().read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        shipped = ", ".join(SHIPPED)
        raise UsageError(f"The script {str(source)!r} cannot be read: {error}. Shipped scripts: {shipped}.") from None


def position(messages: Sequence[Message]) -> int:
    """How often the assistant has spoken. By it a model needs no memory: resumed, forked and shared, it still fits."""
    return sum(message.get("role") == "assistant" for message in messages)


def scripted_answer(
    message: Mapping[str, Any],
    *,
    model: str,
    messages: Sequence[Message],
    on_event: OnEvent | None,
) -> ChatResponse:
    """The response that says message, an assistant message in OpenAI form; its text is told as one piece."""
    finish_reason = "tool_calls" if message.get("tool_calls") else "stop"
    choice = {"message": dict(message), "finish_reason": finish_reason}
    fields = {"model": model, "choices": [choice]}
    response = read_answer(fields, used_ids=call_ids(messages), cost_usd=0.0)
    if on_event and response.message.content:
        on_event(DeltaEvent(text=response.message.content))
    return response


def _last_result(messages: Sequence[Message]) -> str:
    """The text of the newest message of a tool, or ""."""
    results = (message for message in reversed(messages) if message.get("role") == "tool")
    return content_text(next(results, {}).get("content")) or ""
