"""`file_read`: a text file of the sandbox, or some lines of it."""

from ohsandbox.tools.file_read.definition import FileReadAction, FileReadSource, FileReadTool

__all__ = ["FileReadAction", "FileReadSource", "FileReadTool"]
