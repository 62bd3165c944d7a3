"""`Provider`: the one place where a request goes out and an answer or an error comes back."""

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
    """What a list of models says of one; None is nothing."""

    provider: str = ""
    tools: bool | None = None
    forwards_tools: bool = True
    """litellm sends `tools` on to this provider; where it does not, it drops them in silence."""
    images: bool | None = None
    context_tokens: int | None = None
    priced: bool = False
    """The list has its price."""


class Unfinished(Exception):  # noqa: N818 - a stream that ended, not an error of anyone's making
    """The stream ended without a finish reason: part of the answer is missing."""


class Provider(Protocol):
    """A way to ask one model. May be shared by threads."""

    def model_info(self) -> ModelInfo:
        """What is known of the model; asks nobody and raises nothing."""

    def ask(self, request: Mapping[str, Any], *, stream: bool) -> Generator[str, None, Answer]:
        """Send one request, without retries; yields text as it arrives where stream is set.

        What was seen of the attempt goes to `current_attempt`; it raises whatever its libraries raise.

        Args:
            request: messages, and perhaps tools, tool_choice and stop, in OpenAI form; may be changed.
            stream: ask for the answer piece by piece.
        """

    def cut(self) -> None:
        """Break every connection, from any thread; whoever reads one of them gets an error."""

    def close(self) -> None:
        """Close every connection; nothing can be asked after it."""


@dataclass
class Attempt:
    """What one attempt showed before any library made an exception of it."""

    asked: bool = False
    """A request went out, through our client."""
    status: int | None = None
    """The HTTP status; None when no answer came, or through a client that is not ours."""
    retry_after: str | None = None
    """The header as it came."""
    location: str = ""
    """Where a redirect leads, or where no server listens."""
    content_type: str = ""
    head: bytes = b""
    """The first bytes of the body, to quote where the whole cannot be read."""
    refusal: ErrorKind | None = None
    """Why our own client stopped reading the answer, or did not get to ask."""
    secrets: set[str] = field(default_factory=set)
    """Every credential that was sent."""


_current: ContextVar[Attempt | None] = ContextVar("ohsandbox_llm_attempt", default=None)


@contextmanager
def recorded_attempt() -> Iterator[Attempt]:
    """The Attempt of the requests that this thread makes inside the block."""
    attempt = Attempt()
    token = _current.set(attempt)
    try:
        yield attempt
    finally:
        _current.reset(token)


def current_attempt() -> Attempt:
    """The one being recorded; a fresh one, that nobody reads, outside `recorded_attempt`."""
    return _current.get() or Attempt()
