"""`file_write`: writes a whole file of the sandbox."""

from ohsandbox.tools.file_write.definition import FileWriteAction, FileWriteTool

__all__ = ["FileWriteAction", "FileWriteTool"]
