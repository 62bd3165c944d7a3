"""What a run has taken, as a person is told of it."""

from __future__ import annotations

import io
import re
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from ohsandbox.agent import Agent
from ohsandbox.cli.interactive import screen_presenter
from ohsandbox.cli.interactive.attachments import OutgoingMessage
from ohsandbox.cli.interactive.status_bar import StatusBar
from ohsandbox.cli.rendering.view import PlainView
from ohsandbox.cli.session.presenter import Presenter
from ohsandbox.conversation import Conversation
from tests.fakes import FakeModel, RecordingRuntime, answer, call

if TYPE_CHECKING:
    from pathlib import Path

THOUGHT_S = 5000.0


def test_the_time_that_a_person_thought_about_a_question_is_none_of_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, thought = time.monotonic, [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock() + sum(thought))

    def think(conversation: Conversation) -> bool:
        thought.append(THOUGHT_S)
        conversation.confirm()
        return True

    out = io.StringIO()
    model = FakeModel(answer("", call("execute_bash", {"command": "ls"})), answer("There."))
    agent = Agent(model, ["execute_bash"])
    with Conversation(agent, RecordingRuntime(), tmp_path, confirmation="always") as conversation:
        Presenter(conversation, PlainView(out), echo=False, answer=think).run("look")
    assert thought[1:] == [THOUGHT_S]
    [seconds] = re.findall(r"Answered · ([\d.]+) s", out.getvalue())
    assert float(seconds) < THOUGHT_S


@pytest.mark.parametrize(("long_s", "rings", "rung"), [(0.0, True, 3), (0.0, False, 0), (1e9, True, 0)])
def test_the_bell_rings_for_a_question_and_for_the_end_where_a_person_waited_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, long_s: float, rung: int, *, rings: bool
) -> None:
    monkeypatch.setattr(screen_presenter, "LONG_S", long_s)
    heard: list[str] = []
    screen: Any = SimpleNamespace(
        region=SimpleNamespace(can_stop=False), renderer=SimpleNamespace(keeps_height=False),
        ring=lambda: heard.append("ring"), show_live=lambda _: None, poll=lambda: None,
    )  # fmt: skip

    def allow(one: Conversation) -> bool:
        one.confirm()
        return True

    bash = [answer("", call("execute_bash", {"command": "ls"}, call_id=name)) for name in "ab"]
    agent = Agent(FakeModel(*bash, answer("There.")), ["execute_bash"])
    view: Any = PlainView(io.StringIO())
    with Conversation(agent, RecordingRuntime(), tmp_path, confirmation="always") as conversation:
        presenter = screen_presenter.ScreenPresenter(
            conversation, view, screen=screen, bar=StatusBar(), answer=allow,
            command=lambda _: None, message=lambda line: OutgoingMessage(line.text), each_tick=lambda: None,
        )  # fmt: skip
        presenter.rings = rings
        presenter.run("look")
    assert len(heard) == rung, "two questions and the end"
