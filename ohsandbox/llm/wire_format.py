"""`WireFormat`: what differs between the APIs that are asked directly; `server_events` reads their streams."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from ohsandbox.llm.provider import ModelInfo


class InterruptedStreamError(Exception):
    """A stream told of an error in place of its end."""


class WireFormat(Protocol):
    """How one model is asked by one API. Holds no state of a request."""

    @property
    def entry(self) -> Mapping[str, Any]:
        """What litellm's list says of the model; {} where it is not on it."""

    @property
    def info(self) -> ModelInfo:
        """The same, as a Provider tells it."""

    @property
    def url(self) -> str:
        """Where requests are sent."""

    @property
    def models_url(self) -> str:
        """Where the server lists its models."""

    def headers(self) -> dict[str, str]:
        """Those of a request, the key among them.

        Raises:
            ModelAuthenticationError: there is no key.
        """

    def body(self, request: Mapping[str, Any], *, stream: bool) -> dict[str, Any] | None:
        """The body of a request in OpenAI's form; None where it has something that this format does not cover."""

    def answer(self, body: Any) -> dict[str, Any]:
        """The answer in OpenAI's form.

        Raises:
            ValueError: it is none.
        """

    def chunks(self, events: Iterable[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
        """The events of a stream as chunks in OpenAI's form.

        Raises:
            InterruptedStreamError: an event says that the answer failed.
        """


def server_events(pieces: Iterable[bytes]) -> Iterator[str]:
    """The data of each event of a `text/event-stream` (WHATWG HTML 9.2.6); names and ids of events are left out."""
    data: list[str] = []
    for line in _lines(pieces):
        if line.startswith(b"data:"):
            data.append(line[5:].removeprefix(b" ").decode(errors="replace"))
        elif not line and data:
            yield "\n".join(data)
            data = []
    if data:  # some servers leave the last blank line out
        yield "\n".join(data)


def _lines(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Lines by LF, CRLF or CR alone: `splitlines` of a text would cut JSON at U+2028."""
    rest: list[bytes] = []
    ended_in_cr = False
    for piece in pieces:
        fresh = piece[1:] if ended_in_cr and piece.startswith(b"\n") else piece
        ended_in_cr = piece.endswith(b"\r")
        first, *more = fresh.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
        rest.append(first)
        for line in more:
            yield b"".join(rest)
            rest = [line]
    yield b"".join(rest)
