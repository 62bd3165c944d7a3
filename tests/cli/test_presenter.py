"""What a run has taken, as a person is told of it."""

from __future__ import annotations

import io
import re
import time
from typing import TYPE_CHECKING

from ohsandbox.agent import Agent
from ohsandbox.cli.presenter import Presenter
from ohsandbox.cli.rendering.view import PlainView
from ohsandbox.conversation import Conversation
from tests.fakes import FakeModel, RecordingRuntime, answer, call

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

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
