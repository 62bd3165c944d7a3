"""`file_editor`: views and edits files of the sandbox, with undo."""

from ohsandbox.tools.file_editor.definition import (
    BUILT_IN,
    FileEditAction,
    FileEditObservation,
    FileEditorTool,
    FileEditSource,
    FileViewAction,
)

__all__ = ["BUILT_IN", "FileEditAction", "FileEditObservation", "FileEditSource", "FileEditorTool", "FileViewAction"]
