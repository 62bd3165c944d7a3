"""Plan mode: the agent looks, and what may change something is refused."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from ohsandbox.agent import Agent, History
from ohsandbox.agent.calls import response_to_actions
from ohsandbox.conversation import Conversation
from ohsandbox.conversation.approvals.policy import policy_of
from ohsandbox.conversation.approvals.rules.analyzers import default_analyzer
from ohsandbox.conversation.approvals.rules.looking import only_looks
from ohsandbox.events import ConversationStatus as Status
from ohsandbox.state import ConversationState
from tests.fakes import FakeModel, RecordingRuntime, answer, call, data_of, results_of

if TYPE_CHECKING:
    from pathlib import Path

LOOKS = [
    "ls 2>&1 | head", "git -C x log --oneline | grep 'a$'", "sed -n '1,20p' f; sed -n '$p' f",
    "for f in *.py; do cat $f; done", "find . -name '*.py' -o -name x", "cd src && ls -la", "rg -n foo src >/dev/null",
    "[ -f x ] && cat x || echo none >&2", "diff <(ls a) <(ls b)", "git status", "cat x | sort | uniq -c | wc -l",
]  # fmt: skip
WRITES = [
    "rm x", "cat x > y", "cat <<E > f\nx\nE", "{ ls; } > f", "A=1 ls", "./ls", "$(echo rm) x", "echo $(rm x)",
    "find . -delete", "find . -name x | xargs rm", "find . $(echo -delete)", "git -c core.pager=x log", "git commit",
    "git diff --outp=x", "git branch x", "sed -i s/a/b/ f", "sed -n 1p -i f", "sed -n '1w x' f", "sort -of x",
    "uniq a b", "tee x", "cat a | sh", "ls() { rm x; }; ls", "alias ls=rm", "GIT_PAGER=sh git log", "python -c 1",
    "[[ 'a[$(rm x)]' -eq 0 ]]", "[ -v 'a[$(rm x)]' ]", "((a[$(rm x)]))", "printf -v 'a[$(rm x)]' 1", "echo 'unclosed",
    "", "xxd -r a b", "date -s 1", "export A=1", "tree -o x", "rg --pre sh x", "git", "git log -O",
]  # fmt: skip


@pytest.mark.parametrize("text", LOOKS)
def test_a_command_that_writes_nothing_runs(text: str) -> None:
    assert only_looks(text, workdir="/w")


@pytest.mark.parametrize("text", WRITES)
def test_what_may_write_does_not_only_look(text: str) -> None:
    assert not only_looks(text, workdir="/w")


def talk(tmp_path: Path, *turns: Any, confirmation: Any = "plan") -> tuple[Conversation, RecordingRuntime]:
    runtime = RecordingRuntime()
    agent = Agent(FakeModel(*turns))
    return Conversation(agent, runtime, tmp_path, conversation_id="c", confirmation=confirmation), runtime


def test_in_plan_mode_a_reading_call_runs_and_a_writing_one_is_refused_without_a_question(tmp_path: Path) -> None:
    ls, rm = (call("execute_bash", {"command": command}) for command in ("ls", "rm x"))
    write = call("file_write", {"path": "/workspace/a", "content": "x"})
    conversation, runtime = talk(tmp_path, answer("", ls, rm, write), answer("The plan."))
    with conversation:
        assert conversation.run("go", 20) == Status.IDLE
        results = results_of(conversation)
    assert runtime.commands == ["ls"]
    assert results[0]["status"] == "ok"
    assert ["plan mode" in result["error"] for result in results[1:]] == [True, True]
    assert "known to write nothing" in results[1]["error"]


def test_in_plan_mode_the_agent_writes_its_list_of_tasks(tmp_path: Path) -> None:
    plan = call("task_tracker", {"command": "plan", "task_list": [{"title": "Look"}]})
    conversation, _ = talk(tmp_path, answer("", plan), answer("The plan."))
    with conversation:
        conversation.run("go", 20)
        assert [result["status"] for result in results_of(conversation)] == ["ok"]


def test_the_model_is_told_once_when_it_begins_and_once_when_it_is_over_also_after_a_restart(tmp_path: Path) -> None:
    conversation, _ = talk(tmp_path, answer("one"), answer("two"))
    with conversation:
        conversation.run("go", 20)
        conversation.run("more", 20)
    again, runtime = talk(
        tmp_path, answer("three"), answer("", call("execute_bash", {"command": "rm x"})), answer("four")
    )
    with again:
        again.run("more", 20)
        again.confirmation = policy_of("never")
        again.run("do it", 20)
        told = [data["is_on"] for data in data_of(again.events(), "notice") if data["code"] == "PlanMode"]
        history = History.from_events(again.events())
    assert told == [True, False]
    assert runtime.commands == ["rm x"]
    assert not history.is_planning


def test_a_mode_that_changes_while_the_agent_works_holds_from_its_next_answer_on(tmp_path: Path) -> None:
    one, two = (answer("", call("execute_bash", {"command": f"touch {name}"})) for name in "ab")
    conversation, runtime = talk(tmp_path, one, two, answer("The plan."), confirmation="never")
    conversation.register_callback(
        lambda event: setattr(conversation, "confirmation", policy_of("plan")) if event.type == "tool_result" else None
    )
    with conversation:
        conversation.run("go", 20)
    assert runtime.commands == ["touch a"]


@pytest.mark.parametrize("command", ["rm a", "rm -rf src", "git clean -fd", "find . -delete"])
def test_what_deletes_asks_under_risky_where_nothing_is_kept_and_only_there(command: str) -> None:
    def risk(*, keeps_files: bool) -> str:
        tools = Agent(tools=["execute_bash"]).initialize(
            ConversationState(conversation_id="c", runtime=RecordingRuntime())
        )
        [event] = response_to_actions(answer("", call("execute_bash", {"command": command})), tools)
        return default_analyzer("/workspace", keeps_files=keeps_files).assess(event).risk.value

    assert risk(keeps_files=False) == "HIGH"
    assert risk(keeps_files=True) != "HIGH"
