"""Models of host projects that say what they were given."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agents import Model, ModelResponse, Usage
from langchain_core.language_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, ToolCall
from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage, ResponseOutputText

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
"""A PNG of one pixel, in base64."""


class ScriptedChatModel(GenericFakeChatModel):
    """LangChain's, for an agent that offers it tools."""

    def bind_tools(self, *_: Any, **__: Any) -> ScriptedChatModel:
        return self


def deep_call(name: str, **arguments: str) -> AIMessage:
    """A turn of that model with one call."""
    return AIMessage("", tool_calls=[ToolCall(name=name, args=arguments, id=f"call_{name}")])


class ScriptedModel(Model):
    """Makes one call a turn, then answers."""

    def __init__(self, calls: list[tuple[str, str]]) -> None:
        self._calls = calls
        self._turn = 0

    async def get_response(self, *_: Any, **__: Any) -> ModelResponse:
        self._turn += 1
        output: Any
        if self._turn > len(self._calls):
            text = ResponseOutputText(text="done", type="output_text", annotations=[])
            output = ResponseOutputMessage(id="m", content=[text], role="assistant", status="completed", type="message")
        else:
            name, arguments = self._calls[self._turn - 1]
            output = ResponseFunctionToolCall(
                name=name, arguments=arguments, call_id=f"call_{self._turn}", type="function_call"
            )
        return ModelResponse(output=[output], usage=Usage(), response_id=None)

    def stream_response(self, *_: Any, **__: Any) -> AsyncIterator[Any]:
        raise NotImplementedError
