"""What a provider gets of tools and messages, and what is learned from its refusals: all over the real HTTP path."""

from __future__ import annotations

import copy
import json
from typing import TYPE_CHECKING, Any

import pytest

from ohsandbox.llm import LLM, LLMConfig, error_mapping
from ohsandbox.llm.capabilities import (
    IMAGE_NOTE,
    capabilities_of,
    gemini_schema,
    shortened_description,
    with_cache_marks,
)
from ohsandbox.llm.error_mapping import kind_of
from ohsandbox.llm.provider import ModelInfo
from ohsandbox.testing.provider import FakeClock, FakeProvider, Reply, error, text
from tests.llm.talk import IMAGE, PARAMETERS, TALK, WITH_IMAGE, send, tool

if TYPE_CHECKING:
    from collections.abc import Sequence

pytestmark = pytest.mark.usefixtures("each_client")

FOR_GEMINI = {
    "type": "object",
    "required": ["default"],
    "properties": {
        "default": {"type": "string", "description": "A name."},
        "when": {"type": "string", "format": "date-time"},
        "format": {"type": "integer", "nullable": True, "format": "int32"},
        "level": {"type": "integer", "description": "How. One of: 1, 2."},
        "kind": {"enum": ["a"], "type": "string"},
        "list": {"type": "array", "items": {"type": "object"}},
        "any": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        "two": {"anyOf": [{"type": "string"}, {"type": "integer"}]},
    },
}
LONG = "Runs a command. " * 100


def sent(model: str, *, messages: Sequence[dict[str, Any]] = TALK, **changes: Any) -> dict[str, Any]:
    with FakeProvider(text("ok")) as provider:
        send(provider, model=model, messages=messages, **changes)
    return provider.requests[0].body


# --- schemas and descriptions -----------------------------------------------------------------------


def test_gemini_gets_the_part_of_json_schema_that_it_takes() -> None:
    tools = [tool()]
    before = copy.deepcopy(tools)
    assert sent("openrouter/google/gemini-2.5-pro", tools=tools)["tools"][0]["function"]["parameters"] == FOR_GEMINI
    assert tools == before


def test_others_get_the_schema_as_it_is() -> None:
    assert sent("openai/gpt-4o")["tools"][0]["function"]["parameters"] == PARAMETERS


@pytest.mark.parametrize("schema", [True, {}, {"enum": [None, True]}, {"type": []}, {"type": ["null"]}])
def test_odd_schemas_stay_schemas(schema: Any) -> None:
    assert isinstance(gemini_schema(schema), type(schema))


@pytest.mark.parametrize(
    ("model", "is_short"),
    [
        ("openai/gpt-4o", True),
        ("gpt-4", True),
        ("azure/gpt-4.1-mini", True),
        ("openai/chatgpt-4o-latest", True),
        ("openai/o1", True),
        ("o3-mini", True),
        ("openrouter/openai/o4-mini", True),
        ("openai/gpt-5", False),
        ("my-proxy/company-gpt-4-turbo", True),
        ("openai/foo1", True),
        ("scripted:/tmp/foo1.json", False),
        ("anthropic/claude-sonnet-4-5", False),
    ],
)
def test_who_needs_short_descriptions(model: str, *, is_short: bool) -> None:
    assert (capabilities_of(LLMConfig(model=model), ModelInfo()).description_limit_chars is not None) == is_short


def test_a_long_description_is_cut_after_a_sentence() -> None:
    described = sent("openai/o3-mini", tools=[tool(description=LONG)])["tools"][0]["function"]["description"]
    assert len(described) <= 1024
    assert described == LONG[: len(described)]
    assert described.endswith("command.")
    assert sent("openai/gpt-5", tools=[tool(description=LONG)])["tools"][0]["function"]["description"] == LONG


@pytest.mark.parametrize(
    ("long", "short"),
    [
        ("short", "short"),
        ("One. Two three", "One."),
        ("one\ntwo three", "one"),
        ("one two three", "one two"),
        ("x" * 20, "x" * 10),
    ],
)
def test_what_has_no_sentence_is_cut_at_a_line_a_word_or_the_limit(long: str, short: str) -> None:
    assert shortened_description(long, limit_chars=10) == short


# --- images -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "changes", "sees"),
    [
        ("openai/gpt-4o", {}, True),
        ("openai/fake", {}, True),
        ("azure_ai/Phi-4", {}, False),
        ("openai/fake", {"vision": False}, False),
        ("azure_ai/Phi-4", {"vision": True}, True),
    ],
)
def test_images_go_to_models_that_may_see_them(model: str, changes: dict[str, Any], *, sees: bool) -> None:
    last = sent(model, messages=WITH_IMAGE, **changes)["messages"][-1]["content"]
    assert last == (WITH_IMAGE[-1]["content"] if sees else f"The picture:\n{IMAGE_NOTE}")


NO_IMAGES = [
    (400, "Invalid content type. image_url is only supported by certain models."),
    (404, "No endpoints found that support image input"),
    (500, "image input is not supported - hint: if this is unexpected, you may need to provide the mmproj"),
    (400, "fake is not a multimodal model"),
    (400, "At most 0 image(s) may be provided in one request."),
    (422, "Failed to deserialize: messages[4]: unknown variant `image_url`, expected `text`"),
]


@pytest.mark.parametrize(("status", "words"), NO_IMAGES)
def test_a_provider_that_refuses_images_is_told_of_them_in_words(status: int, words: str) -> None:
    with FakeProvider(error(status, words), text("ok"), text("ok")) as provider:
        llm = LLM(provider.config(), clock=FakeClock())
        _, told = send(provider, llm=llm, messages=WITH_IMAGE)
        _, later = send(provider, llm=llm, messages=WITH_IMAGE)
    assert [IMAGE_NOTE in str(request.body) for request in provider.requests] == [False, True, True]
    assert [event.type for event in told] == ["warning", "warning"]
    assert later == []


# --- streams ----------------------------------------------------------------------------------------

NO_STREAM = [
    (400, "Your organization must be verified to stream this model."),
    (400, "Unrecognized request argument supplied: stream_options"),
    (422, "body.stream_options: Extra inputs are not permitted"),
    (400, "streaming is not supported"),
]


@pytest.mark.parametrize(("status", "words"), NO_STREAM)
def test_a_provider_that_refuses_to_stream_answers_whole(status: int, words: str) -> None:
    with FakeProvider(error(status, words), text("ok"), text("ok")) as provider:
        llm = LLM(provider.config(stream=True), clock=FakeClock())
        answer, told = send(provider, llm=llm)
        _, later = send(provider, llm=llm)
    assert answer.message.content == "ok"
    assert [request.body.get("stream") for request in provider.requests] == [True, None, None]
    assert "answers come whole" in str(told[-1])
    assert [event.type for event in later] == []


@pytest.mark.parametrize(
    ("status", "words"), [(503, "the event stream is not supported right now"), (400, "Invalid parameter: stream_id")]
)
def test_not_all_that_is_said_of_a_stream_is_a_refusal_to_stream(status: int, words: str) -> None:
    assert kind_of(ValueError(words), status=status) is not error_mapping.STREAM


# --- cache marks ------------------------------------------------------------------------------------

MARK = {"cache_control": {"type": "ephemeral"}}
CLAUDE_SAYS = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "model": "claude-sonnet-4-5",
    "content": [{"type": "text", "text": "ok"}],
    "stop_reason": "end_turn",
    "usage": {"input_tokens": 10, "output_tokens": 5},
}


def asked_of_claude(messages: Sequence[dict[str, Any]], **changes: Any) -> dict[str, Any]:
    with FakeProvider(Reply(json.dumps(CLAUDE_SAYS).encode())) as provider:
        send(provider, model="anthropic/claude-sonnet-4-5", messages=messages, **changes)
    return provider.requests[0].body


def test_claude_caches_the_prompt_and_the_conversation_so_far() -> None:
    body = asked_of_claude(TALK)
    assert body["system"] == [{"type": "text", "text": "You help.", **MARK}]
    assert body["messages"][-1]["content"][0]["content"] == [{"type": "text", "text": "seen", **MARK}]
    assert str(body).count("cache_control") == 2
    assert TALK[0]["content"] == "You help."


def test_a_message_of_calls_alone_puts_no_words_into_claudes_mouth() -> None:
    assert [part["type"] for part in asked_of_claude(TALK)["messages"][1]["content"]] == ["tool_use"]


def test_marks_are_a_setting() -> None:
    assert "cache_control" not in str(asked_of_claude(TALK, prompt_cache=False))
    assert "cache_control" not in str(sent("openai/gpt-4o"))
    assert str(sent("openrouter/anthropic/claude-sonnet-4.5")).count("cache_control") == 2


@pytest.mark.parametrize("content", ["", " \n", None, [], [{"type": "text", "text": ""}]])
def test_nothing_blank_is_marked(content: Any) -> None:
    assert with_cache_marks([{"role": "user", "content": content}]) == [{"role": "user", "content": content}]


def test_the_last_part_is_marked_also_an_image() -> None:
    [marked] = with_cache_marks([WITH_IMAGE[-1]])
    assert marked["content"] == [WITH_IMAGE[-1]["content"][0], IMAGE | MARK]
