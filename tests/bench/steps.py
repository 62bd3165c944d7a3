"""What a step of a whole conversation costs beside the model and the command, after 100 and after 10,000 events."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from ohsandbox import Agent, Conversation
from ohsandbox.events import ToolResult, tool_call, tool_result, user_message
from ohsandbox.persistence import EventLog
from tests.bench.rows import Row, ms
from tests.fakes import FakeModel, RecordingRuntime, answer, call

if TYPE_CHECKING:
    from ohsandbox.llm import ChatResponse

FEW, MANY = 100, 10_000
STEPS = 60
TARGET_S = 0.005
FLAT = 1.5
"""A step after MANY events may take so much longer than after FEW: the list of messages is copied for each request."""


class _Paced(FakeModel):
    """A model that notes when it was asked and when it had answered."""

    def __init__(self) -> None:
        super().__init__()
        self.asked_at: list[float] = []
        self.answered_at: list[float] = []

    def send(self, *_: Any, **__: Any) -> ChatResponse:
        """A call of the shell that does nothing; in words after STEPS of them."""
        self.asked_at.append(time.perf_counter())
        count = len(self.asked_at)
        response = answer("done") if count > STEPS else answer("", _command(count), id=f"n{count}")
        self.answered_at.append(time.perf_counter())
        return response


def _command(number: int) -> Any:
    return call("execute_bash", {"command": f"true {number}"}, call_id=f"n{number}")


def step_rows() -> list[Row]:
    """Both medians, and whether the one is as flat as the other."""
    few, many = _overhead_s(FEW), _overhead_s(MANY)
    ratio = many / few
    return [
        Row(f"agent's step, {MANY} events", ms(many), "", "", "< 5 ms", many < TARGET_S),
        Row("the same, growth", ms(many), f"{ms(few)} after {FEW}", f"{ratio:.2f}x", f"<= {FLAT}x", ratio <= FLAT),
    ]


def _overhead_s(events: int) -> float:
    """Median time from one answer of the model to its next question; the runtime answers at once."""
    with tempfile.TemporaryDirectory(dir=Path.home()) as name:
        _fill(Path(name) / "c", events)
        model = _Paced()
        limits: dict[str, Any] = {"conversation_id": "c"}
        with Conversation(Agent(model, ["execute_bash"]), RecordingRuntime(), name, **limits) as conversation:
            conversation.run("Go on.", timeout_s=120)
        return median(asked - answered for answered, asked in zip(model.answered_at, model.asked_at[1:], strict=False))


def _fill(directory: Path, events: int) -> None:
    with EventLog(directory, conversation_id="c") as log:
        log.append(user_message("Begin."))
        for number in range(events // 2):
            place: dict[str, Any] = {"tool_call_id": f"c{number}", "name": "execute_bash"}
            where = {"response_id": f"r{number}", "call_index": 0, "total_calls": 1}
            log.append(tool_call(**place, arguments=f'{{"command": "ls {number}"}}', **where))  # type: ignore[arg-type]
            log.append(tool_result(**place, result=ToolResult.ok(f"output {number}\n" * 20)))
