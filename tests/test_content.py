"""How much of a result is shown: the section `output` of the settings."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import ohsandbox
from ohsandbox import Agent, Conversation, Settings
from ohsandbox.content import Content, ImageContent, OutputLimits, TextContent
from ohsandbox.errors import UsageError
from ohsandbox.mcp_server.checkpoints import CheckpointTools
from ohsandbox.mcp_server.server import result_of
from ohsandbox.mcp_server.session import tools_in
from ohsandbox.schema import TextObservation
from tests.fakes import FakeModel, RecordingRuntime, answer, call, results_of

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


def test_a_refusal_and_the_list_of_tasks_are_cut_by_the_settings_too(tmp_path: Path) -> None:
    tasks = [{"title": "x" * 400}] * 5
    calls = [call("task_tracker", {"command": "plan", "task_list": tasks}), call("execute_bash", {"command": "ls"})]
    model = FakeModel(*[answer("", one) for one in calls], answer("done"))
    settings = Settings(output=OutputLimits(max_chars=1000, max_result_chars=1500), confirm="always")
    agent = Agent(model, ["task_tracker", "execute_bash"])
    with Conversation(agent, RecordingRuntime(), tmp_path, settings=settings) as conversation:
        conversation.run("go")
        conversation.confirm()
        conversation.wait()
        conversation.reject("no " * 1000)
        conversation.wait()
        planned, rejected = results_of(conversation)
    assert re.search(r"\[\.\.\. 1\d{3} of 2\d{3} characters left out here", planned["output"])
    assert re.search(r"\[\.\.\. 15\d\d of 30\d\d characters left out here", rejected["error"])


def test_only_default_arguments_read_the_default_limits() -> None:
    package = Path(ohsandbox.__file__).parent
    reads = {
        f"{path.relative_to(package)}: {found}"
        for path in package.rglob("*.py")
        for found in re.findall(r"\S+ DEFAULT_LIMITS\.\w+", path.read_text())
    }
    assert reads == {
        "runtime/files/text.py: = DEFAULT_LIMITS.max_chars",
        'runtime/tool_calls.py: "description": DEFAULT_LIMITS.fill',  # for programs, which have no settings
    }
