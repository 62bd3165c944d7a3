"""Implementation of `file_editor`: reads a file's bytes, changes one range of them, writes all of them back."""

from __future__ import annotations

import errno
import posixpath
import threading
from typing import TYPE_CHECKING

from ohsandbox.content import DEFAULT_LIMITS, OutputLimits
from ohsandbox.errors import SandboxFileError, SandboxIsADirectoryError, ToolError
from ohsandbox.runtime.files.text import (
    Document,
    NotTextError,
    Splice,
    count_lines,
    decode,
    decodings,
    encode_new,
    line_start,
    shown,
)
from ohsandbox.text import counted
from ohsandbox.tool import ToolExecutor
from ohsandbox.tools.file_editor import view
from ohsandbox.tools.file_editor.definition import MAX_FILE_BYTES, FileEditAction, FileEditObservation
from ohsandbox.tools.file_editor.history import Edit, EditHistory, digest
from ohsandbox.tools.file_editor.lines import Edited, diff_of, edit_observation, end_near
from ohsandbox.tools.file_editor.matching import is_in, match_once
from ohsandbox.tools.search.walk import absolute

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from ohsandbox.runtime.base import Runtime

_IS_THERE = 'if [ -e "$1" ]; then [ ! -d "$1" ] || exit 3; exit 1; fi; [ ! -L "$1" ] || exit 2'
_THERE = {
    1: "File {path!r} exists already; create makes new files only. Change it with str_replace or insert.",
    2: "{path!r} is a symlink to a file that is not there. Create the file that it leads to.",
    3: "{path!r} is a directory. Name a new file in it.",
}


class FileEditorExecutor(ToolExecutor[FileEditAction, FileEditObservation]):
    """Views and edits files of a runtime; keeps the history of one conversation."""

    def __init__(
        self, runtime: Runtime, *, directory: Path | None = None, limits: OutputLimits = DEFAULT_LIMITS
    ) -> None:
        """directory, on the host, stores the history for a resumed conversation; None keeps it in this process."""
        self._runtime, self._limits = runtime, limits
        self._history = EditHistory(directory)
        self._guard = threading.Lock()

    def __call__(self, action: FileEditAction) -> FileEditObservation:
        """Run the action's command.

        Raises:
            SandboxFileError: the path cannot be read or written.
            ToolError: the path begins with `~`; the file is not what the command needs; nothing was changed.
            SandboxUnavailable: the sandbox is gone.
        """
        path = action.path
        if path == "~" or path.startswith("~/"):
            raise ToolError(f"Path {path!r}: `~` has no meaning here. Write the home directory out.")
        absolute_path = absolute(self._runtime.workdir, path)  # one file has one history under any name
        slash = "/" if path.endswith("/") and absolute_path != "/" else ""
        run: Callable[[FileEditAction], FileEditObservation] = getattr(self, f"_{action.command}")
        with self._guard:
            return run(action.model_copy(update={"path": absolute_path + slash}))

    # --- commands -----------------------------------------------------------------------------

    def _view(self, action: FileEditAction) -> FileEditObservation:
        path = action.path
        try:
            data = self._runtime.read_bytes(path, limit_bytes=MAX_FILE_BYTES)
        except SandboxIsADirectoryError:
            return FileEditObservation(
                command="view", path=path, text=view.directory_view(self._runtime, path, self._limits)
            )
        except SandboxFileError as error:
            if error.errno != errno.EFBIG:
                raise
            text = view.part_view(self._runtime, path, action.view_range, self._limits)
            return FileEditObservation(command="view", path=path, text=text)
        if url := view.image_url(data, path):
            return FileEditObservation(command="view", path=path, text=f"{path}: an image.", images=(url,))
        encoding = self._encoding(action, data)
        document = _decoded(path, data, encoding)
        text = view.text_view(document, path, action.view_range, self._limits)
        self._history.see(path, data, encoding=encoding)
        return FileEditObservation(command="view", path=path, text=text, new_lines=document.line_count)

    def _create(self, action: FileEditAction) -> FileEditObservation:
        path, text = action.path, action.file_text or ""
        if posixpath.basename(path) in ("", ".", ".."):
            raise ToolError(f"{path!r} names a directory. Name the new file.")
        _refuse_nul(text)
        data = encode_new(text, action.encoding)
        code = self._runtime.run(["sh", "-c", _IS_THERE, "sh", path]).exit_code
        if code in _THERE:
            raise ToolError(_THERE[code].format(path=path))
        self._write(action, Splice(0, b"", data), before=None, after=data, encoding=action.encoding)
        lines = count_lines(text)
        message = f"Created {path}: {counted(lines, 'line')}, {len(data)} bytes.{self._history_warning()}"
        diff = diff_of("", text, first=1)
        return FileEditObservation(command="create", path=path, text=message, new_lines=lines, diff=diff)

    def _str_replace(self, action: FileEditAction) -> FileEditObservation:
        old, new = action.old_str or "", action.new_str or ""
        if not old:
            raise ToolError("old_str is empty, so it does not say where. Use insert, or create for a new file.")
        if old == new:
            raise ToolError("old_str and new_str are the same; there is nothing to change.")
        document, encoding = self._opened(action)
        if document.guessed and not old.isascii() and not is_in(document, old):
            for decoding in decodings(document.data):  # an encoding in which old occurs is certain
                if is_in(decoding, old):
                    document, encoding = decoding, decoding.encoding
                    break
        start, end, new = match_once(document, old, new)
        return self._edit(action, document, start, end, new, encoding=encoding, done="Replaced")

    def _insert(self, action: FileEditAction) -> FileEditObservation:
        document, encoding = self._opened(action)
        after, text = action.insert_line or 0, document.text
        if after > document.line_count:
            raise ToolError(
                f"insert_line {after} is past the end of the file, which has {counted(document.line_count, 'line')}; "
                f"nothing was changed. Give 0 to {document.line_count}."
            )
        position = line_start(text, after + 1)
        end = end_near(text, max(0, position - 1))
        new = (action.new_str or "").removesuffix("\n").removesuffix("\r")
        if document.has_crlf:
            new = new.replace("\r\n", "\n").replace("\n", end)
        is_open = position == len(text) != 0 and not text.endswith(
            "\n"
        )  # a last line without a line end stays without one
        new = end + new if is_open else new + end
        return self._edit(action, document, position, position, new, encoding=encoding, done="Inserted")

    def _undo_edit(self, action: FileEditAction) -> FileEditObservation:
        path = action.path
        edits = self._history.edits(path)
        if not edits:
            raise ToolError(f"No edit of {path!r} can be undone: this tool has not changed it, or all is undone.")
        data = self._read(path)
        edit = self._history.to_undo(path, data)
        if edit is None:
            raise ToolError(
                f"{path!r} was changed by something else since your last edit of it; undoing that would lose the "
                "change. Nothing was changed. View it, and change it back with str_replace."
            )
        while (last := edits.pop()) != edit:
            self._history.drop(last)
        remaining_note = f" {counted(len(edits), 'earlier edit')} of it can be undone." if edits else ""
        return (
            self._undo(action, edit, data, remaining_note)
            if edit.before
            else self._remove_created(path, edit, data, remaining_note)
        )

    def _undo(self, action: FileEditAction, edit: Edit, data: bytes, remaining_note: str) -> FileEditObservation:
        path, data_before, encoding = action.path, edit.undone(data), self._encoding(action, data)
        old, new = _decoded(path, data, encoding), _decoded(path, data_before, encoding)
        self._runtime.write_bytes(path, data_before)
        self._history.drop(edit)
        self._history.see(path, data_before, encoding=encoding)
        start = new.index_of(edit.offset)
        ends = old.index_of(edit.offset + edit.added_bytes), new.index_of(edit.offset + len(edit.removed))
        message = f"Undid the last {edit.command} of {path}.{remaining_note}"
        return edit_observation("undo_edit", path, message, Edited(old.shown, new.shown, start, *ends))

    def _remove_created(self, path: str, edit: Edit, data: bytes, remaining_note: str) -> FileEditObservation:
        removed = self._runtime.run(["rm", "-f", "--", path])
        if removed.exit_code != 0:
            raise ToolError(f"{path!r} cannot be removed: {removed.stderr.decode(errors='replace').strip()}")
        self._history.drop(edit)
        self._history.see(path, None)
        text = data.decode("utf-8", "replace")
        return FileEditObservation(
            command="undo_edit", path=path, text=f"Removed {path}, which create had made.{remaining_note}",
            old_lines=count_lines(text), diff=diff_of(text, "", first=1),
        )  # fmt: skip

    # --- from bytes to text and back ----------------------------------------------------------

    def _read(self, path: str) -> bytes:
        try:
            return self._runtime.read_bytes(path, limit_bytes=MAX_FILE_BYTES)
        except SandboxFileError as error:
            if error.errno != errno.EFBIG:
                raise
            raise ToolError(
                f"{path!r} is larger than the {MAX_FILE_BYTES} bytes up to which files are edited here. Use sed -i or "
                "a script in execute_bash."
            ) from None

    def _opened(self, action: FileEditAction) -> tuple[Document, str | None]:
        """A file to edit, and its requested encoding; it must be unchanged since the model last saw it, if it did."""
        data = self._read(action.path)
        last_seen = self._history.seen(action.path)
        if last_seen is not None and last_seen.digest != digest(data):
            raise ToolError(
                f"{action.path!r} was changed by something else (a command, a person) since you last saw it here; "
                "nothing was changed. View it again, then edit."
            )
        encoding = self._encoding(action, data)
        return _decoded(action.path, data, encoding), encoding

    def _encoding(self, action: FileEditAction, data: bytes) -> str | None:
        """The requested encoding, of this action or of the last view of these bytes."""
        if action.encoding:
            return action.encoding
        last_seen = self._history.seen(action.path)
        return last_seen.encoding if last_seen and last_seen.encoding and last_seen.digest == digest(data) else None

    def _edit(
        self,
        action: FileEditAction,
        document: Document,
        start: int,
        end: int,
        new: str,
        *,
        encoding: str | None,
        done: str,
    ) -> FileEditObservation:
        """Replace text[start:end] of the document by new."""
        _refuse_nul(new)
        splice, data = document.splice(start, end, new), document.data
        after = data[: splice.offset] + splice.added + data[splice.offset + len(splice.removed) :]
        if after == data:
            raise ToolError("The file would be the same after this edit; there is nothing to change.")
        if len(after) > MAX_FILE_BYTES:
            raise ToolError(f"The file would grow to {len(after)} bytes; at most {MAX_FILE_BYTES} are edited here.")
        self._write(action, splice, before=data, after=after, encoding=encoding)
        text = document.text[:start] + new + document.text[end:]
        edited = Edited(document.shown, shown(text), start, end, start + len(new))
        return edit_observation(
            action.command, action.path, f"{done} in {action.path}{self._history_warning()}", edited
        )

    def _write(
        self, action: FileEditAction, splice: Splice, *, before: bytes | None, after: bytes, encoding: str | None
    ) -> None:
        edit = self._history.add(action.path, action.command, splice, before=before, after=after)
        try:
            self._runtime.write_bytes(action.path, after)
        except ToolError:
            self._history.drop(edit)
            raise
        self._history.see(action.path, after, encoding=encoding)

    def _history_warning(self) -> str:
        trouble = self._history.trouble
        return f" [The edit can be undone until this process ends, it is not on disk: {trouble}]" if trouble else ""


def _decoded(path: str, data: bytes, encoding: str | None) -> Document:
    try:
        return decode(data, encoding=encoding)
    except NotTextError as error:
        raise ToolError(f"{path!r} is {error}. Look into it with execute_bash: file, xxd | head.") from None


def _refuse_nul(text: str) -> None:
    """Refuse a NUL: it would make the file binary, and this tool could not edit it again."""
    if "\0" in text:
        raise ToolError("The text holds a NUL; nothing was changed. Write such a file with printf in execute_bash.")
