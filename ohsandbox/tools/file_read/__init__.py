"""`file_read`: reads a text file of the sandbox, or some of its lines."""

from ohsandbox.tools.file_read.definition import FileReadAction, FileReadSource, FileReadTool

__all__ = ["FileReadAction", "FileReadSource", "FileReadTool"]
