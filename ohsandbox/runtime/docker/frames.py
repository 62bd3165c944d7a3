"""The engine's framing of a stream without a terminal: a header of 8 bytes (stream, 0, 0, 0, length), then data."""

from __future__ import annotations

import struct

from ohsandbox.runtime.channel import Chunk, Stream

_HEADER = struct.Struct(">BxxxL")


class Demultiplexer:
    """Cuts framed bytes into chunks; frames may be split anywhere. No work per byte, one copy per run of frames."""

    def __init__(self) -> None:
        self._partial = b""
        self._left = 0
        self._stream = Stream.STDOUT

    def feed(self, view: memoryview) -> list[Chunk]:
        """The chunks that view completes or carries on; neighbours of one stream are one chunk."""
        chunks: list[Chunk] = []
        run: list[memoryview] = []
        run_stream = self._stream
        while view:
            if not self._left:
                view = self._take_header(view)
                continue
            if run and self._stream is not run_stream:
                chunks.append(Chunk(run_stream, b"".join(run)))
                run = []
            run_stream = self._stream
            run.append(view[: self._left])
            taken = len(run[-1])
            self._left -= taken
            view = view[taken:]
        if run:
            chunks.append(Chunk(run_stream, b"".join(run)))
        return chunks

    def _take_header(self, view: memoryview) -> memoryview:
        need = _HEADER.size - len(self._partial)
        self._partial += bytes(view[:need])
        if len(self._partial) == _HEADER.size:
            number, self._left = _HEADER.unpack(self._partial)
            self._stream = Stream.STDERR if number == Stream.STDERR else Stream.STDOUT
            self._partial = b""
        return view[need:]


class Passthrough:
    """A terminal's stream is not framed."""

    def feed(self, view: memoryview) -> list[Chunk]:
        """All of it, as output."""
        return [Chunk(Stream.STDOUT, bytes(view))] if view else []
