"""`file_editor`: views and edits files of the sandbox, with undo."""

from ohsandbox.tools.file_editor.definition import (
    FileEditAction,
    FileEditObservation,
    FileEditorTool,
    FileEditSource,
    FileViewAction,
)

__all__ = ["FileEditAction", "FileEditObservation", "FileEditSource", "FileEditorTool", "FileViewAction"]
