"""`LLM`: a real model, through litellm; `open_model` chooses it or one that needs no key."""

from __future__ import annotations

import logging
import threading
import weakref
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from ohsandbox.errors import ModelError
from ohsandbox.llm import error_mapping
from ohsandbox.llm.adapt_request import adapt_request
from ohsandbox.llm.attempt import Attempt, recorded_attempt
from ohsandbox.llm.capabilities import Capabilities, capabilities_of, capability_warning
from ohsandbox.llm.chat import DeltaEvent, LLMEvent, OnEvent, RetryEvent, WarningEvent
from ohsandbox.llm.error_mapping import Failure, failure
from ohsandbox.llm.errors import ModelCanceledError
from ohsandbox.llm.replay import ReplayLLM
from ohsandbox.llm.response_parsing import call_ids, read_answer, with_cost_of
from ohsandbox.llm.retry import Clock, retrying
from ohsandbox.llm.scripted import ScriptedLLM
from ohsandbox.llm.text import Payload
from ohsandbox.llm.text_calls import CallFilter, TextCalls
from ohsandbox.text import encodable_tree

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Sequence
    from collections.abc import Set as AbstractSet
    from types import ModuleType

    from ohsandbox.llm.chat import ChatModel, ChatResponse, Message, ToolChoice, ToolParam
    from ohsandbox.llm.config import LLMConfig
    from ohsandbox.llm.http_client import BoundedClient
    from ohsandbox.llm.litellm_provider import Answer


logger = logging.getLogger("ohsandbox.llm")


class _Sending(NamedTuple):
    """One `send` under way."""

    canceled: threading.Event
    deadline: float
    emit: OnEvent


class LLM:
    """A model at a provider; may be shared by threads. It satisfies `ChatModel`."""

    note: str | None = None

    def __init__(self, config: LLMConfig, *, clock: Clock | None = None) -> None:
        self.config = config
        self._clock = clock or Clock()
        self._lock = threading.Lock()
        self._http: BoundedClient | None = None
        self._calls: set[threading.Event] = set()
        self._capabilities: Capabilities | None = None
        self._warning: str | None = None

    @property
    def name(self) -> str:
        """The name of the model, as configured."""
        return self.config.model

    @property
    def context_tokens(self) -> int | None:
        """By the settings, or by litellm's list."""
        return self._known_capabilities(_ignore, has_tools=False).context_tokens

    def preload(self) -> None:
        """Import litellm in a thread: 2-4 s that pass while the container starts."""
        threading.Thread(target=_provider, name="ohsandbox-llm-preload", daemon=True).start()

    def cancel(self) -> None:
        """End every `send` under way; see `ChatModel.cancel`.

        A wait ends at once, and so does a request that goes through our client; a request to a provider that litellm
        asks in its own way ends with it. A `send` that has not begun is not affected: who stops a thread calls this
        again until the thread is done.
        """
        with self._lock:
            for canceled in self._calls:
                canceled.set()
            http = self._http
        if http:
            http.cut()

    def send(
        self,
        messages: Sequence[Message],
        tools: Sequence[ToolParam] = (),
        tool_choice: ToolChoice = "auto",
        *,
        on_event: OnEvent | None = None,
    ) -> ChatResponse:
        """The model's next message; see `ChatModel.send`.

        Transient failures are retried (`LLMConfig.num_retries`), each after a RetryEvent. The DeltaEvents of a failed
        attempt are void.

        Raises:
            ModelError: no answer; the subclass of `ohsandbox.llm.errors` says why.
            KeyboardInterrupt: at any moment.
        """
        emit = on_event or _ignore
        request = _request(messages, tools, tool_choice)
        capabilities = self._known_capabilities(emit, has_tools=bool(tools))
        with self._call() as canceled:
            sending = _Sending(canceled, self._clock.now() + self.config.total_timeout_s, emit)
            result = self._send(request, capabilities, sending)
            while isinstance(result, Failure) and capabilities.after(result.kind, self.config):
                capabilities = self._learn(result, emit)
                result = self._send(request, capabilities, sending)
        if isinstance(result, Failure):
            raise result.error
        return result

    def _send(self, request: dict[str, Any], capabilities: Capabilities, sending: _Sending) -> ChatResponse | Failure:
        """Ask as the capabilities say. A model that writes its calls, had to call and did not is asked once more."""
        if capabilities.native_tools:
            return self._answer(adapt_request(request, capabilities), sending, used_ids=call_ids(request["messages"]))
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
        visible = CallFilter(sending.emit)
        result = self._answer(
            adapt_request(text_calls.request(), capabilities),
            sending._replace(emit=visible),
            used_ids=text_calls.used_ids,
        )
        if isinstance(result, Failure):
            return result
        response = text_calls.read(result)
        visible.end(response)
        return response

    def _answer(
        self, request: dict[str, Any], sending: _Sending, *, used_ids: AbstractSet[str]
    ) -> ChatResponse | Failure:
        """The answer to a request as it goes out, with retries."""
        canceled, deadline, emit = sending
        attempts = retrying(self.config, clock=self._clock, deadline=deadline, canceled=canceled, emit=emit)

        def attempt() -> ChatResponse | Failure:
            self._check(canceled)
            result = self._attempt(request, emit)
            self._check(canceled)
            if isinstance(result, Failure):
                return self._too_late() if self._clock.now() >= deadline else result
            return read_answer(result.fields, used_ids=used_ids, cost_usd=result.cost_usd)

        return attempts(attempt)

    def _attempt(self, request: dict[str, Any], emit: OnEvent) -> Answer | Failure:
        """One request. Errors of the callback pass through; those of the provider come back as a Failure."""
        logger.debug("request to %s: %s", self.name, Payload(request, self._secrets()))
        with recorded_attempt() as attempt, closing(self._ask(request)) as pieces:
            while isinstance(piece := self._advance(pieces, attempt), str):
                emit(DeltaEvent(text=piece))
        logger.debug("answer of %s: %s", self.name, Payload(_logged(piece), self._secrets() | attempt.secrets))
        return piece

    def _ask(self, request: dict[str, Any]) -> Generator[str, None, Answer]:
        provider = _provider()
        with self._lock:
            if self._http is None:
                self._http = provider.new_client()
                weakref.finalize(self, self._http.client.close)
            streams = self._capabilities is None or self._capabilities.streams
        config = self.config if streams else self.config.model_copy(update={"stream": False})
        pieces: Generator[str, None, Answer] = provider.ask(config, request, self._http)
        return (yield from pieces)

    def _advance(self, pieces: Generator[str, None, Answer], attempt: Attempt) -> str | Answer | Failure:
        """The next piece of text, or the end. This is where foreign errors stop."""
        try:
            return next(pieces)
        except StopIteration as end:
            answer: Answer = end.value
            return answer
        except ModelError as error:
            return Failure(error_mapping.CLIENT, error)
        except Exception as error:  # noqa: BLE001 - litellm raises its own, openai's, httpx's and plain errors
            return self._failure(error, attempt)

    def _failure(self, error: Exception, attempt: Attempt) -> Failure:
        kind = attempt.refusal or error_mapping.kind_of(error, status=attempt.status, asked=attempt.asked)
        failed = failure(
            kind,
            model=self.name,
            detail=_detail(kind, error, attempt),
            status=attempt.status,
            secrets=self._secrets() | attempt.secrets,
        )
        return failed._replace(retry_after=attempt.retry_after or error_mapping.retry_after_of(error))

    def _too_late(self) -> Failure:
        return failure(
            error_mapping.TIMEOUT, model=self.name, detail=f"`total_timeout_s` is {self.config.total_timeout_s:g}"
        )

    def _secrets(self) -> set[str]:
        return {self.config.api_key.get_secret_value()} if self.config.api_key else set()

    def _check(self, canceled: threading.Event) -> None:
        if canceled.is_set():
            raise ModelCanceledError(f"The request to model {self.name!r} was canceled.")

    @contextmanager
    def _call(self) -> Iterator[threading.Event]:
        """Register a `send` for `cancel`, and cut it off at the end of its time."""
        canceled = threading.Event()
        timer = threading.Timer(self.config.total_timeout_s, self._cut)
        timer.daemon = True
        with self._lock:
            self._calls.add(canceled)
        timer.start()
        try:
            yield canceled
        finally:
            timer.cancel()
            with self._lock:
                self._calls.discard(canceled)

    def _cut(self) -> None:
        if self._http:
            self._http.cut()

    def _known_capabilities(self, emit: OnEvent, *, has_tools: bool) -> Capabilities:
        """Capabilities known by now; a warning about tool calls comes with the first request that has tools."""
        model_info = _provider().model_info(self.config) if self._capabilities is None else None
        with self._lock:
            if self._capabilities is None:
                assert model_info is not None  # noqa: S101 - it was looked up for this
                self._capabilities = capabilities_of(self.config, model_info)
                self._warning = capability_warning(self.config, model_info)
            capabilities, warning = self._capabilities, self._warning if has_tools else None
            self._warning = None if has_tools else self._warning
        if warning:
            emit(WarningEvent(text=warning))
        return capabilities

    def _learn(self, refusal: Failure, emit: OnEvent) -> Capabilities:
        """The capabilities after a refusal; the warning comes once, however many threads see the refusal."""
        with self._lock:
            assert self._capabilities is not None  # noqa: S101 - a request went out
            learned = self._capabilities.after(refusal.kind, self.config)
            self._capabilities = learned or self._capabilities
            capabilities = self._capabilities
        if learned:
            fact = str(refusal.error).removesuffix(refusal.kind.remedy).rstrip()
            emit(WarningEvent(text=f"{fact} From now on its {_INSTEAD[refusal.kind]}."))
        return capabilities


_INSTEAD = {
    error_mapping.TOOLS: "calls are written as text",
    error_mapping.IMAGES: "images are told in words",
    error_mapping.STREAM: "answers come whole",
}


def _request(messages: Sequence[Message], tools: Sequence[ToolParam], tool_choice: ToolChoice) -> dict[str, Any]:
    """A copy that litellm may change and that can be encoded."""
    request: dict[str, Any] = {"messages": encodable_tree(messages)}
    if tools:
        request |= {"tools": encodable_tree(tools), "tool_choice": encodable_tree(tool_choice)}
    return request


def _detail(kind: error_mapping.ErrorKind, error: Exception, attempt: Attempt) -> str:
    """What the message quotes: the provider's words, an unreadable body, or the address of a redirect."""
    if kind is error_mapping.REDIRECT:
        return attempt.location
    if kind is error_mapping.UNREADABLE:
        return attempt.head.decode(errors="replace")
    return "" if attempt.refusal or kind is error_mapping.NO_PROVIDER else str(error)


def _logged(result: Answer | Failure) -> Any:
    return str(result.error) if isinstance(result, Failure) else result.fields


def _provider() -> ModuleType:
    """The module that imports litellm; the first call takes 2-4 s, and concurrent ones wait for it."""
    from ohsandbox.llm import litellm_provider  # noqa: PLC0415 - slow

    return litellm_provider


def _ignore(_: LLMEvent) -> None:
    """For callers who do not listen."""


def open_model(config: LLMConfig) -> ChatModel:
    """The model that `config.model` names: `scripted:NAME`, `scripted:PATH`, `replay:PATH`, or one that litellm knows.

    Raises:
        UsageError: the script or the recording cannot be read.
    """
    kind, _, source = config.model.partition(":")
    if kind == "scripted":
        return ScriptedLLM.load(source or "demo")
    if kind == "replay":
        return ReplayLLM.load(source)
    return LLM(config)
