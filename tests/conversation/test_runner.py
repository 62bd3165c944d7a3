from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from ohsandbox.agent import Agent
from ohsandbox.conversation import FileConversationStore
from ohsandbox.conversation.approvals import Approvals
from ohsandbox.conversation.config import ConversationConfig
from ohsandbox.conversation.log import ConversationLog
from ohsandbox.conversation.runner import RunThread
from ohsandbox.conversation.standing import Standing
from ohsandbox.errors import LogWriteError
from ohsandbox.events import ConversationStatus
from tests.fakes import FakeModel

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from ohsandbox.events import EventBody

IDLE, FINISHED, ERROR = ConversationStatus.IDLE, ConversationStatus.FINISHED, ConversationStatus.ERROR


class FakeWork:
    """Does what it is told in each run."""

    def __init__(self, *turns: Callable[[Callable[[], None]], ConversationStatus]) -> None:
        self.turns = list(turns)
        self.interrupted = threading.Event()

    def run(self, *, before_request: Callable[[], None]) -> ConversationStatus:
        return self.turns.pop(0)(before_request)

    def interrupt(self) -> None:
        self.interrupted.set()


@pytest.fixture
def log(tmp_path: Path) -> Iterator[ConversationLog]:
    log = ConversationLog(tmp_path / "c", conversation_id="c")
    log.open()
    yield log
    log.close()


@pytest.fixture
def standing(log: ConversationLog, tmp_path: Path) -> Standing:
    return Standing(log, ConversationConfig(Agent(FakeModel(), [])), FileConversationStore(tmp_path))


def runs_of(log: ConversationLog, standing: Standing, work: FakeWork) -> RunThread:
    return RunThread(log, standing, Approvals(log), work, canceled=threading.Event())  # type: ignore[arg-type]


def test_what_is_said_after_the_last_request_is_worked_on_in_the_same_run(
    log: ConversationLog, standing: Standing
) -> None:
    begun, said = threading.Event(), threading.Event()

    def deaf(_: Callable[[], None]) -> ConversationStatus:
        begun.set()
        assert said.wait(20)
        return IDLE

    def hearing(before_request: Callable[[], None]) -> ConversationStatus:
        before_request()
        return FINISHED

    work = FakeWork(deaf, hearing)
    runs = runs_of(log, standing, work)
    assert runs.begin_where(lambda: True)
    assert begun.wait(20)
    assert not runs.begin_where(lambda: True)
    with log.guard:
        runs.wake()
    said.set()
    runs.wait(20)
    assert (standing.status, runs.is_on, work.turns) == (FINISHED, False, [])


def test_nothing_begins_where_nothing_is_due(log: ConversationLog, standing: Standing) -> None:
    runs = runs_of(log, standing, FakeWork())
    assert not runs.begin_where(lambda: False)
    assert (standing.status, runs.is_on) == (IDLE, False)


def test_a_run_whose_beginning_cannot_be_stored_leaves_nobody_waiting(
    log: ConversationLog, standing: Standing, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: EventBody) -> None:
        raise LogWriteError("no space left")

    monkeypatch.setattr(log, "record", full)
    runs = runs_of(log, standing, FakeWork())
    with log.guard, pytest.raises(LogWriteError):
        runs.begin()
    assert (standing.status, runs.is_on, runs._settled.is_set()) == (IDLE, False, True)


def test_whatever_ends_the_work_is_the_error(log: ConversationLog, standing: Standing) -> None:
    fault = ValueError("no such thing")

    def broken(_: Callable[[], None]) -> ConversationStatus:
        raise fault

    runs = runs_of(log, standing, FakeWork(broken))
    assert runs.begin_where(lambda: True)
    runs.wait(20)
    assert (standing.status, standing.error, runs.is_on) == (ERROR, fault, False)


def test_stop_interrupts_the_work_and_waits_for_its_end(log: ConversationLog, standing: Standing) -> None:
    work = FakeWork()

    def endless(_: Callable[[], None]) -> ConversationStatus:
        assert work.interrupted.wait(20)
        return ConversationStatus.CANCELED

    work.turns = [endless]
    runs = runs_of(log, standing, work)
    runs.stop(20)
    assert not work.interrupted.is_set()
    assert runs.begin_where(lambda: True)
    runs.stop(20)
    assert (standing.status, runs.is_on) == (ConversationStatus.CANCELED, False)


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
    standing: Standing, left: str, facts: tuple[bool, bool], now: str
) -> None:
    standing.status = ConversationStatus(left)
    standing.take_over(is_finished=facts[0], is_asking=facts[1])
    assert standing.status.value == now
