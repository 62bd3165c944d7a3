"""The interface of `file_editor`: its description for the model, its arguments and its results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence  # noqa: TC003 - pydantic reads annotations at run time
from enum import Enum
from typing import TYPE_CHECKING, Any, Literal, Self

from pydantic import Field, model_validator
from rich.text import Text

from ohsandbox.schema import Action, Content, ImageContent, Observation, TextContent
from ohsandbox.tool import BuiltInTool, CallHint, ToolAnnotations, ToolDefinition, counted_lines
from ohsandbox.tools.file_read import FileReadAction, FileReadSource

if TYPE_CHECKING:
    from ohsandbox.state import ConversationState

TOOL_NAME = "file_editor"
_ALIASES = ("str_replace_editor", "str_replace_based_edit_tool")
MAX_FILE_BYTES = 64 * 1024 * 1024
"""Limit of a file; larger ones are data, which `sed`, `awk` and Python change without moving it to the host and
back."""
MAX_IMAGE_BYTES = 5 * 1024 * 1024 * 3 // 4 - 64
"""Limit of an image: as a data URL it is a third longer, and Anthropic's API accepts 5 MiB (docs, "Vision", 2025)."""

Command = Literal["view", "create", "str_replace", "insert", "undo_edit"]

DESCRIPTION = f"""\
View, create and edit text files in the sandbox, and return the lines that were asked for or changed.

`command` and `path` (of a file or directory; absolute, or relative to the sandbox's working directory, wherever a shell
stands) are required for every command:
* `view`: a file's lines with their numbers, all or `view_range` `[first, last]` (from 1, both included, -1 is the last
  line); a directory's entries two levels deep without hidden ones; an image (PNG, JPEG, GIF, WebP, BMP) as you see it.
* `create`: a new file of `file_text` (required); missing directories are made; an existing file is refused.
* `str_replace`: puts `new_str` (left out: nothing) in place of `old_str` (required), which must be in the file exactly,
  with all blanks and without the line numbers of `view`, and only once: include as many lines as make it unique.
* `insert`: puts `new_str` (required) as whole lines AFTER line `insert_line` (required; 0 is before the first line).
* `undo_edit`: takes back the last of your edits of this file that was not taken back; a created file is removed.

Encoding, line ends (CRLF or LF: write \\n), mode and owner of a file stay; where a file is hard-linked, its other names
keep the old text. `encoding` is only needed where a file that is not UTF-8 reads wrong. An edit is refused when
something else changed the file since you last saw it here: view it again. At most {{max_chars}} characters are
shown; what was left out is stated. Editing is for text files up to {MAX_FILE_BYTES // 1024 // 1024} MiB; use
execute_bash for others."""

SHORT_DESCRIPTION = f"""\
View, create and edit text files in the sandbox; returns the lines that were asked for or changed. `command` and `path`
(absolute, or relative to the sandbox's working directory) are always required:
* `view`: a file's numbered lines, all or `view_range` `[first, last]` (from 1, -1 is the last); a directory two levels
  deep; an image.
* `create`: a new file of `file_text` (required); an existing file is refused.
* `str_replace`: `new_str` (left out: nothing) for `old_str` (required), which must be in the file exactly, without
  line numbers, and once.
* `insert`: `new_str` (required) AFTER line `insert_line` (required; 0: at the top).
* `undo_edit`: takes back your last edit of the file.
Encoding (`encoding` where a file reads wrong), line ends (write \\n) and mode stay. Refused when the file changed
since you saw it: view it again. At most {{max_chars}} characters are shown. Files up to {
    MAX_FILE_BYTES // 1024 // 1024
} MiB; others: execute_bash."""

_NEEDS: dict[str, tuple[tuple[str, str], ...]] = {
    "create": (("file_text", "the text of the new file"),),
    "str_replace": (("old_str", "the text to replace"),),
    "insert": (("insert_line", "the line after which the text goes"), ("new_str", "the text to insert")),
}


class FileEditSource(Enum):
    """What edits a file."""

    OH_ACI = "oh_aci"
    """The editor: exact text, exact places."""
    LLM_BASED_EDIT = "llm_based_edit"
    """`edit_file`: a draft that a model merges."""


class FileEditAction(Action):
    """One look at a file, or one change of it."""

    command: Command = Field(description="What to do.")
    path: str = Field(min_length=1, max_length=4096, description="The file or directory.")
    file_text: str | None = Field(default=None, description="For create: the whole text.")
    old_str: str | None = Field(default=None, description="For str_replace: the text to replace, exact and unique.")
    new_str: str | None = Field(
        default=None, description="For str_replace: what comes in its place; left out, old_str is deleted. For insert."
    )
    insert_line: int | None = Field(default=None, ge=0, description="For insert: the line after which, 0 to the last.")
    view_range: tuple[int, ...] | None = Field(
        default=None, min_length=2, max_length=2, description="For view: [first, last] line, from 1; -1 is the last."
    )
    encoding: str | None = Field(
        default=None, description="Where a file reads wrong: its encoding, such as cp1251 or shift_jis."
    )

    @property
    def impl_source(self) -> FileEditSource | FileReadSource:
        """The editor that reads or changes the file."""
        return FileEditSource.OH_ACI

    @model_validator(mode="before")
    @classmethod
    def _as_models_say_it(cls, given: Any) -> Any:
        """Drop a view_range that is empty or not for a view; accept `insert_text`, which some models use."""
        if not isinstance(given, dict):
            return given
        fields = dict(given)
        if fields.get("command") != "view" or fields.get("view_range") in ([], ""):
            fields.pop("view_range", None)
        if fields.get("command") == "insert" and fields.get("new_str") is None and "insert_text" in fields:
            fields["new_str"] = fields.pop("insert_text")
        return fields

    @model_validator(mode="after")
    def _complete(self) -> Self:
        for name, purpose in _NEEDS.get(self.command, ()):
            if getattr(self, name) is None:
                raise ValueError(f"command {self.command} needs {name}: {purpose}")
        if self.command == "view" and self.view_range is not None:
            first, last = self.view_range
            if first < 1 or (last != -1 and last < first):
                raise ValueError(
                    f"view_range {[first, last]} must be [first, last] with 1 <= first <= last, or last -1"
                )
        return self


class FileViewAction(FileReadAction, FileEditAction):
    """The editor's `view`: it changes nothing, so it runs beside other calls that only read."""

    command: Literal["view"]

    @property
    def impl_source(self) -> FileReadSource:
        """The source of a view: the editor."""
        return FileReadSource.OH_ACI


class FileEditObservation(Observation):
    """What was seen or changed."""

    command: Command
    path: str
    text: str
    """What the model reads."""
    images: tuple[str, ...] = ()
    """Data URLs."""
    old_lines: int | None = None
    """Lines of the file before an edit; None if there was no file, or no edit."""
    new_lines: int | None = None
    """Lines of the file afterwards; None if there is no file, or they were not counted."""
    first_line: int | None = None
    """The number of the first line that an edit changed; None if there was no edit, or it changed the whole file."""
    diff: str = ""
    """The change for a user: lines that begin with `@`, `-`, `+` or a blank; limited in length."""

    @property
    def to_llm_content(self) -> Sequence[Content]:
        """Return the text, and the image if there is one."""
        images = [ImageContent(image_urls=self.images)] if self.images else []
        return [TextContent(text=self.text), *images]

    @property
    def visualize(self) -> Text:
        """Return an edit as a coloured diff; anything else as the model sees it."""
        if not self.diff:
            return super().visualize
        rendered = Text(f"{self.command} {self.path}\n", style="bold")
        for line in self.diff.splitlines(keepends=True):
            rendered.append(line, style=_COLOURS.get(line[:1], ""))
        return rendered


_COLOURS: Mapping[str, str] = {"-": "red", "+": "green", "@": "cyan"}


def hint(arguments: Mapping[str, Any]) -> CallHint:
    """Return the file and what is done to it."""
    command = str(arguments.get("command"))
    if command == "view":
        return CallHint(sign="<", kind="read", subject="path", writes=False)
    if command == "create":
        return CallHint(sign="+", kind="edit", subject="path", note=counted_lines(arguments.get("file_text")))
    return CallHint(sign="~", kind="edit", subject="path", note=f"({command})")


class FileEditorTool(ToolDefinition[FileEditAction, FileEditObservation]):
    """The editor of a conversation with a runtime."""

    def action_from_arguments(self, arguments: Mapping[str, Any]) -> FileEditAction:
        """See `ToolDefinition.action_from_arguments`; a view is a `FileViewAction`."""
        action = super().action_from_arguments(arguments)
        return FileViewAction.model_validate(action.to_arguments()) if action.command == "view" else action

    @classmethod
    def create(cls, *, conv_state: ConversationState) -> Sequence[FileEditorTool]:
        """Create the tool, with the conversation's own memory of files and edits.

        Raises:
            UsageError: the conversation has no runtime.
        """
        from ohsandbox.tools.file_editor.impl import FileEditorExecutor  # noqa: PLC0415 - impl is for running only

        directory = conv_state.directory / TOOL_NAME if conv_state.directory else None
        return [
            cls(
                name=TOOL_NAME,
                description=conv_state.output.fill(DESCRIPTION),
                short_description=conv_state.output.fill(SHORT_DESCRIPTION),
                action_type=FileEditAction,
                observation_type=FileEditObservation,
                hint=hint,
                annotations=ToolAnnotations(title="Edit files", openWorldHint=False),
                executor=FileEditorExecutor(
                    conv_state.require_runtime(), directory=directory, limits=conv_state.output
                ),
                aliases=_ALIASES,
            )
        ]


BUILT_IN = BuiltInTool(FileEditorTool, hint, aliases=_ALIASES)
