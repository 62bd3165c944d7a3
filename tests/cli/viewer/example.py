# ruff: noqa: E501 - a line is an event
"""A conversation that is made up, with a bit of everything; and one whose every text is hostile."""

from __future__ import annotations

import json
import zlib
from base64 import b64encode
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from ohsandbox import events
from ohsandbox.events import ConversationStatus, EventBody, ToolResult
from ohsandbox.persistence import LOG_NAME, encode_record
from tests.fakes import stamp

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

BEGAN = datetime(2026, 11, 20, 9, 30, tzinfo=UTC)
HOSTILE = (
    "</script><script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">"
    "<!--<script> <b>bold</b> &amp; \u202egnp.exe \x1b]0;title\x07\x1b[2J\x1b[31;40mred\x1b[8mconcealed\x1b[0m \x00 "
    "[link](javascript:document.title=1) [other](http://evil.example/x) ![p](http://evil.example/p.png) "
    "<http://evil.example/auto> \u2028 ```"
)


def call(
    number: int, name: str, arguments: dict[str, Any], *, thought: str | None = None, cost_usd: float = 0.0042,
    index: int = 0, total: int = 1, **more: Any,
) -> EventBody:  # fmt: skip
    usage = {"prompt_tokens": 4200 + 310 * number, "completion_tokens": 160}
    first: dict[str, Any] = {"thought": thought, "cost_usd": cost_usd, "usage": usage} if index == 0 else {}
    return events.tool_call(
        tool_call_id=f"c{number}", name=name, arguments=json.dumps(arguments), response_id=f"r{number - index}",
        call_index=index, total_calls=total, **first, **more,
    )  # fmt: skip


def result(number: int, name: str, output: Any, *, images: tuple[str, ...] = (), **details: Any) -> EventBody:
    return events.tool_result(
        tool_call_id=f"c{number}", name=name, result=ToolResult.ok(output), details=details, images=images
    )


def write(directory: Path, bodies: Iterable[tuple[float, EventBody]]) -> Path:
    """The log of pairs of seconds since the event before and an event."""
    directory.mkdir(parents=True, mode=0o700)
    at, lines = BEGAN, []
    pairs = list(bodies)
    for event, (seconds, _) in zip(stamp(*(body for _, body in pairs)), pairs, strict=True):
        at += timedelta(seconds=seconds)
        lines.append(encode_record(event.model_copy(update={"ts": at, "conversation_id": directory.name}), None))
    (directory / LOG_NAME).write_bytes(b"".join(lines))
    return directory


def usual(root: Path) -> Path:
    """A conversation in which a bug is found and fixed, with a sub-agent."""
    directory = write(root / "20261120-093000-example", _usual(root))
    write(directory / "agents" / "reviewer-1", _review())
    return directory


def hostile(root: Path) -> Path:
    bodies = [
        events.system_message(HOSTILE, tools=[{"function": {"name": HOSTILE}}]),
        events.user_message(HOSTILE),
        events.status_update(ConversationStatus.RUNNING, model=HOSTILE),
        call(1, "execute_bash", {"command": HOSTILE}, thought=HOSTILE),
        result(1, "execute_bash", HOSTILE, exit_code=1, cwd=HOSTILE),
        call(2, "file_editor", {"command": "str_replace", "path": HOSTILE, "old_str": HOSTILE, "new_str": HOSTILE * 2}),
        result(2, "file_editor", HOSTILE, images=("http://evil.example/x.png", "data:image/svg+xml;base64,AAAA")),
        call(3, HOSTILE, {HOSTILE: HOSTILE, "two": [HOSTILE]}),
        result(3, HOSTILE, {"not": HOSTILE}),
        events.notice(code="AgentStarted", message=HOSTILE, trail="/x/</script>/log"),
        events.retry(code="x", message=HOSTILE, attempt=1, attempts=3, wait_s=2.0),
        events.confirmation(tool_call_ids=["1"], approved=False, reason=HOSTILE, by=HOSTILE),
        events.approval(number=1, scope={}, text=HOSTILE, by=HOSTILE),
        events.condensation(keep_first=1, dropped=7, summary=HOSTILE, reason="requested"),
        events.checkpoint(id="c", label=HOSTILE),
        events.assistant_message(HOSTILE, response_id=HOSTILE),
        events.error(code="x", message=HOSTILE),
        events.status_update(ConversationStatus.ERROR),
    ]
    return write(root / "hostile", [(1.0, body) for body in bodies])


def long(root: Path, count: int) -> Path:
    """One of about so many events."""
    bodies: list[tuple[float, EventBody]] = [(0.0, events.user_message("Work through the list."))]
    for number in range(1, count // 2):
        lines = "\n".join(f"{number}:{line} tests/test_{line}.py::test_case PASSED [{line}%]" for line in range(20))
        bodies += [
            (2.0, call(number, "execute_bash", {"command": f"pytest -q tests/part_{number}.py"}, thought=f"Part **{number}** comes next.")),
            (1.0 + number % 7, result(number, "execute_bash", lines, exit_code=int(number % 9 == 0))),
        ]  # fmt: skip
    return write(root / "long", bodies)


def png(width: int, height: int) -> str:
    """A picture as a data URL: a slope of colours."""
    rows = b"".join(
        b"\0" + bytes(value for x in range(width) for value in (x * 255 // width, y * 255 // height, 140))
        for y in range(height)
    )

    def chunk(kind: bytes, data: bytes) -> bytes:
        return len(data).to_bytes(4, "big") + kind + data + zlib.crc32(kind + data).to_bytes(4, "big")

    head = width.to_bytes(4, "big") + height.to_bytes(4, "big") + b"\x08\x02\x00\x00\x00"
    data = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    return f"data:image/png;base64,{b64encode(data).decode()}"


_FAILED = """\
\x1b[1m============================= test session starts ==============================\x1b[0m
collected 14 items

tests/test_intervals.py \x1b[32m.\x1b[0m\x1b[32m.\x1b[0m\x1b[31mF\x1b[0m\x1b[32m...........\x1b[0m                                   [100%]

\x1b[31m\x1b[1m=================================== FAILURES ===================================\x1b[0m
____________________________ test_touching_intervals ___________________________

    def test_touching_intervals() -> None:
>       assert merge([(1, 2), (2, 3)]) == [(1, 3)]
\x1b[31mE       assert [(1, 2), (2, 3)] == [(1, 3)]\x1b[0m
\x1b[31m========================= \x1b[1m1 failed\x1b[0m, \x1b[32m13 passed\x1b[0m\x1b[31m in 0.08s =========================\x1b[0m
"""
_OLD = """\
def merge(intervals):
    result = []
    for start, end in sorted(intervals):
        if result and start < result[-1][1]:
            result[-1] = (result[-1][0], max(end, result[-1][1]))
        else:
            result.append((start, end))
    return result
"""
_NEW = _OLD.replace("def merge(intervals):", "def merge(intervals: list[Interval]) -> list[Interval]:").replace(
    "    result = []\n", '    """Merge intervals that overlap or touch."""\n    result: list[Interval] = []\n'
).replace("start < result", "start <= result")  # fmt: skip
_ANSWER = """\
The comparison was strict, so intervals that only *touch* were kept apart. It is `<=` now:

1. `intervals.py`: `merge` joins touching intervals, and has types.
2. `tests/test_intervals.py` is unchanged, and **all 14 tests pass**.

| case | before | now |
|---|---|---|
| `(1, 2), (2, 3)` | two intervals | `(1, 3)` |
| `(1, 2), (4, 5)` | two intervals | two intervals |

See [the standard library's `bisect`](https://docs.python.org/3/library/bisect.html) if the list gets long.
"""


def _usual(root: Path) -> list[tuple[float, EventBody]]:
    tools = [{"function": {"name": name}} for name in ("execute_bash", "file_editor", "grep", "delegate", "finish")]
    trail = str(root / "20261120-093000-example" / "agents" / "reviewer-1" / LOG_NAME)
    edit = {"command": "str_replace", "path": "/workspace/intervals.py", "old_str": _OLD, "new_str": _NEW}
    push = call(7, "execute_bash", {"command": "git push origin main"}, thought="Now I publish it.")
    return [
        (0.0, events.system_message("You are a careful engineer.\nWork in /workspace.", tools=tools)),
        (0.1, events.user_message("A test of `merge` fails. find out why, fix it, and publish it.")),
        (0.0, events.status_update(ConversationStatus.RUNNING, model="anthropic/claude-sonnet-4-5")),
        (0.5, events.checkpoint(id="c1", label="before")),
        (3.1, call(1, "execute_bash", {"command": "python -m pytest --color=yes 2>&1 | tail -n 30"}, thought="I run the tests first.")),
        (4.6, result(1, "execute_bash", _FAILED, exit_code=1)),
        (2.4, call(2, "grep", {"pattern": "def merge", "path": "/workspace", "include": "*.py"}, total=2)),
        (0.0, call(3, "execute_bash", {"command": "cat > notes.txt <<'EOF'\none\ntwo\nthree\nEOF"}, index=1, total=2)),
        (0.2, result(2, "grep", "/workspace/intervals.py:4:def merge(intervals):")),
        (0.1, result(3, "execute_bash", "", exit_code=0)),
        (5.2, call(4, "file_editor", edit, thought="`<` should be `<=`: touching intervals are one.")),
        (0.1, result(4, "file_editor", "Replaced.", command="str_replace", first_line=4)),
        (1.0, events.retry(code="RateLimit", message="Too many requests.", attempt=1, attempts=7, wait_s=4.0)),
        (6.0, call(5, "delegate", {"task": "Review the change of intervals.py."}, thought="Somebody else should look at it.")),
        (0.1, events.notice(code="AgentStarted", message="Sub-agent 'reviewer-1' began.", trail=trail)),
        (9.5, result(5, "delegate", "The change is right; touching intervals are merged.")),
        (2.2, call(6, "browser", {"code": "goto('http://localhost:8000')"}, thought="How does the page look?")),
        (1.9, result(6, "browser", "A chart of intervals.", images=(png(320, 120),))),
        (2.0, events.held(push, asks=True, risk="HIGH", why=["It sends data to another machine."], only_reads=False)),
        (0.0, events.status_update(ConversationStatus.WAITING_FOR_CONFIRMATION)),
        (95.0, events.confirmation(tool_call_ids=["c7"], approved=False, reason="I push myself.", by="ada")),
        (0.0, events.status_update(ConversationStatus.RUNNING)),
        (0.1, events.tool_result(tool_call_id="c7", name="execute_bash", result=ToolResult.failed("The user said no: I push myself."))),
        (4.0, events.assistant_message(_ANSWER, response_id="r8", finish_reason="stop", usage={"prompt_tokens": 7000, "completion_tokens": 240}, cost_usd=0.0121)),
        (0.0, events.status_update(ConversationStatus.IDLE)),
        (3600.0, events.user_message("Thank you. What did the tests say in the end?")),
        (0.0, events.status_update(ConversationStatus.RUNNING)),
        (2.0, call(9, "execute_bash", {"command": "python -m pytest -q"})),
        (1.2, result(9, "execute_bash", "14 passed in 0.07s", exit_code=0)),
        (1.5, events.assistant_message("All **14** passed.", response_id="r10", usage={"prompt_tokens": 7200, "completion_tokens": 12}, cost_usd=0.0031)),
        (0.1, events.status_update(ConversationStatus.IDLE)),
    ]  # fmt: skip


def _review() -> list[tuple[float, EventBody]]:
    return [
        (0.0, events.user_message("Review the change of intervals.py.")),
        (2.0, call(1, "execute_bash", {"command": "git diff"}, thought="I read the difference.")),
        (0.3, result(1, "execute_bash", "--- a/intervals.py\n+++ b/intervals.py\n@@ -1,3 +1,3 @@\n for start, end in sorted(intervals):\n-    if result and start < result[-1][1]:\n+    if result and start <= result[-1][1]:\n", exit_code=0)),
        (4.0, events.assistant_message("The change is right.", response_id="r2", cost_usd=0.002)),
    ]  # fmt: skip
