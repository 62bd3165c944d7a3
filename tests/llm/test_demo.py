"""The shipped script, played on this machine: what it expects is what happens."""

from __future__ import annotations

import json
import subprocess
from typing import TYPE_CHECKING, Any

import pytest

from ohsandbox.llm import ChatModel, LLMConfig, ScriptError, open_model

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

ASK: list[dict[str, Any]] = [{"role": "user", "content": "Show me what you can do."}]


def run(command: str, workdir: Path) -> str:
    done = subprocess.run(["sh", "-c", command], cwd=workdir, capture_output=True, text=True, timeout=60, check=False)
    return done.stdout + done.stderr


def act(name: str, arguments: dict[str, str], workdir: Path) -> str:
    if name == "execute_bash":
        return run(arguments["command"], workdir)
    if name == "file_write":
        (workdir / arguments["path"]).write_text(arguments["content"])
        return "written"
    return (workdir / arguments["path"]).read_text()


def play(
    model: ChatModel, workdir: Path, *, act: Callable[[str, dict[str, str], Path], str] = act
) -> tuple[list[dict[str, Any]], str]:
    messages = list(ASK)
    while True:
        message = model.send(messages).message
        messages.append(message.to_llm_dict())
        for call in message.tool_calls:
            arguments = json.loads(call.function.arguments)
            if call.function.name == "finish":
                return messages, arguments["message"]
            output = act(call.function.name, arguments, workdir)
            result = json.dumps({"status": "ok", "output": output})
            messages.append({"role": "tool", "tool_call_id": call.id, "content": result})


def test_the_demo_fails_fixes_and_finishes(tmp_path: Path) -> None:
    messages, said = play(open_model(LLMConfig(model="scripted:demo")), tmp_path)
    results = [message["content"] for message in messages if message["role"] == "tool"]
    assert sum("FAILED (failures=1)" in result for result in results) == 1
    assert sum("Ran 4 tests" in result and "\\nOK\\n" in result for result in results) == 1
    assert "busy: [(9, 12), (13, 17)]\\nhours: 7" in results[-1]
    assert "four tests" in said


def test_the_demo_does_not_pretend_without_a_sandbox(tmp_path: Path) -> None:
    with pytest.raises(ScriptError, match=r"the script expected"):
        play(open_model(LLMConfig(model="scripted:demo")), tmp_path, act=lambda *_: "sh: not found")


def test_every_turn_of_the_demo_says_a_thought(tmp_path: Path) -> None:
    messages, _ = play(open_model(LLMConfig(model="scripted:demo")), tmp_path)
    assert all(message["content"] for message in messages if message["role"] == "assistant")
