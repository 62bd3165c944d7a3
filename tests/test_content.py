"""How much of a result is shown: the section `output` of the settings."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from ohsandbox import Agent, Conversation, Settings
from ohsandbox.content import Content, ImageContent, OutputLimits, TextContent
from ohsandbox.errors import UsageError
from ohsandbox.mcp_server.checkpoints import CheckpointTools
from ohsandbox.mcp_server.server import result_of
from ohsandbox.mcp_server.session import tools_in
from ohsandbox.schema import TextObservation
from tests.fakes import FakeModel, RecordingRuntime, answer, call, results_of

if TYPE_CHECKING:
    from pathlib import Path

LIMITS = OutputLimits(max_chars=1000, max_result_chars=2000, max_images=2, max_image_chars=20)


def test_text_loses_its_middle_and_says_how_much() -> None:
    text, images = LIMITS.fit([TextContent(text="a" * 1500), TextContent(text="b" * 1499)])
    assert text == "a" * 1000 + "\n[... 1000 of 3000 characters left out here ...]\n" + "b" * 1000
    assert images == []


def test_images_that_are_too_large_or_too_many_are_told() -> None:
    content: list[Content] = [
        TextContent(text="seen"),
        ImageContent(image_urls=("x" * 21, "a", "b")),
        ImageContent(image_urls=("c",)),
    ]
    text, images = LIMITS.fit(content)
    assert images == ["a", "b"]
    assert text.startswith("seen\n[1 image(s) over ")
    assert text.endswith("\n[1 more image(s) left out; at most 2 are shown]")


def test_a_conversation_cuts_and_describes_by_its_settings(tmp_path: Path) -> None:
    runtime = RecordingRuntime()
    runtime.on_execute = lambda _: "x" * 5000
    model = FakeModel(answer("", call("execute_bash", {"command": "make"})), answer("done"))
    settings = Settings(output=OutputLimits(max_chars=1000))
    with Conversation(Agent(model, ["execute_bash"]), runtime, tmp_path, settings=settings) as conversation:
        conversation.run("go")
        [result] = results_of(conversation)
        prompt = next(event for event in conversation.events() if event.type == "system_message")
    assert "[... 4000 of 5000 characters left out here ...]" in result["output"]
    assert "beyond 1000 characters" in json.dumps(prompt.data)


def test_the_last_limit_holds_for_any_tool_of_the_server() -> None:
    [tool] = tools_in(RecordingRuntime(), ["finish"], CheckpointTools(RecordingRuntime()), LIMITS).values()
    [block] = result_of(tool, TextObservation(text="a" * 5000)).content
    assert "[... 3000 of 5000 characters left out here ...]" in str(block)


@pytest.mark.parametrize(
    ("section", "fact"),
    [
        ({"max_chars": 10}, "key 'output.max_chars' is wrong"),
        ({"max_lines": 10}, "unknown key 'output.max_lines'. Known keys: max_chars, max_result_chars, max_images"),
    ],
)
def test_a_fault_in_the_section_is_told_with_its_keys(tmp_path: Path, section: object, fact: str) -> None:
    path = tmp_path / "settings.json"
    path.write_text(json.dumps({"output": section}))
    with pytest.raises(UsageError, match=fact):
        Settings.load(path)
