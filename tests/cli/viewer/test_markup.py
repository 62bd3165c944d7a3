from __future__ import annotations

from typing import Any

import pytest

from ohsandbox.cli.rendering import text as texts
from ohsandbox.cli.rendering.lines import BlockLine, TextEdit, edit_lines, patch_lines
from ohsandbox.cli.viewer.changes_entry import MAX_LINES, difference
from ohsandbox.cli.viewer.markup import MAX_MARKDOWN_CHARS, cut_pieces, markdown_elements, output_elements
from ohsandbox.secrets import Masker


def test_markdown_is_a_tree_of_elements() -> None:
    assert markdown_elements("# Hi *you*\n\n- a\n- `b`\n\n3. c") == [
        ["h1", {}, "Hi ", ["em", {}, "you"]],
        ["ul", {}, ["li", {}, "a"], ["li", {}, ["code", {}, "b"]]],
        ["ol", {"start": 3}, ["li", {}, "c"]],
    ]
    assert markdown_elements("```py\nx < 1\n```") == [["pre", {"lang": "py"}, "x < 1\n"]]
    assert markdown_elements("|a|\n|-|\n|~~b~~|")[0][0] == "table"


def test_markup_in_markdown_is_text_and_images_are_named() -> None:
    assert markdown_elements("<b>x</b> ![p](http://e.example/x.png)") == [
        ["p", {}, "<b>x</b> ", "[image: p, http://e.example/x.png]"]
    ]
    assert markdown_elements("<div>x</div>") == [["p", {}, "<div>x</div>"]]


@pytest.mark.parametrize(
    "target", ["javascript:alert(1)", "data:text/html,x", "file:///etc/passwd", "/x", "//e.example"]
)
def test_links_lead_to_http_alone(target: str) -> None:
    assert "href" not in str(markdown_elements(f"[x]({target})"))


def test_markdown_hides_nothing() -> None:
    assert markdown_elements("a\u202eb") == [["p", {}, "a\\u{202e}b"]]


def test_a_secret_that_markdown_would_put_together_is_masked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(texts, "_maskers", [Masker({"KEY": "sk-1234567890abcdef"})])
    assert markdown_elements("sk-1234567890abcdef and `sk-1234567890abcdef`") == [
        ["p", {}, "<secret:KEY> and ", ["code", {}, "<secret:KEY>"]]
    ]


def test_a_long_message_is_shown_as_it_was_written() -> None:
    text = "*x* " * MAX_MARKDOWN_CHARS
    assert markdown_elements(text) == [["pre", {}, text]]


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        ("plain", "plain"),
        ("\x1b[31mred\x1b[0m.", [["c-red", "red"], ["", "."]]),
        ("\x1b[1;92mgood\x1b[22m still\x1b[39m.", [["c-green bold", "good"], ["c-green", " still"], ["", "."]]),
        ("\x1b[38;5;196mr\x1b[38;2;0;0;255mb\x1b[38;5;240mg", [["c-red", "r"], ["c-blue", "b"], ["", "g"]]),
        ("\x1b[48;2;1;2;3;4mu\x1b[m", [["underline", "u"]]),
        ("\x1b[30;40;8mhidden", [["c-black", "hidden"]]),
        ("\x1b[31ma\r\nb", [["c-red", "a\nb"]]),
        ("\x1b[0mplain", "plain"),
        ("\x1b]0;title\x07\x1b[2J\x1b[Hx", "x"),
        ("\x1b[31mover\rwritten", [["c-red", "written"]]),
        ("over\rwri\x1b[31mtten", [["", "wri"], ["c-red", "tten"]]),
    ],
)  # fmt: skip
def test_output_keeps_colours_and_no_other_control(raw: str, shown: object) -> None:
    assert output_elements(raw) == shown


@pytest.mark.parametrize(
    "raw", ["\x1b]0;\x1b[31m\x07x", "\x1b[3\x1b[31m1mx", "a\tb\x1b[1m\tc", "\x1b[31m\u202ex\x00", "\x1b[" * 9 + "1mx"]
)
def test_the_pieces_together_are_what_a_terminal_of_ours_shows(raw: str) -> None:
    shown = output_elements(raw)
    assert (shown if isinstance(shown, str) else "".join(text for _, text in shown)) == texts.output(raw)


def test_a_secret_with_a_colour_in_it_is_masked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(texts, "_maskers", [Masker({"KEY": "sk-1234567890abcdef"})])
    assert output_elements("\x1b[32mok\x1b[0m sk-12345\x1b[31m67890abcdef") == "ok <secret:KEY>"


def test_pieces_are_cut() -> None:
    assert cut_pieces([["a", "123"], ["", "456"], ["", "7"]], 5) == [["a", "123"], ["", "45"]]


def rows(lines: list[BlockLine]) -> Any:
    found = difference("/a", lines)
    assert found is not None
    return found["rows"]


def test_a_change_has_rows_with_a_text_between_its_places() -> None:
    old = [f"line {number}" for number in range(20)]
    new = [*old]
    new[2], new[15:16] = "two", []
    found = rows(edit_lines(TextEdit("\n".join(old), "\n".join(new)), first=101))
    assert found[2:4] == [[103, "line 2", 103, "two"], [104, "line 3", 104, "line 3"]]
    assert [one for one in found if len(one) == 1] == [["… 6 unchanged lines"]]
    assert found[-4:-2] == [[116, "line 15", None, None], [117, "line 16", 116, "line 16"]]


def test_a_new_file_is_all_added_and_an_unknown_place_has_no_numbers() -> None:
    assert rows(edit_lines(TextEdit("", "x\ny\n"), first=1)) == [[None, None, 1, "x"], [None, None, 2, "y"]]
    assert rows(edit_lines(TextEdit("x", "y"))) == [[None, "x", None, "y"]]


def test_a_patch_has_rows() -> None:
    patch = "--- a\n+++ b\n@@ -3,3 +3,4 @@ def f():\n x\n-y\n+z\n+w\n v\n@@ -30,1 +31,0 @@\n-q\n-r\n+s\n-t\n"
    assert rows(patch_lines(patch)) == [
        [3, "x", 3, "x"], [4, "y", 4, "z"], [None, None, 5, "w"], [5, "v", 6, "v"], ["…"],
        [30, "q", 31, "s"], [31, "r", None, None], [32, "t", None, None],
    ]  # fmt: skip


def test_lines_of_something_else_are_no_change_and_a_long_one_is_cut() -> None:
    assert difference("/a", [BlockLine("field", "x: 1"), BlockLine("same", "y", 1)]) is None
    found = difference("/a", [BlockLine("added", "x", number) for number in range(1, MAX_LINES + 3)])
    assert found is not None
    assert (len(found["rows"]), found["left_out"], found["added"]) == (MAX_LINES, 2, MAX_LINES + 2)
