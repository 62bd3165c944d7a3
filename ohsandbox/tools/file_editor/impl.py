"""Implementation of `file_editor`: reads a file's bytes, changes one range of them, writes all of them back."""

from __future__ import annotations

import errno
import posixpath
import threading
from typing import TYPE_CHECKING, NamedTuple

from ohsandbox.errors import SandboxFileError, SandboxIsADirectoryError, ToolError
from ohsandbox.tool import ToolExecutor
from ohsandbox.tools.file_editor import report, view
from ohsandbox.tools.file_editor.definition import MAX_FILE_BYTES, FileEditAction, FileEditObservation
from ohsandbox.tools.file_editor.history import Edit, History, digest
from ohsandbox.tools.file_editor.lines import count_lines, end_near, line_start
from ohsandbox.tools.file_editor.matching import is_in, match_once
from ohsandbox.tools.file_editor.report import Both
from ohsandbox.tools.file_editor.text import Document, NotTextError, Splice, decode, decodings, encode_new, shown
from ohsandbox.tools.search.walk import absolute

if TYPE_CHECKING:
    from pathlib import Path

    from ohsandbox.runtime.base import Runtime

_IS_THERE = 'if [ -e "$1" ]; then [ ! -d "$1" ] || exit 3; exit 1; fi; [ ! -L "$1" ] || exit 2'
_THERE = {
    1: "File {path!r} exists already; create makes new files only. Change it with str_replace or insert.",
    2: "{path!r} is a symlink to a file that is not there. Create the file that it leads to.",
    3: "{path!r} is a directory. Name a new file in it.",
}


class _Change(NamedTuple):
    """A change of a document's text."""

    start: int
    end: int
    new: str


class FileEditorExecutor(ToolExecutor[FileEditAction, FileEditObservation]):
    """Views and edits files of a runtime; keeps the history of one conversation."""

    def __init__(self, runtime: Runtime, *, directory: Path | None = None) -> None:
        """Directory, on the host, stores the history for a resumed conversation; None keeps it in this process."""
        self._runtime = runtime
        self._history = History(directory)
        self._guard = threading.Lock()

    def __call__(self, action: FileEditAction) -> FileEditObservation:
        """Run the action's command.

        Raises:
            SandboxFileError: the path cannot be read or written.
            ToolError: the path begins with `~`; the file is not what the command needs; nothing was changed.
            SandboxUnavailable: the sandbox is gone.
        """
        action = self._with_whole_path(action)
        commands = {
            "view": self._view,
            "create": self._create,
            "str_replace": self._str_replace,
            "insert": self._insert,
            "undo_edit": self._undo_edit,
        }
        with self._guard:
            return commands[action.command](action)

    # --- commands -----------------------------------------------------------------------------

    def _view(self, action: FileEditAction) -> FileEditObservation:
        path = action.path
        try:
            data = self._runtime.read_bytes(path, limit_bytes=MAX_FILE_BYTES)
        except SandboxIsADirectoryError:
            return FileEditObservation(command="view", path=path, text=view.directory_view(self._runtime, path))
        except SandboxFileError as error:
            if error.errno != errno.EFBIG:
                raise
            text = view.part_view(self._runtime, path, action.view_range)
            return FileEditObservation(command="view", path=path, text=text)
        if url := view.image_url(data, path):
            return FileEditObservation(command="view", path=path, text=f"{path}: an image.", images=(url,))
        document = self._decode(action, data)
        text = view.text_view(document, path, action.view_range)
        self._history.see(path, data, encoding=self._encoding(action, data))
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
        told = f"Created {path}: {report.plural(lines, 'line')}, {len(data)} bytes.{self._trouble()}"
        diff = report.diff_of("", text, first=1)
        return FileEditObservation(command="create", path=path, text=told, new_lines=lines, diff=diff)

    def _str_replace(self, action: FileEditAction) -> FileEditObservation:
        old, new = action.old_str or "", action.new_str or ""
        if not old:
            raise ToolError("old_str is empty, so it does not say where. Use insert, or create for a new file.")
        if old == new:
            raise ToolError("old_str and new_str are the same; there is nothing to change.")
        document = self._decode(action, self._read(action))
        proven = _prove(document, old)
        encoding = None if proven is document else proven.encoding
        return self._edit(action, proven, _Change(*match_once(proven, old, new)), encoding=encoding)

    def _insert(self, action: FileEditAction) -> FileEditObservation:
        document = self._decode(action, self._read(action))
        text, after = document.shown, action.insert_line or 0
        if after > document.line_count:
            has = report.plural(document.line_count, "line")
            raise ToolError(
                f"insert_line {after} is past the end of the file, which has {has}; nothing was changed. "
                f"Give 0 to {document.line_count}."
            )
        at = line_start(text, after + 1)
        end = end_near(text, max(0, at - 1))
        new = (action.new_str or "").removesuffix("\n").removesuffix("\r")
        if document.has_crlf:
            new = new.replace("\r\n", "\n").replace("\n", end)
        is_open = at == len(text) != 0 and not text.endswith("\n")  # a last line without a line end stays without one
        return self._edit(action, document, _Change(at, at, end + new if is_open else new + end))

    def _undo_edit(self, action: FileEditAction) -> FileEditObservation:
        path = action.path
        edits = self._history.edits(path)
        if not edits:
            raise ToolError(f"There is no edit of {path!r} to undo: this tool has not changed it, or all is undone.")
        data = self._read_bytes(path)
        state = digest(data)
        edit = edits.pop()
        while state == edit.before != edit.after and edits:  # it was recorded, but could not be made
            self._history.drop(edit)
            edit = edits.pop()
        if state != edit.after:
            raise ToolError(
                f"{path!r} was changed by something else since your last edit of it; undoing that would lose the "
                "change. Nothing was changed. View it, and change it back with str_replace."
            )
        left = f" {report.plural(len(edits), 'earlier edit')} of it can be undone." if edits else ""
        return self._undo(action, edit, data, left) if edit.before else self._uncreate(action.path, edit, data, left)

    def _undo(self, action: FileEditAction, edit: Edit, data: bytes, left: str) -> FileEditObservation:
        before = edit.undone(data)
        encoding = self._encoding(action, data)
        old, new = (self._decode(action, state, encoding=encoding) for state in (data, before))
        self._runtime.write_bytes(action.path, before)
        self._history.drop(edit)
        self._history.see(action.path, before, encoding=encoding)
        start = new.index_of(edit.offset)
        ends = old.index_of(edit.offset + edit.added_bytes), new.index_of(edit.offset + len(edit.removed))
        told = f"Undid the last {edit.command} of {action.path}.{left}"
        return report.edited("undo_edit", action.path, told, Both(old.shown, new.shown, start, *ends))

    def _uncreate(self, path: str, edit: Edit, data: bytes, left: str) -> FileEditObservation:
        removed = self._runtime.run(["rm", "-f", "--", path])
        if removed.exit_code != 0:
            raise ToolError(f"{path!r} cannot be removed: {removed.stderr.decode(errors='replace').strip()}")
        self._history.drop(edit)
        self._history.forget(path)
        text = data.decode("utf-8", "replace")
        return FileEditObservation(
            command="undo_edit", path=path, text=f"Removed {path}, which create had made.{left}",
            old_lines=count_lines(text), diff=report.diff_of(text, "", first=1),
        )  # fmt: skip

    # --- common parts -------------------------------------------------------------------------

    def _with_whole_path(self, action: FileEditAction) -> FileEditAction:
        """Make the path absolute, so that one file has one history under any name."""
        path = action.path
        if path == "~" or path.startswith("~/"):
            raise ToolError(f"Path {path!r}: `~` has no meaning here. Write the home directory out.")
        slash = "/" if path.endswith("/") else ""
        whole = absolute(self._runtime.workdir, path)
        return action.model_copy(update={"path": whole if whole == "/" else whole + slash})

    def _read_bytes(self, path: str) -> bytes:
        try:
            return self._runtime.read_bytes(path, limit_bytes=MAX_FILE_BYTES)
        except SandboxFileError as error:
            if error.errno != errno.EFBIG:
                raise
            raise ToolError(
                f"{path!r} is larger than the {MAX_FILE_BYTES} bytes up to which files are edited here. Use sed -i or "
                "a script in execute_bash."
            ) from None

    def _read(self, action: FileEditAction) -> bytes:
        """Read a file to edit; it must be unchanged since the model last saw it, if it did."""
        data = self._read_bytes(action.path)
        seen = self._history.seen(action.path)
        if seen is not None and seen.digest != digest(data):
            raise ToolError(
                f"{action.path!r} was changed by something else (a command, a person) since you last saw it here; "
                "nothing was changed. View it again, then edit."
            )
        return data

    def _encoding(self, action: FileEditAction, data: bytes) -> str | None:
        """The requested encoding, of this action or of the last view of these bytes."""
        if action.encoding:
            return action.encoding
        seen = self._history.seen(action.path)
        return seen.encoding if seen and seen.encoding and seen.digest == digest(data) else None

    def _decode(self, action: FileEditAction, data: bytes, *, encoding: str | None = None) -> Document:
        try:
            return decode(data, encoding=encoding or self._encoding(action, data))
        except NotTextError as error:
            raise ToolError(f"{action.path!r} is {error}. Look into it with execute_bash: file, xxd | head.") from None

    def _edit(
        self, action: FileEditAction, document: Document, change: _Change, *, encoding: str | None = None
    ) -> FileEditObservation:
        start, end, new = change
        _refuse_nul(new)
        splice, data = document.splice(start, end, new), document.data
        after = data[: splice.offset] + splice.added + data[splice.offset + len(splice.removed) :]
        if after == data:
            raise ToolError("The file would be the same after this edit; there is nothing to change.")
        if len(after) > MAX_FILE_BYTES:
            raise ToolError(f"The file would grow to {len(after)} bytes; at most {MAX_FILE_BYTES} are edited here.")
        encoding = encoding or self._encoding(action, data)
        self._write(action, splice, before=data, after=after, encoding=encoding)
        text = document.text[:start] + new + document.text[end:]
        done = {"str_replace": "Replaced", "insert": "Inserted"}[action.command]
        both = Both(document.shown, shown(text), start, end, start + len(new))
        return report.edited(action.command, action.path, f"{done} in {action.path}{self._trouble()}", both)

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

    def _trouble(self) -> str:
        trouble = self._history.trouble
        return f" [The edit can be undone until this process ends, it is not on disk: {trouble}]" if trouble else ""


def _prove(document: Document, old: str) -> Document:
    """The document, or if its encoding is a guess, the first decoding that contains old, which proves it."""
    if not document.guessed or old.isascii() or is_in(document, old):
        return document
    return next((other for other in decodings(document.data) if is_in(other, old)), document)


def _refuse_nul(text: str) -> None:
    """Refuse a NUL: it would make the file binary, and this tool could not edit it again."""
    if "\0" in text:
        raise ToolError("The text holds a NUL; nothing was changed. Write such a file with printf in execute_bash.")
