from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from ohsandbox.agent import Agent
from ohsandbox.conversation.environment import Environment
from ohsandbox.conversation.listeners import Listeners
from ohsandbox.conversation.log import ConversationLog
from ohsandbox.conversation.secrecy import Secrecy
from ohsandbox.errors import SandboxGone
from ohsandbox.secrets import Secrets
from ohsandbox.state import ConversationState
from tests.fakes import FakeModel, RecordingRuntime

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def log(tmp_path: Path) -> Iterator[ConversationLog]:
    log = ConversationLog(tmp_path / "c", conversation_id="c")
    log.open()
    yield log
    log.close()


def reached(log: ConversationLog, runtime: RecordingRuntime, secrets: Secrets | None = None) -> Environment:
    environment = Environment(runtime, log, statuses=Listeners())
    environment.reach(runtime, Secrecy(secrets, log))
    return environment


def equip(environment: Environment, runtime: RecordingRuntime, *tools: str) -> None:
    state = ConversationState(conversation_id="c", runtime=runtime)
    environment.equip(Agent(FakeModel(), tools), state, canceled=threading.Event())


@pytest.mark.parametrize(("runs_already", "calls"), [(True, []), (False, ["start", "close"])])
def test_a_sandbox_is_closed_by_who_started_it(log: ConversationLog, *, runs_already: bool, calls: list[str]) -> None:
    runtime = RecordingRuntime()
    runtime.alive = runs_already
    environment = reached(log, runtime)
    environment.close()
    environment.close()
    assert runtime.log == calls


def test_a_sandbox_has_the_secrets_before_anything_runs_in_it(log: ConversationLog) -> None:
    runtime = RecordingRuntime()
    environment = reached(log, runtime, Secrets({"TOKEN": "s3cret-value"}))
    assert runtime.secrets.names == ("TOKEN",)
    environment.close()


def test_tools_are_there_from_equip_on_and_told_to_the_model_once(log: ConversationLog) -> None:
    runtime = RecordingRuntime()
    environment = reached(log, runtime)
    assert environment.tools is None
    equip(environment, runtime, "execute_bash", "finish")
    assert list(environment.tools or {}) == ["execute_bash", "finish"]
    prompt = log.history.system_prompt
    assert prompt is not None
    equip(environment, runtime, "execute_bash", "finish")
    assert log.history.system_prompt is prompt


def test_an_interrupt_reaches_the_tools_that_are_named_also_when_the_sandbox_is_gone(log: ConversationLog) -> None:
    runtime = RecordingRuntime()
    environment = reached(log, runtime)
    environment.interrupt(["execute_bash"])
    equip(environment, runtime, "execute_bash", "finish")
    environment.interrupt(["finish", "never heard of"])
    assert runtime.log == []
    environment.interrupt(["execute_bash"])
    assert runtime.log == ["interrupt main"]

    def gone(_: str = "main") -> None:
        raise SandboxGone("it is gone")

    runtime.interrupt = gone  # type: ignore[method-assign, assignment]
    environment.interrupt(["execute_bash"])
