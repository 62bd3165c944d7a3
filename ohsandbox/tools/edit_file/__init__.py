"""`edit_file`: a draft of an edit, merged into the file by the model."""

from ohsandbox.tools.edit_file.definition import EditFileAction, EditFileTool

__all__ = ["EditFileAction", "EditFileTool"]
