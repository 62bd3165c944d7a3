"""The way of a message to the sandbox and back, traced: how many frames and modules of ours it passes."""

from __future__ import annotations

import json
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ohsandbox
from ohsandbox import Agent, CLIRuntime, Conversation, LLMConfig, open_model
from ohsandbox.events import ConversationStatus

if TYPE_CHECKING:
    from types import FrameType

PACKAGE = str(Path(ohsandbox.__file__).parent)
MOST_FRAMES, MOST_MODULES = 15, 40
MOST_OF_A_MESSAGE = 60
"""Modules that a whole message passes in its caller and the run: model, log, limits and approvals too."""


class Walk:
    """What threads begun meanwhile call of the package: the run's is one of them."""

    def __init__(self) -> None:
        self.to_the_shell: list[str] = []
        self.modules: set[str] = set()
        self.all_modules: set[str] = set()

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        name = frame.f_code.co_filename
        if event != "call" or not name.startswith(PACKAGE):
            return
        self.all_modules.add(str(Path(name).relative_to(PACKAGE)))
        if self.is_within_a_call(frame):
            self.modules.add(name)
        if frame.f_code.co_qualname == "ShellSession.send":
            self.to_the_shell = self.frames(frame)

    def frames(self, frame: FrameType | None) -> list[str]:
        """Of ours, the newest first."""
        found = []
        while frame is not None:
            if frame.f_code.co_filename.startswith(PACKAGE):
                found.append(f"{Path(frame.f_code.co_filename).relative_to(PACKAGE)} {frame.f_code.co_qualname}")
            frame = frame.f_back
        return found

    def is_within_a_call(self, frame: FrameType | None) -> bool:
        """Whether a tool's call is being run."""
        while frame is not None:
            if frame.f_code.co_qualname == "ToolDefinition.__call__":
                return True
            frame = frame.f_back
        return False


def test_a_message_reaches_the_sandbox_in_few_frames_and_modules(tmp_path: Path) -> None:
    turns = [
        {"tool_calls": [{"name": "execute_bash", "arguments": {"command": command}}]} for command in ("true", "echo hi")
    ]
    script = tmp_path / "script.json"
    script.write_text(json.dumps([*turns, {"content": "done"}]))
    model = open_model(LLMConfig(model=f"scripted:{script}"))
    walk = Walk()
    threading.setprofile(walk)
    try:
        with Conversation(
            Agent(model), CLIRuntime(tmp_path, quiet=True, bubblewrap=False), tmp_path / "kept"
        ) as conversation:
            assert conversation.run("go") == ConversationStatus.IDLE
    finally:
        threading.setprofile(None)
    assert walk.to_the_shell
    assert len(walk.to_the_shell) <= MOST_FRAMES, "\n".join(walk.to_the_shell)
    on_the_way = {line.split()[0] for line in walk.to_the_shell} | {
        str(Path(name).relative_to(PACKAGE)) for name in walk.modules
    }
    assert len(on_the_way) <= MOST_MODULES, sorted(on_the_way)


def test_a_whole_message_passes_few_modules(tmp_path: Path) -> None:
    """The second message of a conversation: the first one also starts the sandbox."""
    turns = [{"tool_calls": [{"name": "execute_bash", "arguments": {"command": "true"}}]}, {"content": "done"}]
    script = tmp_path / "script.json"
    script.write_text(json.dumps([*turns, *turns]))
    model = open_model(LLMConfig(model=f"scripted:{script}"))
    walk = Walk()
    with Conversation(
        Agent(model), CLIRuntime(tmp_path, quiet=True, bubblewrap=False), tmp_path / "kept"
    ) as conversation:
        assert conversation.run("first") == ConversationStatus.IDLE
        threading.setprofile(walk)
        sys.setprofile(walk)
        try:
            assert conversation.run("second") == ConversationStatus.IDLE
        finally:
            sys.setprofile(None)
            threading.setprofile(None)
    assert walk.to_the_shell
    assert len(walk.all_modules) <= MOST_OF_A_MESSAGE, sorted(walk.all_modules)
