"""A conversation with tool calls as one without: calls in the assistant's text, results in the user's."""

from __future__ import annotations

import html
import json
from typing import TYPE_CHECKING, Any

from ohsandbox.llm.repair import text_of
from ohsandbox.llm.textcalls.markup import write_call

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ohsandbox.llm.model import Message
    from ohsandbox.llm.textcalls.values import Schema

Parts = list[dict[str, Any]]

_CLOSING = "</result>"


def messages_as_text(
    messages: Sequence[Message], schemas: Mapping[str, Mapping[str, Schema]], *, prompt: str
) -> list[dict[str, Any]]:
    """The messages without tool calls and tool results.

    User and assistant alternate in it as far as they do in what was said: the chat templates of some models refuse two
    messages of the user in a row.

    Args:
        messages: the conversation in OpenAI form.
        schemas: those of each tool's arguments, by tool and argument.
        prompt: put at the end of the system message, or before all where there is none.
    """
    names: dict[str, str] = {}
    converted: list[dict[str, Any]] = []
    if prompt and not any(message.get("role") == "system" for message in messages):
        converted.append({"role": "system", "content": prompt})
        prompt = ""
    for message in messages:
        role = message.get("role")
        if role == "system":
            converted.append({**message, "content": _joined(message.get("content"), prompt)})
            prompt = ""
        elif role == "assistant":
            names |= {str(call.get("id")): call["function"]["name"] for call in message.get("tool_calls") or ()}
            converted.append({"role": "assistant", "content": _with_calls(message, schemas)})
        elif role == "tool":
            _say(converted, _result(message, names.get(str(message.get("tool_call_id")), "unknown")))
        else:
            _say(converted, message.get("content"))
    return converted


def _with_calls(message: Message, schemas: Mapping[str, Mapping[str, Schema]]) -> str:
    functions = [call["function"] for call in message.get("tool_calls") or ()]
    written = [
        write_call(function["name"] or "", function["arguments"] or "", schemas.get(function["name"], {}))
        for function in functions
    ]
    return "\n\n".join(part for part in (text_of(message.get("content")), *written) if part)


def _result(message: Message, name: str) -> str | Parts:
    """The result in its tags, in which its own text cannot end it: a page of the web must not speak for the user."""
    content = message.get("content")
    if isinstance(content, list):
        inner = [{**part, "text": _held_in(part["text"])} if "text" in part else part for part in _parts(content)]
        return [*_parts(f'<result tool="{html.escape(name)}">'), *inner, *_parts(_CLOSING)]
    text, is_error = _unwrapped(content or "")
    opening = f'<result tool="{html.escape(name)}"' + (' status="error">' if is_error else ">")
    return f"{opening}\n{_held_in(text)}\n{_CLOSING}"


def _held_in(text: str) -> str:
    return text.replace("</result", r"<\/result")


def _unwrapped(content: str) -> tuple[str, bool]:
    r"""The text of a result in JSON as {status, output} or {status, error}, and whether it is an error's.

    Plain, because models copy what they saw: escapes that they read as `\n` end up in the files they write.
    """
    try:
        result = json.loads(content)
    except (ValueError, RecursionError):
        return content, False
    if not isinstance(result, dict) or result.get("status") not in {"ok", "error"}:
        return content, False
    texts = [value for key, value in result.items() if key != "status"]
    if not result.keys() <= {"status", "output", "error"} or not all(isinstance(text, str) for text in texts):
        return content, False
    return "\n".join(texts), result["status"] == "error"


def _say(converted: list[dict[str, Any]], content: Any) -> None:
    """Add what the user says, to the newest message where that is the user's too."""
    if converted and converted[-1]["role"] == "user":
        converted[-1] = {"role": "user", "content": _joined(converted[-1]["content"], content)}
    else:
        converted.append({"role": "user", "content": content})


def _joined(first: Any, second: Any) -> str | Parts:
    if isinstance(first, list) or isinstance(second, list):
        return [*_parts(first), *_parts(second)]
    return "\n\n".join(text for text in (first, second) if text)


def _parts(content: Any) -> Parts:
    if isinstance(content, list):
        return [{"type": "text", "text": part} if isinstance(part, str) else dict(part) for part in content]
    return [{"type": "text", "text": content}] if content else []
