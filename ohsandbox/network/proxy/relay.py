"""One connection of the sandbox on its way through the proxy: who it talks to, until when, how much; and the bytes."""

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
    """A connection of the sandbox's, and those to the outside that serve it.

    Args:
        reader: from the sandbox.
        writer: to the sandbox.
        budgets: its limits.
        usage: of all links of the proxy.
        audit: hears how many bytes a decision let through.
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
        """Of what is asked for at present."""
        self.speaks: Literal["http", "tls", "other"] = "http"
        """What an answer of ours must be in."""
        self.decided = False
        """Whether host and port are what the policy allowed."""
        self.is_private = False
        """Whether it allowed addresses of the site for them."""
        self.deadline = 0.0
        """Of the event loop's clock; the proxy ends the link then."""
        self.ended = ""
        """Why we ended it, the second half of a sentence about the host; "" where that is not a refusal."""
        self._overdue = ""
        self._outside: list[asyncio.StreamWriter] = []
        self._idle_s = budgets.idle_timeout_s
        self._usage = usage
        self._audit = audit
        self._decision: NetworkDecision | None = None
        self._sent_bytes = self._received_bytes = 0
        self._now = asyncio.get_running_loop().time

    def expect(self, seconds: float, *, overdue: str = "") -> None:
        """End the link unless something else is expected, or bytes are counted, within seconds.

        overdue: why it is ended then, where that is a refusal.
        """
        self.deadline = self._now() + seconds
        self._overdue = overdue

    def end_if_overdue(self) -> None:
        """End the link if nothing came in time."""
        if self.deadline < self._now():
            self.end(self._overdue)

    def count(self, *, sent: int = 0, received: int = 0) -> None:
        """Bytes went through; the link ends where that is too many."""
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
        """Whether a decision is told what is counted."""
        return self._decision is not None

    def begin(self, decision: NetworkDecision) -> None:
        """What is counted from now on goes to this decision."""
        self.finish()
        self._decision = decision
        self._sent_bytes = self._received_bytes = 0

    def finish(self) -> None:
        """Tell the audit what was counted."""
        if self._decision is not None:
            self._audit.finish(self._decision, sent_bytes=self._sent_bytes, received_bytes=self._received_bytes)
            self._decision = None

    def lead_to(self, writer: asyncio.StreamWriter) -> None:
        """Remember a connection to the outside, which ends with the link."""
        self._outside.append(writer)
        if self.ended:
            self.drop_outside()

    def drop_outside(self) -> None:
        """End the connections to the outside."""
        for writer in self._outside:
            writer.transport.abort()
        self._outside.clear()

    def end(self, reason: str = "") -> None:
        """Break all connections; whoever reads or writes one of them gets an end or an error.

        reason: of a refusal, which the proxy records when the link has ended.
        """
        self.ended = self.ended or reason
        self.writer.transport.abort()
        self.drop_outside()

    async def splice(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Carry bytes both ways until both directions have ended, or one breaks.

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
    """Say that no more comes, where the connection can."""
    with contextlib.suppress(OSError, RuntimeError):
        if writer.can_write_eof():
            writer.write_eof()
