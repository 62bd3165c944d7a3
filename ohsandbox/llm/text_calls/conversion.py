"""`TextCalls`: a request with its tools in words, its history as text, and the answer with the call in its text."""

from __future__ import annotations

import html
import json
from typing import TYPE_CHECKING, Any

from ohsandbox.llm.chat import ChatMessage, Choice, DeltaEvent, FunctionCall, LLMEvent, OnEvent, RetryEvent, ToolCall
from ohsandbox.llm.response_parsing import call_ids, content_text, fresh_ids
from ohsandbox.llm.text_calls.markup import STOP, find_call, write_call
from ohsandbox.llm.text_calls.prompt import properties_of, required_tool, requirement, tools_prompt

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ohsandbox.llm.chat import ChatResponse, Message
    from ohsandbox.llm.text_calls.markup import Schema


_OPENING = "<call "


class TextCalls:
    """One request of the agent, for a model that is asked in text.

    Args:
        request: messages, and perhaps tools and tool_choice, in OpenAI form.
    """

    def __init__(self, request: Mapping[str, Any]) -> None:
        self._request = request
        self._tools = request.get("tools") or ()
        self._choice = request.get("tool_choice", "auto")
        self._schemas = {tool["function"]["name"]: properties_of(tool) for tool in self._tools}
        self.used_ids = call_ids(request["messages"])
        """The ids of earlier calls."""
        self._may_call = bool(self._tools) and self._choice != "none"

    def request(self) -> dict[str, Any]:
        """The request in text."""
        rest = {key: value for key, value in self._request.items() if key not in {"messages", "tools", "tool_choice"}}
        prompt = tools_prompt(self._tools, self._choice)
        messages = messages_as_text(self._request["messages"], self._schemas, prompt=prompt)
        return {"messages": messages, **rest, **({"stop": [STOP]} if self._may_call else {})}

    def read(self, response: ChatResponse) -> ChatResponse:
        """The response with the call that its text holds; as it is where there is none."""
        found = find_call(response.message.content, self._schemas) if self._may_call else None
        if found is None or response.message.tool_calls:
            return response
        function = FunctionCall(name=found.name, arguments=found.arguments, parse_error=found.parse_error)
        call_id = next(fresh_ids(self.used_ids))
        message = ChatMessage(content=found.before, tool_calls=(ToolCall(id=call_id, function=function),))
        cut = response.is_truncated and not found.is_closed
        choice = Choice(message=message, finish_reason="length" if cut else "tool_calls")
        return response.model_copy(update={"choices": (choice,)})

    def with_reminder(self, response: ChatResponse) -> TextCalls | None:
        """The request with a reminder, for a model that did not call what it had to; None where it did or was free."""
        must = requirement(self._choice) if self._may_call else ""
        called = [call.function.name for call in response.message.tool_calls]
        if not must or (called and required_tool(self._choice) in {None, called[0]}):
            return None
        said = [] if response.is_empty else [response.message.to_llm_dict()]
        reminder = {"role": "user", "content": f"That reply called {called[0] if called else 'no tool'}. {must}"}
        return TextCalls({**self._request, "messages": [*self._request["messages"], *said, reminder]})


class CallFilter:
    """A listener of `send` that forwards the text outside of calls."""

    def __init__(self, emit: OnEvent) -> None:
        self._emit = emit
        self._held: list[str] = []
        self._is_call = False

    def __call__(self, event: LLMEvent) -> None:
        """Pass the event on; of text what can be shown now."""
        if isinstance(event, DeltaEvent):
            self._show(self._visible(event.text))
            return
        if isinstance(event, RetryEvent):
            self._held, self._is_call = [], False  # what came of that attempt is void
        self._emit(event)

    def end(self, response: ChatResponse) -> None:
        """Forward the text held back, unless it became a call."""
        if not response.message.tool_calls:
            self._show("".join(self._held))

    def _show(self, text: str) -> None:
        if text:
            self._emit(DeltaEvent(text=text))

    def _visible(self, piece: str) -> str:
        if self._is_call:
            self._held.append(piece)
            return ""
        text = "".join(self._held) + piece
        self._is_call = _OPENING in text
        end = text.index(_OPENING) if self._is_call else len(text) - _possible_opening(text)
        self._held = [text[end:]]
        return text[:end]


def _possible_opening(text: str) -> int:
    """How many characters at the end may be the beginning of a call."""
    return next((size for size in range(len(_OPENING) - 1, 0, -1) if text.endswith(_OPENING[:size])), 0)


Parts = list[dict[str, Any]]

_RESULT_CLOSING = "</result>"


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
    return "\n\n".join(part for part in (content_text(message.get("content")), *written) if part)


def _result(message: Message, name: str) -> str | Parts:
    """The result in its tags, in which its own text cannot end it: a page of the web must not speak for the user."""
    content = message.get("content")
    if isinstance(content, list):
        inner = [{**part, "text": _held_in(part["text"])} if "text" in part else part for part in _parts(content)]
        return [*_parts(f'<result tool="{html.escape(name)}">'), *inner, *_parts(_RESULT_CLOSING)]
    text, is_error = _unwrapped(content or "")
    opening = f'<result tool="{html.escape(name)}"' + (' status="error">' if is_error else ">")
    return f"{opening}\n{_held_in(text)}\n{_RESULT_CLOSING}"


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
