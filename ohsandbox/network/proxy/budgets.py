"""Limits on one sandbox's use of the network, and its usage."""

from __future__ import annotations

import time
from dataclasses import dataclass

from ohsandbox.text import counted

_MIB = 1024 * 1024


@dataclass(frozen=True, kw_only=True)
class NetworkBudgets:
    """Limits of one sandbox's proxy; requests beyond them get status 429, or the connection is ended.

    Attributes:
        connections: maximum number at once; package tools open about 50.
        requests_per_s: average number of requests per second; bursts of ten times as many pass.
        sent_bytes: maximum number of bytes out of the sandbox, over all connections: far more than an agent's usual
            uploads, less than a whole disk.
        received_bytes: maximum number of bytes into the sandbox, over all connections.
        head_bytes: maximum size of a request's head.
        head_timeout_s: time limit for a request's head, from the start of the connection or the head's first byte, and
            for a ClientHello.
        idle_timeout_s: maximum time without a byte in either direction.
    """

    connections: int = 512
    requests_per_s: float = 200.0
    sent_bytes: int = 4096 * _MIB
    received_bytes: int = 65536 * _MIB
    head_bytes: int = 32 * 1024
    head_timeout_s: float = 20.0
    idle_timeout_s: float = 600.0


class NetworkUsage:
    """What one sandbox has used of its limits."""

    def __init__(self, budgets: NetworkBudgets) -> None:
        self._budgets = budgets
        self._burst = 10 * budgets.requests_per_s
        self._requests_left = self._burst
        self._at = time.monotonic()
        self.sent_bytes = 0
        self.received_bytes = 0

    def request_problem(self) -> str:
        """Count a request; return why it is refused, "" if it is not."""
        now = time.monotonic()
        since, self._at = now - self._at, now
        self._requests_left = min(self._burst, self._requests_left + since * self._budgets.requests_per_s)
        if self._requests_left < 1:
            return f"more than {self._budgets.requests_per_s:g} requests a second"
        self._requests_left -= 1
        return self.bytes_problem()

    def bytes_problem(self) -> str:
        """Return which limit on bytes is exceeded; "" if none is."""
        if self.sent_bytes > self._budgets.sent_bytes:
            return f"more than {counted(self._budgets.sent_bytes, 'byte')} sent"
        if self.received_bytes > self._budgets.received_bytes:
            return f"more than {counted(self._budgets.received_bytes, 'byte')} received"
        return ""
