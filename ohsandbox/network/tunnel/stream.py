"""`TunnelTransport`: one connection through the tunnel, as an asyncio transport."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING

from ohsandbox.network.tunnel.frames import (
    ABORTED,
    PIECE_BYTES,
    WINDOW_BYTES,
    ConnectorError,
    FrameKind,
    data_header,
    frame,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from typing_extensions import Buffer

_HIGH_WATER_BYTES, _LOW_WATER_BYTES = 64 * 1024, 16 * 1024
"""Number of queued bytes above which a writer's `drain` waits, and number at which it goes on."""
_ABORT_AFTER_S = 30.0
"""Seconds that the sandbox has to accept the rest of a connection that is closed here."""


class TunnelTransport(asyncio.Transport):
    """Bytes to and from one port of the sandbox.

    Written data is queued here until the connector grants credit. Data that arrives while reading is paused is queued
    too, at most WINDOW_BYTES: credit is returned only when the protocol has received the data.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        number: int,
        *,
        port: int,
        send: Callable[[bytes | memoryview], None],
        release: Callable[[int], None],
    ) -> None:
        """Create a stream. send(bytes) sends frames or parts; release(number) is called once both sides have closed."""
        super().__init__(extra={"peername": ("127.0.0.1", port)})
        self.number = number
        self.port = port
        self.opened: asyncio.Future[None] = loop.create_future()
        """Done once the sandbox has connected; has an OSError if that fails."""
        self.waits_for_owner = False
        """Whether CLOSE is sent only by `give_back`: the sandbox cannot reuse the number before."""
        self._loop, self._send, self._release = loop, send, release
        self._protocol = asyncio.Protocol()
        self._credit = self._window = WINDOW_BYTES
        self._taken = 0
        self._unsent: deque[memoryview] = deque()
        self._unsent_bytes = 0
        self._is_paused = True  # until there is a protocol
        self._writer_waits = self._closing = self._is_lost = False
        self._error: Exception | None = None
        self._held: deque[bytes] = deque()
        self._ends = self._end_sent = self._end_received = self._end_told = False
        self._close_sent = self._close_received = self._is_released = False
        self._reason = 0
        self._abort_timer: asyncio.TimerHandle | None = None

    def attach(self, protocol: asyncio.Protocol) -> None:
        """Pass data to the protocol, beginning with the data that has already arrived."""
        self._protocol, self._is_paused = protocol, False
        protocol.connection_made(self)  # this may pause reading
        if self._is_lost:
            self._loop.call_soon(protocol.connection_lost, self._error)
        else:
            self._loop.call_soon(self._hand_on)

    # --- the transport's interface ---

    def is_closing(self) -> bool:
        """See `asyncio.BaseTransport`."""
        return self._closing or self._is_lost

    def is_reading(self) -> bool:
        """See `asyncio.ReadTransport`."""
        return not (self._is_paused or self.is_closing())

    def pause_reading(self) -> None:
        """See `asyncio.ReadTransport`."""
        self._is_paused = True

    def resume_reading(self) -> None:
        """See `asyncio.ReadTransport`."""
        if self._is_paused:
            self._is_paused = False
            self._loop.call_soon(self._hand_on)

    def write(self, data: Buffer) -> None:
        """See `asyncio.WriteTransport`."""
        if self._ends:
            raise RuntimeError("write() after write_eof()")
        # queued data must not change later, so mutable data is copied
        view = memoryview(data if isinstance(data, bytes) else bytes(data))
        if self.is_closing() or not view:
            return
        self._unsent.append(view)
        self._unsent_bytes += len(view)
        self._send_some()

    def can_write_eof(self) -> bool:
        """See `asyncio.WriteTransport`."""
        return True

    def write_eof(self) -> None:
        """See `asyncio.WriteTransport`."""
        if not (self._ends or self.is_closing()):
            self._ends = True
            self._send_some()

    def close(self) -> None:
        """See `asyncio.BaseTransport`: written data is still sent."""
        if not self.is_closing():
            self._closing = True
            self._send_some()

    def abort(self) -> None:
        """See `asyncio.WriteTransport`: the connection is reset."""
        self._closing = True
        self._unsent.clear()
        self._unsent_bytes = 0
        self._send_close(ABORTED)
        self._lose(None)

    # --- frames from the sandbox ---

    def handle_frame(self, kind: FrameKind, value: int, payload: bytes) -> None:
        """Handle a frame of this stream.

        Raises:
            ConnectorError: the frame is invalid in this state.
        """
        if self._close_received or (
            kind is not FrameKind.CLOSE and not (self.opened.done() or kind is FrameKind.OPENED)
        ):
            raise ConnectorError(f"The connector sent {kind.name} for stream {self.number}, which is not open.")
        if kind is FrameKind.DATA:
            self._handle_data(payload)
        elif kind is FrameKind.CREDIT:
            self._credit += value
            if self._credit > WINDOW_BYTES:
                raise ConnectorError(f"The connector gave stream {self.number} more credit than it has room.")
            self._send_some()
        elif kind is FrameKind.END:
            self._end_received = True
            self._hand_on()
        elif kind is FrameKind.CLOSE:
            self._handle_close(value)
        elif self.opened.cancelled():
            pass  # it was sent before the connector received the CLOSE
        elif self.opened.done():
            raise ConnectorError(f"The connector opened stream {self.number} twice.")
        else:
            self.opened.set_result(None)

    def give_back(self) -> None:
        """Release the stream; its number can be reused after the sandbox's CLOSE."""
        self.waits_for_owner = False
        if self._close_received:
            self._answer_close()
        elif self._is_lost:
            self._send_close(self._reason)
        else:
            self.close()

    def lose(self, error: Exception) -> None:
        """Handle the loss of the tunnel."""
        self._close_sent = self._close_received = True
        if not self.opened.done():
            self.opened.set_exception(error)
            self.opened.exception()  # marks the error as retrieved: nobody has to await it
        self._lose(error)

    def _handle_data(self, payload: bytes) -> None:
        self._window -= len(payload)
        if self._window < 0 or self._end_received:
            raise ConnectorError(f"The connector sent more on stream {self.number} than it may.")
        if not self.is_closing():
            self._held.append(payload)
            self._hand_on()
        elif not self._close_sent:  # dropped; the connector sends until it receives the CLOSE
            self._return_credit(len(payload))

    def _hand_on(self) -> None:
        while self._held and self.is_reading():
            data = self._held.popleft()
            self._protocol.data_received(data)
            self._return_credit(len(data))
        if self._held or not self.is_reading():
            return
        if self._end_received and not self._end_told:
            self._end_told = True
            if not self._protocol.eof_received():
                self.close()
        if self._close_received:
            self._lose(None)

    def _return_credit(self, count: int) -> None:
        self._taken += count
        if self._taken >= WINDOW_BYTES // 4 and not self._close_sent:
            self._window += self._taken
            self._send(frame(FrameKind.CREDIT, self.number, self._taken))
            self._taken = 0

    def _handle_close(self, reason: int) -> None:
        self._close_received = True
        self._unsent.clear()
        self._unsent_bytes = 0
        if not self.opened.done():
            self.opened.set_exception(ConnectionRefusedError(reason, f"Nothing answers at port {self.port} inside"))
            self.opened.exception()
        self._answer_close()
        if self.is_closing():
            self._lose(None)
        elif reason:
            self._lose(ConnectionResetError(ABORTED, f"The connection to port {self.port} was reset inside"))
        else:
            self._hand_on()

    def _answer_close(self) -> None:
        if self._close_received and not self.waits_for_owner:
            self._send_close(0)
        self._release_if_closed()

    def _release_if_closed(self) -> None:
        """Release the number after both sides have sent CLOSE: the sandbox may then reuse it."""
        if self._close_received and self._close_sent and not self._is_released:
            self._is_released = True
            if self._abort_timer is not None:
                self._abort_timer.cancel()
            self._release(self.number)

    # --- frames to the sandbox ---

    def _send_some(self) -> None:
        while self._unsent and self._credit:
            first = self._unsent[0]
            count = min(len(first), self._credit, PIECE_BYTES)
            self._send(data_header(self.number, count))
            self._send(first[:count])
            self._credit -= count
            self._unsent_bytes -= count
            if count == len(first):
                self._unsent.popleft()
            else:
                self._unsent[0] = first[count:]
        self._update_writer()
        if self._unsent:
            return
        if self._closing and not self._is_lost:
            self._send_close(0)
            self._lose(None)
        elif self._ends:
            self._send_end()

    def _send_end(self) -> None:
        if not (self._end_sent or self._close_sent or self._close_received):
            self._end_sent = True
            self._send(frame(FrameKind.END, self.number))

    def _update_writer(self) -> None:
        if not self._writer_waits and self._unsent_bytes > _HIGH_WATER_BYTES:
            self._writer_waits = True
            self._protocol.pause_writing()
        elif self._writer_waits and self._unsent_bytes <= _LOW_WATER_BYTES:
            self._writer_waits = False
            self._protocol.resume_writing()

    def _send_close(self, reason: int) -> None:
        if self.waits_for_owner:  # after the CLOSE of both sides the sandbox treats the number as free
            self._reason = reason
            self._send_end()
        elif not self._close_sent:
            self._close_sent = True
            self._send(frame(FrameKind.CLOSE, self.number, reason))
            if not reason and not self._close_received:
                aborted = frame(FrameKind.CLOSE, self.number, ABORTED)
                self._abort_timer = self._loop.call_later(_ABORT_AFTER_S, self._send, aborted)
            self._release_if_closed()

    def _lose(self, error: Exception | None) -> None:
        if not self._is_lost:
            self._is_lost, self._error = True, error
            self._held.clear()
            self._loop.call_soon(self._protocol.connection_lost, error)
