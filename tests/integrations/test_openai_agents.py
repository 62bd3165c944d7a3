"""An agent of the OpenAI Agents SDK works in a sandbox with a model that says what it was given."""

from __future__ import annotations

import base64
import json
import os
from typing import TYPE_CHECKING, Any

import pytest
from agents import Agent, RunConfig, Runner

from ohsandbox import DockerRuntime, Runtime
from ohsandbox.errors import SandboxGone
from ohsandbox.integrations.openai_agents import ohsandbox_tools
from ohsandbox.integrations.sandbox_tools import TOOLS
from ohsandbox.testing import FakeRuntime
from tests.integrations.scripted import PIXEL, ScriptedModel

if TYPE_CHECKING:
    from collections.abc import Iterator

IMAGE = os.environ.get("OHSANDBOX_TEST_IMAGE", "ohsandbox-base:debian")


@pytest.fixture(params=["fake", pytest.param("docker", marks=pytest.mark.docker)])
def runtime(request: pytest.FixtureRequest) -> Iterator[Runtime]:
    with DockerRuntime(image=IMAGE) if request.param == "docker" else FakeRuntime() as runtime:
        yield runtime


@pytest.fixture
def fake() -> Iterator[FakeRuntime]:
    with FakeRuntime() as runtime:
        yield runtime


async def _results(runtime: Runtime, *calls: tuple[str, Any]) -> list[Any]:
    """What each call gave."""
    given = [(name, one if isinstance(one, str) else json.dumps(one)) for name, one in calls]
    agent = Agent(name="coder", model=ScriptedModel(given), tools=ohsandbox_tools(runtime))
    ended = await Runner.run(agent, "Go.", run_config=RunConfig(tracing_disabled=True))
    assert ended.final_output == "done"
    return [item.output for item in ended.new_items if item.type == "tool_call_output_item"]


async def test_an_agent_writes_edits_searches_and_runs(runtime: Runtime) -> None:
    wrote, edited, found, listed, ran, read = await _results(
        runtime,
        ("file_write", {"path": "six.sh", "content": "echo $((6 * 7))\n"}),
        ("file_editor", {"command": "str_replace", "path": "six.sh", "old_str": "7", "new_str": "8"}),
        ("grep", {"pattern": "6 . 8"}),
        ("glob", {"pattern": "*.sh"}),
        ("execute_bash", {"command": "sh six.sh"}),
        ("file_read", {"path": "six.sh"}),
    )
    assert "Wrote 16 bytes" in wrote
    assert "8" in edited
    assert "six.sh" in found
    assert "six.sh" in listed
    assert ran.startswith("48\n[Exit code 0")
    assert read == "echo $((6 * 8))\n"


async def test_a_mistake_is_told_to_the_model_and_a_dead_sandbox_ends_the_run(fake: FakeRuntime) -> None:
    calls = [("file_read", {"path": "none"}), ("file_read", "{"), ("file_read", "[1]"), ("grep", {"patern": "x"})]
    missing, no_json, no_object, wrong = await _results(fake, *calls)
    assert "none" in missing
    assert "not JSON" in no_json
    assert "are a list" in no_object
    assert "patern" in wrong
    fake.break_down(SandboxGone("gone"))
    with pytest.raises(Exception, match="gone") as raised:
        await _results(fake, ("execute_bash", {"command": "true"}))
    assert isinstance(raised.value, SandboxGone) or isinstance(raised.value.__cause__, SandboxGone)


async def test_an_image_is_shown_as_one(fake: FakeRuntime) -> None:
    fake.write_bytes("pixel.png", base64.b64decode(PIXEL))
    [[_, image]] = await _results(fake, ("file_editor", {"command": "view", "path": "pixel.png"}))
    assert image.image_url.startswith("data:image/png;base64,")


def test_the_tools_are_those_of_the_sandbox(fake: FakeRuntime) -> None:
    assert [tool.name for tool in ohsandbox_tools(fake)] == [*TOOLS]
    assert [tool.name for tool in ohsandbox_tools(fake, ["grep"])] == ["grep"]
