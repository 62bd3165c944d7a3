"""An agent of pydantic-ai works in a sandbox with a model that is a function."""

from __future__ import annotations

import asyncio
import base64
import os
from typing import TYPE_CHECKING, Any

import pytest
from pydantic_ai import Agent, BinaryContent
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from ohsandbox import DockerRuntime, Runtime, UsageError
from ohsandbox.errors import SandboxGone
from ohsandbox.integrations.pydantic_ai import OhsandboxToolset
from ohsandbox.integrations.sandbox_tools import TOOLS
from ohsandbox.secrets import Secrets
from ohsandbox.testing import FakeRuntime
from tests.integrations.scripted import PIXEL

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


async def _results(runtime: Runtime, *turns: list[tuple[str, dict[str, Any]]]) -> list[Any]:
    """What the calls of each turn gave."""
    left, shown = [*turns], []

    def model(_: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        shown.append(sorted(tool.name for tool in info.function_tools))
        if not left:
            return ModelResponse(parts=[TextPart("done")])
        return ModelResponse(parts=[ToolCallPart(name, arguments) for name, arguments in left.pop(0)])

    ended = await Agent(FunctionModel(model), toolsets=[OhsandboxToolset(runtime)]).run("Go.")
    assert ended.output == "done"
    assert shown[0] == sorted(TOOLS)
    parts = [part for message in ended.all_messages() for part in message.parts]
    return [part.content for part in parts if isinstance(part, ToolReturnPart)]


async def test_an_agent_writes_edits_searches_and_runs(runtime: Runtime) -> None:
    wrote, edited, found, listed, ran, read = await _results(
        runtime,
        [("file_write", {"path": "six.sh", "content": "echo $((6 * 7))\n"})],
        [("file_editor", {"command": "str_replace", "path": "six.sh", "old_str": "7", "new_str": "8"})],
        [("grep", {"pattern": "6 . 8"}), ("glob", {"pattern": "*.sh"})],
        [("execute_bash", {"command": "sh six.sh"})],
        [("file_read", {"path": "six.sh"})],
    )
    assert "Wrote 16 bytes" in wrote
    assert "8" in edited
    assert "six.sh" in found
    assert "six.sh" in listed
    assert ran.startswith("48\n[Exit code 0")
    assert read == "echo $((6 * 8))\n"


async def test_a_mistake_is_told_to_the_model_and_a_dead_sandbox_ends_the_run(fake: FakeRuntime) -> None:
    [missing, wrong] = await _results(fake, [("file_read", {"path": "none"})], [("grep", {"patern": "x"})])
    assert "none" in missing
    assert "patern" in wrong
    fake.break_down(SandboxGone("gone"))
    with pytest.raises(SandboxGone):
        await _results(fake, [("execute_bash", {"command": "true"})])


async def test_an_image_is_shown_as_one(fake: FakeRuntime) -> None:
    fake.write_bytes("pixel.png", base64.b64decode(PIXEL))
    [[_, image]] = await _results(fake, [("file_editor", {"command": "view", "path": "pixel.png"})])
    assert isinstance(image, BinaryContent)
    assert image.media_type == "image/png"


async def test_a_secret_is_masked_in_a_file_too(fake: FakeRuntime) -> None:
    fake.give_secrets(Secrets({"TOKEN": "sekret-0123456789"}))
    fake.write_bytes("token", b"sekret-0123456789")
    assert await _results(fake, [("file_read", {"path": "token"})]) == ["<secret:TOKEN>"]


async def test_a_cancelled_run_ends_its_command(fake: FakeRuntime) -> None:
    call = [("execute_bash", {"command": "touch begun; sleep 604"})]
    run = asyncio.create_task(_results(fake, call))
    await fake.arun(["sh", "-c", "until test -e begun; do sleep 0.05; done"])
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    assert (await fake.aexecute("echo free", timeout_s=20)).output == "free\n"


def test_a_tool_that_does_not_exist_is_refused(fake: FakeRuntime) -> None:
    with pytest.raises(UsageError, match="execute_bsh"):
        OhsandboxToolset(fake, ["execute_bsh"])
