"""Blocks as they stand in a terminal, without the colours."""

from __future__ import annotations

import base64
import io
import json
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console, Group

from ohsandbox import events
from ohsandbox.cli.rendering.events import BlockReader, Form, ResultBlock
from ohsandbox.cli.rendering.renderables import tail
from ohsandbox.cli.rendering.terminal import RichView
from ohsandbox.conversation.live_output import OutputEvent
from ohsandbox.llm.chat import DeltaEvent
from tests.fakes import stamp

if TYPE_CHECKING:
    from pathlib import Path

PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


def call(name: str, arguments: dict[str, Any], number: int = 1, **more: Any) -> events.EventBody:
    facts = {"response_id": "r", "call_index": 0, "total_calls": 1, **more}
    return events.tool_call(tool_call_id=str(number), name=name, arguments=json.dumps(arguments), **facts)


def result(name: str, text: str, number: int = 1, *, ok: bool = True, **more: Any) -> events.EventBody:
    answer = events.ToolResult.ok(text) if ok else events.ToolResult.failed(text)
    return events.tool_result(tool_call_id=str(number), name=name, result=answer, **more)


def shown(*bodies: events.EventBody, width: int = 60, forms: Form = Form.TERMINAL, after_s: float = 2) -> str:
    out = io.StringIO()
    view = RichView(Console(file=out, width=width, markup=False, highlight=False), forms=forms)
    first = stamp(*bodies)[0].ts.replace(hour=12, minute=0, second=0)
    for number, event in enumerate(stamp(*bodies)):
        view.show(event.model_copy(update={"ts": first + timedelta(seconds=number * after_s)}))
    return out.getvalue()


EDIT = {"command": "str_replace", "path": "/w/a.py", "old_str": "a\nb\n", "new_str": "a\nB\n"}


def test_an_edit_is_shown_as_its_change() -> None:
    assert shown(call("file_editor", EDIT), result("file_editor", "Edited.", details={"first_line": 7})) == (
        "~ /w/a.py (str_replace)\n     7   a\n     8 - b\n     8 + B\n  ✓ +1 -1 · 2.0 s\n"
    )


def test_an_edit_that_failed_is_shown_with_its_reason() -> None:
    printed = shown(call("file_editor", EDIT), result("file_editor", "old_str is not in the file.", ok=False))
    assert printed.endswith("  old_str is not in the file.\n  ✗ failed · 2.0 s\n")


def test_any_tool_is_shown_without_json() -> None:
    printed = shown(
        call("git__log", {"n": 3, "paths": ["a", "b"]}), result("git__log", '[{"id": "f00", "files": {"a": 1}}]')
    )
    assert printed == (". git__log\n  n: 3\n  paths: a, b\n  1:\n    id: f00\n    files:\n      a: 1\n  ✓ 2.0 s\n")
    assert shown(call("execute_bash", {"command": "cat x"}), result("execute_bash", '{"a": 1}')).startswith(
        '$ cat x\n  {"a": 1}\n'
    )


def test_a_task_list_is_a_checklist() -> None:
    plan = {"command": "plan", "task_list": [{"title": "Look", "status": "done"}, {"title": "Mend"}]}
    assert shown(call("task_tracker", plan), result("task_tracker", "2 tasks: ...")) == (
        ". 1 of 2 tasks done\n  ☑ Look\n  ☐ Mend\n"
    )


@pytest.mark.parametrize(("by", "said"), [("user", "you said no"), ("ada", "ada said no")])
def test_a_refusal_is_no_failure(by: str, said: str) -> None:
    no = events.confirmation(tool_call_ids=["1"], approved=False, reason="Keep it.", by=by)
    refused = result("execute_bash", "The user refused this call: Keep it.", ok=False)
    printed = shown(call("execute_bash", {"command": "rm x"}), no, refused)
    assert printed == f"$ rm x\n  Keep it.\n  ∅ {said}\n"


def test_a_tool_of_any_name_whose_hint_says_that_it_keeps_tasks_is_a_checklist() -> None:
    plan = {"task_list": [{"title": "Look", "status": "done"}, {"title": "Mend"}]}
    hint = {"kind": "tasks", "writes": False}
    assert shown(call("own_list", plan, hint=hint), result("own_list", "2 tasks: ...")) == (
        ". 1 of 2 tasks done\n  ☑ Look\n  ☐ Mend\n"
    )


def test_what_never_ran_did_not_fail() -> None:
    stopped = result("execute_bash", "Not executed: the user stopped the run before it began.", ok=False)
    printed = shown(call("execute_bash", {"command": "x"}), stopped)
    assert printed == "$ x\n  the user stopped the run before it began.\n  ∅ not run\n"


def test_a_persons_thinking_and_the_calls_before_are_not_a_calls_time() -> None:
    bodies = [
        events.held(call("execute_bash", {"command": command}, number), asks=True, risk="LOW", why=(), only_reads=False)
        for number, command in enumerate("ab", 1)
    ]
    yes = events.confirmation(tool_call_ids=["1", "2"], approved=True, reason="", by="user")
    results = [result("execute_bash", "", number) for number in (1, 2)]
    reader, seconds = BlockReader(Form.TERMINAL), []
    began = stamp(yes)[0].ts
    for at, event in zip((0, 0, 60, 63, 68), stamp(*bodies, yes, *results), strict=True):
        blocks = reader.blocks_of(event.model_copy(update={"ts": began + timedelta(seconds=at)}))
        seconds += [block.seconds for block in blocks if isinstance(block, ResultBlock)]
    assert seconds == [3.0, 5.0]


def test_a_stored_event_has_its_time_and_its_day() -> None:
    printed = shown(events.user_message("Go."), call("grep", {"pattern": "x"}), forms=Form.TERMINAL | Form.STORED)
    day, _, first, second, _ = printed.split("\n")
    assert day.startswith(f"{stamp(events.user_message('x'))[0].ts.astimezone():%A, %Y-}")
    assert [line.split(" ", 1)[1] for line in (first, second)] == ["> Go.", "? x"]
    assert second.split(":")[2][:2] == "02"


def test_a_long_output_is_folded_and_can_be_unfolded() -> None:
    out = io.StringIO()
    view = RichView(Console(file=out, width=60, markup=False, highlight=False))
    view.unfolds_by = "Ctrl-O shows all"
    for event in stamp(
        call("execute_bash", {"command": "seq 100"}), result("execute_bash", "\n".join(map(str, range(100))))
    ):
        view.show(event)
    assert "… 85 lines above, Ctrl-O shows all\n  85\n" in out.getvalue()
    assert view.unfold()
    assert "  0\n  1\n  2\n" in out.getvalue()
    assert not view.unfold()


def test_an_image_is_a_file_to_open(tmp_path: Path) -> None:
    out = io.StringIO()
    view = RichView(Console(file=out, width=200, markup=False, highlight=False))
    view.images_dir = tmp_path / "images"
    urls = [f"data:image/png;base64,{base64.b64encode(data).decode()}" for data in (PNG, PNG, b"no picture")]
    for event in stamp(call("execute_ipython_cell", {"code": "x"}), result("execute_ipython_cell", "", images=urls)):
        view.show(event)
    [saved] = (tmp_path / "images").iterdir()
    assert saved.read_bytes() == PNG
    assert out.getvalue().count(f"image, 70 B: {saved}") == 2
    assert "(an image)" in out.getvalue()


def test_words_are_not_broken_at_any_width() -> None:
    words = "Several words of moderate length, so that rows must end somewhere between them."
    for width in (40, 57, 100, 250):
        for body in (events.user_message(words), events.notice(code="X", message=words),
                     events.assistant_message(words, response_id="r"), call("x", {}, thought=words)):  # fmt: skip
            printed = shown(body, width=width)
            assert " ".join(printed.split()).find(words) >= 0
            assert max(map(len, printed.split("\n"))) <= width


def test_an_answer_has_one_blank_line_between_its_blocks() -> None:
    text = "# A\n\nb\n\n```python\nc = 1\n```\n\n- d\n- e\n\n| f | g |\n|---|---|\n| h | i |\n\n> j\n"
    printed = shown(events.assistant_message(text, response_id="r"))
    assert "\n\n\n" not in printed
    assert [line.strip() for line in printed.split("\n") if line.strip()][:4] == ["A", "b", "c = 1", "• d"]


def test_what_a_terminal_cannot_show_is_spelt_in_ascii() -> None:
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii", errors="replace")
    view = RichView(Console(file=stream, width=60, markup=False, highlight=False))
    for event in stamp(call("execute_bash", {"command": "x"}), result("execute_bash", "y", details={"exit_code": 0})):
        view.show(event)
    stream.seek(0)
    assert stream.read().startswith("$ x\n  y\n  ok exit 0, ")


@given(st.text(max_size=300))
def test_no_text_reaches_the_terminal_as_it_is(text: str) -> None:
    out = io.StringIO()
    view = RichView(Console(file=out, width=80, markup=False, highlight=False))
    bodies = [
        call("x", {"value": text}, thought=text),
        result("x", text),
        call("execute_bash", {"command": text}),
        call("file_write", {"path": text, "content": text}),
        result("file_write", text),
        events.assistant_message(text, response_id="r"),
    ]
    for event in stamp(*bodies):
        view.show(event)
    view.output(OutputEvent(tool_call_id="1", name="x", text=text))
    controls = {chr(code) for code in range(0x20)} - {"\n", "\r"}
    assert {*out.getvalue()}.isdisjoint({*controls, "\x7f", "\x9b", "\u202e", "\u2066", "\u200b"})


@given(st.text(max_size=300), st.integers(1, 9))
def test_what_a_running_call_printed_is_a_few_printable_rows(text: str, rows: int) -> None:
    out = io.StringIO()
    lines = tail(text, rows=rows)
    Console(file=out, width=40, markup=False, highlight=False).print(Group(*lines))
    assert len(lines) <= rows
    assert len(out.getvalue().rstrip("\n").split("\n")) <= rows
    assert {*out.getvalue()}.isdisjoint({chr(code) for code in range(0x20)} - {"\n"} | {"\x7f", "\x9b", "\u202e"})


def test_the_last_line_of_what_runs_is_told_at_the_bottom() -> None:
    out = io.StringIO()
    view = RichView(Console(file=out, width=60, markup=False, highlight=False, force_terminal=True, no_color=True))
    for event in stamp(call("execute_bash", {"command": "make"})):
        view.show(event)
    view.output(OutputEvent(tool_call_id="1", name="execute_bash", text="one\nstep 2 of 9\n"))
    assert "make … step 2 of 9" in out.getvalue()


def test_no_row_ends_with_blanks() -> None:
    for body in (events.assistant_message("- a\n\n```\nb\n```\n\n> c\n\n|d|e|\n|-|-|\n|f|g|", response_id="r"),
                 events.user_message("h"), result("grep", "i"), events.notice(code="X", message="j")):  # fmt: skip
        assert [row for row in shown(body, width=90).split("\n") if row.endswith(" ")] == []


class HeldLine:
    """A bottom line that only keeps its text."""

    text = ""

    def set(self, text: str) -> None:
        self.text = text

    def update(self, text: str) -> None:
        self.text = text

    def draw(self) -> None:
        """Nothing to draw on."""

    clear = draw


def test_an_answer_that_another_message_ends_leaves_nothing_of_it_at_the_bottom() -> None:
    line = HeldLine()
    view = RichView(Console(file=io.StringIO(), width=60), line=line)
    view.stream(DeltaEvent(text="Half an ans"))
    assert "Half an ans" in line.text
    view.show(stamp(events.user_message("and"))[0])
    assert "Half" not in line.text
