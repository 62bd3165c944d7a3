"""Anthropic's messages API."""

from __future__ import annotations

import json
import os
import re
from typing import TYPE_CHECKING, Any

from ohsandbox.llm.model_list import listed_info, model_entry
from ohsandbox.llm.response_parsing import MAX_CALLS, token_count
from ohsandbox.llm.wire_format import InterruptedStreamError
from ohsandbox.strict_json import load_json

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from ohsandbox.llm.config import LLMConfig

_ADDRESS = "https://api.anthropic.com"
_PATH = "/v1/messages"
_MODELS_PATH = "/v1/models?limit=1000"
_VERSION = "2023-06-01"
_LITELLM_ONLY = ("LITELLM_ANTHROPIC_DISABLE_URL_SUFFIX",)
_SIGNED_IN_KEY = "sk-ant-oat"
"""The beginning of keys that are sent in another way than others."""
_SCHEMA_KEYS = ("type", "properties", "additionalProperties", "required", "$defs", "strict")
"""Keywords that the API accepts at the top of a tool's schema."""
_OTHER_DEFINITIONS = frozenset({"definitions", "components"})
_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}", re.ASCII)
"""Names of tools and ids of calls that the API accepts."""
_DATA_URL = re.compile(r"data:(image/(?:png|jpeg|gif|webp));base64,([A-Za-z0-9+/=]+)")
_FINISH_REASONS = {
    "max_tokens": "length",
    "tool_use": "tool_calls",
    "refusal": "content_filter",
    "compaction": "length",
    "model_context_window_exceeded": "length",
}
_CHOICES = {"auto": {"type": "auto"}, "required": {"type": "any"}, "none": {"type": "none"}}


class _NotCoveredError(Exception):
    """A message has something that only litellm can convert."""


class AnthropicFormat:
    """Satisfies `WireFormat`."""

    def __init__(self, config: LLMConfig, model: str, key: str) -> None:
        """Take the configuration, Anthropic's name of the model and the key; see `anthropic_format`."""
        self._config, self._model, self._key = config, model, key
        base = config.base_url or os.environ.get("ANTHROPIC_API_BASE") or os.environ.get("ANTHROPIC_BASE_URL")
        base = (base or _ADDRESS).removesuffix(_PATH)
        self.url, self.models_url = f"{base}{_PATH}", f"{base}{_MODELS_PATH}"
        self.entry = model_entry(model, "anthropic")
        self.info = listed_info(self.entry, provider="anthropic")

    def headers(self) -> dict[str, str]:
        """See `WireFormat.headers`."""
        return {"x-api-key": self._key, "anthropic-version": _VERSION}

    def body(self, request: Mapping[str, Any], *, stream: bool) -> dict[str, Any] | None:
        """See `WireFormat.body`."""
        tools, choice = request.get("tools", ()), request.get("tool_choice")
        if "extra_body" in request or not all(map(_is_plain, tools)):
            return None
        try:
            system, messages = _messages(request["messages"])
        except _NotCoveredError:
            return None
        config = self._config
        samples = self.entry.get("supports_sampling_params") is not False
        settings = {
            "system": system or None,
            "temperature": config.temperature if samples or config.temperature == 1 else None,
            "top_p": config.top_p if samples else None,
            "top_k": config.top_k if samples else None,
            "tools": [_tool(tool["function"]) for tool in tools] or None,
            "tool_choice": _choice(choice) if choice is not None else None,
            "stop_sequences": request.get("stop"),
            "stream": stream or None,
        }
        max_tokens = config.max_output_tokens or self.entry["max_output_tokens"]
        set_ = {name: value for name, value in settings.items() if value is not None}
        return {"model": self._model, "messages": messages, "max_tokens": max_tokens} | set_

    def answer(self, body: Any) -> dict[str, Any]:
        """See `WireFormat.answer`."""
        if not isinstance(body, dict) or not isinstance(body.get("content"), list):
            raise ValueError("no answer in Anthropic's format")  # noqa: TRY004 - of the provider, not of a caller
        blocks = [block for block in body["content"][:MAX_CALLS] if isinstance(block, dict)]
        text = "".join(str(block.get("text", "")) for block in blocks if block.get("type") == "text")
        calls = [
            _call(block, json.dumps(block.get("input") or {})) for block in blocks if block.get("type") == "tool_use"
        ]
        return {
            "id": body.get("id"),
            "model": body.get("model"),
            "choices": [
                {
                    "finish_reason": _finish_reason(body.get("stop_reason")),
                    "message": {"role": "assistant", "content": text or None, "tool_calls": calls or None},
                }
            ],
            "usage": _usage(body.get("usage") or {}),
        }

    def chunks(self, events: Iterable[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
        """See `WireFormat.chunks`."""
        usage: dict[str, Any] = {}
        bare: set[int] = set()
        """The calls without arguments so far."""
        for event in events:
            index = event.get("index", 0)
            match event:
                case {"type": "error"}:
                    raise InterruptedStreamError(str((event.get("error") or {}).get("message") or event))
                case {"type": "message_start", "message": dict(message)}:
                    usage |= message.get("usage") or {}
                    yield {"id": message.get("id"), "model": message.get("model"), "usage": _usage(usage)}
                case {"type": "content_block_start", "content_block": {"type": "tool_use"}}:
                    bare.add(index)
                    yield _delta(tool_calls=[{"index": index, **_call(event["content_block"], "")}])
                case {"type": "content_block_delta", "delta": {"type": "text_delta", "text": text}}:
                    yield _delta(content=text)
                case {"type": "content_block_delta", "delta": {"type": "input_json_delta", "partial_json": piece}}:
                    if piece:
                        bare.discard(index)
                    yield _delta(tool_calls=[{"index": index, "function": {"arguments": piece}}])
                case {"type": "content_block_stop"} if index in bare:
                    yield _delta(tool_calls=[{"index": index, "function": {"arguments": "{}"}}])
                case {"type": "message_delta", "delta": {"stop_reason": reason}}:
                    usage |= {name: count for name, count in (event.get("usage") or {}).items() if count is not None}
                    yield {"usage": _usage(usage), **_delta(finish_reason=_finish_reason(reason))}


def anthropic_key(config: LLMConfig) -> str:
    """Return the key; "" if there is none, or if it is sent in another way."""
    key = config.api_key.get_secret_value() if config.api_key else os.environ.get("ANTHROPIC_API_KEY", "").strip()
    return "" if key.startswith(_SIGNED_IN_KEY) else key


def anthropic_format(config: LLMConfig, model: str) -> AnthropicFormat | None:
    """Return the format for a model of Anthropic's; None for one that litellm has to ask."""
    key = anthropic_key(config)
    entry = model_entry(model, "anthropic")
    is_ordinary = (
        entry.get("mode") == "chat" and entry.get("supports_function_calling") and "max_output_tokens" in entry
    )
    if not is_ordinary or not key or any(map(os.environ.get, _LITELLM_ONLY)):
        return None
    return None if config.reasoning_effort or config.api_version else AnthropicFormat(config, model, key)


def _messages(messages: Iterable[Mapping[str, Any]]) -> tuple[list[Any], list[dict[str, Any]]]:
    """Return the system prompt and the turns; what users and tools say between two answers is one turn."""
    system: list[Any] = []
    turns: list[dict[str, Any]] = []
    for message in messages:
        if message.keys() - {"role", "content", "tool_calls", "tool_call_id"}:
            raise _NotCoveredError
        if message["role"] == "system":
            system += _parts(message["content"])
            continue
        role = "assistant" if message["role"] == "assistant" else "user"
        if not turns or turns[-1]["role"] != role:
            turns.append({"role": role, "content": []})
        turns[-1]["content"] += _blocks(message)
    if not turns or turns[0]["role"] != "user" or turns[-1]["role"] != "user":
        raise _NotCoveredError
    return system, turns


def _blocks(message: Mapping[str, Any]) -> list[dict[str, Any]]:
    match message["role"]:
        case "user":
            return _parts(message["content"])
        case "assistant":
            said = message.get("content")
            calls = [_tool_use(call) for call in message.get("tool_calls") or ()]
            return [*(_parts(said) if said or not calls else []), *calls]
        case "tool" if _NAME.fullmatch(message["tool_call_id"]):
            content = message["content"]
            result = content if isinstance(content, str) else _parts(content)
            return [{"type": "tool_result", "tool_use_id": message["tool_call_id"], "content": result}]
    raise _NotCoveredError


def _parts(content: Any) -> list[dict[str, Any]]:
    parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
    if not isinstance(parts, list) or not parts:
        raise _NotCoveredError
    return [_part(part) for part in parts]


def _part(part: Any) -> dict[str, Any]:
    match part:
        case {"type": "text", "text": str(text)} if text.strip() and not part.keys() - {
            "type",
            "text",
            "cache_control",
        }:
            return dict(part)
        case {"type": "image_url", "image_url": {"url": str(url)} as image} if len(part) == len(image) + 1:
            if match := _DATA_URL.fullmatch(url):
                source = {"type": "base64", "media_type": match[1], "data": match[2]}
                return {"type": "image", "source": source}
    raise _NotCoveredError


def _tool_use(call: Mapping[str, Any]) -> dict[str, Any]:
    try:
        arguments = load_json(call["function"]["arguments"] or "{}")
    except ValueError:
        raise _NotCoveredError from None
    name = call["function"]["name"]
    if not isinstance(arguments, dict) or not _NAME.fullmatch(call["id"]) or not _NAME.fullmatch(name):
        raise _NotCoveredError
    return {"type": "tool_use", "id": call["id"], "name": name, "input": arguments}


def _is_plain(tool: Mapping[str, Any]) -> bool:
    function = tool.get("function", {})
    is_known = tool.keys() == {"type", "function"} and not function.keys() - {"name", "description", "parameters"}
    return (
        is_known
        and bool(_NAME.fullmatch(function["name"]))
        and not _OTHER_DEFINITIONS & function.get("parameters", {}).keys()
    )


def _tool(function: Mapping[str, Any]) -> dict[str, Any]:
    schema: dict[str, Any] = {"properties": {}} | dict(function.get("parameters", {})) | {"type": "object"}
    taken = {name: value for name, value in schema.items() if name in _SCHEMA_KEYS}
    described = {"description": function["description"]} if "description" in function else {}
    return {"name": function["name"], "input_schema": taken, "type": "custom", **described}


def _choice(choice: Any) -> dict[str, Any]:
    return _CHOICES[choice] if isinstance(choice, str) else {"type": "tool", "name": choice["function"]["name"]}


def _call(block: Mapping[str, Any], arguments: str) -> dict[str, Any]:
    function = {"name": block.get("name"), "arguments": arguments}
    return {"id": block.get("id"), "type": "function", "function": function}


def _delta(*, finish_reason: str | None = None, **delta: Any) -> dict[str, Any]:
    return {"choices": [{"delta": delta, "finish_reason": finish_reason}]}


def _finish_reason(reason: Any) -> str | None:
    return None if reason is None else _FINISH_REASONS.get(str(reason), "stop")


def _usage(usage: Mapping[str, Any]) -> dict[str, Any]:
    """Convert the usage to OpenAI's form, in which the prompt's tokens are all that were read."""
    read, written = (token_count(usage.get(f"cache_{way}_input_tokens")) for way in ("read", "creation"))
    return {
        "prompt_tokens": token_count(usage.get("input_tokens")) + read + written,
        "completion_tokens": token_count(usage.get("output_tokens")),
        "prompt_tokens_details": {"cached_tokens": read},
        "cache_creation_input_tokens": written,
    }
