"""What our HTTP client does and does not do."""

from __future__ import annotations

import gzip
import json
import shutil
import ssl
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, ClassVar

import certifi
import pytest

from ohsandbox.errors import ModelError
from ohsandbox.llm import LLM, ChatResponse, LLMConfig, ModelAnswerError
from ohsandbox.llm.http_client import BoundedClient
from ohsandbox.llm.litellm_provider import _HTTP_PROVIDERS
from ohsandbox.testing.provider import FakeClock, FakeProvider, Reply, calls, events, text

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.usefixtures("each_client")

Ask = Callable[..., ChatResponse]

MIB = 1024 * 1024
HI = [{"role": "user", "content": "hi"}]


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_is_not_followed(ask: Ask, status: int) -> None:
    with FakeProvider(text("stolen")) as thief, FakeProvider() as provider:
        provider.add(Reply(b"", status, {"Location": f"{thief.base_url}/chat/completions"}))
        with pytest.raises(ModelAnswerError, match=f"redirect.*{thief.base_url}"):
            ask(provider)
    assert thief.requests == []


@pytest.mark.parametrize("provider_name", sorted(_HTTP_PROVIDERS | {"openai", "azure"}))
@pytest.mark.parametrize("stream", [False, True])
def test_every_listed_provider_is_asked_by_our_client(clock: FakeClock, provider_name: str, *, stream: bool) -> None:
    with FakeProvider(text("stolen")) as thief, FakeProvider() as provider:
        provider.add(Reply(b"", 307, {"Location": f"{thief.base_url}/x"}))
        config = provider.config(model=f"{provider_name}/some-model", api_version="2024-06-01", stream=stream)
        with pytest.raises(ModelAnswerError, match=r"redirect"):
            LLM(config, clock=clock).send(HI)
    assert thief.requests == []
    assert provider.requests[0].headers["accept-encoding"] == "identity"


def test_certificates_are_loaded_once_for_each_value_of_the_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    loaded: list[str] = []
    load = ssl.SSLContext.load_verify_locations

    def noted(self: ssl.SSLContext, cafile: str, *rest: Any) -> None:
        loaded.append(cafile)
        load(self, cafile, *rest)

    monkeypatch.setattr(ssl.SSLContext, "load_verify_locations", noted)
    bundle = str(shutil.copy(certifi.where(), tmp_path / "certificates.pem"))
    for name in ("SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SSL_CERT_FILE", bundle)
    for _ in range(2):
        client = BoundedClient()
        client.prepare("https://api.example.org")
        client.client.close()
    BoundedClient().prepare("http://api.example.org")
    assert loaded == [bundle]


def test_a_body_over_the_limit_is_refused(ask: Ask) -> None:
    with FakeProvider(Reply(b" " * MIB, repeat=33)) as provider:
        with pytest.raises(ModelAnswerError, match="32 MiB"):
            ask(provider)
        assert len(provider.requests) == 1


def test_an_answer_of_very_many_values_is_refused_before_it_is_parsed(ask: Ask) -> None:
    calls = b'{"choices":[{"message":{"tool_calls":[' + b"{}," * 300_001 + b"{}]}}]}"
    with FakeProvider(Reply(calls)) as provider, pytest.raises(ModelAnswerError, match="300,000 values"):
        ask(provider)


def test_of_very_many_calls_the_first_are_taken(ask: Ask) -> None:
    call = b'{"id":"c","function":{"name":"f","arguments":"{}"}},'
    answer = b'{"choices":[{"message":{"tool_calls":[' + call * 1500 + call[:-1] + b"]}}]}"
    with FakeProvider(Reply(answer)) as provider:
        assert len(ask(provider).message.tool_calls or ()) == 1000


def test_an_error_page_over_the_limit_is_refused(ask: Ask) -> None:
    with FakeProvider(Reply(b" " * MIB, 500, repeat=33)) as provider, pytest.raises(ModelAnswerError, match="32 MiB"):
        ask(provider)


@pytest.mark.slow
def test_a_stream_over_the_limit_is_refused(ask: Ask) -> None:
    endless = events(done=False)._replace(body=b": " + b"x" * (MIB - 4) + b"\n\n", repeat=129)
    with FakeProvider(endless) as provider, pytest.raises(ModelAnswerError, match="128 MiB"):
        ask(provider, stream=True)


def test_a_gzip_bomb_is_refused(ask: Ask) -> None:
    bomb = gzip.compress(b" " * 64 * MIB)
    assert len(bomb) < MIB
    with (
        FakeProvider(Reply(bomb, headers={"Content-Encoding": "gzip"})) as provider,
        pytest.raises(ModelAnswerError, match="32 MiB"),
    ):
        ask(provider)


def test_what_follows_compressed_data_is_not_kept(ask: Ask) -> None:
    packed = gzip.compress(text("hello").body) + b"z" * 40 * MIB
    with FakeProvider(Reply(packed, headers={"Content-Encoding": "gzip"})) as provider:
        assert ask(provider).message.content == "hello"
    nothing = b"\x78\x01" + b"\x00\x00\x00\xff\xff" * (7 * MIB)  # empty blocks
    refused = Reply(nothing, headers={"Content-Encoding": "deflate"})
    with FakeProvider(refused) as provider, pytest.raises(ModelAnswerError, match="32 MiB"):
        ask(provider)


def test_gzip_that_nobody_asked_for_is_read(ask: Ask) -> None:
    reply = text("hello")
    packed = Reply(gzip.compress(reply.body), headers={"Content-Encoding": "gzip"})
    with FakeProvider(packed) as provider:
        assert ask(provider).message.content == "hello"


def test_broken_gzip_is_asked_for_again(ask: Ask) -> None:
    with FakeProvider(Reply(b"no gzip", headers={"Content-Encoding": "gzip"}), text("ok")) as provider:
        assert ask(provider).message.content == "ok"


def test_other_compression_is_refused(ask: Ask) -> None:
    with (
        FakeProvider(Reply(b"x", headers={"Content-Encoding": "br"})) as provider,
        pytest.raises(ModelError, match="compression"),
    ):
        ask(provider)


def test_an_answer_in_another_providers_format_is_read(ask: Ask) -> None:
    call = {"type": "tool_use", "id": "t1", "name": "look", "input": {"x": 1}}
    answer = {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "claude-sonnet-4-5",
        "content": [{"type": "text", "text": "I look."}, call],
        "stop_reason": "tool_use",
        "usage": {"input_tokens": 10, "output_tokens": 5, "cache_read_input_tokens": 100},
    }
    with FakeProvider(Reply(json.dumps(answer).encode())) as provider:
        response = ask(provider, model="anthropic/claude-sonnet-4-5")
    assert (response.message.content, response.message.tool_calls[0].id) == ("I look.", "t1")
    assert (response.usage.prompt_tokens, response.usage.cached_tokens) == (110, 100)
    assert provider.requests[0].headers["x-api-key"] == "test-key-of-no-value"


@pytest.mark.parametrize("provider_name", ["openai", "deepseek", "mistral", "openrouter", "hosted_vllm", "xai"])
@pytest.mark.parametrize("stream", [False, True])
def test_both_of_litellms_ways_to_ask_answer_alike(ask: Ask, provider_name: str, *, stream: bool) -> None:
    with FakeProvider(calls(("look", {"x": 1}), content="I look.")) as provider:
        response = ask(provider, model=f"{provider_name}/some-model", stream=stream)
    assert response.message.content == "I look."
    assert response.message.tool_calls[0].function.arguments == '{"x": 1}'


def test_json_lines_are_a_stream(ask: Ask) -> None:
    line = {"model": "x", "message": {"role": "assistant", "content": "hi"}, "done": False}
    last = line | {"message": {"role": "assistant", "content": ""}, "done": True, "done_reason": "stop"}
    body = f"{json.dumps(line)}\n{json.dumps(last)}\n".encode()
    spare = 4  # litellm looks the model up at the same server, from a thread of its own
    with FakeProvider(*[Reply(body, content_type="application/x-ndjson")] * spare) as provider:
        assert ask(provider, model="ollama_chat/x", stream=True).message.content == "hi"


class _KeepAlive(BaseHTTPRequestHandler):
    """Answers on one connection for as long as the client keeps it."""

    protocol_version = "HTTP/1.1"
    ports: ClassVar[list[int]] = []

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.ports.append(self.client_address[1])
        body = text("ok").body
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def test_a_connection_is_used_again() -> None:
    _KeepAlive.ports.clear()
    with ThreadingHTTPServer(("127.0.0.1", 0), _KeepAlive) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        llm = LLM(LLMConfig(model="openai/fake", base_url=f"http://127.0.0.1:{server.server_port}/v1"))
        for _ in range(3):
            assert llm.send(HI).message.content == "ok"
        llm.close()
        server.shutdown()
    assert len(set(_KeepAlive.ports)) == 1
