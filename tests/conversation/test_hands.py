from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from ohsandbox.agent import Agent
from ohsandbox.conversation.delivery import Delivery
from ohsandbox.conversation.hands import Hands
from ohsandbox.conversation.secrecy import Secrecy
from ohsandbox.conversation.trail import Trail
from ohsandbox.errors import SandboxGone
from ohsandbox.secrets import Secrets
from ohsandbox.state import ConversationState
from tests.fakes import FakeModel, RecordingRuntime

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def trail(tmp_path: Path) -> Iterator[Trail]:
    trail = Trail(tmp_path / "c", conversation_id="c")
    trail.open()
    yield trail
    trail.close()


def reached(trail: Trail, runtime: RecordingRuntime, secrets: Secrets | None = None) -> Hands:
    hands = Hands(runtime, trail, statuses=Delivery())
    hands.reach(runtime, Secrecy(secrets, trail))
    return hands


def equip(hands: Hands, runtime: RecordingRuntime, *tools: str) -> None:
    state = ConversationState(conversation_id="c", runtime=runtime)
    hands.equip(Agent(FakeModel(), tools), state, canceled=threading.Event())


@pytest.mark.parametrize(("runs_already", "log"), [(True, []), (False, ["start", "close"])])
def test_a_sandbox_is_closed_by_who_started_it(trail: Trail, *, runs_already: bool, log: list[str]) -> None:
    runtime = RecordingRuntime()
    runtime.alive = runs_already
    hands = reached(trail, runtime)
    hands.close()
    hands.close()
    assert runtime.log == log


def test_a_sandbox_has_the_secrets_before_anything_runs_in_it(trail: Trail) -> None:
    runtime = RecordingRuntime()
    hands = reached(trail, runtime, Secrets({"TOKEN": "s3cret-value"}))
    assert runtime.secrets.names == ("TOKEN",)
    hands.close()


def test_tools_are_there_from_equip_on_and_told_to_the_model_once(trail: Trail) -> None:
    runtime = RecordingRuntime()
    hands = reached(trail, runtime)
    assert hands.tools is None
    equip(hands, runtime, "execute_bash", "finish")
    assert list(hands.tools or {}) == ["execute_bash", "finish"]
    prompt = trail.history.system_prompt
    assert prompt is not None
    equip(hands, runtime, "execute_bash", "finish")
    assert trail.history.system_prompt is prompt


def test_an_interrupt_reaches_the_tools_that_are_named_also_when_the_sandbox_is_gone(trail: Trail) -> None:
    runtime = RecordingRuntime()
    hands = reached(trail, runtime)
    hands.interrupt(["execute_bash"])
    equip(hands, runtime, "execute_bash", "finish")
    hands.interrupt(["finish", "never heard of"])
    assert runtime.log == []
    hands.interrupt(["execute_bash"])
    assert runtime.log == ["interrupt main"]

    def gone(_: str = "main") -> None:
        raise SandboxGone("it is gone")

    runtime.interrupt = gone  # type: ignore[method-assign, assignment]
    hands.interrupt(["execute_bash"])
