"""Which fault is which error, and what is retried."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable
from typing import Any

import httpx
import litellm.exceptions
import pytest

from ohsandbox.errors import ModelError
from ohsandbox.llm import (
    LLM,
    ChatResponse,
    ContextWindowError,
    ModelAnswerError,
    ModelAuthenticationError,
    ModelNotFoundError,
    ModelRateLimitedError,
    ModelRequestError,
    ModelUnavailableError,
    RetryEvent,
    error_mapping,
    errors,
)
from ohsandbox.llm.error_mapping import masked_line, redact
from ohsandbox.testing.provider import FakeClock, FakeProvider, Reply, chunk, error, events, text

pytestmark = pytest.mark.usefixtures("each_client")

Ask = Callable[..., ChatResponse]

GIVEN: dict[str, Any] = {
    "message": "words",
    "model": "m",
    "llm_provider": "openai",
    "status_code": 500,
    "response": httpx.Response(400, request=httpx.Request("POST", "http://x")),
    "request": httpx.Request("POST", "http://x"),
    "request_data": {},
    "generated_content": "",
    "is_pre_first_chunk": True,
    "raw_response": "{}",
    "schema": "{}",
    "failures": [],
    "current_cost": 1.0,
    "max_budget": 1.0,
}
LITELLM_ERRORS = [
    cls
    for _, cls in inspect.getmembers(litellm.exceptions, inspect.isclass)
    if issubclass(cls, Exception) and cls.__module__ == "litellm.exceptions"
]


def made(cls: type[Exception]) -> Exception:
    if cls.__name__ == "ModelNotMappedError":
        return cls("words")  # it has the constructor of Exception, which cannot be inspected
    required = [
        name
        for name, parameter in inspect.signature(cls).parameters.items()
        if parameter.default is parameter.empty and parameter.kind is not parameter.VAR_KEYWORD
    ]
    return cls(**{name: GIVEN.get(name, "x") for name in required})


@pytest.mark.parametrize("cls", LITELLM_ERRORS, ids=lambda cls: cls.__name__)
def test_every_error_of_litellm_is_mapped(cls: type[Exception]) -> None:
    assert error_mapping.kind_of(made(cls)) is not error_mapping.CLIENT


@pytest.mark.parametrize(
    "cls", [httpx.ConnectError, httpx.ReadTimeout, httpx.RemoteProtocolError, ConnectionResetError, TimeoutError]
)
def test_lost_connections_are_retried(cls: type[Exception]) -> None:
    assert error_mapping.kind_of(cls("x")).retryable


@pytest.mark.parametrize("text", ["Your default credentials were not found. To set up", "Unable to locate credentials"])
def test_missing_credentials_are_told_at_once(text: str) -> None:
    kind = error_mapping.kind_of(litellm.exceptions.APIConnectionError(text, "vertex_ai", "m"))
    assert (kind.error, kind.retryable) == (errors.ModelAuthenticationError, False)


def test_an_unknown_error_is_not_retried() -> None:
    assert error_mapping.kind_of(KeyError("x")) is error_mapping.CLIENT


def test_the_status_on_the_wire_is_believed_before_the_class() -> None:
    named_by_the_text = litellm.exceptions.BudgetExceededError(1.0, 1.0)
    assert error_mapping.kind_of(named_by_the_text, status=503) is error_mapping.SERVER


@pytest.mark.parametrize(
    ("status", "words", "kind"),
    [
        (400, "", ModelRequestError),
        (400, "This model's maximum context length is 8192 tokens.", ContextWindowError),
        (400, "prompt is too long: 250000 tokens > 200000 maximum", ContextWindowError),
        (400, "Input tokens exceed the configured limit of 272000 tokens.", ContextWindowError),
        (400, "content_policy_violation: rejected by our safety system", ModelRequestError),
        (401, "", ModelAuthenticationError),
        (402, "", ModelAuthenticationError),
        (403, "", ModelAuthenticationError),
        (404, "", ModelNotFoundError),
        (413, "", ContextWindowError),
        (422, "", ModelRequestError),
        (429, "You exceeded your current quota", ModelAuthenticationError),
        (307, "", ModelAnswerError),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_what_would_repeat_itself_is_not_retried(
    ask: Ask, status: int, words: str, kind: type[ModelError], *, stream: bool
) -> None:
    with FakeProvider(error(status, words), text("never")) as provider:
        with pytest.raises(kind, match=f"status {status}"):
            ask(provider, stream=stream)
        assert len(provider.requests) == 1


@pytest.mark.parametrize("status", [408, 409, 429, 500, 502, 503, 504, 529])
@pytest.mark.parametrize("stream", [False, True])
def test_what_may_pass_is_retried_once_a_fault(ask: Ask, clock: FakeClock, status: int, *, stream: bool) -> None:
    with FakeProvider(error(status), error(status), text("ok")) as provider:
        assert ask(provider, stream=stream).message.content == "ok"
        assert len(provider.requests) == 3
    assert len(clock.waits) == 2


@pytest.mark.parametrize(
    "reply",
    [
        Reply(b"<html>proxy</html>", content_type="text/html"),
        Reply(b"<html>proxy</html>"),
        Reply(b""),
        Reply(b"null"),
        Reply(b"[]"),
        Reply(b'{"id": "no choices"}'),
        Reply(b'{"error": {"code": 429, "message": "slow down"}}'),
        Reply(b"[" * 100_000),
        text("hello")._replace(cut_at=20),
        text("hello")._replace(cut_at=0),
    ],
)
def test_an_unreadable_answer_is_asked_for_again(ask: Ask, reply: Reply) -> None:
    with FakeProvider(reply, text("ok")) as provider:
        assert ask(provider).message.content == "ok"


@pytest.mark.parametrize(
    "reply",
    [
        events(chunk({"content": "he"}), done=False),
        events(chunk({"content": "he"})),
        events(chunk({"content": "he"}), chunk({"content": "llo"}, "stop"))._replace(cut_at=150),
        events("data: {zzz\n\n"),
        events(chunk({"content": "he"}), {"error": {"message": "overloaded", "code": 529}}),
        Reply(b"<html>proxy</html>", content_type="text/html"),
    ],
)
def test_a_stream_without_an_end_is_asked_for_again(ask: Ask, reply: Reply) -> None:
    with FakeProvider(reply, text("ok")) as provider:
        assert ask(provider, stream=True).message.content == "ok"


def test_a_cut_stream_never_gives_its_half_of_a_call(ask: Ask) -> None:
    half = {"index": 0, "id": "a", "type": "function", "function": {"name": "rm", "arguments": '{"path": "/"}'}}
    with (
        FakeProvider(*[events(chunk({"tool_calls": [half]}))] * 7) as provider,
        pytest.raises(ModelUnavailableError, match="cut off"),
    ):
        ask(provider, stream=True)


def test_nothing_listening_is_told_as_such(ask: Ask) -> None:
    provider = FakeProvider()
    base_url = provider.base_url
    with provider:
        pass
    with pytest.raises(ModelUnavailableError, match=r"could not be reached.*`base_url`"):
        ask(provider, base_url=base_url, num_retries=0)


def test_silence_is_a_timeout_and_is_retried(ask: Ask) -> None:
    with FakeProvider(text("late")._replace(delay_s=5), text("ok")) as provider:
        assert ask(provider, timeout_s=0.2).message.content == "ok"


def test_a_limit_for_ever_ends_after_six_retries(ask: Ask, clock: FakeClock) -> None:
    seen: list[RetryEvent] = []
    with FakeProvider(*[error(429, "slow")] * 9) as provider:
        with pytest.raises(ModelRateLimitedError) as caught:
            ask(provider, on_event=seen.append)
        assert len(provider.requests) == 7
    assert caught.value.exit_code == 5
    assert [(event.attempt, event.attempts) for event in seen] == [(number, 7) for number in range(1, 7)]
    assert [event.wait_s for event in seen] == clock.waits


def test_an_address_of_this_machine_where_nothing_listens_is_given_up_after_three_attempts(
    ask: Ask, clock: FakeClock
) -> None:
    seen: list[RetryEvent] = []
    with FakeProvider() as gone:
        base_url = gone.base_url
    with FakeProvider() as provider, pytest.raises(ModelUnavailableError) as caught:
        ask(provider, base_url=base_url, on_event=seen.append)
    address = base_url.removeprefix("http://").removesuffix("/v1")
    assert f"could not be reached, since no server listens there ({address}). Start the server" in str(caught.value)
    assert [(event.attempt, event.attempts) for event in seen] == [(1, 3), (2, 3)]
    assert len(clock.waits) == 2


def test_three_limits_with_retry_after_are_waited_for(ask: Ask) -> None:
    seen: list[RetryEvent] = []
    with FakeProvider(*[error(429, "slow", {"Retry-After": "1"})] * 3, text("ok")) as provider:
        assert ask(provider, on_event=seen.append).message.content == "ok"
    assert [(type(event), event.wait_s) for event in seen] == [(RetryEvent, 1.0)] * 3
    assert all("(status 429: slow)" in event.reason for event in seen)


def test_no_attempt_starts_past_the_total_time(ask: Ask, clock: FakeClock) -> None:
    with FakeProvider(*[error(429, "slow", {"Retry-After": "300"})] * 9) as provider:
        with pytest.raises(ModelRateLimitedError):
            ask(provider, total_timeout_s=700)
        assert len(provider.requests) == 3
    assert clock.waits == [300, 300]


def test_the_total_time_cuts_a_request_off() -> None:
    with (
        FakeProvider(text("late")._replace(delay_s=60)) as provider,
        pytest.raises(ModelUnavailableError, match=r"`total_timeout_s` is 0.3"),
    ):
        LLM(provider.config(total_timeout_s=0.3)).send([{"role": "user", "content": "hi"}])


def test_a_name_of_no_provider_names_the_setting(ask: Ask) -> None:
    with FakeProvider() as provider, pytest.raises(ModelNotFoundError, match="`custom_llm_provider`"):
        ask(provider, model="zzz", base_url=None)


def test_the_words_of_a_provider_are_quoted_in_one_short_line(ask: Ask) -> None:
    with (
        FakeProvider(error(400, "a\x1b[31m\nb\u202e" + "x" * 9000)) as provider,
        pytest.raises(ModelRequestError) as caught,
    ):
        ask(provider)
    line = str(caught.value)
    assert line.isprintable()
    assert "(status 400: a [31m b x" in line
    assert len(line) < 600


def test_each_error_is_made_by_some_fault() -> None:
    mapped = {kind.error for kind in vars(error_mapping).values() if isinstance(kind, error_mapping.ErrorKind)}
    theirs = {
        cls
        for cls in vars(errors).values()
        if inspect.isclass(cls) and issubclass(cls, ModelError) and cls is not ModelError
    }
    assert theirs - mapped == {errors.ModelCanceledError, errors.ScriptError}


def test_threads_may_share_a_model() -> None:
    with FakeProvider(*[text("ok")] * 8) as provider:
        llm = LLM(provider.config())
        answers = []
        ask = lambda: answers.append(llm.send([{"role": "user", "content": "hi"}]).message.content)  # noqa: E731
        threads = [threading.Thread(target=ask) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert answers == ["ok"] * 8


# --- quoted words ------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", ["sk-ant-api03-abcdefgh", "xai-abcdefgh1", "AIzaSyabcdefgh", "sk-abc***wxyz12"])
def test_what_looks_like_a_key_is_hidden(key: str) -> None:
    assert redact(f"key {key}, sir", ()) == "key ***, sir"


def test_secrets_are_hidden_before_the_text_is_cut() -> None:
    assert masked_line("x" * 295 + "secret-0123456789", {"secret-0123456789"}) == "x" * 295 + "***"


def test_a_placeholder_is_no_secret() -> None:
    assert redact("a next text", {"x", ""}) == "a next text"
