"""Implementation of `edit_file`: read, ask the model to merge, check for concurrent changes, write."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ohsandbox.errors import SandboxFileNotFoundError, ToolError
from ohsandbox.schema import TextObservation
from ohsandbox.tool import ToolExecutor
from ohsandbox.tools.edit_file.definition import (
    LAST_LINE,
    MAX_DIFF_CHARS,
    MAX_EDIT_CHARS,
    MAX_EDIT_LINES,
    MAX_FILE_BYTES,
    EditFileAction,
)
from ohsandbox.tools.edit_file.lines import (
    CONTEXT_LINES,
    decode,
    keep_ends,
    newline_of,
    split_lines,
    stand_ins,
    unified_diff,
    with_newlines,
    without_end,
)
from ohsandbox.tools.edit_file.merge import Piece, merged

if TYPE_CHECKING:
    from ohsandbox.runtime.base import Runtime
    from ohsandbox.state import AskModel

ORIENTATION_LINES = 20
"""Lines before and after the range that the merging model gets."""

_BOM = "\ufeff"


class EditFileExecutor(ToolExecutor[EditFileAction, TextObservation]):
    """Edits text files of a runtime."""

    def __init__(self, runtime: Runtime, ask_model: AskModel) -> None:
        self._runtime = runtime
        self._ask_model = ask_model

    def __call__(self, action: EditFileAction) -> TextObservation:
        """Make the edit; an error leaves the file unchanged.

        Raises:
            SandboxFileError: the file cannot be read or written.
            ToolError: it is no UTF-8 text, has no such lines or too many, or the model did not merge the draft.
            ModelError: the model cannot be asked.
            SandboxUnavailable: the sandbox is gone.
        """
        try:
            data = self._runtime.read_bytes(action.path, limit_bytes=MAX_FILE_BYTES)
        except SandboxFileNotFoundError:
            return self._make(action)
        text = decode(data, path=action.path)
        mark = _BOM if text.startswith(_BOM) else ""
        lines = split_lines(text.removeprefix(_BOM))
        if action.appends or not lines:
            first, old, new = self._appended(action, lines)
        else:
            first, old, new = self._replaced(action, lines)
        if old == new:
            return TextObservation(text=f"Nothing changed: {action.path!r} is already as the draft says.")
        changed = [*lines[:first], *new, *lines[first + len(old) :]]
        if self._runtime.read_bytes(action.path, limit_bytes=MAX_FILE_BYTES) != data:
            raise ToolError(
                f"File {action.path!r} was changed by something else meanwhile, and not by this. Read it, then edit it."
            )
        self._runtime.write_bytes(action.path, (mark + "".join(changed)).encode())
        return TextObservation(text=_diff(action.path, lines, changed, first=first, old=len(old), new=len(new)))

    def _make(self, action: EditFileAction) -> TextObservation:
        _refuse_stand_ins(action, "The file does not exist")
        if not action.appends and not action.is_whole:
            raise ToolError(f"File {action.path!r} does not exist, so it has no line {action.start}. Leave start out.")
        self._runtime.write_bytes(action.path, action.content.encode())
        count = len(split_lines(action.content))
        return TextObservation(text=f"File {action.path!r} did not exist; made with {count} lines.")

    def _appended(self, action: EditFileAction, lines: list[str]) -> tuple[int, list[str], list[str]]:
        _refuse_stand_ins(action, "Appending takes the content as it is" if lines else "The file is empty")
        if not action.appends and not action.is_whole:
            raise ToolError(f"File {action.path!r} is empty, so it has no line {action.start}. Leave start out.")
        if not lines:
            return 0, [], split_lines(action.content)
        newline = newline_of(lines)
        added = with_newlines(action.content, newline)
        if not added:
            return len(lines), [], []
        if not lines[-1].endswith("\n") and not action.content.endswith("\n"):
            added[-1] = without_end(added[-1])
        return len(lines) - 1, lines[-1:], [f"{without_end(lines[-1])}{newline}", *added]

    def _replaced(self, action: EditFileAction, lines: list[str]) -> tuple[int, list[str], list[str]]:
        first = action.start - 1
        last = len(lines) if action.end == LAST_LINE else action.end
        if action.start > len(lines) or last > len(lines):
            raise ToolError(
                f"File {action.path!r} has {len(lines)} lines; the range is {action.start} to {action.end}. "
                "Read it, then give a range that is there, or start -1 to append."
            )
        old = lines[first:last]
        if not action.content:
            if len(old) == len(lines):
                raise ToolError(f"Empty content would empty {action.path!r}. Give a range, or delete it with `rm`.")
            return first, old, []
        _check_size(action, lines, old)
        answer = merged(_piece(action, lines, first, last), self._ask_model)
        new = keep_ends(old, with_newlines(answer, newline_of(old)), ends_file=last == len(lines))
        return first, old, new


def _refuse_stand_ins(action: EditFileAction, why: str) -> None:
    if found := stand_ins(action.content):
        raise ToolError(f"{why}, so {found[0]!r} stands for nothing. Write every line out. Nothing was changed.")


def _check_size(action: EditFileAction, lines: list[str], old: list[str]) -> None:
    chars = sum(map(len, old)) + len(action.content)
    if len(old) > MAX_EDIT_LINES or chars > MAX_EDIT_CHARS:
        raise ToolError(
            f"File {action.path!r} has {len(lines)} lines, and this edit is of {len(old)} of them, {chars} characters "
            f"with the draft; at most {MAX_EDIT_LINES} lines and {MAX_EDIT_CHARS} characters are edited at once. "
            "Find the place (file_read with view_range, grep -n), then give its start and end and a draft of that part."
        )


def _piece(action: EditFileAction, lines: list[str], first: int, last: int) -> Piece:
    def plain(some: list[str]) -> str:
        return "\n".join(map(without_end, some))

    return Piece(
        path=action.path,
        before=plain(lines[max(0, first - ORIENTATION_LINES) : first])[-MAX_EDIT_CHARS:],
        text=plain(lines[first:last]),
        after=plain(lines[last : last + ORIENTATION_LINES])[:MAX_EDIT_CHARS],
        draft=action.content,
    )


def _diff(path: str, lines: list[str], changed: list[str], *, first: int, old: int, new: int) -> str:
    """The diff of the range; nothing else can differ."""
    top = max(0, first - CONTEXT_LINES)
    return unified_diff(
        path,
        lines[top : first + old + CONTEXT_LINES],
        changed[top : first + new + CONTEXT_LINES],
        first_line=top + 1,
        limit_chars=MAX_DIFF_CHARS,
    )
