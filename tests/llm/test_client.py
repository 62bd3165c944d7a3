"""`LLM` over litellm's real HTTP path, against a server on loopback."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable

import pytest

from ohsandbox.errors import ModelError
from ohsandbox.llm import (
    LLM,
    ChatModel,
    ChatResponse,
    DeltaEvent,
    LLMConfig,
    LLMEvent,
    ModelAuthenticationError,
    WarningEvent,
)
from ohsandbox.testing.provider import FakeClock, FakeProvider, Reply, calls, chunk, error, events, message, text

pytestmark = pytest.mark.usefixtures("each_client")

Ask = Callable[..., ChatResponse]

TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}


def test_text_is_answered(ask: Ask) -> None:
    with FakeProvider(text("Hello.")) as provider:
        response = ask(provider)
    assert response.choices[0].message.content == "Hello."
    assert (response.id, response.model, response.usage.prompt_tokens) == ("chatcmpl-1", "fake", 10)


def test_tool_calls_keep_their_raw_arguments(ask: Ask) -> None:
    with FakeProvider(calls(("look", '{"a":'), ("look", "[]"), ("look", '""'), ("look", '{"x":NaN}'))) as provider:
        response = ask(provider, tools=[TOOL])
    arguments = [call.function.arguments for call in response.message.tool_calls]
    assert arguments == ['{"a":', "[]", '""', '{"x":NaN}']
    assert response.choices[0].finish_reason == "tool_calls"


def test_only_what_was_set_is_sent(ask: Ask) -> None:
    with FakeProvider(text("x")) as provider:
        ask(provider, temperature=None)
    assert provider.requests[0].body == {"model": "fake", "messages": [{"role": "user", "content": "hi"}]}


def test_what_was_set_is_sent(ask: Ask) -> None:
    with FakeProvider(text("x")) as provider:
        ask(provider, tools=[TOOL], top_p=0.5, max_output_tokens=9)
    body = provider.requests[0].body
    assert (body["temperature"], body["top_p"], body["max_tokens"]) == (0.0, 0.5, 9)
    assert (body["tools"], body["tool_choice"]) == ([TOOL], "auto")


def test_fields_of_the_users_own_go_into_the_body(ask: Ask) -> None:
    with FakeProvider(text("x")) as provider:
        ask(provider, extra_body={"metadata": {"trace_id": "t1"}})
    assert provider.requests[0].body["metadata"] == {"trace_id": "t1"}


@pytest.mark.parametrize("model", ["openai/o3-mini", "openai/gpt-5"])
def test_reasoning_models_get_no_temperature(ask: Ask, model: str) -> None:
    with FakeProvider(text("x")) as provider:
        ask(provider, model=model, reasoning_effort="low", max_output_tokens=9)
    body = provider.requests[0].body
    assert "temperature" not in body
    assert (body["reasoning_effort"], body["max_completion_tokens"]) == ("low", 9)


def test_the_callers_messages_are_not_changed(ask: Ask) -> None:
    messages = [{"role": "user", "content": [{"type": "text", "text": "lone \ud800"}]}]
    with FakeProvider(text("x")) as provider:
        ask(provider, messages=messages)
    assert messages == [{"role": "user", "content": [{"type": "text", "text": "lone \ud800"}]}]
    assert "lone \ufffd" in str(provider.requests[0].body)


def test_cost_is_known_for_a_listed_model_only(ask: Ask) -> None:
    with FakeProvider(text("x"), text("x")) as provider:
        assert ask(provider).cost_usd is None
        assert (ask(provider, model="openai/gpt-4o").cost_usd or 0) > 0


def test_cached_tokens_are_counted_and_cheaper(ask: Ask) -> None:
    usage = {"prompt_tokens": 1000, "completion_tokens": 0, "total_tokens": 1000}
    cached = usage | {"prompt_tokens_details": {"cached_tokens": 800}}
    with FakeProvider(text("x", usage=usage), text("x", usage=cached)) as provider:
        full, cheaper = (ask(provider, model="openai/gpt-4o") for _ in range(2))
    assert cheaper.usage.cached_tokens == 800
    assert 0 < (cheaper.cost_usd or 0) < (full.cost_usd or 0)


@pytest.mark.parametrize(
    "reply",
    [
        text("x", choices=[]),
        text("x", choices=None),
        message(None),
        message({"role": "assistant", "content": None}),
        message({"role": "assistant", "content": "  \n", "tool_calls": []}),
        message({"role": "assistant", "content": None, "tool_calls": "no list"}),
    ],
)
def test_an_answer_of_nothing_is_empty(ask: Ask, reply: Reply) -> None:
    with FakeProvider(reply) as provider:
        assert ask(provider).is_empty


def test_content_in_parts_is_joined(ask: Ask) -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "image"}, "b", None]
    with FakeProvider(message({"role": "assistant", "content": parts})) as provider:
        assert ask(provider).message.content == "ab"


@pytest.mark.parametrize("usage", [None, "x", {"prompt_tokens": -5, "completion_tokens": None}, {"prompt_tokens": 1.5}])
def test_usage_that_is_no_count_is_zero(ask: Ask, usage: object) -> None:
    with FakeProvider(text("x", usage=usage)) as provider:
        response = ask(provider, model="openai/gpt-4o")
    assert (response.usage.prompt_tokens, response.usage.completion_tokens, response.cost_usd) == (0, 0, None)


def test_missing_and_repeated_ids_become_unique(ask: Ask) -> None:
    one = {"type": "function", "function": {"name": "look", "arguments": "{}"}}
    sent = [one, one | {"id": "same"}, one | {"id": "same"}, one | {"id": "call_1"}]
    history = [{"role": "user", "content": "x"}, {"role": "assistant", "tool_calls": [one | {"id": "call_2"}]}]
    history.append({"role": "tool", "tool_call_id": "call_2", "content": "seen"})
    with FakeProvider(message({"role": "assistant", "content": None, "tool_calls": sent})) as provider:
        response = ask(provider, messages=history)
    ids = [call.id for call in response.message.tool_calls]
    assert ids == ["call_1", "same", "call_3", "call_4"]


def test_a_call_without_a_name_has_an_empty_one(ask: Ask) -> None:
    broken = {"id": "a", "type": "function", "function": None}
    with FakeProvider(calls((None, "{}")), message({"role": "assistant", "tool_calls": [broken]})) as provider:
        assert ask(provider).message.tool_calls[0].function.name == ""
        assert ask(provider).message.tool_calls[0].function.name == ""


def test_five_megabytes_of_arguments_and_five_hundred_calls_are_read(ask: Ask) -> None:
    big = '{"text": "' + "x" * 5_000_000 + '"}'
    with FakeProvider(calls(("look", big)), calls(*[("look", "{}")] * 500)) as provider:
        assert ask(provider).message.tool_calls[0].function.arguments == big
        assert len({call.id for call in ask(provider).message.tool_calls}) == 500


def test_lone_surrogates_are_made_encodable(ask: Ask) -> None:
    body = rb'{"id":"\ud800","model":"m","choices":[{"finish_reason":"stop","message":{"content":"a\ud800b"}}]}'
    with FakeProvider(Reply(body)) as provider:
        response = ask(provider)
    assert response.message.content == "a\ufffdb"
    assert response.model_dump_json().encode()


def test_an_answer_that_was_cut_by_the_token_limit_says_so(ask: Ask) -> None:
    with FakeProvider(text("x", choices=[{"finish_reason": "length", "message": {"content": "cut"}}])) as provider:
        assert ask(provider).cut == "at the output limit"


def test_a_model_without_tools_is_warned_of_once() -> None:
    seen: list[LLMEvent] = []
    with FakeProvider(text("x"), text("x")) as provider:
        llm = LLM(provider.config())
        for _ in range(2):
            llm.send([{"role": "user", "content": "hi"}], [TOOL], on_event=seen.append)
    [warning] = seen
    assert isinstance(warning, WarningEvent)
    assert "'openai/fake'" in warning.text


def test_a_model_with_tools_is_not_warned_of(ask: Ask) -> None:
    seen: list[LLMEvent] = []
    with FakeProvider(text("x")) as provider:
        ask(provider, tools=[TOOL], on_event=seen.append, model="openai/gpt-4o")
    assert seen == []


def test_the_log_holds_exact_payloads_without_the_key(ask: Ask, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, logger="ohsandbox.llm")
    with FakeProvider(text("the key is sk-canary-0123456789, is it?")) as provider:
        ask(provider, api_key="sk-canary-0123456789", messages=[{"role": "user", "content": "sk-canary-0123456789"}])
    sent, answered = [record.getMessage() for record in caplog.records if record.name == "ohsandbox.llm"]
    assert '{"messages": [{"role": "user", "content": "***"}]}' in sent
    assert "the key is ***, is it?" in answered


def test_the_key_is_in_no_message_repr_or_traceback(ask: Ask, caplog: pytest.LogCaptureFixture) -> None:
    key = f"canary-{123456789:010}"  # not as one word in this file, which a traceback quotes
    caplog.set_level(logging.DEBUG)
    with FakeProvider(error(401, f"wrong key: {key}")) as provider:
        assert key not in repr(provider.config(api_key=key))
        with pytest.raises(ModelAuthenticationError) as caught:
            ask(provider, api_key=key)
    assert provider.requests[0].headers["authorization"] == f"Bearer {key}"
    assert (caught.value.__cause__, caught.value.__context__) == (None, None)
    told = "".join(traceback.TracebackException.from_exception(caught.value, capture_locals=True).format())
    ours = told[told.index("ohsandbox/llm/client.py") :]
    logged = [record.getMessage() for record in caplog.records]
    assert key not in f"{caught.value!r} {ours} {logged}"


def test_no_key_at_all_is_named(clock: FakeClock) -> None:
    with pytest.raises(ModelAuthenticationError, match="OPENAI_API_KEY"):
        LLM(LLMConfig(model="openai/gpt-4o"), clock=clock).send([{"role": "user", "content": "hi"}])


def test_a_server_of_ones_own_needs_no_key(ask: Ask) -> None:
    with FakeProvider(text("x")) as provider:
        ask(provider, api_key=None)
    assert provider.requests[0].headers["authorization"] == "Bearer none"


def test_an_error_of_the_callback_is_not_taken_for_one_of_the_provider(ask: Ask) -> None:
    def fail(_: LLMEvent) -> None:
        raise LookupError("mine")

    with FakeProvider(text("hello"), text("never")) as provider:
        with pytest.raises(LookupError, match="mine"):
            ask(provider, stream=True, on_event=fail)
        assert len(provider.requests) == 1


def test_a_stream_is_told_piece_by_piece(ask: Ask) -> None:
    seen: list[LLMEvent] = []
    with FakeProvider(text("hello")) as provider:
        response = ask(provider, stream=True, on_event=seen.append)
    assert response.message.content == "hello"
    assert seen == [DeltaEvent(text="he"), DeltaEvent(text="llo")]
    assert response.usage.prompt_tokens == 10


def test_a_stream_of_calls_is_put_together(ask: Ask) -> None:
    pieces = [
        {"index": 0, "id": "a", "type": "function", "function": {"name": "look", "arguments": ""}},
        {"index": 0, "function": {"arguments": '{"x"'}},
        {"index": 0, "function": {"arguments": ": 1}"}},
        {"index": 0, "id": "b", "type": "function", "function": {"name": "look", "arguments": "{}"}},
    ]
    reply = events(*(chunk({"tool_calls": [piece]}) for piece in pieces), chunk({}, "tool_calls"))
    with FakeProvider(reply) as provider:
        response = ask(provider, stream=True)
    found = [(call.id, call.function.name, call.function.arguments) for call in response.message.tool_calls]
    assert found == [("a", "look", '{"x": 1}'), ("b", "look", "{}")]


def test_odd_framing_of_a_stream_is_read(ask: Ask) -> None:
    first = 'data: {"id":"1","model":"m",\r\ndata: "choices":[{"index":0,"delta":{"content":"h\u00e9"}}]}\r\n\r\n'
    reply = events(": comment\r\n\r\n", first, chunk({"content": "\U0001f600"}, "stop"), end="\r\n\r\n")
    with FakeProvider(reply) as provider:
        assert ask(provider, stream=True).message.content == "h\u00e9\U0001f600"


def test_every_model_satisfies_the_protocol() -> None:
    model: ChatModel = LLM(LLMConfig(model="openai/gpt-4o"))
    assert (model.name, model.note) == ("openai/gpt-4o", None)
    assert issubclass(ModelAuthenticationError, ModelError)


def test_a_test_cannot_reach_a_provider(clock: FakeClock) -> None:
    llm = LLM(
        LLMConfig(model="openai/gpt-4o", api_key="test", base_url="http://192.0.2.1/v1", num_retries=0), clock=clock
    )
    with pytest.raises(ModelError, match="could not be reached"):
        llm.send([{"role": "user", "content": "hi"}])
