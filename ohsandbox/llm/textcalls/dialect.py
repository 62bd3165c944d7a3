"""`TextCalls`: a request with its tools in words, and the answer with the call that its text holds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ohsandbox.llm.events import DeltaEvent, LLMEvent, OnEvent, RetryEvent
from ohsandbox.llm.reading import call_ids, fresh_ids
from ohsandbox.llm.response import ChatMessage, Choice, FunctionCall, ToolCall
from ohsandbox.llm.textcalls.history import messages_as_text
from ohsandbox.llm.textcalls.markup import STOP, find_call
from ohsandbox.llm.textcalls.prompt import demand, properties_of, tools_prompt, wanted_tool

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ohsandbox.llm.response import ChatResponse

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
        function = FunctionCall(name=found.name, arguments=found.arguments, fault=found.fault)
        call_id = next(fresh_ids(self.used_ids))
        message = ChatMessage(content=found.before, tool_calls=(ToolCall(id=call_id, function=function),))
        cut = response.is_truncated and not found.is_closed
        choice = Choice(message=message, finish_reason="length" if cut else "tool_calls")
        return response.model_copy(update={"choices": (choice,)})

    def reminded(self, response: ChatResponse) -> TextCalls | None:
        """The request with a reminder, for a model that did not call what it had to; None where it did or was free."""
        must = demand(self._choice) if self._may_call else ""
        called = [call.function.name for call in response.message.tool_calls]
        if not must or (called and wanted_tool(self._choice) in {None, called[0]}):
            return None
        said = [] if response.is_empty else [response.message.to_llm_dict()]
        reminder = {"role": "user", "content": f"That reply called {called[0] if called else 'no tool'}. {must}"}
        return TextCalls({**self._request, "messages": [*self._request["messages"], *said, reminder]})


class VisibleText:
    """Listens to a `send` and passes on the part of its text that is no call."""

    def __init__(self, tell: OnEvent) -> None:
        self._tell = tell
        self._held: list[str] = []
        self._is_call = False

    def __call__(self, event: LLMEvent) -> None:
        """Pass the event on; of text what can be shown now."""
        if isinstance(event, DeltaEvent):
            self._show(self._visible(event.text))
            return
        if isinstance(event, RetryEvent):
            self._held, self._is_call = [], False  # what came of that attempt is void
        self._tell(event)

    def end(self, response: ChatResponse) -> None:
        """Show what was held back, where it turned out to be no call."""
        if not response.message.tool_calls:
            self._show("".join(self._held))

    def _show(self, text: str) -> None:
        if text:
            self._tell(DeltaEvent(text=text))

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
