"""The direct way to a provider against litellm's: the same on the wire, the same answer, the same cost."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import litellm
import pytest

from ohsandbox.llm import (
    LLM,
    ChatResponse,
    ContextWindowError,
    DeltaEvent,
    LLMConfig,
    LLMEvent,
    ModelAnswerError,
    ModelAuthenticationError,
    ModelNotFoundError,
)
from ohsandbox.llm import direct_provider as direct
from ohsandbox.llm.direct_provider import DirectProvider, direct_provider
from ohsandbox.llm.litellm_provider import LiteLLMProvider
from ohsandbox.llm.model_list import cost_usd, model_entry, model_list
from ohsandbox.llm.wire_format import server_events
from ohsandbox.testing.provider import FakeClock, FakeProvider, Reply, Request, calls, chunk, events, text
from tests.llm.talk import IMAGE, TALK, WITH_IMAGE, tool

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ohsandbox.errors import ModelError
    from tests.llm.conftest import Ask

OWN = ["openai/fake", "openai/Qwen/Qwen3-Coder", "openai/deepseek-r1", "openai/claude-sonnet-4-5", "openai/gpt-oss-20b"]
"""Names at servers of one's own."""
ODD = [
    {"role": "user", "content": [IMAGE, {"type": "text", "text": "a"}]},
    {"role": "assistant", "content": None, "tool_calls": TALK[2]["tool_calls"]},
    {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "seen"}]},
    {"role": "assistant", "content": "ok"},
    {"role": "user", "content": "one"},
    {"role": "user", "content": "two"},
]
VARIANTS: dict[str, dict[str, Any]] = {
    "defaults": {},
    "as the provider likes": {"temperature": None},
    "all that can be set": {"temperature": 0.7, "top_p": 0.5, "max_output_tokens": 999, "top_k": 5},
    "stream": {"stream": True},
    "temperature of 1": {"temperature": 1.0},
    "no tools of the provider's": {"native_tool_calling": False},
    "tools that the list denies": {"native_tool_calling": True},
    "fields of one's own": {"extra_body": {"metadata": {"a": 1}, "seed": 3}},
    "less thought": {"reasoning_effort": "low"},
}
THOROUGH = "all that can be set"
"""Asked of every model, the others of one of each kind."""


def listed(provider: str) -> Iterator[str]:
    for name, entry in model_list().items():
        if entry.get("litellm_provider") == provider and entry.get("mode") in {"chat", "responses"}:
            yield name if name.startswith(f"{provider}/") else f"{provider}/{name}"


def direct_models(**changes: Any) -> list[str]:
    models = [*OWN, *listed("openai"), *listed("anthropic")]
    configs = [LLMConfig(model=model, api_key="test", **changes) for model in models]
    return [config.model for config in configs if direct_provider(config) is not None]


def kinds(models: list[str]) -> list[str]:
    """One model for each combination of what the list says of it and of its series."""
    by_kind: dict[Any, str] = {}
    for model in models:
        provider, _, name = model.partition("/")
        flags = {name: value for name, value in model_entry(name, provider).items() if "cost" not in name}
        kind = flags.get("supports_reasoning"), flags.get("default_reasoning_effort"), flags.get("supports_vision")
        series = model if model in OWN else re.sub(r"-(?:mini|nano|[a-z]+|\d{4}.*)$", "", name)
        by_kind.setdefault((*kind, flags.get("supports_sampling_params"), flags.get("max_tokens"), series), model)
    return [*by_kind.values()]


def reply_to(request: Request) -> Reply:
    return calls(("look", {"x": 1}), content="I look.") if "tools" in request.body else text("Done.")


def compared(
    monkeypatch: pytest.MonkeyPatch,
    models: list[str],
    messages: list[dict[str, Any]],
    choice: Any = "auto",
    **changes: Any,
) -> Iterator[tuple[str, Any, Any]]:
    """Of each model what the server got and what came of it, both ways."""
    with FakeProvider(answer=reply_to) as provider:
        for model in models:
            seen: list[Any] = []
            for way in (direct_provider, lambda _: None):
                monkeypatch.setattr(direct, "direct_provider", way)
                told: list[LLMEvent] = []
                llm = LLM(provider.config(model=model, num_retries=0, **changes), clock=FakeClock())
                response: ChatResponse = llm.send(messages, [tool()], choice, on_event=told.append)
                asked = provider.requests[-1]
                headers = {name: asked.headers.get(name) for name in ("authorization", "x-api-key", "content-type")}
                # of a stream litellm tells the name that was asked for in place of the provider's
                hidden = {"model"} if changes.get("stream") or model.startswith("anthropic/") else set()
                hidden |= {"id"} if model.startswith("anthropic/") else set()  # litellm makes its own
                answered = response.model_dump(exclude=hidden)
                seen.append((asked.path, headers, asked.body, answered, told))
            yield model, *seen


@pytest.mark.slow
@pytest.mark.parametrize("name", VARIANTS)
def test_every_model_is_asked_as_litellm_asks_it_and_answers_alike(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    models = direct_models(**VARIANTS[name])
    pairs = list(compared(monkeypatch, models if name == THOROUGH else kinds(models), TALK, **VARIANTS[name]))
    assert len(pairs) >= len(OWN)
    for model, ours, theirs in pairs:
        assert (model, ours) == (model, theirs)


@pytest.mark.slow
@pytest.mark.parametrize("messages", [WITH_IMAGE, [*TALK, *ODD], ODD[:1]])
def test_every_kind_of_message_is_sent_as_litellm_sends_it(
    monkeypatch: pytest.MonkeyPatch, messages: list[dict[str, Any]]
) -> None:
    for model, ours, theirs in compared(monkeypatch, kinds(direct_models()), messages):
        assert (model, ours) == (model, theirs)


@pytest.mark.parametrize("choice", ["required", "none", {"type": "function", "function": {"name": "look"}}])
def test_every_choice_of_tools_is_sent_as_litellm_sends_it(monkeypatch: pytest.MonkeyPatch, choice: Any) -> None:
    models = [OWN[0], "openai/gpt-4o", "openai/gpt-5", "anthropic/claude-sonnet-4-5"]
    for model, ours, theirs in compared(monkeypatch, models, TALK, choice):
        assert (model, ours) == (model, theirs)


def test_an_address_of_an_image_is_sent_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    image = {"type": "image_url", "image_url": {"url": "http://127.0.0.1/picture"}}
    [(_, ours, theirs)] = compared(monkeypatch, OWN[:1], [{"role": "user", "content": [image]}])
    assert ours == theirs


def test_the_models_that_most_people_use_are_asked_directly() -> None:
    found = direct_models()
    for model in (*OWN, "openai/gpt-4o", "openai/gpt-5", "anthropic/claude-sonnet-4-5"):
        assert model in found
    assert isinstance(direct_provider(LLMConfig(model="gpt-4o")), DirectProvider)
    assert isinstance(direct_provider(LLMConfig(model="a/b", custom_llm_provider="openai")), DirectProvider)


@pytest.mark.parametrize(
    "config",
    [
        {"model": "gemini/gemini-2.5-pro"},
        {"model": "openai/gpt-5-codex"},
        {"model": "openai/o3"},
        {"model": "openai/gpt-7-of-tomorrow"},
        {"model": "openai/gpt-5.5", "reasoning_effort": "low"},
        {"model": "gpt-4o", "base_url": "http://localhost/v1"},
        {"model": "openai/fake", "api_version": "1"},
        {"model": "openai/fake", "model_client": "litellm"},
        {"model": "unheard-of"},
    ],
)
def test_what_litellm_knows_better_goes_through_litellm(config: dict[str, Any]) -> None:
    assert direct_provider(LLMConfig(**config)) is None


@pytest.mark.parametrize("variable", ["OPENAI_ORG_ID", "SSL_VERIFY", "USE_LITELLM_PROXY"])
def test_variables_that_only_litellm_obeys_choose_it(monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    monkeypatch.setenv(variable, "x")
    assert direct_provider(LLMConfig(model="openai/fake")) is None


USAGES: list[dict[str, Any]] = [
    {"prompt_tokens": 1000, "completion_tokens": 100},
    {"prompt_tokens": 1000, "completion_tokens": 100, "prompt_tokens_details": {"cached_tokens": 800}},
    {"prompt_tokens": 300_000, "completion_tokens": 100, "prompt_tokens_details": {"cached_tokens": 250_000}},
    {"prompt_tokens": 1000, "completion_tokens": 100, "completion_tokens_details": {"reasoning_tokens": 60}},
    {
        "prompt_tokens": 1000, "completion_tokens": 9,
        "cache_creation_input_tokens": 300, "cache_read_input_tokens": 500,
        "prompt_tokens_details": {"cached_tokens": 500, "cache_creation_tokens": 300},
    },
]  # fmt: skip


@pytest.mark.parametrize("provider", ["openai", "anthropic"])
@pytest.mark.parametrize("usage", USAGES)
def test_cost_is_what_litellm_says(provider: str, usage: Mapping[str, Any]) -> None:
    for model in listed(provider):
        name = model.removeprefix(f"{provider}/")
        entry, ours = model_entry(name, provider), cost_usd(model_entry(name, provider), usage)
        if entry["mode"] == "chat" and ours is not None:
            spent = litellm.cost_per_token(name, custom_llm_provider=provider, usage_object=litellm.Usage(**usage))
            assert ours == pytest.approx(sum(spent)), name


def test_what_the_list_says_is_what_litellm_says() -> None:
    for model in direct_models():
        config = LLMConfig(model=model, api_key="test")
        found = direct_provider(config)
        assert found is not None
        assert (model, found.model_info()) == (model, LiteLLMProvider(config).model_info())


def test_a_request_that_the_direct_way_does_not_cover_goes_through_litellm() -> None:
    parameters = {"type": "object", "properties": {"x": {"type": "string", "pattern": "(?<no>python"}}}
    with FakeProvider(text("ok")) as provider:
        LLM(provider.config()).send(TALK, [tool(parameters=parameters)])
    assert provider.requests[0].headers["user-agent"].startswith("OpenAI/")
    assert "pattern" not in str(provider.requests[0].body)


def test_a_direct_request_imports_no_litellm() -> None:
    code = """
import sys
from ohsandbox.llm import LLM
from ohsandbox.testing.provider import FakeProvider, text
with FakeProvider(text("ok")) as provider:
    llm = LLM(provider.config(model="openai/gpt-4o"))
    print(llm.send([{"role": "user", "content": "hi"}]).cost_usd > 0, llm.has_price, llm.context_tokens > 0)
print([name for name in ("litellm", "openai") if name in sys.modules])
"""
    told = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=60).stdout
    assert told.splitlines() == ["True True True", "[]"]


# --- Anthropic's API --------------------------------------------------------------------------------------------------

CLAUDE = "anthropic/claude-sonnet-4-5"


def anthropics(**changes: Any) -> Reply:
    answer = {
        "id": "msg_1", "type": "message", "role": "assistant", "model": "claude-of-today",
        "content": [{"type": "thinking", "thinking": "hm", "signature": "x"}, {"type": "text", "text": "I look."}],
        "stop_reason": "end_turn", "usage": {"input_tokens": 10, "output_tokens": 5},
    }  # fmt: skip
    return Reply(json.dumps(answer | changes).encode())


def stream_of(*told: dict[str, Any]) -> Reply:
    return events(*(f"event: {one['type']}\ndata: {json.dumps(one)}\n\n" for one in told), done=False)


START = {"type": "message_start", "message": {"id": "msg_1", "model": "m", "usage": {"input_tokens": 7}}}
TEXT = {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "he"}}
BLOCK = {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}
END = {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 3}}


def test_claudes_thoughts_are_left_out_and_its_cache_is_counted(ask: Ask) -> None:
    usage = {"input_tokens": 10, "output_tokens": 5, "cache_read_input_tokens": 100, "cache_creation_input_tokens": 50}
    with FakeProvider(anthropics(usage=usage)) as provider:
        response = ask(provider, model=CLAUDE)
    assert (response.message.content, response.id, response.model) == ("I look.", "msg_1", "claude-of-today")
    assert (response.usage.prompt_tokens, response.usage.cached_tokens) == (160, 100)
    assert response.cost_usd == pytest.approx((10 * 3 + 100 * 0.3 + 50 * 3.75 + 5 * 15) / 1e6)


@pytest.mark.parametrize(
    ("reason", "finish"), [("max_tokens", "length"), ("refusal", "content_filter"), ("stop_sequence", "stop")]
)
def test_claudes_reasons_to_stop_are_told_in_openais_words(ask: Ask, reason: str, finish: str) -> None:
    with FakeProvider(anthropics(stop_reason=reason)) as provider:
        assert ask(provider, model=CLAUDE).choices[0].finish_reason == finish


def test_a_streamed_call_without_arguments_has_an_empty_object(ask: Ask) -> None:
    use = {"type": "tool_use", "id": "t1", "name": "look", "input": {}}
    block = {"type": "content_block_start", "index": 0, "content_block": use}
    with FakeProvider(stream_of(START, block, {"type": "content_block_stop", "index": 0}, END)) as provider:
        response = ask(provider, model=CLAUDE, stream=True)
    assert response.message.tool_calls[0].function.arguments == "{}"
    assert (response.usage.prompt_tokens, response.usage.completion_tokens) == (7, 3)


@pytest.mark.parametrize(
    "broken",
    [
        Reply(b"<html>proxy</html>"),
        Reply(b"null"),
        anthropics(content="text"),
        Reply(b'{"type": "error", "error": {"type": "overloaded_error", "message": "busy"}}', 529),
    ],
)
def test_what_claude_does_not_answer_is_asked_for_again(ask: Ask, broken: Reply) -> None:
    with FakeProvider(broken, anthropics()) as provider:
        assert ask(provider, model=CLAUDE).message.content == "I look."


@pytest.mark.parametrize(
    "broken",
    [
        stream_of(START, BLOCK, TEXT),
        stream_of(START, BLOCK, TEXT, {"type": "error", "error": {"type": "overloaded_error", "message": "busy"}}),
        stream_of(START, BLOCK, TEXT, END)._replace(cut_at=200),
        Reply(b"<html>proxy</html>", content_type="text/html"),
    ],
)
def test_a_stream_of_claudes_without_an_end_is_asked_for_again(ask: Ask, broken: Reply) -> None:
    with FakeProvider(broken, text("ok")) as provider:
        assert ask(provider, model=CLAUDE, stream=True).message.content == "ok"


@pytest.mark.parametrize(
    ("status", "words", "kind"),
    [
        (400, "prompt is too long: 250000 tokens > 200000 maximum", ContextWindowError),
        (400, "Your credit balance is too low", ModelAuthenticationError),
        (401, "invalid x-api-key", ModelAuthenticationError),
        (404, "model: claude-x", ModelNotFoundError),
    ],
)
@pytest.mark.usefixtures("each_client")
def test_claudes_refusals_are_told_apart(ask: Ask, status: int, words: str, kind: type[ModelError]) -> None:
    refused = {"type": "error", "error": {"type": "invalid_request_error", "message": words}}
    with FakeProvider(Reply(json.dumps(refused).encode(), status)) as provider, pytest.raises(kind) as caught:
        ask(provider, model=CLAUDE)
    assert words in str(caught.value)


# --- streams ----------------------------------------------------------------------------------------------------------


def test_a_stream_of_calls_without_end_is_refused(clock: FakeClock) -> None:
    many = [chunk({"tool_calls": [{"index": index, "id": f"call_{index}"}]}) for index in range(1001)]
    with FakeProvider() as provider:
        for _ in range(3):
            provider.add(events(*many, chunk({}, "tool_calls")))
        with pytest.raises(ModelAnswerError, match="cannot be read"):
            LLM(provider.config(stream=True, num_retries=2), clock=clock).send([{"role": "user", "content": "hi"}])


@pytest.mark.parametrize("size", [1, 2, 3, 1000])
def test_events_are_read_wherever_the_network_cuts_them(size: int) -> None:
    raw = 'data: {"a":\r\ndata: 1}\r\n\r\n: comment\n\ndata:"\u2028\u00e9"\r\rid: 7\ndata: last'.encode()
    pieces = [raw[at : at + size] for at in range(0, len(raw), size)]
    assert list(server_events(pieces)) == ['{"a":\n1}', '"\u2028\u00e9"', "last"]


@pytest.mark.parametrize("model", ["openai/fake", CLAUDE])
def test_an_answer_as_a_whole_is_read_where_a_stream_was_asked_for(ask: Ask, model: str) -> None:
    whole = anthropics() if model == CLAUDE else text("I look.")._replace(message=None)
    heard: list[LLMEvent] = []
    with FakeProvider(whole) as provider:
        assert ask(provider, model=model, stream=True, on_event=heard.append).message.content == "I look."
        assert len(provider.requests) == 1
    assert [event.text for event in heard if isinstance(event, DeltaEvent)] == ["I look."]


@pytest.mark.parametrize(("ends", "connections"), [(True, 1), (False, 3)])
def test_a_connection_is_used_again_unless_its_stream_goes_on_after_the_end(*, ends: bool, connections: int) -> None:
    never = threading.Event()
    opened: list[object] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def setup(self) -> None:
            super().setup()
            opened.append(self.connection)

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            data = events(chunk({"content": "hi"}), chunk({}, "stop")).body
            self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
            if not ends:
                never.wait(60)
            self.wfile.write(b"0\r\n\r\n")

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        llm = LLM(LLMConfig(model="openai/fake", base_url=f"http://127.0.0.1:{server.server_port}", stream=True))
        assert [llm.send(TALK).message.content for _ in range(3)] == ["hi"] * 3
        llm.close()
        never.set()
        server.shutdown()
    assert len(opened) == connections
