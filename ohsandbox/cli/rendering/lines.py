"""The lines of an action or result: changes of a text, fields, a checklist. All lines are safe to print."""

from __future__ import annotations

import difflib
import json
import re
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from ohsandbox.cli.rendering.text import masked, safe, safe_line
from ohsandbox.review_text import visible
from ohsandbox.strict_json import load_json
from ohsandbox.text import counted

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

LineKind = Literal["", "added", "removed", "same", "place", "field", "done", "active", "todo"]

CONTEXT_LINES = 3
"""Unchanged lines around a change, as in `diff -u`."""
_MAX_COMPARED_LINES = 400
"""Longest text that difflib compares, in at most 20 ms; in a longer change all old lines precede all new ones."""
MAX_FIELD_LINES = 200
_MAX_FIELD_DEPTH = 20
_MAX_JSON_CHARS = 200_000
TAB_COLUMNS = 8


class BlockLine(NamedTuple):
    """A line of a block."""

    kind: LineKind
    text: str
    """The text, safe to print."""
    number: int = 0
    """Line number in the file, the old one for a removed line; 0 if unknown."""


# --- changes of a text ----------------------------------------------------------------------------


class DiffLine(NamedTuple):
    """A line of a change, as in the texts themselves."""

    kind: Literal["added", "removed", "same"]
    text: str


def changes(old: str, new: str) -> list[DiffLine]:
    """Return the change: `same` and `removed` lines make up old, `same` and `added` lines make up new.

    Only a line feed ends a line, and a text that ends with one has an empty last line.
    """
    was, now = old.split("\n"), new.split("\n")
    most = min(len(was), len(now))
    head = next((at for at in range(most) if was[at] != now[at]), most)
    tail = next((at for at in range(most - head) if was[-1 - at] != now[-1 - at]), most - head)
    old_lines, after = was[head : len(was) - tail], now[head : len(now) - tail]
    all_changes = [DiffLine("same", line) for line in was[:head]]
    if max(len(old_lines), len(after)) <= _MAX_COMPARED_LINES:
        matcher = difflib.SequenceMatcher(None, old_lines, after, autojunk=False)
        for tag, i1, i2, j1, j2 in matcher.get_opcodes():
            if tag == "equal":
                all_changes += [DiffLine("same", line) for line in old_lines[i1:i2]]
            else:
                all_changes += [DiffLine("removed", line) for line in old_lines[i1:i2]]
                all_changes += [DiffLine("added", line) for line in after[j1:j2]]
    else:
        all_changes += [DiffLine("removed", line) for line in old_lines]
        all_changes += [DiffLine("added", line) for line in after]
    return all_changes + [DiffLine("same", line) for line in was[len(was) - tail :]]


class TextEdit(NamedTuple):
    """The replacement that a call's arguments describe, in a part of a file or in all of it."""

    old: str
    new: str

    @classmethod
    def of(cls, arguments: Mapping[str, Any]) -> TextEdit | None:
        """Read the arguments of any tool whose argument names are ours; None if they contain no text."""
        texts = {name: value for name, value in arguments.items() if isinstance(value, str)}
        if "old_str" in texts:
            return cls(texts["old_str"], texts.get("new_str", ""))
        new = next((texts[name] for name in ("file_text", "content", "new_str") if name in texts), None)
        return None if new is None else cls("", new)


def edit_lines(edit: TextEdit, *, first: int = 0) -> list[BlockLine]:
    """Return the change with the lines around it, numbered from first if that is known."""
    if not edit.old:
        edit_changes = [DiffLine("added", line) for line in _lines_of(masked(edit.new))]
    elif not edit.new:
        edit_changes = [DiffLine("removed", line) for line in _lines_of(masked(edit.old))]
    else:
        edit_changes = changes(masked(edit.old).removesuffix("\n"), masked(edit.new).removesuffix("\n"))
    return [*_numbered(edit_changes, first)]


def _lines_of(text: str) -> list[str]:
    return text.removesuffix("\n").split("\n") if text else []


def _numbered(all_changes: Sequence[DiffLine], first: int) -> Iterator[BlockLine]:
    """Number the lines and drop unchanged lines that are not near a change."""
    changed = [at for at, change in enumerate(all_changes) if change.kind != "same"]
    near = {at + step for at in changed for step in range(-CONTEXT_LINES, CONTEXT_LINES + 1)}
    old = new = first
    left_out = 0
    for at, change in enumerate(all_changes):
        if at in near and left_out:
            yield BlockLine("place", f"… {counted(left_out, 'unchanged line')}")
            left_out = 0
        if at in near:
            number = old if change.kind == "removed" else new
            yield BlockLine(change.kind, _printable_line(change.text), number if first else 0)
        else:
            left_out += 1
        old += change.kind != "added"
        new += change.kind != "removed"


def _printable_line(line: str) -> str:
    """Return a line of an already masked text, safe to print."""
    return visible(line).expandtabs(TAB_COLUMNS)


_HUNK = re.compile(r"@@ -(\d+)(?:,\d+)? \+(\d+)(?:,\d+)? @@")


def patch_lines(patch: str) -> list[BlockLine]:
    """Return the lines of a unified diff of one file, as a tool returned it; empty if it is not a diff."""
    block_lines: list[BlockLine] = []
    old = new = -1
    for row in safe(patch).split("\n"):
        if hunk := _HUNK.match(row):
            old, new = int(hunk[1]), int(hunk[2])
            block_lines += [BlockLine("place", "…")] if block_lines else []
        elif new < 0 or not row:  # a file that is gone has line 0 of the new one
            continue
        elif row[0] == "-":
            block_lines.append(BlockLine("removed", row[1:], old))
            old += 1
        elif row[0] in "+ ":
            block_lines.append(BlockLine("added" if row[0] == "+" else "same", row[1:], new))
            old, new = old + (row[0] == " "), new + 1
        else:
            block_lines.append(BlockLine("place", row))
    return block_lines


def change_counts(lines: Sequence[BlockLine]) -> str:
    """Return the number of changed lines as `+3 -1`; empty if nothing changes."""
    counts = {sign: sum(line.kind == kind for line in lines) for sign, kind in (("+", "added"), ("-", "removed"))}
    return " ".join(f"{sign}{count}" for sign, count in counts.items() if count)


# --- fields ---------------------------------------------------------------------------------------


def field_lines(fields: Mapping[str, Any]) -> list[BlockLine]:
    """Return a line per field, `name: value`; nested values are indented below it."""
    block_lines: list[BlockLine] = []
    for name, value in fields.items():
        for line in _field(safe_line(name), value, indent=""):
            if len(block_lines) == MAX_FIELD_LINES:
                return [*block_lines, BlockLine("place", "… more of the kind")]
            block_lines.append(line)
    return block_lines


def _field(name: str, value: Any, *, indent: str) -> Iterator[BlockLine]:
    below = f"{indent}  "
    if len(below) > 2 * _MAX_FIELD_DEPTH:
        yield BlockLine("field", f"{indent}{name}: …")
    elif isinstance(value, dict) and value:
        yield BlockLine("field", f"{indent}{name}:")
        for key, item in value.items():
            yield from _field(safe_line(key), item, indent=below)
    elif isinstance(value, list | tuple) and any(isinstance(item, dict | list | tuple) for item in value):
        yield BlockLine("field", f"{indent}{name}:")
        for number, item in enumerate(value, 1):
            yield from _field(str(number), item, indent=below)
    else:
        words = ", ".join(map(_scalar, value)) if isinstance(value, list | tuple) else _scalar(value)
        if "\n" in words:
            yield BlockLine("field", f"{indent}{name}:")
            yield from (BlockLine("", f"{below}{line}") for line in words.split("\n"))
        else:
            yield BlockLine("field", f"{indent}{name}: {words}".rstrip())


def _scalar(value: Any) -> str:
    return safe(value if isinstance(value, str) else json.dumps(value))


def json_lines(text: str) -> list[BlockLine]:
    """Return the fields of a JSON object or list; empty for any other text."""
    if len(text) > _MAX_JSON_CHARS or text.lstrip()[:1] not in {"{", "["}:
        return []
    try:
        value = load_json(text)
    except ValueError:
        return []
    if isinstance(value, list):
        value = {str(number): item for number, item in enumerate(value, 1)}
    return field_lines(value) if isinstance(value, dict) else []


# --- a checklist ----------------------------------------------------------------------------------

_STATUS: Mapping[str, LineKind] = {"done": "done", "in_progress": "active", "todo": "todo"}
_TASK = re.compile(r"\[([x> ])\] ")
_SIGNS: Mapping[str, LineKind] = {"x": "done", ">": "active", " ": "todo"}


def task_lines(tasks: object) -> list[BlockLine]:
    """Return a line per task, from the argument `task_list` of `task_tracker`."""
    items = [item for item in tasks if isinstance(item, dict)] if isinstance(tasks, list) else []
    return [
        BlockLine(
            _STATUS.get(str(item.get("status") or "todo"), "todo"), safe_line(item.get("title") or "Untitled task")
        )
        for item in items
    ]


def checked_lines(text: str) -> list[BlockLine]:
    """Return a line per task, from the list that the tool returns."""
    return [
        BlockLine(_SIGNS[match[1]], line[match.end() :])
        for line in safe(text).split("\n")
        if (match := _TASK.match(line))
    ]


def progress_of(tasks: Sequence[BlockLine]) -> str:
    """Return the progress as `2 of 5 tasks done`."""
    done_count = sum(task.kind == "done" for task in tasks)
    return f"{done_count} of {counted(len(tasks), 'task')} done"
