"""A conversation's `file_editor`, with relative names below a folder of the sandbox."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from ohsandbox.errors import ToolError
from ohsandbox.schema import text_of
from ohsandbox.tools.file_editor import FileEditObservation, FileEditorTool

if TYPE_CHECKING:
    from ohsandbox.state import ConversationState


class Editor:
    """A tool of one conversation, with relative names below its folder."""

    def __init__(self, state: ConversationState, folder: str) -> None:
        assert state.runtime is not None
        self.state, self.runtime, self.folder = state, state.runtime, folder
        [self.tool] = FileEditorTool.create(conv_state=state)

    def do(self, command: str, name: str = "f", **arguments: Any) -> FileEditObservation:
        return self.tool(self.tool.action_from_arguments({"command": command, "path": self.path(name), **arguments}))

    def say(self, command: str, name: str = "f", **arguments: Any) -> str:
        return text_of(self.do(command, name, **arguments))

    def replace(self, old: str, new: str, name: str = "f") -> bytes:
        self.do("str_replace", name, old_str=old, new_str=new)
        return self.read(name)

    def refusal(self, command: str, name: str = "f", **arguments: Any) -> str:
        with pytest.raises(ToolError) as caught:
            self.do(command, name, **arguments)
        return str(caught.value)

    def write(self, data: bytes, name: str = "f") -> None:
        self.runtime.write_bytes(self.path(name), data)

    def read(self, name: str = "f") -> bytes:
        return self.runtime.read_bytes(self.path(name))

    def sh(self, script: str) -> str:
        result = self.runtime.run(["sh", "-c", script], workdir=self.folder)
        assert result.exit_code == 0, result.stderr
        return result.stdout.decode()

    def path(self, name: str) -> str:
        return name if name.startswith("/") else f"{self.folder}/{name}"
