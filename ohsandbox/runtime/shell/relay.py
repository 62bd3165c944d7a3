"""Relays a running command's output to a listener: masked text, in pieces as they arrive, in bounded memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ohsandbox.runtime.shell.terminal import whole_prefix, without_controls

if TYPE_CHECKING:
    from collections.abc import Callable

    from ohsandbox.secrets import Masker

PENDING_BYTES = 1024 * 1024
"""Bytes received and not yet passed on; above this the terminal is not read, and the command's next write blocks."""


FAREWELL = b"exit\n"
"""What an interactive bash prints when it exits."""


class ListenerFailed(Exception):  # noqa: N818 - control flow inside the runtime, never seen outside
    """The listener has raised `error`."""

    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self.error = error


class OutputRelay:
    """The listener of one `execute`. The reading thread uses `feed` and `full`, under the session's lock."""

    def __init__(self, listener: Callable[[str], object], masker: Masker) -> None:
        """`hand_on` and `finish` call listener, in their caller's thread."""
        self._listener = listener
        self._masker, self._masked = masker, masker.text_stream()
        self._after_gap = False
        self._came: list[bytes] = []
        self._size = 0
        self._held = b""

    @property
    def full(self) -> bool:
        """Whether the listener is so far behind that nothing more should be read."""
        return self._size >= PENDING_BYTES

    @property
    def pending(self) -> bool:
        """Whether anything has come since `take`."""
        return self._size > 0

    def feed(self, data: bytes, after_gap: bool = False) -> None:  # noqa: FBT001, FBT002 - as `Capture.kept` has it
        """Add output; after a gap it may begin within a secret."""
        self._after_gap = self._after_gap or after_gap
        self._came.append(data)
        self._size += len(data)

    def take(self) -> bytes:
        """Take the output since the last call, for `hand_on`; the caller holds the session's lock."""
        came, self._came, self._size = b"".join(self._came), [], 0
        return came

    def hand_on(self, data: bytes) -> None:
        """Pass data to the listener, except an end that only the next data can decide.

        Raises:
            ListenerFailed: the listener raised an exception.
        """
        data = self._held + data
        count = whole_prefix(data)
        shown = data[:count].rstrip(b"\r")  # half of a CRLF, or the line will be rewritten: decided with the next data
        if len(shown) < count:
            self._held = b"\r" + data[count:]
        else:
            shown = shown.removesuffix(FAREWELL)
            self._held = data[len(shown) :]
        text = without_controls(shown)
        if self._after_gap and text:
            text, self._after_gap = self._masker.after_gap(text), False
        self._tell(self._masked.feed(text))

    def finish(self, data: bytes, *, farewell: bool = False) -> None:
        """Pass on the last data: the command has ended; with farewell, the shell has exited too.

        Raises:
            ListenerFailed: as `hand_on`.
        """
        rest = self._held + data
        rest = rest.removesuffix(FAREWELL) if farewell else rest
        self._tell(self._masked.feed(without_controls(rest)) + self._masked.flush())

    def _tell(self, text: str) -> None:
        if text:
            try:
                self._listener(text)
            except BaseException as error:
                raise ListenerFailed(error) from error
