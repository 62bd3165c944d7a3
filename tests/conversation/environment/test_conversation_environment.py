from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from ohsandbox.agent import Agent
from ohsandbox.conversation.approvals.decisions import Approvals
from ohsandbox.conversation.config import ConversationConfig
from ohsandbox.conversation.environment.conversation_environment import Environment
from ohsandbox.conversation.log import CallbackQueue, ConversationLog
from ohsandbox.errors import SandboxGone
from ohsandbox.secrets import Secrets
from ohsandbox.state import ConversationState
from tests.fakes import FakeModel, RecordingRuntime

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from ohsandbox.runtime.base import Runtime


@pytest.fixture
def log(tmp_path: Path) -> Iterator[ConversationLog]:
    log = ConversationLog(tmp_path / "c", conversation_id="c")
    log.open()
    yield log
    log.close()


def environment_of(
    log: ConversationLog, runtime: RecordingRuntime, *tools: str, secrets: Secrets | None = None
) -> Environment:
    config = ConversationConfig(Agent(FakeModel(), tools), secrets=secrets)
    return Environment(runtime, config, log, Approvals(log), statuses=CallbackQueue())


def prepare(environment: Environment) -> list[str]:
    def state(runtime: Runtime) -> ConversationState:
        return ConversationState(conversation_id="c", runtime=runtime)

    return list(environment.prepare(state, canceled=threading.Event()))


@pytest.mark.parametrize(("runs_already", "calls"), [(True, []), (False, ["start", "close"])])
def test_a_sandbox_is_closed_by_who_started_it(log: ConversationLog, *, runs_already: bool, calls: list[str]) -> None:
    runtime = RecordingRuntime()
    runtime.alive = runs_already
    environment = environment_of(log, runtime)
    prepare(environment)
    environment.close()
    environment.close()
    assert runtime.log == calls


def test_a_sandbox_has_the_secrets_before_anything_runs_in_it(log: ConversationLog) -> None:
    runtime = RecordingRuntime()
    environment = environment_of(log, runtime, secrets=Secrets({"TOKEN": "s3cret-value"}))
    prepare(environment)
    assert runtime.secrets.names == ("TOKEN",)
    environment.close()


def test_tools_are_made_once_and_the_system_message_is_stored_where_it_changed(log: ConversationLog) -> None:
    environment = environment_of(log, RecordingRuntime(), "execute_bash", "finish")
    assert prepare(environment) == ["execute_bash", "finish"]
    prompt = log.history.system_prompt
    assert prompt is not None
    assert prepare(environment) == ["execute_bash", "finish"]
    assert prepare(environment_of(log, RecordingRuntime(), "execute_bash", "finish")) == ["execute_bash", "finish"]
    assert log.history.system_prompt is prompt
    prepare(environment_of(log, RecordingRuntime(), "finish"))
    assert log.history.system_prompt is not prompt


def test_an_interrupt_reaches_the_tools_that_are_named_also_when_the_sandbox_is_gone(log: ConversationLog) -> None:
    runtime = RecordingRuntime()
    environment = environment_of(log, runtime, "execute_bash", "finish")
    environment.interrupt(["execute_bash"])
    prepare(environment)
    environment.interrupt(["finish", "never heard of"])
    assert runtime.log == []
    environment.interrupt(["execute_bash"])
    assert runtime.log == ["interrupt main"]

    def gone(_: str = "main") -> None:
        raise SandboxGone("it is gone")

    runtime.interrupt = gone  # type: ignore[method-assign, assignment]
    environment.interrupt(["execute_bash"])
