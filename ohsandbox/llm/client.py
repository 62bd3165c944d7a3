"""`LLM`: a real model, through litellm."""

from __future__ import annotations

import logging
import threading
import weakref
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from ohsandbox.errors import ModelError
from ohsandbox.llm import faults
from ohsandbox.llm.errors import ModelCanceledError
from ohsandbox.llm.events import DeltaEvent, LLMEvent, OnEvent, RetryEvent, WarningEvent
from ohsandbox.llm.exchange import Exchange, recording
from ohsandbox.llm.faults import Fault, fault
from ohsandbox.llm.fit import fit
from ohsandbox.llm.payload import Payload
from ohsandbox.llm.reading import call_ids, read_answer, with_cost_of
from ohsandbox.llm.retry import Clock, retrying
from ohsandbox.llm.text import encodable_tree
from ohsandbox.llm.textcalls import TextCalls, VisibleText
from ohsandbox.llm.traits import Traits, doubt_of, traits_of

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Sequence
    from collections.abc import Set as AbstractSet
    from types import ModuleType

    from ohsandbox.llm.config import LLMConfig
    from ohsandbox.llm.gateway import Answer
    from ohsandbox.llm.model import Message, ToolChoice, ToolParam
    from ohsandbox.llm.response import ChatResponse
    from ohsandbox.llm.wire import Guard

logger = logging.getLogger("ohsandbox.llm")


class _Sending(NamedTuple):
    """One `send` under way."""

    canceled: threading.Event
    deadline: float
    tell: OnEvent


class LLM:
    """A model at a provider; may be shared by threads. It satisfies `ChatModel`."""

    note: str | None = None

    def __init__(self, config: LLMConfig, *, clock: Clock | None = None) -> None:
        self.config = config
        self._clock = clock or Clock()
        self._lock = threading.Lock()
        self._guard: Guard | None = None
        self._calls: set[threading.Event] = set()
        self._traits: Traits | None = None
        self._doubt: str | None = None

    @property
    def name(self) -> str:
        """The name of the model, as configured."""
        return self.config.model

    @property
    def context_tokens(self) -> int | None:
        """By the settings, or by litellm's list."""
        return self._known_traits(_ignore, has_tools=False).context_tokens

    def preload(self) -> None:
        """Import litellm in a thread: 2-4 s that pass while the container starts."""
        threading.Thread(target=_gateway, name="ohsandbox-llm-preload", daemon=True).start()

    def cancel(self) -> None:
        """End every `send` under way; see `ChatModel.cancel`.

        A wait ends at once, and so does a request that goes through our client; a request to a provider that litellm
        asks in its own way ends with it. A `send` that has not begun is not affected: who stops a thread calls this
        again until the thread is done.
        """
        with self._lock:
            for canceled in self._calls:
                canceled.set()
            guard = self._guard
        if guard:
            guard.cut()

    def send(
        self,
        messages: Sequence[Message],
        tools: Sequence[ToolParam] = (),
        tool_choice: ToolChoice = "auto",
        *,
        on_event: OnEvent | None = None,
    ) -> ChatResponse:
        """The model's next message; see `ChatModel.send`.

        Faults that may pass are retried (`LLMConfig.num_retries`), each after a RetryEvent. What DeltaEvents told of a
        failed attempt is void.

        Raises:
            ModelError: by its subclasses of `ohsandbox.llm.errors`, which say why there is no answer.
            KeyboardInterrupt: at any moment.
        """
        tell = on_event or _ignore
        request = _request(messages, tools, tool_choice)
        traits = self._known_traits(tell, has_tools=bool(tools))
        with self._call() as canceled:
            sending = _Sending(canceled, self._clock.now() + self.config.total_timeout_s, tell)
            result = self._send(request, traits, sending)
            while isinstance(result, Fault) and traits.after(result.kind, self.config):
                traits = self._learn(result, tell)
                result = self._send(request, traits, sending)
        if isinstance(result, Fault):
            raise result.error
        return result

    def _send(self, request: dict[str, Any], traits: Traits, sending: _Sending) -> ChatResponse | Fault:
        """Ask as the traits say. A model that writes its calls, had to call and did not is asked once more."""
        if traits.native_tools:
            return self._answer(fit(request, traits), sending, used_ids=call_ids(request["messages"]))
        talk = TextCalls(request)
        first = self._answer_in_text(talk, traits, sending)
        if isinstance(first, Fault) or (again := talk.reminded(first)) is None:
            return first
        sending.tell(RetryEvent(attempt=1, wait_s=0.0, reason=f"Model {self.name!r} did not call what it had to."))
        second = self._answer_in_text(again, traits, sending)
        return second if isinstance(second, Fault) else with_cost_of(first, second)

    def _answer_in_text(self, talk: TextCalls, traits: Traits, sending: _Sending) -> ChatResponse | Fault:
        visible = VisibleText(sending.tell)
        result = self._answer(fit(talk.request(), traits), sending._replace(tell=visible), used_ids=talk.used_ids)
        if isinstance(result, Fault):
            return result
        response = talk.read(result)
        visible.end(response)
        return response

    def _answer(
        self, request: dict[str, Any], sending: _Sending, *, used_ids: AbstractSet[str]
    ) -> ChatResponse | Fault:
        """The answer to a request as it goes out, with retries."""
        canceled, deadline, tell = sending
        attempts = retrying(self.config, clock=self._clock, deadline=deadline, canceled=canceled, tell=tell)

        def attempt() -> ChatResponse | Fault:
            self._check(canceled)
            result = self._attempt(request, tell)
            self._check(canceled)
            if isinstance(result, Fault):
                return self._too_late() if self._clock.now() >= deadline else result
            return read_answer(result.fields, used_ids=used_ids, cost_usd=result.cost_usd)

        return attempts(attempt)

    def _attempt(self, request: dict[str, Any], tell: OnEvent) -> Answer | Fault:
        """One request. Errors of the callback pass through; those of the provider come back as a Fault."""
        logger.debug("request to %s: %s", self.name, Payload(request, self._secrets()))
        with recording() as exchange, closing(self._ask(request)) as pieces:
            while isinstance(piece := self._advance(pieces, exchange), str):
                tell(DeltaEvent(text=piece))
        logger.debug("answer of %s: %s", self.name, Payload(_logged(piece), self._secrets() | exchange.secrets))
        return piece

    def _ask(self, request: dict[str, Any]) -> Generator[str, None, Answer]:
        gateway = _gateway()
        with self._lock:
            if self._guard is None:
                self._guard = gateway.new_guard()
                weakref.finalize(self, self._guard.client.close)
            streams = self._traits is None or self._traits.streams
        config = self.config if streams else self.config.model_copy(update={"stream": False})
        pieces: Generator[str, None, Answer] = gateway.ask(config, request, self._guard)
        return (yield from pieces)

    def _advance(self, pieces: Generator[str, None, Answer], exchange: Exchange) -> str | Answer | Fault:
        """The next piece of text, or the end. This is where foreign errors stop."""
        try:
            return next(pieces)
        except StopIteration as end:
            answer: Answer = end.value
            return answer
        except ModelError as error:
            return Fault(faults.CLIENT, error)
        except Exception as error:  # noqa: BLE001 - litellm raises its own, openai's, httpx's and plain errors
            return self._fault(error, exchange)

    def _fault(self, error: Exception, exchange: Exchange) -> Fault:
        kind = exchange.refusal or faults.kind_of(error, status=exchange.status, asked=exchange.asked)
        failed = fault(
            kind,
            model=self.name,
            detail=_detail(kind, error, exchange),
            status=exchange.status,
            secrets=self._secrets() | exchange.secrets,
        )
        return failed._replace(retry_after=exchange.retry_after or faults.retry_after_of(error))

    def _too_late(self) -> Fault:
        return fault(faults.TIMEOUT, model=self.name, detail=f"`total_timeout_s` is {self.config.total_timeout_s:g}")

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
        if self._guard:
            self._guard.cut()

    def _known_traits(self, tell: OnEvent, *, has_tools: bool) -> Traits:
        """What is known of the model by now; doubts about its tools are told with the first request that has some."""
        listing = _gateway().listing(self.config) if self._traits is None else None
        with self._lock:
            if self._traits is None:
                assert listing is not None  # noqa: S101 - it was looked up for this
                self._traits = traits_of(self.config, listing)
                self._doubt = doubt_of(self.config, listing)
            traits, doubt = self._traits, self._doubt if has_tools else None
            self._doubt = None if has_tools else self._doubt
        if doubt:
            tell(WarningEvent(text=doubt))
        return traits

    def _learn(self, refusal: Fault, tell: OnEvent) -> Traits:
        """How to ask from now on; told once, however many threads learn it."""
        with self._lock:
            assert self._traits is not None  # noqa: S101 - a request went out
            learned = self._traits.after(refusal.kind, self.config)
            self._traits = learned or self._traits
            traits = self._traits
        if learned:
            fact = str(refusal.error).removesuffix(refusal.kind.remedy).rstrip()
            tell(WarningEvent(text=f"{fact} From now on its {_INSTEAD[refusal.kind]}."))
        return traits


_INSTEAD = {
    faults.TOOLS: "calls are written as text",
    faults.IMAGES: "images are told in words",
    faults.STREAM: "answers come whole",
}


def _request(messages: Sequence[Message], tools: Sequence[ToolParam], tool_choice: ToolChoice) -> dict[str, Any]:
    """A copy that litellm may change and that can be encoded."""
    request: dict[str, Any] = {"messages": encodable_tree(messages)}
    if tools:
        request |= {"tools": encodable_tree(tools), "tool_choice": encodable_tree(tool_choice)}
    return request


def _detail(kind: faults.Kind, error: Exception, exchange: Exchange) -> str:
    """What is worth quoting: the provider's words, the body where it is no answer, the address of a redirect."""
    if kind is faults.REDIRECT:
        return exchange.location
    if kind is faults.UNREADABLE:
        return exchange.head.decode(errors="replace")
    return "" if exchange.refusal or kind is faults.NO_PROVIDER else str(error)


def _logged(result: Answer | Fault) -> Any:
    return str(result.error) if isinstance(result, Fault) else result.fields


def _gateway() -> ModuleType:
    """The module that imports litellm; the first call takes 2-4 s, and concurrent ones wait for it."""
    from ohsandbox.llm import gateway  # noqa: PLC0415 - slow

    return gateway


def _ignore(_: LLMEvent) -> None:
    """For callers who do not listen."""
