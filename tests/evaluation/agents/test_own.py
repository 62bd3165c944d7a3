"""Our agent at work on tasks, with scripts and a provider on loopback."""

from __future__ import annotations

import json
import pickle
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ohsandbox.errors import UsageError
from ohsandbox.evaluation.agents.own import OhsandboxAgent, ReplayAgent
from ohsandbox.evaluation.progress import RateLimited
from ohsandbox.evaluation.results import RUN_NAME, RunRecord
from ohsandbox.persistence import read_events
from ohsandbox.settings import Settings
from ohsandbox.testing.provider import FakeProvider, Reply, Request, calls, error, text

if TYPE_CHECKING:
    from ohsandbox import CLIRuntime
    from ohsandbox.evaluation.agents import Assignment
    from ohsandbox.evaluation.progress import RunEvent

Assign = Callable[..., "Assignment"]
KEY = "sk-eval-key-of-no-value-0123456789"


def scripted(tmp_path: Path, *turns: dict[str, Any], **settings: Any) -> OhsandboxAgent:
    script = tmp_path / "script.json"
    script.write_text(json.dumps({"turns": turns}), "utf-8")
    return OhsandboxAgent(Settings(model=f"scripted:{script}", **settings))


def bash(command: str) -> dict[str, Any]:
    return {"tool_calls": [{"name": "execute_bash", "arguments": {"command": command}}]}


def asking(provider: FakeProvider, **settings: Any) -> OhsandboxAgent:
    return OhsandboxAgent(Settings(model="openai/fake", base_url=provider.base_url, api_key=KEY, **settings))


def conversation_of(assignment: Assignment) -> Path:
    [found] = (assignment.directory / "conversation").glob("*/sdk_events.jsonl")
    return found.parent


def test_an_answer_ends_the_work_and_the_conversation_is_stored(
    tmp_path: Path, sandbox: CLIRuntime, assign: Assign
) -> None:
    assignment = assign("Say hello.")
    agent = scripted(tmp_path, bash("echo hello >said"), {"content": "Said."})
    report = agent.work(sandbox, assignment)
    assert (report.fault, report.model) == (None, f"scripted:{tmp_path}/script.json")
    assert (assignment.directory / "answer.md").read_text() == "Said."
    assert sandbox.read_bytes("said") == b"hello\n"
    said = [event.data["content"] for event in read_events(conversation_of(assignment)) if event.type == "user_message"]
    assert said == ["Say hello."]


def test_the_sandbox_stays_the_trials(tmp_path: Path, sandbox: CLIRuntime, assign: Assign) -> None:
    scripted(tmp_path, bash("export LEFT=agent"), {"content": "Done."}).work(sandbox, assign())
    assert sandbox.execute("echo [$LEFT]").output == "[]\n"


def test_tokens_and_cost_are_those_of_all_requests(sandbox: CLIRuntime, assign: Assign) -> None:
    with FakeProvider(calls(("execute_bash", {"command": "true"})), text("Done.")) as provider:
        agent = asking(provider, price="1000,2000", max_cost_usd=1)
        report = agent.work(sandbox, assign())
    assert report.usage["prompt_tokens"] == 20
    assert report.usage["completion_tokens"] == 10
    assert report.cost_usd == 0.04
    assert agent.settings["price"] == [1000, 2000]


def test_limit_on_cost_is_refused_for_a_model_of_unknown_price_before_any_trial() -> None:
    with pytest.raises(UsageError, match="The price of model 'openai/fake' is unknown"):
        OhsandboxAgent(Settings(model="openai/fake", api_key=KEY, max_cost_usd=1))


@pytest.mark.parametrize(
    ("settings", "fault"), [({"max_iterations": 1}, "MaxIterations"), ({"max_tokens": 1}, "MaxTokens")]
)
def test_a_limit_is_the_agents_fault(sandbox: CLIRuntime, assign: Assign, settings: dict[str, Any], fault: str) -> None:
    with FakeProvider(calls(("execute_bash", {"command": "true"})), text("Done.")) as provider:
        report = asking(provider, **settings).work(sandbox, assign())
    assert (report.fault, report.is_model_fault) == (fault, False)


def test_a_model_in_circles_is_the_agents_fault(tmp_path: Path, sandbox: CLIRuntime, assign: Assign) -> None:
    report = scripted(tmp_path, *[bash("echo again")] * 10).work(sandbox, assign())
    assert (report.fault, report.is_model_fault) == ("Stuck", False)


def test_a_provider_that_refuses_is_the_models_fault_and_the_key_is_not_told(
    sandbox: CLIRuntime, assign: Assign
) -> None:
    assignment = assign()
    with FakeProvider(error(401, f"wrong key {KEY}")) as provider:
        report = asking(provider).work(sandbox, assignment)
    assert (report.fault, report.is_model_fault) == ("ModelAuthenticationError", True)
    assert KEY not in report.message + (conversation_of(assignment) / "sdk_events.jsonl").read_text()


def test_a_conversation_too_long_for_the_model_is_the_agents_fault(sandbox: CLIRuntime, assign: Assign) -> None:
    refusal = error(400, "This model's maximum context length is 10 tokens.")
    with FakeProvider(refusal, refusal, refusal) as provider:
        report = asking(provider).work(sandbox, assign())
    assert (report.fault, report.is_model_fault) == ("ContextWindowError", False)


def test_out_of_time_the_conversation_is_stopped(tmp_path: Path, sandbox: CLIRuntime, assign: Assign) -> None:
    assignment = assign(timeout_s=0.5)
    report = scripted(tmp_path, bash("sleep 60"), {"content": "Done."}).work(sandbox, assignment)
    assert report.fault == "Timeout"
    assert read_events(conversation_of(assignment))[-1].data["status"] == "CANCELED"


def test_a_wait_for_the_provider_is_told_and_is_not_the_agents_time(sandbox: CLIRuntime, assign: Assign) -> None:
    assignment = assign(timeout_s=3)
    told: list[RunEvent] = []
    with FakeProvider(error(429, "slow down", {"Retry-After": "200"})) as provider:
        agent = asking(provider)
        agent.begin(told.append)

        def cancel() -> None:
            if provider.arrived.wait(60):
                assignment.cancel.wait(3.5)
            assignment.cancel.set()

        threading.Thread(target=cancel).start()
        report = agent.work(sandbox, assignment)
    assert report.fault == "Cancelled"
    assert report.rate_limit_wait_s > 3
    assert told == [RateLimited("openai/fake", 200.0)]


@pytest.mark.parametrize("command", ["sleep 60", "trap '' INT TERM HUP; sleep 60"])
def test_cancelled_the_work_ends_and_its_log_is_whole(
    tmp_path: Path, sandbox: CLIRuntime, assign: Assign, command: str
) -> None:
    assignment = assign()
    threading.Timer(0.5, assignment.cancel.set).start()
    report = scripted(tmp_path, bash(command), {"content": "Done."}).work(sandbox, assignment)
    assert report.fault == "Cancelled"
    events = read_events(conversation_of(assignment))
    assert [event.type for event in events][-2:] == ["tool_result", "status_update"]
    assert events[-1].data["status"] == "CANCELED"


def test_nobody_is_asked_whatever_the_settings_say(tmp_path: Path, sandbox: CLIRuntime, assign: Assign) -> None:
    agent = scripted(
        tmp_path, bash("rm -rf x"), {"content": "Done."}, confirm="always", tools={"enable_ask_human": True}
    )
    assert "ask_human" not in agent.settings["tools"]
    assert agent.work(sandbox, assign()).fault is None


def test_the_settings_tell_model_and_limits_and_no_key() -> None:
    settings = Settings(
        model="openai/fake", api_key=KEY, base_url="http://user:word@localhost:1/v1?key=x", max_iterations=7
    )
    told = OhsandboxAgent(settings, extensions=["Be brief."]).settings
    assert (told["model"], told["base_url"], told["limits"]["max_iterations"]) == (
        "openai/fake", "http://localhost:1/v1", 7,
    )  # fmt: skip
    assert not {KEY, "word"} & set(json.dumps(told).replace('"', " ").split())


def test_a_secret_is_there_for_commands_and_masked_in_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sandbox: CLIRuntime, assign: Assign
) -> None:
    monkeypatch.setenv("GH_TOKEN", "ghp_value_of_no_use_0123")
    assignment = assign()
    agent = scripted(
        tmp_path, bash("echo $GH_TOKEN | tee token"), {"content": "Done."}, secrets={"GH_TOKEN": "env:GH_TOKEN"}
    )
    agent.work(sandbox, assignment)
    assert sandbox.read_bytes("token") == b"ghp_value_of_no_use_0123\n"
    assert b"ghp_value" not in (conversation_of(assignment) / "sdk_events.jsonl").read_bytes()
    assert sandbox.execute("echo [$GH_TOKEN]").output == "[]\n"


def _ours() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name.startswith("ohsandbox")}


def test_agents_at_work_together_leave_no_thread_and_no_descriptor(
    tmp_path: Path, sandbox: CLIRuntime, assign: Assign
) -> None:
    def answer(request: Request) -> Reply:
        spoken = sum(message["role"] == "assistant" for message in request.body["messages"])
        return calls(("execute_bash", {"command": "echo at work"})) if spoken == 0 else text("Done.")

    def descriptors() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    with FakeProvider(answer=answer) as provider:
        agent = asking(provider)
        agent.work(sandbox, assign())  # what is opened once for all
        threads, opened = set(threading.enumerate()), descriptors()
        directories = [tmp_path / f"agent-{number}" for number in range(8)]
        for directory in directories:
            directory.mkdir()
        with ThreadPoolExecutor(8) as pool:
            reports = pool.map(lambda one: agent.work(sandbox, assign()._replace(directory=one)), directories)
            assert [report.fault for report in reports] == [None] * 8
        deadline = time.monotonic() + 60
        while (left := _ours() - threads or descriptors() > opened) and time.monotonic() < deadline:
            time.sleep(0.05)  # what ends may be seen for a moment
    assert not left


def test_it_can_be_sent_to_another_process(tmp_path: Path, sandbox: CLIRuntime, assign: Assign) -> None:
    sent = pickle.loads(pickle.dumps(scripted(tmp_path, bash("echo hello >said"), {"content": "Said."})))
    assert sent.work(sandbox, assign()).fault is None
    assert sandbox.read_bytes("said") == b"hello\n"


def test_the_key_of_the_model_never_enters_a_sandbox(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    with pytest.raises(UsageError, match="'TOKEN' is the key that the model is paid with"):
        OhsandboxAgent(Settings(model="openai/fake", secrets={"TOKEN": "env:OPENAI_API_KEY"}))


def replay(results: Path, of: str = "ohsandbox") -> ReplayAgent:
    (results / RUN_NAME).write_text(RunRecord(run_id="r", agent=of, attempts=1, tasks={}).model_dump_json())
    return ReplayAgent(results, Settings())


def test_a_run_of_another_agent_cannot_be_replayed(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="a run of the agent 'oracle', which leaves no answers of a model"):
        replay(tmp_path, of="oracle")


def test_a_step_of_several_is_replayed_with_its_own_answers(
    tmp_path: Path, sandbox: CLIRuntime, assign: Assign
) -> None:
    recorded = assign(name="second")
    place = tmp_path / "results" / "trials" / "task" / "1" / "steps" / "second" / "agent"
    place.mkdir(parents=True)
    scripted(tmp_path, {"content": "Second."}).work(sandbox, recorded._replace(directory=place))
    replay(tmp_path / "results").work(sandbox, recorded)
    assert (recorded.directory / "answer.md").read_text() == "Second."


def test_a_recorded_run_is_replayed_with_its_answers(tmp_path: Path, sandbox: CLIRuntime, assign: Assign) -> None:
    scripted(tmp_path, bash("echo once >>log"), {"content": "First."}).work(sandbox, assign())
    agent = replay(tmp_path / "results")
    again = assign()._replace(directory=tmp_path)
    report = agent.work(sandbox, again)
    assert (report.fault, (tmp_path / "answer.md").read_text()) == (None, "First.")
    assert sandbox.read_bytes("log") == b"once\nonce\n"


def test_a_recording_that_was_stopped_just_ends(tmp_path: Path, sandbox: CLIRuntime, assign: Assign) -> None:
    scripted(tmp_path, bash("true"), {"content": "x"}, max_iterations=1).work(sandbox, assign())
    report = replay(tmp_path / "results").work(sandbox, assign()._replace(directory=tmp_path))
    assert (report.fault, report.is_model_fault) == ("ReplayEnded", False)


def test_a_trial_that_was_not_recorded_is_named(tmp_path: Path, sandbox: CLIRuntime, assign: Assign) -> None:
    assign()
    with pytest.raises(UsageError, match="holds 0 conversations"):
        replay(tmp_path / "results").work(sandbox, assign(attempt=2))
    with pytest.raises(UsageError, match="holds no results"):
        ReplayAgent(tmp_path / "elsewhere", Settings())
