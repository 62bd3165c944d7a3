"""How much one sandbox may use of the network, and what is used."""

from __future__ import annotations

import time
from dataclasses import dataclass

from ohsandbox.text import counted

_MIB = 1024 * 1024


@dataclass(frozen=True, kw_only=True)
class NetworkBudgets:
    """Limits of one sandbox's proxy; what is beyond is refused with status 429, or the connection ends.

    Attributes:
        connections: at once; package tools open some 50.
        requests_per_s: decisions a second on average; ten times as many may come at once.
        sent_bytes: out of the sandbox, all connections together, as long as the process lives; what an agent
            uploads for its work is far below, and what would carry a disk away is not.
        received_bytes: into the sandbox, likewise.
        head_bytes: of a request's head.
        head_timeout_s: from the start of a connection, or the first byte of its next request, to the end of the head;
            likewise for the first message of TLS.
        idle_timeout_s: without a byte in either direction.
    """

    connections: int = 512
    requests_per_s: float = 200.0
    sent_bytes: int = 4096 * _MIB
    received_bytes: int = 65536 * _MIB
    head_bytes: int = 32 * 1024
    head_timeout_s: float = 20.0
    idle_timeout_s: float = 600.0


class NetworkUsage:
    """What one sandbox has used of its budgets."""

    def __init__(self, budgets: NetworkBudgets) -> None:
        self._budgets = budgets
        self._burst = 10 * budgets.requests_per_s
        self._requests_left = self._burst
        self._at = time.monotonic()
        self.sent_bytes = 0
        self.received_bytes = 0

    def request_problem(self) -> str:
        """Count a request: why it is too many; "" where it is not."""
        now = time.monotonic()
        since, self._at = now - self._at, now
        self._requests_left = min(self._burst, self._requests_left + since * self._budgets.requests_per_s)
        if self._requests_left < 1:
            return f"more than {self._budgets.requests_per_s:g} requests a second"
        self._requests_left -= 1
        return self.bytes_problem()

    def bytes_problem(self) -> str:
        """Which budget of bytes is used up; "" for none."""
        if self.sent_bytes > self._budgets.sent_bytes:
            return f"more than {counted(self._budgets.sent_bytes, 'byte')} sent"
        if self.received_bytes > self._budgets.received_bytes:
            return f"more than {counted(self._budgets.received_bytes, 'byte')} received"
        return ""
