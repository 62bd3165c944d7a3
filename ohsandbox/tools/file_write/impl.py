"""Implementation of `file_write`: one call of `Runtime.write_bytes`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ohsandbox.schema import TextObservation
from ohsandbox.tool import ToolExecutor
from ohsandbox.tools.file_write.definition import FileWriteAction

if TYPE_CHECKING:
    from ohsandbox.runtime.base import Runtime


class FileWriteExecutor(ToolExecutor[FileWriteAction, TextObservation]):
    """Writes text files of a runtime."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    def __call__(self, action: FileWriteAction) -> TextObservation:
        """Write the file.

        Raises:
            SandboxFileError: it cannot be written.
            SandboxUnavailable: the sandbox is gone.
        """
        data = action.content.encode()
        self._runtime.write_bytes(action.path, data)
        return TextObservation(text=f"Wrote {len(data)} bytes to {action.path}.")
