"""The last line of what still runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from ohsandbox.mcp_server.session import MAX_LINE_CHARS, TAIL_BYTES, last_line
from ohsandbox.secrets import Masker

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.mcp_server.conftest import Served

LONG = "x" * TAIL_BYTES
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
    told = last_line(tail.encode()[:TAIL_BYTES], Masker({"KEY": SECRET}))
    assert told
    assert "unter2" not in told


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


def test_a_call_that_waits_for_another_says_so(serve: Callable[..., Served], tmp_path: Path) -> None:
    served = serve("--runtime", "cli", "--workspace", str(tmp_path))
    served.begin()
    served.ask(1, "execute_bash", command="sleep 5")
    served.ask(100, "file_read", path="x")
    assert "waits for another call" in served.receive()["params"]["message"]
    served.cancel(1)
    assert served.answer(100)["isError"]


def test_nothing_is_told_from_within_a_secret_that_is_longer_than_what_is_looked_at() -> None:
    value = "".join(f"{number:05d}" for number in range(2000))
    masker = Masker({"BIG": value})
    for start in (0, 3000, len(value) - TAIL_BYTES):
        assert last_line(value[start : start + TAIL_BYTES].encode(), masker) == ""
    assert last_line(f"{value[-3000:]}\n{'x' * 2000}\nnext".encode()[-TAIL_BYTES:], masker) == "next"
