"""The order of a session's calls, and the last line of what still runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import anyio
import anyio.lowlevel
import pytest

from ohsandbox.mcp_server.session import MAX_LINE_CHARS, MAX_SIDE_BY_SIDE, CallQueue, last_line
from ohsandbox.schema.execution import LAST_OUTPUT_BYTES
from ohsandbox.secrets import Masker

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.mcp_server.conftest import Served

LONG = "x" * LAST_OUTPUT_BYTES
SECRET = "hunter2-hunter2"


@pytest.mark.parametrize(
    ("tail", "line"),
    [
        (b"", ""),
        (b"\r\n \r\n", ""),
        (b"one\r\ntwo\r\n\r\n", "two"),
        (b"one\r\ntw", "tw"),
        (b" 10%\r 20%\r 30%", "30%"),
        (b"\x1b[31mred\x1b[0m \x1b[3", "red"),
        (b"\x1b]0;title\x07named", "named"),
        (b"bell\x07 null\0", "bell␇ null␀"),
        (b"a\xe2\x80\xaeb\xe2\x80\x8bc", "abc"),
        (b"half \xe2\x82", "half"),
        (b"\xff\xfe\n", "��"),
        (b"a\tb   c", "a b c"),
        (LONG.encode(), f"{LONG[: MAX_LINE_CHARS - 1]}…"),
    ],
)
def test_the_last_line(tail: bytes, line: str) -> None:
    assert last_line(tail) == line


@pytest.mark.parametrize(
    "tail", [f"key {SECRET} end", f"key {SECRET}", f"key {SECRET[:-3]}", f"{SECRET[3:]}\r\n{LONG}"]
)
def test_no_secret_is_told_not_even_a_part_of_one(tail: str) -> None:
    told = last_line(tail.encode()[:LAST_OUTPUT_BYTES], Masker({"KEY": SECRET}))
    assert told
    assert "unter2" not in told


@pytest.mark.slow
@pytest.mark.parametrize(
    ("tool", "arguments"),
    [
        ("execute_bash", {"command": "echo one; echo two; sleep 5"}),
        ("execute_ipython_cell", {"code": "import time; print('one'); print('two', flush=True); time.sleep(5)"}),
    ],
)
def test_progress_tells_it(serve: Callable[..., Served], tmp_path: Path, tool: str, arguments: dict[str, str]) -> None:
    served = serve("--runtime", "cli", "--workspace", str(tmp_path))
    served.begin()
    served.ask(100, tool, **arguments)
    told: list[dict[str, Any]] = []
    while not told or not told[-1]["message"].endswith("s: two"):
        told.append(served.receive()["params"])
    assert [each["progress"] for each in told] == sorted({each["progress"] for each in told})
    served.cancel(100)


@pytest.mark.slow
def test_a_call_that_waits_for_another_says_so(serve: Callable[..., Served], tmp_path: Path) -> None:
    served = serve("--runtime", "cli", "--workspace", str(tmp_path))
    served.begin()
    served.ask(1, "execute_bash", command="sleep 5")
    served.ask(100, "file_read", path="x")
    assert "waits for another call" in served.receive()["params"]["message"]
    served.cancel(1)
    assert served.answer(100)["isError"]


def test_nothing_is_told_from_within_a_secret_that_is_longer_than_what_is_looked_at() -> None:
    value = "".join(f"{number:05d}" for number in range(5000))
    masker = Masker({"BIG": value})
    for start in (0, 3000, len(value) - LAST_OUTPUT_BYTES):
        assert last_line(value[start : start + LAST_OUTPUT_BYTES].encode(), masker) in {"", "<secret:BIG>"}
    assert last_line(f"{value[-9000:]}\n{'x' * 9000}\nnext".encode()[-LAST_OUTPUT_BYTES:], masker) == "next"


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
