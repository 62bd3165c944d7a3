"""The question whether calls may run: how the calls are shown, and which answers are accepted.

`y` allows only what was shown whole; a call that is too long for that needs another answer.
"""

# ruff: noqa: T201 - a command prints
from __future__ import annotations

import contextlib
import json
import posixpath
import re
import sys
from itertools import groupby
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from rich.text import Text

from ohsandbox.cli.prompts.prompt import Typed, answer_to
from ohsandbox.cli.rendering.lines import CONTEXT_LINES, TAB_COLUMNS, DiffLine, changes
from ohsandbox.cli.rendering.tables import open_console, print_wrapped
from ohsandbox.cli.rendering.text import masked, safe, safe_line
from ohsandbox.conversation.approvals.decisions import Decision
from ohsandbox.conversation.approvals.scopes import AnyCall, EditsUnder, ExactCall, offers
from ohsandbox.errors import OhsandboxError, SandboxFileNotFoundError, UsageError
from ohsandbox.persistence.layout import TOOLS_NAME
from ohsandbox.review_text import visible
from ohsandbox.runtime.files.text import count_lines, line_start
from ohsandbox.text import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    from ohsandbox.conversation.approvals.scopes import PendingCall
    from ohsandbox.runtime.base import Runtime

MAX_ROWS = 200
"""Largest number of rows that a question shows at once: about five screens, which a person still scrolls through."""
MAX_FILE_BYTES = 1024 * 1024
"""Largest file, in bytes, that is compared with the text that would replace it."""
_USUAL_COLUMNS = 100
"""A longer row counts as several."""
MIN_COLUMNS, FILE_COLUMNS = 20, 1000
"""Row length: the terminal's width but at least MIN_COLUMNS; FILE_COLUMNS without a terminal."""
_REPLACE: Final = "str_replace"
_UNDO: Final = "undo_edit"
_MAX_REASONS = 20
_MAX_WHY_CHARS = 200

GUTTER = "  | "
"""Put before every row of a call's own text, so that none can look like one of our rows."""
NAMED = "  = "
"""Put before an argument's name and no other row, so that text cannot look like another argument."""
ADDED, REMOVED = " +| ", " -| "
"""Put before lines that an edit adds or removes; unchanged lines have GUTTER."""
_REASON = "  - "
"""Put before the rules' reason for a call's risk; a long reason continues below it, indented."""
PLACE = "  @ "
"""Put before our remark about the edited file."""
_PLAIN_NAME = re.compile(r"[\w.-]+", re.ASCII)
_PROGRAMS = frozenset({"command", "input", "python"})
"""Kinds of calls whose subject is shown first, without its name."""
ONE_BY_ONE: Final = "one by one"
_YES, _NO, _HELP = frozenset({"y", "yes"}), frozenset({"n", "no"}), frozenset({"?", "h", "help"})
_PAGER_ENDS = _NO | {"q"}
_LETTERS = {ExactCall: "e", AnyCall: "t", EditsUnder: "d"}

HELP = """\
y: yes, this once.
n: no. `n REASON` tells the agent why.
v: show all of it, a page at a time.
o: where several wait, one by one.
e, t, d: yes, and from now on to all that the question says beside the letter, in this conversation. `d DIR` takes
another directory above the file. `/approvals` and `ohsandbox approvals` list and revoke what is allowed so.
Ctrl-D leaves it open: it waits. Anything else decides nothing."""


class FilesNow:
    """The files of a conversation's sandbox as they are now, beside which a question shows an edit.

    Its methods raise SandboxFileNotFoundError if there is no such file, and another OhsandboxError with the reason if
    its text cannot be had: what the call removes is unseen then.
    """

    def __init__(self, runtime: Callable[[], Runtime | None], conversation: Path) -> None:
        """Read nothing yet. conversation is the directory in which it is stored."""
        self._runtime, self._conversation = runtime, conversation

    def read(self, path: str) -> str:
        """Return a file's text."""
        return _decoded(self._started().read_bytes(path, limit_bytes=MAX_FILE_BYTES))

    def undo(self, path: str) -> tuple[str, str]:
        """Return a file's text, and that which `undo_edit` brings back; "" if it removes the file."""
        from ohsandbox.tools.file_editor.definition import TOOL_NAME  # noqa: PLC0415 - few questions are about it
        from ohsandbox.tools.file_editor.history import EditHistory  # noqa: PLC0415 - few questions are about it
        from ohsandbox.tools.search.walk import absolute  # noqa: PLC0415 - few questions are about it

        sandbox = self._started()
        data = sandbox.read_bytes(path, limit_bytes=MAX_FILE_BYTES)
        history = EditHistory(self._conversation / TOOLS_NAME / TOOL_NAME)
        edit = history.to_undo(absolute(sandbox.workdir, path), data)
        if edit is None:
            raise UsageError("No edit of the file as it is now is known.")
        return _decoded(data), "" if edit.before is None else _decoded(edit.undone(data))

    def _started(self) -> Runtime:
        sandbox = self._runtime()
        if sandbox is None or not sandbox.is_alive():
            raise UsageError("The sandbox does not run now.")
        return sandbox


def _decoded(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise UsageError("The file is not UTF-8 text.") from None


class Shown(NamedTuple):
    """Calls in the form in which a person sees them."""

    text: str
    unseen_rows: int
    """Number of text rows that were left out."""
    rows: list[str]
    """All rows, also those that were left out."""
    unknown_files: int
    """Number of files whose present text could not be had, so that no row says what is removed."""

    @property
    def is_whole(self) -> bool:
        """Whether everything that the calls do to files and all of their text was shown."""
        return not (self.unseen_rows or self.unknown_files)


def show_calls(
    pending: Sequence[PendingCall], *, files: FilesNow, columns: int = 0, max_rows: float = MAX_ROWS
) -> Shown:
    """Show calls with their risk and its reason, whole if they fit into max_rows, else the beginning and end of each.

    Every place that asks about calls shows what this returns. columns: 0 stands for the terminal's, or FILE_COLUMNS.

    An edit is shown as removed and added lines. For a file that is written anew, lines already in it are shown as well:
    the file may change before the call runs, and exactly what was shown is written.
    """
    columns = columns or (open_console().width if sys.stdout.isatty() else FILE_COLUMNS)
    calls = [_Rows.of(number, call, columns, files) for number, call in enumerate(pending, 1)]
    rows = [row for call in calls for row in call.all]
    limit = max_rows if _height(rows) <= max_rows else max(max_rows // len(calls), 3)
    parts = [call.cut(limit) for call in calls]
    return Shown(
        "\n".join(row for rows_shown, _ in parts for row in rows_shown),
        sum(unseen for _, unseen in parts),
        rows,
        sum(call.unknown for call in calls),
    )


def ask_approval(
    pending: Sequence[PendingCall],
    *,
    read: Callable[[str], Typed] = answer_to,
    files: FilesNow,
) -> Decision | Literal["one by one"] | None:
    """Show the pending calls, at least one, and ask about them until there is a valid answer.

    read returns a line typed after the question was printed, or raises EOFError if the person leaves it open:
    then the answer is None. Ctrl-C raises KeyboardInterrupt. files shows an edit beside what is there.
    """
    try:
        return _Question(pending, read, files).ask()
    except EOFError:
        return None


def count_of(number: int) -> str:
    """Return `this call`, or for example `these 3 calls`."""
    return "this call" if number == 1 else f"these {number} calls"


class _Question:
    """One question, repeated until it has an answer."""

    def __init__(self, pending: Sequence[PendingCall], read: Callable[[str], Typed], files: FilesNow) -> None:
        self._count, self._read = len(pending), read
        shown = show_calls(pending, files=files)
        self._unseen, self._unknown, self._rows = shown.unseen_rows, shown.unknown_files, shown.rows
        print_rows(shown.text.split("\n"))
        offered = offers(pending[0]) if len(pending) == 1 else ()
        self._scopes = {_LETTERS[type(scope)]: scope for scope in offered}
        for letter, scope in self._scopes.items():
            scope_text = safe_line(scope, limit_chars=sys.maxsize)
            print_wrapped(open_console(), Text(f"{letter}: from now on {scope_text}"))

    def ask(self) -> Decision | Literal["one by one"]:
        while True:
            if self._unseen:
                print(f"{self._unseen:,} rows were not shown: `v` shows all, by pages; `unseen` allows it unseen.")
            elif self._unknown:
                print("What it removes was not shown; `unseen` allows it unseen.")
            yes = ["unseen"] if self._unseen or self._unknown else ["y", *self._scopes]
            choices = [*yes, "n", "v", *(["o"] if self._count > 1 else [])]
            typed = self._read(f"Allow {count_of(self._count)}? [{'/'.join(choices)}, ? helps] ")
            if typed.text and (answer := self._decision_of(typed)) is not None:
                return answer

    def _decision_of(self, typed: Typed) -> Decision | Literal["one by one"] | None:
        """Return the decision that an answer means; None for no valid answer."""
        is_unseen = bool(self._unseen or self._unknown)
        word, _, argument = typed.text.partition(" ")
        word = word.lower().rstrip(",:.")
        if word in _NO:
            return Decision(approved=False, reason=argument.strip())
        if word in self._scopes and not is_unseen and not typed.is_pasted:
            return self._from_now_on(word, argument.strip())
        if typed.is_pasted or argument:
            word = ""
        if word in _HELP:
            for line in HELP.splitlines():
                print_wrapped(open_console(), Text(line))
        elif word == "v":
            self._unseen = 0 if _page_through(self._rows, self._read) else self._unseen
        elif word == "o" and self._count > 1:
            return ONE_BY_ONE
        elif word == "unseen" if is_unseen else word in _YES:
            return Decision(approved=True)
        elif not (is_unseen and word in _YES):  # a stray key, or a line for somebody else, is not a refusal
            subject = safe_line("Pasted text" if typed.is_pasted else repr(typed.text))
            print(f"{subject} is not an answer; nothing was decided. `n REASON` rejects with a reason; ? shows help.")
        return None

    def _from_now_on(self, letter: str, directory: str) -> Decision | None:
        scope = self._scopes[letter]
        if directory and isinstance(scope, EditsUnder):
            narrowed = scope.model_copy(update={"directory": posixpath.normpath(directory)})
            if not f"{scope.directory.rstrip('/')}/".startswith(f"{narrowed.directory.rstrip('/')}/"):
                print(f"{safe_line(directory)} is not an absolute directory above this file; nothing was decided.")
                return None
            scope, directory = narrowed, ""
        if directory:
            print(f"`{letter}` takes no more words; nothing was decided.")
            return None
        return Decision(approved=True, scope=scope)


def _page_through(rows: Sequence[str], read: Callable[[str], Typed]) -> bool:
    """Show rows a screen at a time; return whether the person reached the end."""
    height = max(open_console().height - 2, 5)
    for start in range(0, len(rows), height):
        print_rows(rows[start : start + height])
        end = min(start + height, len(rows))
        if end < len(rows):
            typed = read(f"-- rows {start + 1:,} to {end:,} of {len(rows):,}; Enter goes on, q ends -- ")
            if typed.text.lower() in _PAGER_ENDS:
                return False
    return True


class _Rows(NamedTuple):
    """The rows of one call: a title, its own text, and the reason for its risk."""

    head: str
    body: list[str]
    why: list[str]
    unknown: bool = False
    """Whether the present text of its file could not be had."""

    @classmethod
    def of(cls, number: int, call: PendingCall, columns: int, files: FilesNow) -> _Rows:
        arguments = dict(call.arguments)
        body: list[str] = []
        change = _changed_rows(call, columns, files) if call.hint.kind == "edit" else None
        if change is not None:
            for name in change.names:
                del arguments[name]
        if call.hint.kind in _PROGRAMS and call.hint.subject in arguments:
            body = folded(safe(arguments.pop(call.hint.subject)), columns)
        for name, value in arguments.items():
            label = name if _PLAIN_NAME.fullmatch(name) else json.dumps(name, ensure_ascii=False)
            text = safe(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))
            body += named_rows(label, text, columns)
        body += [] if change is None else change.rows
        reasons = [f"{_REASON}{safe_line(reason, limit_chars=500)}" for reason in call.why[:_MAX_REASONS]]
        if len(call.why) > _MAX_REASONS:
            reasons.append(f"{_REASON}and {len(call.why) - _MAX_REASONS} more of the kind")
        head = f"[{number}] {safe_line(call.name)}, risk {call.risk.value}"
        return cls(head, body, reasons, unknown=change is not None and change.is_unknown)

    @property
    def all(self) -> list[str]:
        return [self.head, *self.body, *self.why]

    def cut(self, limit: float) -> tuple[list[str], int]:
        """Return at most limit rows of the text, two thirds of them from its beginning, and the number left out."""
        if _height(self.body) <= limit:
            return self.all, 0
        if 0 < _height(self._near_changes) <= limit:
            return self._without_what_stays()
        first, last = _fitting(self.body, limit * 2 // 3), _fitting(self.body[::-1], limit // 3)
        left_out = self.body[first : len(self.body) - last]
        chars = sum(len(row) - len(GUTTER) for row in left_out)
        omission = f"  … {len(left_out):,} rows, {chars:,} characters, are not shown here …"
        rows_kept = [self.head, *self.body[:first], omission, *self.body[len(self.body) - last :], *self.why]
        return rows_kept, len(left_out)

    @property
    def _near(self) -> set[int]:
        changed = [at for at, row in enumerate(self.body) if row.startswith((ADDED, REMOVED))]
        return {at + step for at in changed for step in range(-CONTEXT_LINES, CONTEXT_LINES + 1)}

    @property
    def _near_changes(self) -> list[str]:
        """Return the rows of a change and those near it; none if nothing is removed, as all text is new then."""
        if not any(row.startswith(REMOVED) for row in self.body):
            return []
        near = self._near
        return [row for at, row in enumerate(self.body) if at in near or not row.startswith(GUTTER)]

    def _without_what_stays(self) -> tuple[list[str], int]:
        """Drop lines that are in both the old and the new text and not near a change; return the number dropped."""
        near = self._near
        kept_rows: list[str] = []
        unseen = 0
        for is_kept, run in groupby(
            enumerate(self.body), lambda numbered: numbered[0] in near or not numbered[1].startswith(GUTTER)
        ):
            rows = [row for _, row in run]
            chars = sum(len(row) - len(GUTTER) for row in rows)
            omission = f"  … {counted(len(rows), 'row')}, {counted(chars, 'character')}, that stay are not shown here …"
            kept_rows += rows if is_kept else [omission]
            unseen += 0 if is_kept else len(rows)
        return [self.head, *kept_rows, *self.why], unseen


class _ChangedRows(NamedTuple):
    """The rows of an edit."""

    names: Sequence[str]
    """The arguments that these rows replace."""
    rows: list[str]
    is_unknown: bool = False
    """Whether the file's present text could not be had, so that what is removed is missing."""


def _changed_rows(call: PendingCall, columns: int, files: FilesNow) -> _ChangedRows | None:
    """Return the lines that the call removes and adds; None if its arguments do not tell."""
    texts = {name: value for name, value in call.arguments.items() if isinstance(value, str)}
    rows: list[str] = []
    if texts.get("command", _REPLACE) != _REPLACE:
        texts.pop("old_str", None)  # other commands take no notice of it
    if "old_str" in texts:
        names = [name for name in ("old_str", "new_str") if name in texts]
        old, new = texts["old_str"], texts.get("new_str", "")
        with contextlib.suppress(OhsandboxError):  # what it removes is in the call
            file_text = files.read(texts.get("path", ""))
            if old and file_text.count(old) == 1:
                line = file_text.count("\n", 0, file_text.index(old)) + 1
                rows = [f"{PLACE}line {line} of the file as it is now"]
        return _ChangedRows(names, [*rows, *_rows_of_change(changes(masked(old), masked(new)), columns)])
    names_of_text: list[str] = [name for name in ("file_text", "new_str") if name in texts]
    is_undo = texts.get("command") == _UNDO
    if not is_undo and "content" not in texts:
        if len(names_of_text) != 1:
            return None
        change, is_unknown = _Change("", "", texts[names_of_text[0]]), False
    else:
        names_of_text, is_unknown = [] if is_undo else ["content"], False
        try:
            change = _change_of(call, texts, files)
        except OhsandboxError as error:
            is_unknown = True
            why = safe_line(error, limit_chars=_MAX_WHY_CHARS)
            change = _Change(f"what it removes is not shown: {why}", "", "" if is_undo else texts["content"])
    rows = [f"{PLACE}{change.place}"] if change.place else []
    if change.old or change.new:
        rows += _rows_of_change(_whole(masked(change.old), masked(change.new)), columns)
    if change.new and not change.new.endswith("\n"):
        rows.append(f"{PLACE}no line feed at its end")
    return _ChangedRows(names_of_text, rows, is_unknown=is_unknown)


class _Change(NamedTuple):
    """What a call makes of a file or of a range of its lines."""

    place: str
    old: str
    new: str


def _change_of(call: PendingCall, texts: Mapping[str, str], files: FilesNow) -> _Change:
    """Return what a call with `content`, or one that undoes an edit, makes of its file as it is now.

    Raises:
        OhsandboxError: the file's text cannot be had.
    """
    path = texts.get("path", "")
    if texts.get("command") == _UNDO:
        old, new = files.undo(path)
        return _Change("beside the file as it is now" if new else "the file as it is now, which it removes", old, new)
    new = texts["content"]
    start, end = (call.arguments.get(name, default) for name, default in (("start", 1), ("end", -1)))
    is_draft = call.hint.sign == "~" and isinstance(start, int) and isinstance(end, int)
    if is_draft and start < 0:
        return _Change("at the end of the file", "", new)
    try:
        old = files.read(path)
    except SandboxFileNotFoundError:
        return _Change("", "", new)
    if not is_draft:
        return _Change("beside the file as it is now" if old else "", old, new)
    count = count_lines(old)
    last = min(count, count if end < 0 else end)
    old_range = old[line_start(old, start) : line_start(old, last + 1)]
    merged = "; a model merges the two" if new else ""
    return _Change(f"lines {start} to {last} of the file as it is now{merged}", old_range, new)


def _whole(old: str, new: str) -> list[DiffLine]:
    """Return the change from one whole file, or none, to another. A final line feed does not begin a line."""
    if not old:
        return [DiffLine("added", line) for line in new.removesuffix("\n").split("\n")]
    if not new:
        return [DiffLine("removed", line) for line in old.removesuffix("\n").split("\n")]
    both = old.endswith("\n") and new.endswith("\n")
    return changes(old[:-1], new[:-1]) if both else changes(old, new)


_GUTTERS = {"added": ADDED, "removed": REMOVED, "same": GUTTER}


def _rows_of_change(all_changes: Iterable[DiffLine], columns: int) -> list[str]:
    rows: list[str] = []
    for kind, run in groupby(all_changes, lambda change: change.kind):
        text = visible("\n".join(change.text for change in run)).expandtabs(TAB_COLUMNS)
        rows += folded(text, columns, gutter=_GUTTERS[kind])
    return rows


RowKind = Literal["", "added", "removed", "place", "name", "reason", "low", "medium", "high", "unknown"]
_KINDS: dict[str, RowKind] = {ADDED: "added", REMOVED: "removed", PLACE: "place", NAMED: "name", _REASON: "reason"}
_HEAD = re.compile(r"\[\d+\] .*, risk (LOW|MEDIUM|HIGH|UNKNOWN)")
_RISKS: dict[str, RowKind] = {"LOW": "low", "MEDIUM": "medium", "HIGH": "high", "UNKNOWN": "unknown"}
_STYLES: dict[RowKind, str] = {
    "added": "green", "removed": "red", "place": "cyan", "name": "bold",
    "low": "bold green", "medium": "bold yellow", "high": "bold red", "unknown": "bold yellow",
}  # fmt: skip


def kind_of(row: str) -> RowKind:
    """Return what a row of `show_calls` is, by its gutter, which no text of a call can forge; a head is its risk."""
    head = _HEAD.fullmatch(row)
    return _RISKS[head[1]] if head else _KINDS.get(row[: len(GUTTER)], "")


def print_rows(rows: Iterable[str]) -> None:
    """Print rows of `show_calls`, coloured by their kind."""
    console = open_console()
    for row in rows:
        kind = kind_of(row)
        if kind == "reason" and console.is_terminal:
            text = Text(row.removeprefix(_REASON))
            for number, line in enumerate(text.wrap(console, max(console.width - len(_REASON), MIN_COLUMNS))):
                console.print(Text(" " * len(_REASON) if number else _REASON) + line, soft_wrap=True)
            continue
        console.print(Text(row, style=_STYLES.get(kind, "")), soft_wrap=True)


def _fitting(rows: Sequence[str], limit: float) -> int:
    """Return how many of the rows, from the first, fit into limit."""
    return next((count for count in range(len(rows)) if _height(rows[: count + 1]) > limit), len(rows))


def _height(rows: Iterable[str]) -> int:
    return sum(1 + len(row) // _USUAL_COLUMNS for row in rows)


def named_rows(label: str, text: str, columns: int) -> list[str]:
    """Return a label with its own gutter, and text that is safe to print and cannot look like our own rows."""
    shown = f"{safe_line(label, limit_chars=sys.maxsize)}:{chr(10) if chr(10) in text else ' '}{text}"
    first, *more = folded(shown, columns)
    return [NAMED + first.removeprefix(GUTTER), *more]


def folded(text: str, columns: int, *, gutter: str = GUTTER) -> list[str]:
    """Split text that is safe to print into rows behind a gutter; a line longer than the terminal takes several.

    Terminals disagree on the width of non-ASCII characters (UAX 11: ambiguous, unassigned, emoji), but none
    uses more than two columns, so two are counted.
    """
    room = max(columns, MIN_COLUMNS) - len(GUTTER)
    rows: list[str] = []
    for line in text.split("\n"):
        row, free_columns = gutter, room
        for character in line:
            free_columns -= 1 if character.isascii() else 2
            if free_columns < 0:
                rows.append(row)
                row, free_columns = gutter, room - (1 if character.isascii() else 2)
            row += character
        rows.append(row)
    return rows
