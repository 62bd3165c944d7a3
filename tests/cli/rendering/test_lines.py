from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ohsandbox.cli.rendering.lines import (
    MAX_FIELD_LINES,
    BlockLine,
    DiffLine,
    TextEdit,
    change_counts,
    changes,
    checked_lines,
    edit_lines,
    field_lines,
    json_lines,
    patch_lines,
    progress_of,
    task_lines,
)
from ohsandbox.review_text import visible

TEXTS = st.lists(st.sampled_from(["a", "b", "", "  c", "\t", "d\r"]), max_size=12).map("\n".join) | st.text(max_size=80)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=9), inner, max_size=4),
    max_leaves=20,
)


@given(TEXTS, TEXTS)
def test_a_change_is_both_texts_whole(old: str, new: str) -> None:
    found = changes(old, new)
    assert "\n".join(change.text for change in found if change.kind != "added") == old
    assert "\n".join(change.text for change in found if change.kind != "removed") == new


def test_a_large_change_is_not_compared_line_by_line() -> None:
    old, new = ("\n".join(f"{name}{number}" for number in range(2000)) for name in "ab")
    assert changes(old, new) == [
        *(DiffLine("removed", line) for line in old.split("\n")),
        *(DiffLine("added", line) for line in new.split("\n")),
    ]


def test_a_replacement_is_shown_with_its_numbers_and_little_around_it() -> None:
    old = "".join(f"{number}\n" for number in range(20))
    lines = edit_lines(TextEdit(old, old.replace("10\n", "ten\nTEN\n")), first=1)
    assert [(line.kind, line.text, line.number) for line in lines] == [
        ("place", "… 7 unchanged lines", 0),
        ("same", "7", 8),
        ("same", "8", 9),
        ("same", "9", 10),
        ("removed", "10", 11),
        ("added", "ten", 11),
        ("added", "TEN", 12),
        ("same", "11", 13),
        ("same", "12", 14),
        ("same", "13", 15),
    ]
    assert change_counts(lines) == "+2 -1"


@pytest.mark.parametrize(
    ("arguments", "edit"),
    [
        ({"command": "create", "file_text": "x\n"}, TextEdit("", "x\n")),
        ({"command": "str_replace", "old_str": "a", "new_str": "b"}, TextEdit("a", "b")),
        ({"command": "str_replace", "old_str": "a"}, TextEdit("a", "")),
        ({"command": "insert", "insert_line": 3, "new_str": "b"}, TextEdit("", "b")),
        ({"path": "/x", "content": ""}, TextEdit("", "")),
        ({"command": "undo_edit"}, None),
        ({"command": "str_replace", "old_str": 5}, None),
    ],
)
def test_an_edit_is_known_by_its_arguments(arguments: dict[str, Any], edit: TextEdit | None) -> None:
    assert TextEdit.of(arguments) == edit


def test_what_hides_is_spelt_out_in_a_change() -> None:
    [removed, added] = edit_lines(TextEdit("\tx", "        x"))
    assert (removed.text, added.text) == ("        x", "        x")
    [line] = edit_lines(TextEdit("", "a\u202eb\x1b[2J\r\n"))
    assert line == BlockLine("added", r"a\u{202e}b\u{1b}[2J\u{d}")


def test_a_unified_diff_is_read_with_its_numbers() -> None:
    patch = "--- a\n+++ a\n@@ -3,2 +3,3 @@\n same\n-old\n+new\n+more\n@@ -9 +10 @@\n-x\n+y\n"
    assert patch_lines(patch) == [
        BlockLine("same", "same", 3),
        BlockLine("removed", "old", 4),
        BlockLine("added", "new", 4),
        BlockLine("added", "more", 5),
        BlockLine("place", "…"),
        BlockLine("removed", "x", 9),
        BlockLine("added", "y", 10),
    ]
    assert patch_lines("--- a\n+++ /dev/null\n@@ -1 +0,0 @@\n-all\n") == [BlockLine("removed", "all", 1)]
    assert patch_lines("File 'a' did not exist; made with 3 lines.") == []


def test_fields_stand_a_line_each() -> None:
    fields = {"title": "A bug", "labels": ["a", 1], "meta": {"open": True, "by": None}, "text": "x: y\nz", "none": {}}
    assert [(line.kind, line.text) for line in field_lines(fields)] == [
        ("field", "title: A bug"),
        ("field", "labels: a, 1"),
        ("field", "meta:"),
        ("field", "  open: true"),
        ("field", "  by: null"),
        ("field", "text:"),
        ("", "  x: y"),
        ("", "  z"),
        ("field", "none: {}"),
    ]


@given(st.dictionaries(st.text(max_size=9), JSON, max_size=5))
def test_fields_of_anything_are_printable_and_few(fields: dict[str, Any]) -> None:
    lines = field_lines(fields)
    assert len(lines) <= MAX_FIELD_LINES + 1
    assert all("\n" not in line.text and visible(line.text) == line.text.replace("\\u", "\\u") for line in lines
               if "\\" not in line.text)  # fmt: skip
    assert json_lines(json.dumps(fields)) == lines


def test_deep_and_long_fields_are_cut() -> None:
    deep: Any = 1
    for _ in range(90):
        deep = {"x": deep}
    assert field_lines({"d": deep})[-1].text.endswith("x: …")
    assert len(field_lines({"l": "\n" * 10**5 + "x"})) <= MAX_FIELD_LINES + 1
    assert json_lines("[1, 2") == json_lines("words") == json_lines("7") == []


def test_tasks_are_a_checklist() -> None:
    tasks = task_lines([{"title": "a", "status": "done"}, {"title": "b\nc", "status": "in_progress"}, {}, 5])
    assert tasks == [BlockLine("done", "a"), BlockLine("active", r"b\u{a}c"), BlockLine("todo", "Untitled task")]
    assert progress_of(tasks) == "1 of 3 tasks done"
    assert progress_of(tasks[:1]) == "1 of 1 task done"
    assert task_lines("no list") == []
    assert checked_lines("2 tasks: ...\n[x] t-1: a\n[ ] t-2: b\n      a note") == [
        BlockLine("done", "t-1: a"),
        BlockLine("todo", "t-2: b"),
    ]
