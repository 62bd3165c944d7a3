"""Every tool through a whole conversation: a provider over HTTP, the loop, a sandbox of each kind."""

from __future__ import annotations

import json
from collections.abc import Mapping  # noqa: TC003 - a NamedTuple reads it
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from ohsandbox import Agent, Conversation
from ohsandbox.events import ConversationStatus
from ohsandbox.llm import open_model
from ohsandbox.testing.provider import FakeProvider, calls, text
from tests.fakes import results_of
from tests.tools.conftest import folder, sandbox, started

if TYPE_CHECKING:
    from pathlib import Path

    from ohsandbox.runtime.base import Runtime

__all__ = ["folder", "sandbox", "started"]


class Use(NamedTuple):
    """One call, and what the model reads of it; `{folder}` is a directory in the sandbox that holds `a.txt`."""

    tool: str
    arguments: Mapping[str, Any]
    answer: str
    on_busybox: str | None = None
    """What it says there, where that is something else."""
    meanwhile: tuple[str, ...] = ()
    """What the model answers while the tool runs, where the tool asks it."""


USES = (
    Use("execute_bash", {"command": "cat {folder}/a.txt", "security_risk": "LOW"}, "one\ntwo"),
    Use("execute_bash", {"command": "exit 3", "timeout": "5"}, "xit code 3"),
    Use("file_read", {"path": "{folder}/a.txt", "view_range": [2, 2]}, "two"),
    Use("file_write", {"path": "{folder}/new/b.txt", "content": "x\n"}, "b.txt"),
    Use("file_editor", {"command": "view", "path": "{folder}/a.txt"}, "2\ttwo"),
    Use(
        "file_editor",
        {"command": "str_replace", "path": "{folder}/a.txt", "old_str": "two", "new_str": "2"},
        "2\t2",
    ),
    Use("str_replace_editor", {"command": "create", "path": "{folder}/c/d.txt", "file_text": "hi\n"}, "d.txt"),
    Use("glob", {"pattern": "**/*.txt", "path": "{folder}"}, "a.txt"),
    Use("grep", {"pattern": "^t.o", "path": "{folder}"}, "2"),
    Use("execute_ipython_cell", {"code": "x = 6\nx * 7"}, "42", on_busybox="python3"),
    Use("task_tracker", {"command": "plan", "task_list": [{"title": "Look"}]}, "Look"),
    Use("think", {"thought": "Hm."}, ""),
    Use("edit_file", {"path": "{folder}/e.txt", "content": "new\n"}, "did not exist; made with"),
    Use("web_read", {"url": "http://127.0.0.1:9/"}, "127.0.0.1"),
    Use("delegate", {"task": "Say hello."}, "Hello.", meanwhile=("Hello.",)),
    Use("request_condensation", {}, "ondens"),
    Use("nope", {}, "Unknown tool: nope"),
    Use("file_read", {"path": "{folder}/a.txt", "lines": 3}, "Allowed arguments are"),
)

EVERYTHING: Mapping[str, Any] = dict.fromkeys(
    ("enable_web_read", "enable_delegation", "enable_browsing", "enable_condensation_request"),
    True,
)


@pytest.mark.parametrize("use", USES, ids=lambda use: f"{use.tool} {' '.join(use.arguments)}")
def test_tool_through_a_whole_conversation(
    use: Use, sandbox: Runtime, folder: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    sandbox.write_bytes(f"{folder}/a.txt", b"one\ntwo\n")
    switches = {**EVERYTHING, "enable_llm_editor": use.tool == "edit_file"}  # in place of file_editor
    arguments = json.loads(json.dumps(dict(use.arguments)).replace("{folder}", folder))
    with (
        FakeProvider(calls((use.tool, arguments)), *map(text, use.meanwhile), text("Done.")) as provider,
        Conversation(Agent(open_model(provider.config()), **switches), sandbox, tmp_path) as conversation,
    ):
        assert conversation.run("go", timeout_s=60) == ConversationStatus.IDLE, conversation.error
        [result] = results_of(conversation)
        [tool_message] = [each for each in provider.requests[-1].body["messages"] if each["role"] == "tool"]
    assert json.loads(tool_message["content"]) == {name: value for name, value in result.items() if value is not None}
    is_busybox = request.node.callspec.params["sandbox"] == "busybox"
    expected = use.on_busybox if is_busybox and use.on_busybox else use.answer
    assert expected in (result["output"] or result["error"])


def test_a_question_to_the_user_is_answered_by_the_next_message(sandbox: Runtime, tmp_path: Path) -> None:
    asked = calls(("ask_human", {"question": "Which branch?", "options": ["main", "dev"]}))
    with (
        FakeProvider(asked, text("Then dev.")) as provider,
        Conversation(Agent(open_model(provider.config()), enable_ask_human=True), sandbox, tmp_path) as conversation,
    ):
        assert conversation.run("merge", timeout_s=60) == ConversationStatus.IDLE, conversation.error
        assert len(provider.requests) == 1
        assert conversation.run("dev", timeout_s=60) == ConversationStatus.IDLE, conversation.error
        last = provider.requests[-1].body["messages"]
    assert [message["role"] for message in last[-3:]] == ["assistant", "tool", "user"]
    assert "dev" in str(last[-1]["content"])
