from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from ohsandbox.agent import Agent
from ohsandbox.content import OutputLimits
from ohsandbox.conversation import Conversation, RunLimits
from ohsandbox.conversation.environment.shared_runtime import SharedRuntime
from ohsandbox.errors import LimitReachedError, SandboxGone
from ohsandbox.events import ConversationStatus as Status
from ohsandbox.llm import ModelRateLimitedError
from ohsandbox.persistence import read_events
from ohsandbox.settings import Settings
from ohsandbox.state import ConversationState
from ohsandbox.testing import FakeRuntime
from ohsandbox.tool import Tool
from tests.fakes import FakeModel, answer, call, data_of, results_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from ohsandbox.events import SDKEvent

TOOLS = ("execute_bash", "file_read", "delegate", "think", "finish")


@pytest.fixture
def runtime() -> Iterator[FakeRuntime]:
    with FakeRuntime() as started:
        yield started


def talk(tmp_path: Path, runtime: Any, model: FakeModel, tools: Any = TOOLS, **options: Any) -> Conversation:
    return Conversation(Agent(model, tools), runtime, tmp_path, **options)


def run(tmp_path: Path, runtime: Any, *turns: Any, **options: Any) -> Conversation:
    conversation = talk(tmp_path, runtime, FakeModel(*turns), **options)
    conversation.run("go", timeout_s=30)
    conversation.close()
    return conversation


def delegate(task: str = "do it", **arguments: Any) -> Any:
    return answer("", call("delegate", {"task": task, **arguments}))


def bash(command: str) -> Any:
    return answer("I run it.", call("execute_bash", {"command": command}))


def finish(message: str) -> Any:
    return answer("", call("finish", {"message": message}))


def log(conversation: Conversation, name: str) -> list[SDKEvent]:
    return read_events(conversation.directory / "agents" / name)


def test_a_child_writes_a_file_that_its_parent_reads(tmp_path: Path, runtime: FakeRuntime) -> None:
    conversation = run(
        tmp_path,
        runtime,
        delegate("Write 42 to a.txt.", name="writer"),
        bash("echo 42 > a.txt"),
        finish("It is in a.txt."),
        answer("", call("file_read", {"path": "a.txt"})),
        finish("all done"),
    )
    told, read, _ = results_of(conversation)
    directory = conversation.directory / "agents" / "writer-1"
    assert told["output"] == (
        f"It is in a.txt.\n[Sub-agent 'writer-1', 2 requests; its log: {directory / 'sdk_events.jsonl'}]"
    )
    assert read["output"].startswith("42\n")
    assert conversation.status() is Status.FINISHED
    assert data_of(log(conversation, "writer-1"), "user_message")[0]["content"] == "Write 42 to a.txt."
    assert [data["status"] for data in data_of(log(conversation, "writer-1"), "status_update")][-1] == "FINISHED"


def test_a_child_knows_its_task_and_place_and_nothing_of_its_parents_conversation(
    tmp_path: Path, runtime: FakeRuntime
) -> None:
    model = FakeModel(delegate("the task"), answer("the answer"), finish("end"))
    conversation = talk(tmp_path, runtime, model)
    conversation.run("the secret", 30)
    conversation.close()
    system, user = model.seen[1]
    assert "You work for another agent" in system["content"]
    assert user == {"role": "user", "content": "the task"}
    assert results_of(conversation)[0]["output"].startswith("the answer\n[Sub-agent 'agent-1', 1 request;")
    offered = data_of(log(conversation, "agent-1"), "system_message")[0]["tools"]
    assert [tool["function"]["name"] for tool in offered] == ["execute_bash", "file_read", "think", "finish"]


def test_an_answer_is_cut_to_the_limit_of_the_settings(tmp_path: Path, runtime: FakeRuntime) -> None:
    settings = Settings(output=OutputLimits(max_chars=1000))
    conversation = run(tmp_path, runtime, delegate(), finish("x" * 5000), finish("end"), settings=settings)
    text, _, _ = results_of(conversation)[0]["output"].rpartition("\n[Sub-agent")
    assert text.count("x") == 1000


def test_a_blank_task_is_told_to_the_model_and_nobody_is_started(tmp_path: Path, runtime: FakeRuntime) -> None:
    conversation = run(tmp_path, runtime, delegate(" "), finish("end"))
    [result, _] = results_of(conversation)
    assert "The task is blank" in result["error"]
    assert not (conversation.directory / "agents").exists()


def test_a_childs_shell_is_its_own_and_ends_with_it(tmp_path: Path, runtime: FakeRuntime) -> None:
    conversation = run(
        tmp_path,
        runtime,
        bash("X=parent; mkdir -p sub; cd sub; pwd"),
        delegate(),
        bash('echo "[$X]"; pwd; X=child; cd /; sleep 300 & echo $! > "$OLDPWD/pid"'),
        finish("ok"),
        bash("echo $X; pwd; kill -0 $(cat ../pid) 2>&1 && echo alive"),
    )
    inside = data_of(log(conversation, "agent-1"), "tool_result")[0]["result"]["output"]
    assert inside.splitlines()[:2] == ["[]", runtime.workdir]
    after = results_of(conversation)[2]["output"].splitlines()
    assert after[:2] == ["parent", f"{runtime.workdir}/sub"]
    assert "alive" not in after


def test_what_a_child_uses_counts_for_its_parent_also_after_a_resume(tmp_path: Path, runtime: FakeRuntime) -> None:
    conversation = run(tmp_path, runtime, delegate(), bash("true"), finish("ok"), finish("end"))
    [ended] = [data for data in data_of(conversation.events(), "notice") if data["code"] == "AgentEnded"]
    assert (ended["requests"], ended["usage"]["prompt_tokens"], ended["cost_usd"]) == (2, 20, 0.5)
    limits = RunLimits(max_cost_usd=1.0)
    again = talk(tmp_path, runtime, FakeModel(finish("no")), conversation_id=conversation.id, limits=limits)
    assert again.run("more", 30) == Status.ERROR
    assert isinstance(again.error, LimitReachedError)
    assert again.error.code == "MaxCost"
    again.close()


@pytest.mark.parametrize(
    ("limits", "asked", "said"),
    [
        (RunLimits(), {"max_iterations": 2}, "2 requests to the model"),
        (RunLimits(max_iterations=3), {}, "2 requests to the model"),
        (RunLimits(max_iterations=3), {"max_iterations": 9}, "2 requests to the model"),
        (RunLimits(max_tokens=45), {}, "30 tokens"),
        (RunLimits(max_cost_usd=0.75), {}, "0.5 US dollars"),
    ],
)
def test_a_child_ends_at_its_limit_and_its_last_words_are_told(
    tmp_path: Path, runtime: FakeRuntime, limits: RunLimits, asked: dict[str, Any], said: str
) -> None:
    conversation = run(tmp_path, runtime, delegate(**asked), *[bash("true")] * 9, limits=limits)
    error = results_of(conversation)[0]["error"]
    assert f"'agent-1' came to no answer. The limit of {said} is reached" in error
    assert "It had said last: 'I run it.'" in error
    assert "agents/agent-1/sdk_events.jsonl" in error


def test_a_childs_requests_count_against_the_parents_iterations(tmp_path: Path, runtime: FakeRuntime) -> None:
    limits = RunLimits(max_iterations=4)
    turns = (delegate(), bash("true"), finish("ok"), bash("true"), bash("true"))
    conversation = run(tmp_path, runtime, *turns, limits=limits)
    assert conversation.status() is Status.ERROR
    assert len(results_of(conversation)) == 2


def test_a_model_that_fails_in_a_child_does_not_end_the_parent(tmp_path: Path, runtime: FakeRuntime) -> None:
    conversation = run(tmp_path, runtime, delegate(), ModelRateLimitedError("too\nmany"), finish("end"))
    assert "came to no answer. too many" in results_of(conversation)[0]["error"]
    assert conversation.status() is Status.FINISHED


def test_a_sandbox_that_is_gone_ends_the_parent_too(tmp_path: Path, runtime: FakeRuntime) -> None:
    def breaks() -> Any:
        runtime.break_down(SandboxGone("the sandbox is gone"))
        return bash("true")

    conversation = run(tmp_path, runtime, delegate(), breaks)
    assert conversation.status() is Status.ERROR
    assert isinstance(conversation.error, SandboxGone)
    assert data_of(log(conversation, "agent-1"), "status_update")[-1]["status"] == "ERROR"


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("busy_with", ["tool", "model"])
def test_a_stop_of_the_parent_reaches_the_youngest_child(
    tmp_path: Path, runtime: FakeRuntime, busy_with: str, depth: int
) -> None:
    at_work = threading.Event()

    def work() -> Any:
        at_work.set()
        return bash("sleep 300") if busy_with == "tool" else model.hang()

    tools: dict[str, Any] = {"tools": ["execute_bash", "delegate"]}
    model = FakeModel(*[delegate(**tools)] * (depth - 1), delegate(), work)
    conversation = talk(tmp_path, runtime, model)
    conversation.send_message("go")
    assert at_work.wait(60)
    time.sleep(0.3)
    assert conversation.stop() is Status.CANCELED
    conversation.close()
    inner = conversation.directory.joinpath(*["agents", "agent-1"] * depth)
    assert data_of(read_events(inner), "status_update")[-1]["status"] == "CANCELED"
    assert results_of(conversation)[0]["status"] == "error"


def test_depth_is_bounded(tmp_path: Path, runtime: FakeRuntime) -> None:
    tools: dict[str, Any] = {"tools": ["delegate"]}
    conversation = run(tmp_path, runtime, delegate(**tools), delegate(**tools), delegate(**tools), finish("deep"))
    grandchild = conversation.directory / "agents" / "agent-1" / "agents" / "agent-1"
    assert not (grandchild / "agents").exists()
    inside = data_of(log(conversation, "agent-1"), "tool_result")[0]["result"]["error"]
    assert "cannot be given 'delegate'" in inside


def test_a_model_cannot_give_a_child_what_it_has_not_got(tmp_path: Path, runtime: FakeRuntime) -> None:
    turns = (delegate(tools=["execute_bash", "nonsense"]), finish("end"))
    conversation = run(tmp_path, runtime, *turns, tools=("file_read", "delegate"))
    error = results_of(conversation)[0]["error"]
    assert "cannot be given 'execute_bash', 'nonsense'. You can give: delegate, file_read, finish, think" in error
    assert not (conversation.directory / "agents").exists()


def test_nobody_answers_a_child_so_it_cannot_be_given_a_question(tmp_path: Path, runtime: FakeRuntime) -> None:
    turns = (delegate(tools=["ask_human"]), finish("end"))
    conversation = run(tmp_path, runtime, *turns, tools=("file_read", "delegate", "ask_human"))
    assert "cannot be given 'ask_human'" in results_of(conversation)[0]["error"]


def test_what_the_configuration_allows_can_be_given(tmp_path: Path, runtime: FakeRuntime) -> None:
    tools = ("file_read", Tool(name="delegate", params={"tools": ["execute_bash"]}))
    turns = (delegate(tools=["execute_bash"]), bash("echo hi"), finish("ok"))
    conversation = run(tmp_path, runtime, *turns, tools=tools)
    assert "hi" in data_of(log(conversation, "agent-1"), "tool_result")[0]["result"]["output"]


def test_the_browsing_agent_has_the_tools_it_is_configured_with(tmp_path: Path, runtime: FakeRuntime) -> None:
    tools = (Tool(name="delegate_to_browsing_agent", params={"tools": ["file_read"], "max_iterations": 1}),)
    turns = (answer("", call("delegate_to_browsing_agent", {"task": "look"})), bash("true"), finish("end"))
    conversation = run(tmp_path, runtime, *turns, tools=tools)
    offered = data_of(log(conversation, "browsing-agent-1"), "system_message")[0]["tools"]
    assert [tool["function"]["name"] for tool in offered] == ["file_read", "think", "finish"]
    assert "The limit of 1 requests" in results_of(conversation)[0]["error"]


def test_ids_go_on_after_a_resume_and_are_bounded(
    tmp_path: Path, runtime: FakeRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ohsandbox.conversation.subagents.MAX_SUB_AGENTS", 2)
    first = run(tmp_path, runtime, delegate(name="a"), answer("one"), finish("end"))
    again = talk(tmp_path, runtime, FakeModel(delegate(name="b"), answer("two"), delegate()), conversation_id=first.id)
    again.run("more", 30)
    again.close()
    assert sorted(path.name for path in (first.directory / "agents").iterdir()) == ["a-1", "b-2"]
    assert "has had 2 sub-agents" in results_of(again)[-1]["error"]


def test_a_child_without_a_word_is_no_answer(tmp_path: Path, runtime: FakeRuntime) -> None:
    conversation = run(tmp_path, runtime, delegate(), *[answer("")] * 4, finish("end"))
    assert "came to no answer. It ended without a word." in results_of(conversation)[0]["error"]


def test_a_long_answer_is_cut_and_whole_in_the_trail(tmp_path: Path, runtime: FakeRuntime) -> None:
    conversation = run(tmp_path, runtime, delegate(), finish("x" * 50_000), finish("end"))
    assert len(results_of(conversation)[0]["output"]) < 31_000
    assert len(data_of(log(conversation, "agent-1"), "tool_result")[0]["result"]["output"]) == 50_000


def test_a_delegation_leaves_the_agents_own_tools_as_they_were(tmp_path: Path, runtime: FakeRuntime) -> None:
    other = Agent(FakeModel(answer("seen")), ["file_read"], name="other")
    other.initialize(ConversationState(conversation_id="c", runtime=runtime))
    turns = delegate(tools=["file_read"]), answer("seen"), answer("", call("other", {"task": "look"})), answer("done")
    agent = Agent(FakeModel(*turns), ["delegate", "execute_bash", "file_read", other])
    with Conversation(agent, runtime, tmp_path) as conversation:
        conversation.run("go", timeout_s=30)
        assert [result["status"] for result in results_of(conversation)] == ["ok", "ok"]
        assert agent.tools_map.keys() == conversation.tools.keys() >= {"delegate", "execute_bash", "other"}
    assert list(other.tools_map) == ["file_read"]


def test_a_borrowed_runtime_has_sessions_apart_and_the_same_files() -> None:
    with FakeRuntime() as lender:
        lender.execute("X=1", timeout_s=60)
        borrowed = SharedRuntime(lender)
        borrowed.write_bytes("f", b"data")
        assert lender.read_bytes("f") == b"data"
        assert borrowed.execute("echo [$X]", timeout_s=60).output == "[]\n"
        assert borrowed.list_sessions() == lender.list_sessions() == ["main"]
        borrowed.close()
        assert lender.execute("echo [$X]", timeout_s=60).output == "[1]\n"
        lender.break_down(SandboxGone("gone"))
        with pytest.raises(SandboxGone):
            SharedRuntime(lender).run(["true"])


EDIT = answer("", call("edit_file", {"path": "f", "content": "b"}))


def merge(model: FakeModel) -> Any:
    """The answer of a model that does what `edit_file` asks of it."""
    question = model.seen[-1][-1]["content"]
    tag = question.partition("<merged-")[2].partition(">")[0]
    return answer(f"<merged-{tag}>\nb\n</merged-{tag}>")


def test_a_tool_can_ask_the_model_beside_the_conversation(tmp_path: Path, runtime: FakeRuntime) -> None:
    runtime.write_bytes("f", b"a\n")
    model = FakeModel(EDIT, lambda: merge(model), finish("end"))
    conversation = talk(tmp_path, runtime, model, ("edit_file", "finish"))
    assert conversation.run("go", 30) == Status.FINISHED
    conversation.close()
    assert runtime.read_bytes("f") == b"b\n"
    assert "+b" in results_of(conversation)[0]["output"]
    [asked] = [data for data in data_of(conversation.events(), "notice") if data["code"] == "SideQuestion"]
    assert (asked["requests"], asked["usage"]["prompt_tokens"], asked["cost_usd"]) == (1, 10, 0.25)
    assert [message["role"] for message in model.seen[1]] == ["system", "user"]
    assert "<merged-" not in str(model.seen[2][0])


def test_a_question_beside_the_conversation_keeps_to_its_limits(tmp_path: Path, runtime: FakeRuntime) -> None:
    runtime.write_bytes("f", b"a\n")
    model = FakeModel(EDIT, answer("never asked"))
    conversation = talk(tmp_path, runtime, model, ("edit_file", "finish"), limits=RunLimits(max_iterations=1))
    assert conversation.run("go", 30) == Status.ERROR
    conversation.close()
    assert len(model.seen) == 1
    assert "The limit of 1 requests to the model is reached" in results_of(conversation)[0]["error"]


def test_a_stop_ends_a_question_beside_the_conversation(tmp_path: Path, runtime: FakeRuntime) -> None:
    runtime.write_bytes("f", b"a\n")
    model = FakeModel(EDIT, lambda: model.hang())  # noqa: PLW0108 - it has no name yet
    conversation = talk(tmp_path, runtime, model, ("edit_file", "finish"))
    conversation.send_message("go")
    deadline = time.monotonic() + 60
    while len(model.seen) < 2 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert conversation.stop() is Status.CANCELED
    conversation.close()
    assert runtime.read_bytes("f") == b"a\n"
