"""The order of a session's calls."""

from __future__ import annotations

import anyio
import anyio.lowlevel

from ohsandbox.mcp_server.concurrency import MAX_SIDE_BY_SIDE, CallQueue


class Calls:
    """Calls that each run until they are let go."""

    def __init__(self) -> None:
        self.running: list[str] = []
        self._turns = CallQueue()
        self._free: dict[str, anyio.Event] = {}

    async def call(self, name: str) -> None:
        """One; a name that begins with r only reads."""
        self._free[name] = anyio.Event()
        async with self._turns.turn(reads=name.startswith("r")):
            self.running.append(name)
            try:
                await self._free[name].wait()
            finally:
                self.running.remove(name)

    async def end(self, name: str) -> None:
        self._free[name].set()
        await anyio.wait_all_tasks_blocked()


def test_calls_run_in_their_order_and_neighbours_that_read_side_by_side() -> None:
    async def main() -> None:
        calls = Calls()
        async with anyio.create_task_group() as group:
            for name in ("w1", "r1", "r2", "w2", "r3"):
                group.start_soon(calls.call, name)
            await anyio.wait_all_tasks_blocked()
            seen = [[*calls.running]]
            for name in ("w1", "r2", "r1", "w2", "r3"):
                await calls.end(name)
                seen.append([*calls.running])
        assert seen == [["w1"], ["r1", "r2"], ["r1"], ["w2"], ["r3"], []]

    anyio.run(main)


def test_so_many_read_at_a_time() -> None:
    async def main() -> None:
        calls = Calls()
        async with anyio.create_task_group() as group:
            for number in range(MAX_SIDE_BY_SIDE + 1):
                group.start_soon(calls.call, f"r{number}")
            await anyio.wait_all_tasks_blocked()
            assert len(calls.running) == MAX_SIDE_BY_SIDE
            group.cancel_scope.cancel()

    anyio.run(main)


def test_who_leaves_the_queue_holds_up_nobody() -> None:
    async def main() -> None:
        calls = Calls()
        async with anyio.create_task_group() as group:
            group.start_soon(calls.call, "w1")
            await anyio.wait_all_tasks_blocked()
            async with anyio.create_task_group() as leaving:
                leaving.start_soon(calls.call, "w2")
                await anyio.wait_all_tasks_blocked()
                group.start_soon(calls.call, "w3")
                await anyio.wait_all_tasks_blocked()
                leaving.cancel_scope.cancel()
            await calls.end("w1")
            assert calls.running == ["w3"]
            await calls.end("w3")

    anyio.run(main)
