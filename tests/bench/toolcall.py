"""What a tool call costs beside the tool: arguments checked, events made durable, the next request built."""

from __future__ import annotations

import itertools
import json
import os
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from ohsandbox import events
from ohsandbox.agent import Agent, History
from ohsandbox.persistence import EventLog
from ohsandbox.schema import Action, TextObservation
from ohsandbox.state import ConversationState
from ohsandbox.tool import ToolDefinition, ToolExecutor
from tests.fakes import FakeModel, answer, call

if TYPE_CHECKING:
    from collections.abc import Callable

    from ohsandbox.llm import ChatResponse
    from tests.bench.rows import Row

EVENTS = 200
ROUNDS = 200
TARGET_S = 0.001


class NoOp(Action):
    """Arguments of the usual kinds."""

    command: str
    timeout: float | None = None
    is_input: bool = False


class Nothing(ToolExecutor[NoOp, TextObservation]):
    """Does nothing, and says so."""

    def __call__(self, action: NoOp) -> TextObservation:
        """Fifty characters."""
        return TextObservation(text=f"{action.command:50}")


class Caller(FakeModel):
    """Calls the tool every time; nothing of what it is shown is copied."""

    def __init__(self) -> None:
        super().__init__()
        self._numbers = itertools.count()

    def send(self, *_: Any, **__: Any) -> ChatResponse:
        """A call, made beforehand as far as ids allow."""
        number = next(self._numbers)
        arguments = json.dumps({"command": "pytest -q tests", "timeout": 60, "security_risk": "LOW"})
        return answer("", call("noop", arguments, call_id=f"c{number}"), id=f"r{number}")


class Bench:
    """An agent, its log on disk, and clocks around the log's appends."""

    def __init__(self, log: EventLog) -> None:
        tool = ToolDefinition(name="noop", description="Do nothing.", action_type=NoOp, executor=Nothing())
        self._agent = Agent(Caller(), tools=[tool, "think", "finish"])
        self._tools_map = self._agent.initialize(ConversationState(conversation_id="bench"))
        self._history = History()
        self._log = log
        self.disk_s = 0.0

    def say(self) -> None:
        """The user's message."""
        self._take(events.user_message("Go on."))

    def step(self) -> None:
        """One request, one call, one result."""
        for body in self._agent.step(self._tools_map, self._history):
            self._take(body)

    def _take(self, body: events.EventBody) -> None:
        began = time.perf_counter()
        event = self._log.append(body)
        self.disk_s += time.perf_counter() - began
        self._history.add(event)


def measure(directory: Path) -> tuple[float, float]:
    """Medians of a step and of its share in the log, in seconds; the log holds 200 to 300 events meanwhile."""
    steps, disks = [], []
    for number in range(ROUNDS // 50):
        with EventLog(directory / str(number), conversation_id="bench") as log:
            bench = Bench(log)
            bench.say()
            for _ in range(EVENTS // 2):
                bench.step()
            for _ in range(50):
                bench.disk_s = 0.0
                steps.append(_timed(bench.step))
                disks.append(bench.disk_s)
    return median(steps), median(disks)


def _timed(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def _raw_syncs(directory: Path) -> float:
    """What two appends of the same size cost with nothing around them."""
    descriptor = os.open(directory / "raw", os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def append() -> None:
        for _ in range(2):
            os.write(descriptor, b"x" * 400 + b"\n")
            os.fdatasync(descriptor)

    took = median([_timed(append) for _ in range(ROUNDS)])
    os.close(descriptor)
    return took


def _call_alone() -> float:
    """Arguments to action to observation."""
    tool = ToolDefinition(name="noop", description="Do nothing.", action_type=NoOp, executor=Nothing())
    arguments = {"command": "pytest -q tests", "timeout": 60, "security_risk": "LOW"}
    return median([_timed(lambda: str(tool(tool.action_from_arguments(arguments)))) for _ in range(ROUNDS)])


def toolcall_rows() -> list[Row]:
    """The whole of it, and its parts."""
    from tests.bench.rows import Row  # noqa: PLC0415 - that module imports this one

    with tempfile.TemporaryDirectory(dir=Path.home()) as name:  # not /tmp, which may be no disk
        step, log = measure(Path(name))
        raw = _raw_syncs(Path(name))
    beside = step - raw
    whole, ours, disk, alone = (f"{seconds * 1000:.2f} ms" for seconds in (step, beside, raw, _call_alone()))
    return [
        Row("tool call beside tool and disk, 200 events", ours, f"{disk}, two writes", "", "< 1 ms", beside < TARGET_S),
        Row("of it: arguments, action, observation", alone, "", "", "", None),
        Row("the whole step, with no-op tool and disk", whole, f"{log * 1000:.2f} ms in the log", "", "", None),
    ]


if __name__ == "__main__":
    for row in toolcall_rows():
        print(*row)  # noqa: T201 - what it is for
