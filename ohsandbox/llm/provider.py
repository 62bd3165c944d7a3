"""`Provider`: the interface through which a request goes out and an answer or an error comes back."""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Mapping

    from ohsandbox.llm.error_mapping import ErrorKind


class Answer(NamedTuple):
    """A finished answer in OpenAI's form, and its price in US dollars."""

    fields: Mapping[str, Any]
    cost_usd: float | None


class ModelInfo(NamedTuple):
    """Facts about a model from a list of models; None is unknown."""

    provider: str = ""
    tools: bool | None = None
    forwards_tools: bool = True
    """litellm sends `tools` to this provider; for others it drops them silently."""
    max_tools: int | None = None
    """Number of tools that the provider accepts in a request."""
    images: bool | None = None
    context_tokens: int | None = None
    priced: bool = False
    """The list has the model's price."""


class Unfinished(Exception):  # noqa: N818 - a stream that ended, not an error of anyone's making
    """The stream ended without a finish reason: part of the answer is missing."""


class Provider(Protocol):
    """A way to ask one model. May be shared by threads."""

    def model_info(self) -> ModelInfo:
        """Return what is known about the model; makes no request and raises nothing."""

    def ask(self, request: Mapping[str, Any], *, stream: bool) -> Generator[str, None, Answer]:
        """Send one request, without retries; yields text as it arrives if stream is set.

        Stores facts of the attempt in `current_attempt`. Raises any error of the libraries that it uses.

        Args:
            request: messages, and perhaps tools, tool_choice and stop, in OpenAI form; may be changed.
            stream: ask for the answer piece by piece.
        """

    def abort(self) -> None:
        """Break every connection, from any thread; readers get an error."""

    def close(self) -> None:
        """Close every connection; no request can follow."""


@dataclass
class Attempt:
    """Facts of one attempt, before a library turns it into an exception."""

    asked: bool = False
    """A request went out through our client."""
    status: int | None = None
    """The HTTP status; None if no answer came, or if the request used a client that is not ours."""
    retry_after: str | None = None
    """The unparsed header."""
    location: str = ""
    """The target of a redirect, or the address at which no server listens."""
    content_type: str = ""
    head: bytes = b""
    """The first bytes of the body, to quote if the whole cannot be read."""
    refusal: ErrorKind | None = None
    """Why our own client stopped reading the answer, or made no request."""
    secrets: set[str] = field(default_factory=set)
    """Every credential that was sent."""


_current: ContextVar[Attempt | None] = ContextVar("ohsandbox_llm_attempt", default=None)


@contextmanager
def recorded_attempt() -> Iterator[Attempt]:
    """Yield the Attempt of the requests that this thread makes inside the block."""
    attempt = Attempt()
    token = _current.set(attempt)
    try:
        yield attempt
    finally:
        _current.reset(token)


def current_attempt() -> Attempt:
    """Return the Attempt that is being recorded; outside `recorded_attempt` a new one that nobody reads."""
    return _current.get() or Attempt()
