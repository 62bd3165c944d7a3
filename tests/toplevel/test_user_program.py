"""A program of a user, as `mypy --strict` reads it."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.slow("mypy reads the whole package once more, without a cache")

PROGRAM = '''
import asyncio
from ohsandbox import Agent, Conversation, ConversationStatus, DockerRuntime, LLM, LLMConfig, RunLimits, SandboxLimits
from ohsandbox.events import ToolCallEvent


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def work(task: str) -> str:
    limits = SandboxLimits(memory_bytes=512 * 1024**2)
    with DockerRuntime("python:3.12", limits=limits, env={"A": "b"}) as runtime:
        seen = runtime.execute("ls")
        code: int | None = seen.exit_code
        data: bytes = runtime.run(["cat", "/etc/hostname"]).stdout
        runtime.write_bytes("notes.txt", data, mode=0o600)
        agent = Agent(LLM(LLMConfig(model="openai/gpt-4o")), ["execute_bash", "file_*", add])
        conversation = Conversation(agent, runtime, limits=RunLimits(max_iterations=5))
        result = conversation.run(task)
        if result == ConversationStatus.ERROR or code:
            raise SystemExit(str(result.error))
        names = [event.data.name for event in result.events if isinstance(event, ToolCallEvent)]
        cost: float | None = result.cost_usd
        return f"{result.answer} {names} {cost} {result.usage.prompt_tokens} {result.changed_files}"


async def awaited() -> None:
    async with DockerRuntime("python:3.12") as runtime:
        seen = await runtime.aexecute("true")
        print(seen.output, (await runtime.arun(["true"])).exit_code)
        conversation = Conversation(runtime=runtime)
        async for event in conversation.stream("Go."):
            print(event.type, event.seq)


if __name__ == "__main__":
    print(work("Say hello."))
    asyncio.run(awaited())
'''


def test_a_users_program_is_typed(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(tmp_path / "cache"), "program.py"]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    (tmp_path / "program.py").write_text(PROGRAM.replace("max_iterations=5", "max_iterations='5'"))
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert 'has incompatible type "str"' in ended.stdout
