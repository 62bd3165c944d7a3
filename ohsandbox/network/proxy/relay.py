"""One connection of the sandbox through the proxy: its peers, deadline and byte counts; and copying of bytes."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Literal

from ohsandbox.network.loop import side_by_side

if TYPE_CHECKING:
    from ohsandbox.network.audit import AuditLog, NetworkDecision, Protocol
    from ohsandbox.network.proxy.budgets import NetworkBudgets, NetworkUsage

CHUNK_BYTES = 128 * 1024


class Link:
    """A connection of the sandbox, and the connections to hosts that serve it.

    Args:
        reader: stream from the sandbox.
        writer: stream to the sandbox.
        budgets: the limits.
        usage: the usage of all links of the proxy.
        audit: receives the number of bytes that passed under a decision.
    """

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        *,
        budgets: NetworkBudgets,
        usage: NetworkUsage,
        audit: AuditLog,
    ) -> None:
        self.reader = reader
        self.writer = writer
        self.host = ""
        self.port = 0
        self.method = ""
        self.protocol: Protocol = "http"
        """Protocol of the current request."""
        self.speaks: Literal["http", "tls", "other"] = "http"
        """Protocol in which an answer of the proxy itself must be sent."""
        self.decided = False
        """Whether the policy has allowed host and port."""
        self.is_private = False
        """Whether the policy allowed private addresses of the site for them."""
        self.deadline = 0.0
        """Time of the event loop's clock at which the proxy ends the link."""
        self.ended = ""
        """Why the link was ended, if that is a refusal: a predicate whose subject is the host."""
        self._overdue = ""
        self._outside: list[asyncio.StreamWriter] = []
        self._idle_s = budgets.idle_timeout_s
        self._usage = usage
        self._audit = audit
        self._decision: NetworkDecision | None = None
        self._sent_bytes = self._received_bytes = 0
        self._now = asyncio.get_running_loop().time

    def expect(self, seconds: float, *, overdue: str = "") -> None:
        """End the link after so many seconds, unless this is called again or bytes are counted before.

        overdue: the reason, if ending it is a refusal.
        """
        self.deadline = self._now() + seconds
        self._overdue = overdue

    def end_if_overdue(self) -> None:
        """End the link if its deadline has passed."""
        if self.deadline < self._now():
            self.end(self._overdue)

    def count(self, *, sent: int = 0, received: int = 0) -> None:
        """Count bytes that passed; end the link if they exceed a limit."""
        self._sent_bytes += sent
        self._received_bytes += received
        self._usage.sent_bytes += sent
        self._usage.received_bytes += received
        self.deadline = self._now() + self._idle_s
        self._overdue = ""
        if problem := self._usage.bytes_problem():
            self.end(problem)

    @property
    def is_counted(self) -> bool:
        """Whether bytes are being counted for a decision."""
        return self._decision is not None

    def begin(self, decision: NetworkDecision) -> None:
        """Count bytes for this decision from now on."""
        self.finish()
        self._decision = decision
        self._sent_bytes = self._received_bytes = 0

    def finish(self) -> None:
        """Report the counted bytes to the audit log."""
        if self._decision is not None:
            self._audit.finish(self._decision, sent_bytes=self._sent_bytes, received_bytes=self._received_bytes)
            self._decision = None

    def lead_to(self, writer: asyncio.StreamWriter) -> None:
        """Add a connection to a host, which ends with the link."""
        self._outside.append(writer)
        if self.ended:
            self.drop_outside()

    def drop_outside(self) -> None:
        """Abort the connections to hosts."""
        for writer in self._outside:
            writer.transport.abort()
        self._outside.clear()

    def end(self, reason: str = "") -> None:
        """Abort all connections; pending reads and writes return the end or raise an error.

        reason: if this is a refusal, the reason, which the proxy then records.
        """
        self.ended = self.ended or reason
        self.writer.transport.abort()
        self.drop_outside()

    async def splice(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Carry bytes in both directions until both have ended, or a connection breaks.

        Raises:
            OSError: a connection broke.
        """
        async with side_by_side(self._send(self.reader, writer), self._receive(reader, self.writer)) as tasks:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
            for task in done:
                task.result()

    async def _send(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(CHUNK_BYTES):
            self.count(sent=len(data))
            writer.write(data)
            await writer.drain()
        finish_writing(writer)

    async def _receive(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(CHUNK_BYTES):
            self.count(received=len(data))
            writer.write(data)
            await writer.drain()
        finish_writing(writer)


def finish_writing(writer: asyncio.StreamWriter) -> None:
    """Send the end of the stream, if the transport supports it."""
    with contextlib.suppress(OSError, RuntimeError):
        if writer.can_write_eof():
            writer.write_eof()
