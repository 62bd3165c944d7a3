from __future__ import annotations

import io
import json
from typing import Any

import pytest

from ohsandbox import events
from ohsandbox.cli import plain
from ohsandbox.cli.view import MODEL_WORKS, Call, call_of
from tests.fakes import stamp


@pytest.mark.parametrize(
    ("name", "arguments", "shown"),
    [
        ("execute_bash", {"command": "ls\x1b[31m"}, Call("$", "ls")),
        ("execute_bash", {"command": "y", "is_input": "true"}, Call(">", "y")),
        ("execute_bash", {"command": ""}, Call("$", "(waiting on)")),
        ("file_editor", {"command": "view", "path": "/a"}, Call("<", "/a")),
        ("file_editor", {"command": "create", "path": "/a", "file_text": "x\ny\n"}, Call("+", "/a (2 lines)")),
        ("file_editor", {"command": "str_replace", "path": "/a", "old_str": "x"}, Call("~", "/a (str_replace)")),
        ("file_read", {"path": "/a"}, Call("<", "/a")),
        ("grep", {"pattern": "x+", "path": "/"}, Call("?", "x+")),
        ("execute_ipython_cell", {"code": "1 + 1"}, Call("%", "1 + 1")),
        ("delegate", {"task": "Look."}, Call("&", "Look.")),
        ("finish", {"message": "Done."}, Call(".", "Done.", answer=True)),
        ("git__log", {"n": 3}, Call(".", 'git__log {"n": 3}')),
        ("grep", {"pattern": 7}, Call(".", 'grep {"pattern": 7}')),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_call_in_a_persons_words(name: str, arguments: dict[str, Any], shown: Call) -> None:
    body = events.tool_call(
        tool_call_id="1", name=name, arguments=json.dumps(arguments), response_id="r", call_index=0, total_calls=1
    )
    [event] = stamp(body)
    assert call_of(event) == shown


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
    assert told == ["progress starting the sandbox", "progress waiting for MCP servers: time"]
