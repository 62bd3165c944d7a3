"""`LLM`: a real model at a provider; `open_model` chooses it or one that needs no key."""

from __future__ import annotations

import json
import logging
import threading
from contextlib import closing, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, NamedTuple

from ohsandbox.arguments import expect, suggests_names
from ohsandbox.errors import ModelError
from ohsandbox.llm import error_mapping
from ohsandbox.llm.capabilities import Capabilities, adapt_request, capabilities_of, capability_warning
from ohsandbox.llm.chat import DeltaEvent, LLMEvent, OnEvent, RetryEvent, WarningEvent
from ohsandbox.llm.config import LLMConfig
from ohsandbox.llm.error_mapping import Failure, failure, failure_of, redact
from ohsandbox.llm.errors import ModelCanceledError
from ohsandbox.llm.model_list import is_priced, model_entry
from ohsandbox.llm.provider import recorded_attempt
from ohsandbox.llm.response_parsing import call_ids, read_answer, with_cost_of
from ohsandbox.llm.retry import Clock, retrying
from ohsandbox.text import encodable_tree

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Mapping, Sequence
    from collections.abc import Set as AbstractSet

    from ohsandbox.llm.back_off import BackOffMember, BackOffTurn
    from ohsandbox.llm.chat import ChatModel, ChatResponse, Message, ToolChoice, ToolParam
    from ohsandbox.llm.provider import Answer, Attempt, Provider
    from ohsandbox.llm.text_calls import TextCalls


logger = logging.getLogger("ohsandbox.llm")

_INSTEAD = {
    error_mapping.TOOLS: "calls are written as text",
    error_mapping.IMAGES: "images are told in words",
    error_mapping.STREAM: "answers come whole",
}


class _Sending(NamedTuple):
    """One running `send`."""

    canceled: threading.Event
    deadline: float
    emit: OnEvent
    extra_body: Mapping[str, Any]
    """Includes that of the configuration."""


class LLM:
    """A model at a provider; may be shared by threads. It satisfies `ChatModel`."""

    note: str | None = None

    @suggests_names
    def __init__(self, config: LLMConfig, *, clock: Clock | None = None, back_off: BackOffMember | None = None) -> None:
        """Store the settings; this imports and connects nothing. back_off shares waits with other conversations."""
        _check_config(config)
        self._back_off = back_off
        self.config = config
        self._clock = clock or Clock()
        self._lock = threading.Lock()
        self._opened: Provider | None = None
        self._calls: set[threading.Event] = set()
        self._capabilities: Capabilities | None = None
        self._warning: str | None = None
        self._secrets = {config.api_key.get_secret_value()} if config.api_key else set()

    @property
    def name(self) -> str:
        """The name of the model, as configured."""
        return self.config.model

    @property
    def context_tokens(self) -> int | None:
        """The model's context size by the settings or by litellm's list."""
        return self._known_capabilities().context_tokens

    @property
    def has_price(self) -> bool:
        """Whether the cost of answers is known, by the settings or by litellm's list."""
        provider, _, name = self.name.partition("/")
        if self.config.price is not None or (
            self.config.custom_llm_provider is None and is_priced(model_entry(name, provider))
        ):
            return True
        return self._provider().model_info().priced

    def preload(self) -> None:
        """Import the model's client in a thread, while the container starts: 0.1 s, or 2-4 s for litellm."""
        threading.Thread(target=self._provider, name="ohsandbox-llm-preload", daemon=True).start()

    def cancel(self) -> None:
        """End every running `send`; see `ChatModel.cancel`.

        A wait ends at once, and so does a request through our own client; a request that litellm makes through its own
        client continues to its end. A `send` that has not begun is not affected: to stop a thread, call this again
        until the thread is done.
        """
        with self._lock:
            for canceled in self._calls:
                canceled.set()
        self._abort()

    def close(self) -> None:
        """Close idle connections; a later `send` opens others."""
        with self._lock:
            opened, self._opened = self._opened, None
        if opened is not None:
            opened.close()

    def send(
        self,
        messages: Sequence[Message],
        tools: Sequence[ToolParam] = (),
        tool_choice: ToolChoice = "auto",
        *,
        on_event: OnEvent | None = None,
        extra_body: Mapping[str, Any] | None = None,
    ) -> ChatResponse:
        """Return the model's next message; see `ChatModel.send`.

        Without on_event, warnings go to the logger `ohsandbox.llm`. Transient failures are retried
        (`LLMConfig.num_retries`), each after a RetryEvent; the DeltaEvents of a failed attempt are void. extra_body
        holds more fields for the body of this request, such as `{"metadata": {...}}`, beside those of the
        configuration.

        Raises:
            ModelError: no answer; the subclass of `ohsandbox.llm.errors` says why.
            KeyboardInterrupt: Ctrl-C, at any moment.
        """
        emit = on_event or _log_warning
        request: dict[str, Any] = {"messages": encodable_tree(messages)}  # a copy, which litellm may change
        if tools:
            request |= {"tools": encodable_tree(tools), "tool_choice": encodable_tree(tool_choice)}
        capabilities = self._known_capabilities()
        if tools:
            self._warn(emit)
        with self._sending(emit, {**(self.config.extra_body or {}), **(extra_body or {})}) as sending:
            result = self._send(request, capabilities, sending)
            while isinstance(result, Failure) and capabilities.after(result.kind, self.config):
                capabilities = self._learn(result, emit)
                result = self._send(request, capabilities, sending)
        if isinstance(result, Failure):
            raise result.error
        return result

    def _send(self, request: dict[str, Any], capabilities: Capabilities, sending: _Sending) -> ChatResponse | Failure:
        """Ask by the capabilities. A model that writes calls as text and omits a required one is asked once more."""
        if capabilities.native_tools:
            limit, count = capabilities.max_tools, len(request.get("tools", ()))
            if limit is not None and count > limit:
                detail = f"at most {limit}, and {count} are offered"
                return failure(error_mapping.MANY_TOOLS, model=self.name, detail=detail)
            return self._answer(request, capabilities, sending, used_ids=call_ids(request["messages"]))
        from ohsandbox.llm.text_calls import TextCalls  # noqa: PLC0415 - most models have native calls

        text_calls = TextCalls(request)
        first = self._answer_in_text(text_calls, capabilities, sending)
        if isinstance(first, Failure) or (again := text_calls.with_reminder(first)) is None:
            return first
        sending.emit(RetryEvent(attempt=1, wait_s=0.0, reason=f"Model {self.name!r} did not call what it had to."))
        second = self._answer_in_text(again, capabilities, sending)
        return second if isinstance(second, Failure) else with_cost_of(first, second)

    def _answer_in_text(
        self, text_calls: TextCalls, capabilities: Capabilities, sending: _Sending
    ) -> ChatResponse | Failure:
        visible = text_calls.visible_text(sending.emit)
        sending = sending._replace(emit=visible)
        result = self._answer(text_calls.request(), capabilities, sending, used_ids=text_calls.used_ids)
        if isinstance(result, Failure):
            return result
        response = text_calls.read(result)
        visible.end(response)
        return response

    def _answer(
        self, request: dict[str, Any], capabilities: Capabilities, sending: _Sending, *, used_ids: AbstractSet[str]
    ) -> ChatResponse | Failure:
        """Send an adapted request, with retries; return the answer, or the last failure."""
        canceled, deadline, emit, extra_body = sending
        adapted = adapt_request(request, capabilities)

        def attempt(turn: BackOffTurn | None) -> ChatResponse | Failure:
            if turn is not None and (given_up := turn.wait(canceled, deadline=deadline)) is not None:
                return given_up
            self._check(canceled)
            more = {"extra_body": encodable_tree(extra_body)} if extra_body else {}  # a copy, which litellm may change
            result = self._attempt({**adapted, **more}, capabilities, emit)
            self._check(canceled)
            if turn is not None:
                failed = turn.ended(
                    result if isinstance(result, Failure) else None, num_retries=self.config.num_retries
                )
                result = failed or result
            if not isinstance(result, Failure):
                return self._priced(read_answer(result.fields, used_ids=used_ids, cost_usd=result.cost_usd))
            if self._clock.now() < deadline:
                return result
            limit = f"`total_timeout_s` is {self.config.total_timeout_s:g}"
            return failure(error_mapping.TIMEOUT, model=self.name, detail=limit)

        retry = retrying(self.config, clock=self._clock, deadline=deadline, canceled=canceled, emit=emit)
        with nullcontext() if self._back_off is None else self._back_off.turn() as turn:
            return retry(attempt, turn)

    def _priced(self, response: ChatResponse) -> ChatResponse:
        """Return the response with its cost by the price of the settings; unknown if no tokens were reported."""
        price, usage = self.config.price, response.usage
        if price is None:
            return response
        tokens = {"prompt_tokens": usage.prompt_tokens, "completion_tokens": usage.completion_tokens}
        return response.model_copy(update={"cost_usd": price.cost_usd(**tokens) if usage.prompt_tokens else None})

    def _attempt(self, request: dict[str, Any], capabilities: Capabilities, emit: OnEvent) -> Answer | Failure:
        """Make one request. Errors of the callback are raised; those of the provider are returned as a Failure."""
        self._debug("request to %s: %s", request, self._secrets)
        stream = self.config.stream and capabilities.streams
        with recorded_attempt() as attempt, closing(self._provider().ask(request, stream=stream)) as pieces:
            while isinstance(piece := self._advance(pieces, attempt), str):
                emit(DeltaEvent(text=piece))
        shown = str(piece.error) if isinstance(piece, Failure) else piece.fields
        self._debug("answer of %s: %s", shown, self._secrets | attempt.secrets)
        return piece

    def _advance(self, pieces: Generator[str, None, Answer], attempt: Attempt) -> str | Answer | Failure:
        """Return the next piece of text, or the end. Foreign errors become Failures here."""
        try:
            return next(pieces)
        except StopIteration as end:
            answer: Answer = end.value
            return answer
        except ModelError as error:
            return Failure(error_mapping.CLIENT, error)
        except Exception as error:  # noqa: BLE001 - litellm raises its own, openai's, httpx's and plain errors
            return failure_of(error, attempt, model=self.name, secrets=self._secrets)

    def _debug(self, line: str, value: Any, secrets: AbstractSet[str]) -> None:
        """Log value as JSON, with its keys hidden."""
        if logger.isEnabledFor(logging.DEBUG):
            escaped = {json.dumps(secret, ensure_ascii=False)[1:-1] for secret in secrets}
            logger.debug(line, self.name, redact(json.dumps(value, ensure_ascii=False, default=str), secrets | escaped))

    def _check(self, canceled: threading.Event) -> None:
        if canceled.is_set():
            raise ModelCanceledError(f"The request to model {self.name!r} was canceled.")

    @contextmanager
    def _sending(self, emit: OnEvent, extra_body: Mapping[str, Any]) -> Iterator[_Sending]:
        """Register a `send` for `cancel`, and end it when its time is over."""
        canceled = threading.Event()
        timer = threading.Timer(self.config.total_timeout_s, self._abort)
        timer.daemon = True
        with self._lock:
            self._calls.add(canceled)
        deadline = self._clock.now() + self.config.total_timeout_s  # before the timer starts: what it cuts off is late
        timer.start()
        try:
            yield _Sending(canceled, deadline, emit, extra_body)
        finally:
            timer.cancel()
            with self._lock:
                self._calls.discard(canceled)

    def _abort(self) -> None:
        if self._opened:
            self._opened.abort()

    def _provider(self) -> Provider:
        """Return the provider; the first call imports its client, and concurrent ones wait for it."""
        with self._lock:
            self._opened = self._opened or _open_provider(self.config)
            return self._opened

    def _known_capabilities(self) -> Capabilities:
        if self._capabilities is None:
            info = self._provider().model_info()
            with self._lock:
                if self._capabilities is None:
                    self._capabilities = capabilities_of(self.config, info)
                    self._warning = capability_warning(self.config, info)
        return self._capabilities

    def _warn(self, emit: OnEvent) -> None:
        """Emit the model's warning once, with the first request that has tools."""
        with self._lock:
            warning, self._warning = self._warning, None
        if warning:
            emit(WarningEvent(text=warning))

    def _learn(self, refusal: Failure, emit: OnEvent) -> Capabilities:
        """Return the capabilities after a refusal; the warning comes once, however many threads see the refusal."""
        capabilities = self._known_capabilities()
        with self._lock:
            learned = (self._capabilities or capabilities).after(refusal.kind, self.config)
            self._capabilities = capabilities = learned or self._capabilities or capabilities
        if learned:
            fact = str(refusal.error).removesuffix(refusal.kind.remedy).rstrip()
            emit(WarningEvent(text=f"{fact} From now on its {_INSTEAD[refusal.kind]}."))
        return capabilities


def _open_provider(config: LLMConfig) -> Provider:
    from ohsandbox.llm.direct_provider import direct_provider  # noqa: PLC0415 - slow, and one of the two is enough

    if direct := direct_provider(config):
        return direct
    from ohsandbox.llm.litellm_provider import LiteLLMProvider  # noqa: PLC0415 - slow, and one of the two is enough

    return LiteLLMProvider(config)


def _log_warning(event: LLMEvent) -> None:
    """Log a warning for callers without on_event; unconfigured, `logging` prints warnings on stderr."""
    if isinstance(event, WarningEvent):
        logger.warning(event.text)


def _check_config(config: object) -> None:
    model = f"{config!r:.200}" if isinstance(config, str) else "..."
    expect("config", config, LLMConfig, f"Make one: LLMConfig(model={model}).", optional=False)


def open_model(config: LLMConfig) -> ChatModel:
    """Open the model `config.model`: `scripted:NAME`, `scripted:PATH`, `replay:PATH`, or one that litellm knows.

    Raises:
        UsageError: config is not an LLMConfig, or the script or the recording cannot be read.
    """
    _check_config(config)
    kind, _, source = config.model.partition(":")
    if kind == "scripted":
        from ohsandbox.llm.scripted import ScriptedLLM  # noqa: PLC0415 - most conversations ask a provider

        return ScriptedLLM.load(source or "demo")
    if kind == "replay":
        from ohsandbox.llm.scripted import ReplayLLM  # noqa: PLC0415 - most conversations ask a provider

        return ReplayLLM.load(source)
    return LLM(config)
