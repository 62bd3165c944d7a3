"""One asyncio event loop in a background thread for all MCP clients of the process, and work that is left to it."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

from ohsandbox.background_loop import BackgroundLoop

if TYPE_CHECKING:
    from collections.abc import Coroutine

_BLOCKING_CALLS = 32
"""Number of threads: starting and ending a process each block one; asyncio's default pool has six on two CPUs."""


LOOP = BackgroundLoop("ohsandbox-mcp", blocking_calls=_BLOCKING_CALLS)
"""The loop of all MCP clients."""
_detached: set[asyncio.Future[Any]] = set()
"""Keeps the tasks alive: asyncio has only weak references to them."""


def detach(work: Coroutine[Any, Any, Any]) -> asyncio.Future[Any]:
    """Start work that continues if the waiting caller is cancelled. `await_detached` waits for all such work."""
    task = asyncio.ensure_future(work)
    _detached.add(task)
    task.add_done_callback(_detached.discard)
    return task


async def await_detached(timeout_s: float) -> None:
    """Wait until all detached work is done, at most timeout_s seconds."""
    deadline = time.monotonic() + timeout_s
    while _detached and (remaining_s := deadline - time.monotonic()) > 0:
        await asyncio.wait(set(_detached), timeout=remaining_s)
