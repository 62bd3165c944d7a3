"""`file_read`: a text file of the sandbox, or some lines of it."""

from ohsandbox.tools.file_read.definition import FileReadAction, FileReadTool

__all__ = ["FileReadAction", "FileReadTool"]
