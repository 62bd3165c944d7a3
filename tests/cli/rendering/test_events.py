from __future__ import annotations

import io
import json
from typing import Any

import pytest
from rich.console import Console

from ohsandbox import events
from ohsandbox.cli.rendering import view as views
from ohsandbox.cli.rendering.events import EVENTS, CallBlock, Form, call_of
from ohsandbox.cli.rendering.lines import BlockLine
from ohsandbox.cli.rendering.markdown import MarkdownExport
from ohsandbox.cli.rendering.terminal import RichView
from ohsandbox.cli.rendering.view import MODEL_WORKS, PlainView, View
from tests.fakes import stamp


@pytest.mark.parametrize(
    ("name", "arguments", "shown"),
    [
        ("execute_bash", {"command": "ls\x1b[31m"}, CallBlock("$", r"ls\u{1b}[31m", "execute_bash")),
        ("execute_bash", {"command": "rm -rf x #\rls"}, CallBlock("$", r"rm -rf x #\u{d}ls", "execute_bash")),
        ("execute_bash", {"command": "y", "is_input": "true"}, CallBlock(">", "y", "execute_bash")),
        ("execute_bash", {"command": ""}, CallBlock("$", "(waiting on)", "execute_bash")),
        ("file_editor", {"command": "view", "path": "/a"}, CallBlock("<", "/a", "file_editor")),
        (
            "file_editor",
            {"command": "create", "path": "/a", "file_text": "x\ny\n"},
            CallBlock("+", "/a (2 lines)", "file_editor"),
        ),
        ("file_write", {"path": "/a", "content": "x\n"}, CallBlock("+", "/a (1 line)", "file_write")),
        (
            "file_editor",
            {"command": "str_replace", "path": "/a", "old_str": "x"},
            CallBlock("~", "/a (str_replace)", "file_editor"),
        ),
        ("file_read", {"path": "/a"}, CallBlock("<", "/a", "file_read")),
        ("grep", {"pattern": "x+", "path": "/"}, CallBlock("?", "x+", "grep")),
        ("execute_ipython_cell", {"code": "1 + 1"}, CallBlock("%", "1 + 1", "execute_ipython_cell")),
        ("delegate", {"task": "Look."}, CallBlock("&", "Look.", "delegate")),
        ("finish", {"message": "Done."}, CallBlock(".", "Done.", "finish", is_answer=True)),
        ("git__log", {"n": 3}, CallBlock(".", "git__log", "git__log", lines=(BlockLine("field", "n: 3"),))),
        ("grep", {"pattern": 7}, CallBlock(".", "grep", "grep", lines=(BlockLine("field", "pattern: 7"),))),
        ("ask_human", {"question": "Which?", "options": 5}, CallBlock("?", "Which?", "ask_human", is_answer=True)),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_call_in_a_persons_words(name: str, arguments: dict[str, Any], shown: CallBlock) -> None:
    [event] = stamp(_call(name, arguments))
    assert call_of(event) == shown


def test_a_newline_in_a_name_forges_no_line() -> None:
    name = "new: a\nchanged: .git/config\r\u2028new: b"
    for view, out in _views():
        view.info(name)
        view.warn(name)
        assert out.getvalue().splitlines(keepends=True) == [
            line for line in out.getvalue().splitlines(keepends=True) if "new: a" in line and r"\u{2028}new: b" in line
        ]
        assert len(out.getvalue().splitlines()) == 2


def test_a_call_is_shown_with_all_that_it_holds() -> None:
    command = "awk 'BEGIN{system(\"id\")}' #\rls -la /workspace\u202e\nrm x"
    [event] = stamp(_call("execute_bash", {"command": command}))
    for view, out in _views():
        view.show(event)
        assert 'system("id")' in out.getvalue()
        assert r"#\u{d}ls -la /workspace\u{202e}" in out.getvalue()


EXAMPLES = {
    "user_message": events.user_message("Mend it."),
    "assistant_message": events.assistant_message("Mended.", response_id="r"),
    "tool_call": events.tool_call(
        tool_call_id="1", name="think", arguments='{"thought": "So."}', response_id="r", call_index=0, total_calls=1
    ),
    "tool_result": events.tool_result(tool_call_id="1", name="grep", result=events.ToolResult.ok("x.py")),
    "status_update": events.status_update(events.ConversationStatus.IDLE),
    "error": events.error(code="LLMError", message="No answer."),
    "retry": events.retry(code="RateLimit", message="Too many requests.", attempt=1, attempts=7, wait_s=3.7),
    "notice": events.notice(code="Resumed", message="The sandbox is new."),
    "condensation": events.condensation(keep_first=1, dropped=7, summary="Much was done.", reason="requested"),
    "confirmation": events.confirmation(tool_call_ids=["1"], approved=False, reason="Not now.", by="ada"),
    "approval": events.approval(number=1, scope={}, text="every call of grep", by="ada"),
    "approval_revoked": events.approval_revoked(number=1, by="ada"),
    "checkpoint": events.checkpoint(id="c", label="turn"),
}
FORMS = [Form.TERMINAL, Form.PLAIN, Form.TERMINAL | Form.STORED, Form.PLAIN | Form.STORED, Form.EXPORTED]


def test_every_kind_of_event_has_a_row() -> None:
    assert EVENTS.keys() == events.KNOWN_TYPES
    assert EXAMPLES.keys() == events.KNOWN_TYPES - {"system_message"}, "the prompt is in the log alone"


@pytest.mark.parametrize("forms", FORMS, ids=str)
@pytest.mark.parametrize("kind", EXAMPLES)
def test_an_event_is_shown_where_its_row_says_and_nowhere_else(kind: str, forms: Form) -> None:
    [event] = stamp(EXAMPLES[kind])
    assert bool(_printed(event, forms)) == bool(EVENTS[kind].forms & forms)


@pytest.mark.parametrize("forms", FORMS, ids=str)
def test_an_event_of_an_unknown_kind_is_shown_with_what_it_holds(forms: Form) -> None:
    [event] = stamp(events.user_message("x"))
    printed = _printed(event.model_copy(update={"type": "vote\x1b[2J", "data": {"by": "ada"}}), forms)
    assert r"vote\u{1b}[2J" in printed
    assert '{"by": "ada"}' in printed


@pytest.mark.parametrize("forms", FORMS, ids=str)
def test_an_event_with_malformed_fields_is_a_warning(forms: Form) -> None:
    [event] = stamp(events.user_message("x"))
    printed = _printed(event.model_copy(update={"type": "tool_result", "data": {"result": [5]}}), forms)
    assert "Event 0 (tool_result) cannot be shown: AttributeError" in printed


@pytest.mark.parametrize("forms", FORMS, ids=str)
def test_a_retry_says_which_attempt_follows_and_when(forms: Form) -> None:
    [event] = stamp(EXAMPLES["retry"])
    assert "Too many requests. Attempt 2 of 7, next in 4 s." in _printed(event, forms)


def test_a_summary_is_in_an_export_whole() -> None:
    [event] = stamp(EXAMPLES["condensation"])
    assert _printed(event, Form.EXPORTED).endswith("```\nMuch was done.\n```")


def test_a_stored_event_is_shown_with_its_own_time() -> None:
    [event] = stamp(EXAMPLES["checkpoint"])
    old = event.model_copy(update={"ts": event.ts.replace(hour=(event.ts.hour + 5) % 24)})
    assert _printed(old, Form.PLAIN | Form.STORED).startswith(f"{old.ts.astimezone():%H:%M:%S} info")


def _printed(event: events.SDKEvent, forms: Form) -> str:
    out = io.StringIO()
    if forms is Form.EXPORTED:
        return "\n\n".join(MarkdownExport().paragraphs(event))
    view: View = PlainView(out, forms=forms)
    if Form.TERMINAL in forms:
        view = RichView(Console(file=out, width=200, markup=False, highlight=False), forms=forms)
    view.show(event)
    return out.getvalue()


def _views() -> list[tuple[View, io.StringIO]]:
    plain_out, rich_out = io.StringIO(), io.StringIO()
    return [(PlainView(plain_out), plain_out), (RichView(Console(file=rich_out, width=200)), rich_out)]


def _call(name: str, arguments: dict[str, Any]) -> events.EventBody:
    return events.tool_call(
        tool_call_id="1", name=name, arguments=json.dumps(arguments), response_id="r", call_index=0, total_calls=1
    )


def test_a_command_of_several_lines_is_one_line_of_a_plain_log_and_hides_nothing() -> None:
    out = io.StringIO()
    command = "python3 - <<'E'\n\n    print(1)\r\n\tx\x1b[2K | \u202ecat \\u{a}\nE\n"
    PlainView(out).show(*stamp(_call("execute_bash", {"command": command})))
    (line,) = out.getvalue().splitlines()
    shown = line.split(maxsplit=2)[2]
    assert shown == r"$ python3 - <<'E' ⏎ print(1)\u{d} ⏎ x\u{1b}[2K | \u{202e}cat \u{5c}u{a} ⏎ E"


def test_a_plain_log_tells_what_takes_long_once_and_nothing_of_what_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    out = io.StringIO()
    view = PlainView(out)
    view.status("starting the sandbox")
    assert out.getvalue() == ""
    monkeypatch.setattr(views, "QUIET_S", 0)
    view.tick()
    view.tick()
    view.status("waiting for MCP servers: time\x1b[2J")
    view.status(MODEL_WORKS)
    view.status("")
    told = [line.split(maxsplit=1)[1] for line in out.getvalue().splitlines()]
    assert told == ["progress starting the sandbox", "progress waiting for MCP servers: time\\u{1b}[2J"]
