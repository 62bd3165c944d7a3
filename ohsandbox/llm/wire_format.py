"""`WireFormat`: the differences between the APIs that are asked directly; `server_events` reads their streams."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from ohsandbox.llm.provider import ModelInfo


class InterruptedStreamError(Exception):
    """A stream ended with the report of an error."""


class WireFormat(Protocol):
    """How one API is used for one model. Holds no state of a request."""

    @property
    def entry(self) -> Mapping[str, Any]:
        """The model's entry in litellm's list; {} if it is not on the list."""

    @property
    def info(self) -> ModelInfo:
        """The facts of the entry, in the form of `Provider.model_info`."""

    @property
    def url(self) -> str:
        """The address for requests."""

    @property
    def models_url(self) -> str:
        """The address at which the server lists its models."""

    def headers(self) -> dict[str, str]:
        """Return the headers of a request, including the key.

        Raises:
            ModelAuthenticationError: there is no key.
        """

    def body(self, request: Mapping[str, Any], *, stream: bool) -> dict[str, Any] | None:
        """Convert a request from OpenAI's form to the API's body; None if this format does not cover it."""

    def answer(self, body: Any) -> dict[str, Any]:
        """Convert an answer to OpenAI's form.

        Raises:
            ValueError: the body is not an answer.
        """

    def chunks(self, events: Iterable[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
        """Convert the events of a stream to chunks in OpenAI's form.

        Raises:
            InterruptedStreamError: an event says that the answer failed.
        """


def server_events(pieces: Iterable[bytes]) -> Iterator[str]:
    """Yield the data of each event of a `text/event-stream` (WHATWG HTML 9.2.6); ignores names and ids of events."""
    data: list[str] = []
    for line in _lines(pieces):
        if line.startswith(b"data:"):
            data.append(line[5:].removeprefix(b" ").decode(errors="replace"))
        elif not line and data:
            yield "\n".join(data)
            data = []
    if data:  # some servers omit the last blank line
        yield "\n".join(data)


def _lines(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Yield lines that end in LF, CRLF or CR alone: `splitlines` of a text would cut JSON at U+2028."""
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
