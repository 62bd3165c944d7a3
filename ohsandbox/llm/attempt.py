"""What is known about one attempt to ask a provider, gathered while it runs."""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ohsandbox.llm.error_mapping import ErrorKind


class Attempt:
    """One attempt: what the provider sent before any client made an exception of it."""

    def __init__(self) -> None:
        self.asked = False
        """A request went out, through our client."""
        self.status: int | None = None
        """The HTTP status; None when no answer came, or through a client that is not ours."""
        self.retry_after: str | None = None
        self.location = ""
        self.content_type = ""
        self.head = b""
        """The first bytes of the body, to quote where the whole cannot be read."""
        self.refusal: ErrorKind | None = None
        """Why our own client stopped reading the answer."""
        self.secrets: set[str] = set()
        """Every credential that was sent."""


_current: ContextVar[Attempt | None] = ContextVar("ohsandbox_llm_exchange", default=None)


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
    """The one being recorded; a fresh one, that nobody reads, outside `recording`."""
    return _current.get() or Attempt()
