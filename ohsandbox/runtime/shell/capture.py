"""A command's output in bounded memory: its beginning, its end, and the number of bytes left out between."""

from __future__ import annotations

import contextlib
from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from ohsandbox.errors import OhsandboxError
from ohsandbox.runtime.shell.terminal import clean, whole_prefix

if TYPE_CHECKING:
    from collections.abc import Callable

    from ohsandbox.runtime.channel import Channel
    from ohsandbox.secrets import Masker

CAPTURE_BYTES = 2 * 1024 * 1024
"""How much of one command's output is kept, half from its beginning and half from its end: a 500 KiB line is returned
whole, and the tool cuts what a model sees far below this."""


class Captured(NamedTuple):
    """The output since the last `take`."""

    text: str
    output_bytes: int
    omitted_bytes: int


class Capture:
    """Accepts any number of bytes and keeps limit_bytes of them. Not thread-safe; the session's lock guards it."""

    def __init__(self, *, limit_bytes: int = CAPTURE_BYTES, on_overflow: Callable[[bytes], None] | None = None) -> None:
        """on_overflow receives every byte, from the first one on, once there are more than limit_bytes."""
        self._half = limit_bytes // 2
        self._on_overflow = on_overflow
        self._reset()

    def _reset(self) -> None:
        self._head = bytearray()
        self._tail: deque[bytes] = deque()
        self._tail_bytes = 0
        self._dropped = 0
        self._spilling = False

    @property
    def size(self) -> int:
        """Bytes since the last take."""
        return len(self._head) + self._tail_bytes + self._dropped

    def feed(self, data: bytes) -> None:
        """Add data."""
        if self._spilling and self._on_overflow:
            self._on_overflow(data)
        room = self._half - len(self._head)
        if room > 0:
            self._head += data[:room]
            data = data[room:]
        if data:
            self._tail.append(data)
            self._tail_bytes += len(data)
            self._trim()

    def _trim(self) -> None:
        while self._tail_bytes - len(self._tail[0]) >= self._half:
            if not self._spilling:
                self._spill()
            oldest = self._tail.popleft()
            self._tail_bytes -= len(oldest)
            self._dropped += len(oldest)

    def _spill(self) -> None:
        self._spilling = True
        if self._on_overflow:
            self._on_overflow(bytes(self._head) + b"".join(self._tail))

    def last(self, size: int) -> bytes:
        """Return the last size bytes without taking them; the cost depends on size alone."""
        found: deque[bytes] = deque()
        missing = size
        for chunk in reversed(self._tail):
            if missing <= 0:
                break
            found.appendleft(chunk[-missing:])
            missing -= len(chunk)
        head = bytes(self._head[-missing:]) if missing > 0 else b""
        return head + b"".join(found)

    def kept(self) -> tuple[bytes, bool]:
        """The bytes since the last take, without taking them, and False; if some were dropped, the end and True."""
        tail = b"".join(self._tail)
        return (tail, True) if self._dropped else (bytes(self._head) + tail, False)

    def take(self, *, final: bool, masker: Masker | None = None) -> Captured:
        """Take the output since the last take, masked.

        Unless final, an unfinished character, escape sequence or secret is kept for the next take.
        """
        size, dropped = self.size, self._dropped
        head, tail = bytes(self._head), b"".join(self._tail)
        self._reset()
        if not dropped:
            head, tail = head + tail, b""
        whole = tail or head
        rest = b"" if final else whole[_judged(whole, masker) :]
        if rest:
            if tail:
                tail = tail[: -len(rest)]
            else:
                head = head[: -len(rest)]
            self.feed(rest)
        if dropped and masker:
            kept = masker.before_gap(masker.mask(clean(head))) + masker.after_gap(masker.mask(clean(tail)))
            return Captured(kept, size - len(rest), dropped)
        if dropped:
            return Captured(clean(head) + clean(tail), size - len(rest), dropped)
        text = clean(head)
        return Captured(masker.mask(text) if masker else text, size - len(rest), 0)


def _judged(data: bytes, masker: Masker | None) -> int:
    """Number of leading bytes of data that can be shown now."""
    count = whole_prefix(data)
    if not masker:
        return count
    upto = masker.whole_prefix(data[:count])
    # a value may begin with its own last bytes: what may begin a second one then ends a first
    return min([upto, *(span.start for span in masker.spans(data[:count]) if span.start < upto < span.end)])


SPOOL_BYTES = 64 * 1024 * 1024
"""The file's maximum size: a forgotten `yes` must not fill the sandbox's disk."""
FLUSH_S = 5.0

_SCRIPT = 'umask 077; mkdir -p "${1%/*}"; head -c "$2" >"$1"; cat >/dev/null'


class OverflowFile:
    """Writes bytes to a file in the sandbox. A failure sets `path` to None and raises nothing."""

    def __init__(self, open_channel: Callable[[list[str]], Channel], path: str) -> None:
        self._open_channel = open_channel
        self._wanted = path
        self._channel: Channel | None = None
        self._failed = False

    def write(self, data: bytes) -> None:
        """Add data; opens the file on the first call."""
        if self._failed:
            return
        try:
            if self._channel is None:
                self._channel = self._open_channel(["/bin/sh", "-c", _SCRIPT, "spool", self._wanted, str(SPOOL_BYTES)])
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
