"""The question whether calls may run: what a person is shown of them, and what may be answered.

Nothing is allowed that was not shown: what is too long to be shown whole needs another word than `y`.
"""

# ruff: noqa: T201 - a command prints
from __future__ import annotations

import json
import posixpath
import re
import sys
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from ohsandbox.cli.prompt import Typed, answer_to
from ohsandbox.cli.rendering.tables import open_console
from ohsandbox.cli.rendering.text import safe, safe_line
from ohsandbox.conversation.approvals import AnyCall, Decision, EditsUnder, ExactCall
from ohsandbox.conversation.approvals.scopes import offers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from ohsandbox.conversation.approvals import PendingCall

MAX_ROWS = 200
"""Of one question so much is shown at once: about five screens, which a person still scrolls through."""
USUAL_COLUMNS = 100
"""A longer row counts as several."""
MIN_COLUMNS, FILE_COLUMNS = 20, 1000
"""Rows are as long as the terminal, and not shorter; where there is none, programs read along."""
MAX_REASONS = 20

GUTTER = "  | "
"""Before every row that a call's own text takes: so none of it can pass for a row of ours."""
NAMED = "  = "
"""Before an argument's name, and before no other row: so no text of one argument can pass for another."""
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


class Shown(NamedTuple):
    """Calls, as a person is shown them."""

    text: str
    unseen_rows: int
    """Left out of text."""
    rows: list[str]
    """All of them."""


def shown(pending: Sequence[PendingCall]) -> Shown:
    """The calls with their risk and why, whole where they fit into MAX_ROWS; else of each its beginning and its end."""
    columns = open_console().width if sys.stdout.isatty() else FILE_COLUMNS
    calls = [_Rows.of(number, call, columns) for number, call in enumerate(pending, 1)]
    rows = [row for call in calls for row in call.all]
    limit = MAX_ROWS if _height(rows) <= MAX_ROWS else max(MAX_ROWS // len(calls), 3)
    parts = [call.cut(limit) for call in calls]
    return Shown("\n".join(row for kept, _ in parts for row in kept), sum(unseen for _, unseen in parts), rows)


def rows_of(pending: Sequence[PendingCall]) -> list[str]:
    """All of the calls with their risk and why, as a terminal of FILE_COLUMNS would show it."""
    return [row for number, call in enumerate(pending, 1) for row in _Rows.of(number, call, FILE_COLUMNS).all]


def ask(
    pending: Sequence[PendingCall], *, read: Callable[[str], Typed] = answer_to
) -> Decision | Literal["one by one"] | None:
    """Show pending, at least one, and ask about all of it until there is an answer that can be understood.

    read gives a line that was typed after what was printed, or raises EOFError, at which the person leaves it open:
    then the answer is None. Ctrl-C raises KeyboardInterrupt.
    """
    try:
        return _Question(pending, read).ask()
    except EOFError:
        return None


def count_of(number: int) -> str:
    """`this call`, `these 3 calls`."""
    return "this call" if number == 1 else f"these {number} calls"


class _Question:
    """One question, asked until it has its answer."""

    def __init__(self, pending: Sequence[PendingCall], read: Callable[[str], Typed]) -> None:
        self._count, self._read = len(pending), read
        text, self._unseen, self._rows = shown(pending)
        print(text, flush=True)
        offered = offers(pending[0]) if len(pending) == 1 else ()
        self._scopes = {_LETTERS[type(scope)]: scope for scope in offered}
        for letter, scope in self._scopes.items():
            print(f"{letter}: from now on {safe_line(scope, limit_chars=sys.maxsize)}")

    def ask(self) -> Decision | Literal["one by one"]:
        while True:
            if self._unseen:
                print(f"{self._unseen:,} rows were not shown: `v` shows all, by pages; `unseen` allows it unseen.")
            yes = ["unseen"] if self._unseen else ["y", *self._scopes]
            choices = [*yes, "n", "v", *(["o"] if self._count > 1 else [])]
            said = self._read(f"Allow {count_of(self._count)}? [{'/'.join(choices)}, ? helps] ")
            if said.text and (answer := self._take(said)) is not None:
                return answer

    def _take(self, said: Typed) -> Decision | Literal["one by one"] | None:
        """What it decides; None for nothing."""
        word, _, rest = said.text.partition(" ")
        word = word.lower().rstrip(",:.")
        if word in _NO:
            return Decision(approved=False, reason=rest.strip())
        if word in self._scopes and not self._unseen and not said.is_pasted:
            return self._from_now_on(word, rest.strip())
        if said.is_pasted or rest:
            word = ""
        if word in _HELP:
            print(HELP)
        elif word == "v":
            self._unseen = 0 if _page_through(self._rows, self._read) else self._unseen
        elif word == "o" and self._count > 1:
            return ONE_BY_ONE
        elif word == "unseen" if self._unseen else word in _YES:
            return Decision(approved=True)
        elif not (self._unseen and word in _YES):  # a stray key, or a line for somebody else, is not a refusal
            what = safe_line("Pasted text" if said.is_pasted else repr(said.text))
            print(f"{what} is not an answer; nothing was decided. `n REASON` rejects with a reason; ? shows help.")
        return None

    def _from_now_on(self, letter: str, directory: str) -> Decision | None:
        scope = self._scopes[letter]
        if directory and isinstance(scope, EditsUnder):
            wanted = scope.model_copy(update={"directory": posixpath.normpath(directory)})
            if not f"{scope.directory.rstrip('/')}/".startswith(f"{wanted.directory.rstrip('/')}/"):
                print(f"{safe_line(directory)} is not an absolute directory above this file; nothing was decided.")
                return None
            scope, directory = wanted, ""
        if directory:
            print(f"`{letter}` takes no more words; nothing was decided.")
            return None
        return Decision(approved=True, scope=scope)


def _page_through(rows: Sequence[str], read: Callable[[str], Typed]) -> bool:
    """Show rows, a screen at a time; whether the person went to the end."""
    height = max(open_console().height - 2, 5)
    for start in range(0, len(rows), height):
        print("\n".join(rows[start : start + height]), flush=True)
        end = min(start + height, len(rows))
        if end < len(rows):
            said = read(f"-- rows {start + 1:,} to {end:,} of {len(rows):,}; Enter goes on, q ends -- ")
            if said.text.lower() in _PAGER_ENDS:
                return False
    return True


class _Rows(NamedTuple):
    """One call: a row that says what it is, its own text, and why it is risky."""

    head: str
    body: list[str]
    why: list[str]

    @classmethod
    def of(cls, number: int, call: PendingCall, columns: int) -> _Rows:
        arguments = dict(call.arguments)
        body: list[str] = []
        if call.hint.kind in _PROGRAMS and call.hint.subject in arguments:
            body = folded(safe(arguments.pop(call.hint.subject)), columns)
        for name, value in arguments.items():
            label = name if _PLAIN_NAME.fullmatch(name) else json.dumps(name, ensure_ascii=False)
            text = safe(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))
            shown_label = safe_line(label, limit_chars=sys.maxsize)
            first, *more = folded(f"{shown_label}:{' ' if chr(10) not in text else chr(10)}{text}", columns)
            body += [NAMED + first.removeprefix(GUTTER), *more]
        why = [f"  - {safe_line(one, limit_chars=500)}" for one in call.why[:MAX_REASONS]]
        if len(call.why) > MAX_REASONS:
            why.append(f"  - and {len(call.why) - MAX_REASONS} more of the kind")
        return cls(f"[{number}] {safe_line(call.name)}, risk {call.risk.value}", body, why)

    @property
    def all(self) -> list[str]:
        return [self.head, *self.body, *self.why]

    def cut(self, limit: int) -> tuple[list[str], int]:
        """At most limit rows of its text, two thirds from the beginning; and how many are left out."""
        if _height(self.body) <= limit:
            return self.all, 0
        first, last = _fitting(self.body, limit * 2 // 3), _fitting(self.body[::-1], limit // 3)
        left_out = self.body[first : len(self.body) - last]
        chars = sum(len(row) - len(GUTTER) for row in left_out)
        told = f"  … {len(left_out):,} rows, {chars:,} characters, are not shown here …"
        kept = [self.head, *self.body[:first], told, *self.body[len(self.body) - last :], *self.why]
        return kept, len(left_out)


def _fitting(rows: Sequence[str], limit: int) -> int:
    """How many of the rows, from the first, fit into limit."""
    return next((count for count in range(len(rows)) if _height(rows[: count + 1]) > limit), len(rows))


def _height(rows: Iterable[str]) -> int:
    return sum(1 + len(row) // USUAL_COLUMNS for row in rows)


def folded(text: str, columns: int) -> list[str]:
    """Text that may be printed, in rows behind a gutter; a line that is longer than the terminal takes several.

    Terminals do not agree on how wide a character is that is not ASCII (UAX 11: ambiguous, unassigned, emoji), but none
    takes more than two columns: so many are counted.
    """
    room = max(columns, MIN_COLUMNS) - len(GUTTER)
    rows: list[str] = []
    for line in text.split("\n"):
        row, left = GUTTER, room
        for character in line:
            left -= 1 if character.isascii() else 2
            if left < 0:
                rows.append(row)
                row, left = GUTTER, room - (1 if character.isascii() else 2)
            row += character
        rows.append(row)
    return rows
