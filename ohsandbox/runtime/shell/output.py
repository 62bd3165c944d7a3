"""A command's output in bounded memory: its capture, the file for longer output, and the relay to a listener."""

from __future__ import annotations

import contextlib
from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from ohsandbox.errors import OhsandboxError
from ohsandbox.runtime.shell.terminal import clean, sanitize_for_terminal, whole_prefix, without_controls
from ohsandbox.schema.execution import LAST_OUTPUT_BYTES

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable

    from ohsandbox.runtime.channel import Channel
    from ohsandbox.secrets import Masker

CAPTURE_BYTES = 2 * 1024 * 1024
"""Bytes of one command's output that are kept, half from its beginning and half from its end. A line of 500 KiB is
returned whole; the tool shows a model far less than this."""

PENDING_BYTES = 1024 * 1024
"""Bytes received and not yet relayed; above this the terminal is not read, and the command's next write blocks."""

_SPOOL_BYTES = 64 * 1024 * 1024
"""Maximum size of the file in bytes, so that a forgotten `yes` does not fill the sandbox's disk."""
FLUSH_S = 5.0

FAREWELL = b"exit\n"
"""What an interactive bash prints when it exits."""

_SPOOL_SCRIPT = 'umask 077; mkdir -p "${1%/*}"; head -c "$2" >"$1"; cat >/dev/null'


class Captured(NamedTuple):
    """The output since the last `read`."""

    text: str
    output_bytes: int
    omitted_bytes: int


class Capture:
    """Keeps limit_bytes of any number of bytes. Not thread-safe; the session's lock guards it."""

    def __init__(self, *, limit_bytes: int = CAPTURE_BYTES, on_overflow: Callable[[bytes], None] | None = None) -> None:
        """Call on_overflow with every byte, from the first one on, once there are more than limit_bytes."""
        self._half = limit_bytes // 2
        self._on_overflow = on_overflow
        self._reset()

    def _reset(self) -> None:
        self._head = bytearray()
        self._tail: deque[bytes] = deque()
        self._tail_bytes = self._dropped = 0
        self._spilling = False

    @property
    def size(self) -> int:
        """Number of bytes since the last `read`."""
        return len(self._head) + self._tail_bytes + self._dropped

    def feed(self, data: bytes) -> None:
        """Add data."""
        if self._spilling and self._on_overflow:
            self._on_overflow(data)
        room = self._half - len(self._head)
        if room > 0:
            self._head += data[:room]
            data = data[room:]
        if not data:
            return
        self._tail.append(data)
        self._tail_bytes += len(data)
        while self._tail_bytes - len(self._tail[0]) >= self._half:
            if not self._spilling and self._on_overflow:
                self._on_overflow(bytes(self._head) + b"".join(self._tail))
            self._spilling = True
            oldest = self._tail.popleft()
            self._tail_bytes -= len(oldest)
            self._dropped += len(oldest)

    def last(self, size: int) -> bytes:
        """Return the last size bytes without taking them; the cost depends only on size."""
        chunks: deque[bytes] = deque()
        missing = size
        for chunk in reversed(self._tail):
            if missing <= 0:
                break
            chunks.appendleft(chunk[-missing:])
            missing -= len(chunk)
        head = bytes(self._head[-missing:]) if missing > 0 else b""
        return head + b"".join(chunks)

    def kept(self) -> tuple[bytes, bool]:
        """Return the bytes since the last `read`, which stay, and False; or, if some were dropped, the end and True."""
        tail = b"".join(self._tail)
        return (tail, True) if self._dropped else (bytes(self._head) + tail, False)

    def read(self, *, final: bool, masker: Masker | None = None) -> Captured:
        """Return the output since the last `read`, masked.

        Unless final, an unfinished character, escape sequence or secret is kept for the next take.
        """
        size, dropped = self.size, self._dropped
        head, tail = bytes(self._head), b"".join(self._tail)
        self._reset()
        if not dropped:
            head, tail = head + tail, b""
        if not final and (rest := (tail or head)[_shown_bytes(tail or head, masker) :]):
            head, tail = (head, tail[: -len(rest)]) if tail else (head[: -len(rest)], b"")
            self.feed(rest)
            size -= len(rest)
        texts = [clean(head), clean(tail)] if dropped else [clean(head)]
        if masker:
            gap = bool(dropped)
            texts = [
                masker.mask_window(texts[0], before_gap=gap),
                *(masker.mask_window(window, after_gap=gap) for window in texts[1:]),
            ]
        return Captured("".join(texts), size, dropped)


def printable_end(data: bytes, masker: Masker | None) -> str:
    """Return the end of a growing stream for a terminal, masked, without bytes whose meaning depends on the next ones.

    Data of LAST_OUTPUT_BYTES may begin in the middle of a line, so its first line is left out.
    """
    text = clean(data[: whole_prefix(data)])
    is_cut = len(data) >= LAST_OUTPUT_BYTES
    if masker:
        text = masker.mask_window(text, after_gap=is_cut, before_gap=True, cut=is_cut)
    if is_cut:
        first, _, rest = text.partition("\n")
        text = rest or first
    return sanitize_for_terminal(text)


def _shown_bytes(data: bytes, masker: Masker | None) -> int:
    """Return the number of leading bytes of data that can be shown now."""
    count = whole_prefix(data)
    if not masker:
        return count
    upto = masker.known_prefix(data[:count])
    # the end of one occurrence of a value may begin the next one
    return min([upto, *(span.start for span in masker.spans(data[:count]) if span.start < upto < span.end)])


class OverflowFile:
    """Writes bytes to a file in the sandbox. A failure sets `path` to None and raises nothing."""

    def __init__(self, open_channel: Callable[[list[str]], Channel], path: str) -> None:
        self._open_channel = open_channel
        self._wanted = path
        self._channel: Channel | None = None
        self._failed = False

    def write(self, data: bytes) -> None:
        """Add data; the first call opens the file."""
        if self._failed:
            return
        try:
            if self._channel is None:
                words = ["/bin/sh", "-c", _SPOOL_SCRIPT, "spool", self._wanted, str(_SPOOL_BYTES)]
                self._channel = self._open_channel(words)
            self._channel.write(data)
        except (OhsandboxError, OSError):
            self._failed = True

    def finish(self) -> str | None:
        """Close the file and return its path; None if nothing was written or writing failed."""
        if self._channel is None:
            return None
        with contextlib.suppress(OhsandboxError, OSError, TimeoutError):
            self._channel.close_stdin()
            self._failed = self._channel.wait(FLUSH_S) != 0 or self._failed
        self._channel.close()
        return None if self._failed else self._wanted

    @property
    def path(self) -> str | None:
        """The file that holds the bytes so far; None if there is none or writing failed."""
        return self._wanted if self._channel is not None and not self._failed else None


class ListenerFailed(Exception):  # noqa: N818 - control flow inside the runtime, never seen outside
    """The listener has raised `error`."""

    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self.error = error


class OutputRelay:
    """Relays a command's output to the listener of one `execute`: masked text, in pieces as they arrive.

    The thread that reads feeds it; the thread of the call hands on, and finishes.
    """

    def __init__(self, listener: Callable[[str], object], masker: Masker, *, changed: threading.Condition) -> None:
        """Store the listener; `hand_on` and `finish` call it in their caller's thread.

        changed is the session's: it guards what has come, and is notified once the relay is not full any more.
        """
        self._listener, self._changed = listener, changed
        self._masker, self._masked = masker, masker.stream()
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
        """Whether output has arrived that is not relayed yet."""
        return self._size > 0

    def feed(self, data: bytes, after_gap: bool = False) -> None:  # noqa: FBT001, FBT002 - as `Capture.kept` has it
        """Add output; after a gap it may begin in the middle of a secret."""
        with self._changed:
            self._after_gap = self._after_gap or after_gap
            self._came.append(data)
            self._size += len(data)

    def _drain(self) -> bytes:
        with self._changed:
            came, self._came, self._size = self._came, [], 0
            if came:
                self._changed.notify_all()  # a reader that was blocked by a full relay continues
        return b"".join(came)

    def hand_on(self) -> None:
        """Pass what has come to the listener, except an end whose meaning depends on the next output.

        Raises:
            ListenerFailed: the listener raised an exception.
        """
        data = self._held + self._drain()
        count = whole_prefix(data)
        shown = data[:count].rstrip(b"\r")  # half of a CRLF, or of a line to be rewritten: the next data decides
        if len(shown) < count:
            self._held = b"\r" + data[count:]
        else:
            shown = shown.removesuffix(FAREWELL)
            self._held = data[len(shown) :]
        text = without_controls(shown)
        if self._after_gap and text:
            text, self._after_gap = self._masker.after_gap(text), False
        self._call_listener(self._masked.feed(text))

    def finish(self, *, farewell: bool = False) -> None:
        """Pass on the rest: the command has ended; with farewell, the shell has exited too.

        Raises:
            ListenerFailed: as `hand_on`.
        """
        rest = self._held + self._drain()
        rest = rest.removesuffix(FAREWELL) if farewell else rest
        self._call_listener(self._masked.feed(without_controls(rest)) + self._masked.flush())

    def _call_listener(self, text: str) -> None:
        if text:
            try:
                self._listener(text)
            except BaseException as error:
                raise ListenerFailed(error) from error
