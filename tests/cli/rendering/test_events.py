from __future__ import annotations

import io
import json
from typing import Any

import pytest
from rich.console import Console

from ohsandbox import events
from ohsandbox.cli.rendering import plain
from ohsandbox.cli.rendering.events import Call, call_of
from ohsandbox.cli.rendering.terminal import RichView
from ohsandbox.cli.rendering.view import MODEL_WORKS, View
from tests.fakes import stamp


@pytest.mark.parametrize(
    ("name", "arguments", "shown"),
    [
        ("execute_bash", {"command": "ls\x1b[31m"}, Call("$", r"ls\u{1b}[31m")),
        ("execute_bash", {"command": "rm -rf x #\rls"}, Call("$", r"rm -rf x #\u{d}ls")),
        ("execute_bash", {"command": "y", "is_input": "true"}, Call(">", "y")),
        ("execute_bash", {"command": ""}, Call("$", "(waiting on)")),
        ("file_editor", {"command": "view", "path": "/a"}, Call("<", "/a")),
        ("file_editor", {"command": "create", "path": "/a", "file_text": "x\ny\n"}, Call("+", "/a (2 lines)")),
        ("file_write", {"path": "/a", "content": "x\n"}, Call("+", "/a (1 line)")),
        ("file_editor", {"command": "str_replace", "path": "/a", "old_str": "x"}, Call("~", "/a (str_replace)")),
        ("file_read", {"path": "/a"}, Call("<", "/a")),
        ("grep", {"pattern": "x+", "path": "/"}, Call("?", "x+")),
        ("execute_ipython_cell", {"code": "1 + 1"}, Call("%", "1 + 1")),
        ("delegate", {"task": "Look."}, Call("&", "Look.")),
        ("finish", {"message": "Done."}, Call(".", "Done.", answer=True)),
        ("git__log", {"n": 3}, Call(".", 'git__log {"n": 3}')),
        ("grep", {"pattern": 7}, Call(".", 'grep {"pattern": 7}')),
        ("ask_human", {"question": "Which?", "options": 5}, Call("?", "Which?", answer=True)),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_call_in_a_persons_words(name: str, arguments: dict[str, Any], shown: Call) -> None:
    [event] = stamp(_call(name, arguments))
    assert call_of(event) == shown


def test_a_newline_in_a_name_forges_no_line() -> None:
    name = "new: a\nchanged: .git/config\r\u2028new: b"
    for view, out in _views():
        view.say(name)
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


def _views() -> list[tuple[View, io.StringIO]]:
    plain_out, rich_out = io.StringIO(), io.StringIO()
    return [(plain.PlainView(plain_out), plain_out), (RichView(Console(file=rich_out, width=200)), rich_out)]


def _call(name: str, arguments: dict[str, Any]) -> events.EventBody:
    return events.tool_call(
        tool_call_id="1", name=name, arguments=json.dumps(arguments), response_id="r", call_index=0, total_calls=1
    )


def test_a_plain_log_tells_what_takes_long_once_and_nothing_of_what_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    out = io.StringIO()
    view = plain.PlainView(out)
    view.status("starting the sandbox")
    assert out.getvalue() == ""
    monkeypatch.setattr(plain, "QUIET_S", 0)
    view.tick()
    view.tick()
    view.status("waiting for MCP servers: time\x1b[2J")
    view.status(MODEL_WORKS)
    view.status("")
    told = [line.split(maxsplit=1)[1] for line in out.getvalue().splitlines()]
    assert told == ["progress starting the sandbox", "progress waiting for MCP servers: time\\u{1b}[2J"]
