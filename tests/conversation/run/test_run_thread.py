from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest

from ohsandbox.agent import Agent
from ohsandbox.conversation import FileConversationStore
from ohsandbox.conversation.approvals.decisions import Approvals
from ohsandbox.conversation.config import ConversationConfig
from ohsandbox.conversation.log import ConversationLog
from ohsandbox.conversation.run.run_thread import RunThread
from ohsandbox.errors import LogWriteError
from ohsandbox.events import ConversationStatus
from tests.fakes import FakeModel

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from ohsandbox.events import EventBody

IDLE, FINISHED, ERROR = ConversationStatus.IDLE, ConversationStatus.FINISHED, ConversationStatus.ERROR


class FakeRunner:
    """Does what it is told in each run."""

    def __init__(self, *turns: Callable[[Callable[[], None]], ConversationStatus]) -> None:
        self.turns = list(turns)
        self.interrupted = threading.Event()
        self.canceled = threading.Event()

    def run(self, *, before_request: Callable[[], None]) -> ConversationStatus:
        return self.turns.pop(0)(before_request)

    def place(self) -> dict[str, Any]:
        return {}

    def interrupt(self) -> None:
        self.interrupted.set()


@pytest.fixture
def log(tmp_path: Path) -> Iterator[ConversationLog]:
    log = ConversationLog(tmp_path / "c", conversation_id="c")
    log.open()
    yield log
    log.close()


@pytest.fixture
def run_thread(log: ConversationLog, tmp_path: Path) -> Callable[..., RunThread]:
    def made(runner: FakeRunner | None = None) -> RunThread:
        config, store = ConversationConfig(Agent(FakeModel(), [])), FileConversationStore(tmp_path)
        return RunThread(
            runner or FakeRunner(),  # type: ignore[arg-type]
            config,
            log,
            approvals=Approvals(log),
            store=store,
        )

    return made


def test_what_is_said_after_the_last_request_is_worked_on_in_the_same_run(run_thread: Callable[..., RunThread]) -> None:
    begun, said = threading.Event(), threading.Event()

    def deaf(_: Callable[[], None]) -> ConversationStatus:
        begun.set()
        assert said.wait(60)
        return IDLE

    def hearing(before_request: Callable[[], None]) -> ConversationStatus:
        before_request()
        return FINISHED

    work = FakeRunner(deaf, hearing)
    runs = run_thread(work)
    assert runs.begin_if(lambda: True)
    assert begun.wait(60)
    assert not runs.begin_if(lambda: True)
    runs.wake()
    said.set()
    runs.wait(60)
    assert (runs.status, runs.is_on, work.turns) == (FINISHED, False, [])


def test_nothing_begins_where_nothing_is_due(run_thread: Callable[..., RunThread]) -> None:
    runs = run_thread(FakeRunner())
    assert not runs.begin_if(lambda: False)
    assert (runs.status, runs.is_on) == (IDLE, False)


def test_a_run_whose_beginning_cannot_be_stored_leaves_nobody_waiting(
    log: ConversationLog, run_thread: Callable[..., RunThread], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: EventBody) -> None:
        raise LogWriteError("no space left")

    monkeypatch.setattr(log, "emit", full)
    runs = run_thread(FakeRunner())
    with pytest.raises(LogWriteError):
        runs.wake()
    assert (runs.status, runs.is_on, runs._settled.is_set()) == (IDLE, False, True)


def test_whatever_ends_the_work_is_the_error(run_thread: Callable[..., RunThread]) -> None:
    fault = ValueError("no such thing")

    def broken(_: Callable[[], None]) -> ConversationStatus:
        raise fault

    runs = run_thread(FakeRunner(broken))
    assert runs.begin_if(lambda: True)
    runs.wait(60)
    assert (runs.status, runs.error, runs.is_on) == (ERROR, fault, False)


def test_stop_interrupts_the_work_and_waits_for_its_end(run_thread: Callable[..., RunThread]) -> None:
    work = FakeRunner()

    def endless(_: Callable[[], None]) -> ConversationStatus:
        assert work.interrupted.wait(60)
        return ConversationStatus.CANCELED

    work.turns = [endless]
    runs = run_thread(work)
    runs.stop(20)
    assert not work.interrupted.is_set()
    assert runs.begin_if(lambda: True)
    runs.stop(20)
    assert (runs.status, runs.is_on) == (ConversationStatus.CANCELED, False)


@pytest.mark.parametrize(
    ("left", "facts", "now"),
    [
        ("RUNNING", (False, False), "IDLE"),
        ("RUNNING", (True, False), "FINISHED"),
        ("CANCELED", (False, False), "CANCELED"),
        ("RUNNING", (False, True), "WAITING_FOR_CONFIRMATION"),
    ],
)
def test_a_status_of_a_dead_process_is_set_right(
    run_thread: Callable[..., RunThread], left: str, facts: tuple[bool, bool], now: str
) -> None:
    runs = run_thread()
    runs.restore_status(ConversationStatus(left), is_finished=facts[0], is_waiting=facts[1])
    assert runs.status.value == now
