"""Putting an answer together from the chunks of a stream."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping


class StreamedAnswer:
    """The answer so far."""

    def __init__(self) -> None:
        self._text: list[str] = []
        self._calls: list[_Call] = []
        self._slots: dict[Any, _Call] = {}
        self._top: dict[str, Any] = {}
        self._usage: Mapping[str, Any] | None = None
        self._finish_reason: str | None = None

    def add(self, chunk: Mapping[str, Any]) -> str:
        """Take in one OpenAI-shaped chunk; returns the text in it, or ""."""
        self._top |= {key: chunk[key] for key in ("id", "model") if chunk.get(key)}
        self._usage = chunk.get("usage") or self._usage
        choices = chunk.get("choices") or [{}]
        delta = choices[0].get("delta") or {}
        self._finish_reason = choices[0].get("finish_reason") or self._finish_reason
        for part in delta.get("tool_calls") or []:
            self._slot(part).add(part)
        text = delta.get("content")
        if not isinstance(text, str):
            return ""
        self._text.append(text)
        return text

    def to_dict(self) -> dict[str, Any]:
        """The OpenAI-shaped answer."""
        message = {"content": "".join(self._text), "tool_calls": [call.to_dict() for call in self._calls]}
        choice = {"message": message, "finish_reason": self._finish_reason}
        return self._top | {"choices": [choice], "usage": self._usage}

    def _slot(self, part: Mapping[str, Any]) -> _Call:
        """The call that part belongs to: that of its index, unless its id says that a new one begins there.

        Some servers give every call of an answer the index 0.
        """
        index = part.get("index")
        call = self._slots.get(index)
        if call is None or (part.get("id") and call.id and part["id"] != call.id):
            call = self._slots[index] = _Call()
            self._calls.append(call)
        return call


class _Call:
    def __init__(self) -> None:
        self.id = ""
        self._name: list[str] = []
        self._arguments: list[str] = []

    def add(self, part: Mapping[str, Any]) -> None:
        function = part.get("function") or {}
        self.id = self.id or part.get("id") or ""
        self._name.append(function.get("name") or "")
        self._arguments.append(function.get("arguments") or "")

    def to_dict(self) -> dict[str, Any]:
        function = {"name": "".join(self._name), "arguments": "".join(self._arguments)}
        return {"id": self.id, "type": "function", "function": function}
