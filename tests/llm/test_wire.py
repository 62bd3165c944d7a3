"""What our HTTP client does and does not do."""

import gzip

import pytest

from ohsandbox.errors import ModelError
from ohsandbox.llm import LLM, ModelAnswerError
from ohsandbox.llm.gateway import _HTTP_PROVIDERS
from ohsandbox.testing.provider import FakeProvider, Reply, events, text

MIB = 1024 * 1024
HI = [{"role": "user", "content": "hi"}]


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_is_not_followed(ask, status):
    with FakeProvider(text("stolen")) as thief, FakeProvider() as provider:
        provider.add(Reply(b"", status, {"Location": f"{thief.base_url}/chat/completions"}))
        with pytest.raises(ModelAnswerError, match=f"redirect.*{thief.base_url}"):
            ask(provider)
    assert thief.requests == []


@pytest.mark.parametrize("provider_name", sorted(_HTTP_PROVIDERS | {"openai", "azure"}))
@pytest.mark.parametrize("stream", [False, True])
def test_every_listed_provider_is_asked_by_our_client(clock, provider_name, stream):
    with FakeProvider(text("stolen")) as thief, FakeProvider() as provider:
        provider.add(Reply(b"", 307, {"Location": f"{thief.base_url}/x"}))
        config = provider.config(model=f"{provider_name}/some-model", api_version="2024-06-01", stream=stream)
        with pytest.raises(ModelAnswerError, match="redirect"):
            LLM(config, clock=clock).send(HI)
    assert thief.requests == []
    assert provider.requests[0].headers["accept-encoding"] == "identity"


def test_a_body_over_the_limit_is_refused(ask):
    with FakeProvider(Reply(b" " * MIB, repeat=33)) as provider:
        with pytest.raises(ModelAnswerError, match="32 MiB"):
            ask(provider)
        assert len(provider.requests) == 1


def test_an_error_page_over_the_limit_is_refused(ask):
    with FakeProvider(Reply(b" " * MIB, 500, repeat=33)) as provider, pytest.raises(ModelAnswerError, match="32 MiB"):
        ask(provider)


def test_a_stream_over_the_limit_is_refused(ask):
    endless = events(done=False)._replace(body=b": " + b"x" * (MIB - 4) + b"\n\n", repeat=129)
    with FakeProvider(endless) as provider, pytest.raises(ModelAnswerError, match="128 MiB"):
        ask(provider, stream=True)


def test_a_gzip_bomb_is_refused(ask):
    bomb = gzip.compress(b" " * 64 * MIB)
    assert len(bomb) < MIB
    with FakeProvider(Reply(bomb, headers={"Content-Encoding": "gzip"})) as provider:
        with pytest.raises(ModelAnswerError, match="32 MiB"):
            ask(provider)


def test_gzip_that_nobody_asked_for_is_read(ask):
    reply = text("hello")
    packed = Reply(gzip.compress(reply.body), headers={"Content-Encoding": "gzip"})
    with FakeProvider(packed) as provider:
        assert ask(provider).message.content == "hello"


def test_broken_gzip_is_asked_for_again(ask):
    with FakeProvider(Reply(b"no gzip", headers={"Content-Encoding": "gzip"}), text("ok")) as provider:
        assert ask(provider).message.content == "ok"


def test_other_compression_is_refused(ask):
    with FakeProvider(Reply(b"x", headers={"Content-Encoding": "br"})) as provider:
        with pytest.raises(ModelError, match="compression"):
            ask(provider)
