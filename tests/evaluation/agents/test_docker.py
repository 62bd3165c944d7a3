"""Agents in trials of a run, in containers, up to what lies on disk afterwards."""

from __future__ import annotations

import ipaddress
import json
import threading
import time
from typing import TYPE_CHECKING

import docker
import pytest

from ohsandbox.cli.commands.eval import run_tasks
from ohsandbox.cli.options.per_command import EvalOptions, RunOptions
from ohsandbox.evaluation.agents import CommandAgent
from ohsandbox.evaluation.agents.own import OhsandboxAgent
from ohsandbox.evaluation.executor import LocalExecutor
from ohsandbox.evaluation.formats import load_tasks
from ohsandbox.evaluation.images import Images
from ohsandbox.evaluation.results import ResultsDirectory, TrialKey
from ohsandbox.evaluation.runner import Run, RunPlan
from ohsandbox.evaluation.trial import TrialSpec
from ohsandbox.evaluation.trial_sandbox import TrialOptions
from ohsandbox.persistence import read_events
from ohsandbox.secrets import Secrets
from ohsandbox.settings import Settings
from ohsandbox.testing.provider import FakeProvider, Reply, Request, calls, text

if TYPE_CHECKING:
    from pathlib import Path

    from ohsandbox.evaluation.agents import EvaluatedAgent
    from ohsandbox.evaluation.results import TrialResult
    from ohsandbox.evaluation.task import Task

pytestmark = pytest.mark.docker
IMAGE = "ohsandbox-base:debian"
TOKEN = "token-of-no-value-0123456789"
LITTLE_AGENT = """
import json, os, subprocess, urllib.request
messages = [{"role": "user", "content": open(os.environ["OHSANDBOX_INSTRUCTION_FILE"]).read()}]
while True:
    body = json.dumps({"model": "fake", "messages": messages}).encode()
    headers = {"Authorization": "Bearer " + os.environ["MODEL_KEY"], "Content-Type": "application/json"}
    request = urllib.request.Request(os.environ["MODEL_URL"] + "/chat/completions", body, headers)
    message = json.load(urllib.request.urlopen(request))["choices"][0]["message"]
    messages.append(message)
    print("model:", message["content"], flush=True)
    if not message.get("tool_calls"):
        break
    for call in message["tool_calls"]:
        command = json.loads(call["function"]["arguments"])["command"]
        done = subprocess.run(command, shell=True, capture_output=True, text=True)
        print("$", command, done.stdout, flush=True)
        messages.append({"role": "tool", "tool_call_id": call["id"], "content": done.stdout})
"""


def make_task(tmp_path: Path, *, test: str = "cat /tmp/answer >/logs/verifier/reward.txt", more: str = "") -> Path:
    """A task that /tmp/answer solves with a 1 in it."""
    root = tmp_path / "tasks" / "answer"
    (root / "tests").mkdir(parents=True)
    (root / "task.toml").write_text(f'[environment]\ndocker_image = "{IMAGE}"\n{more}')
    (root / "instruction.md").write_text("Write 1 to /tmp/answer.")
    (root / "tests" / "test.sh").write_text(f"#!/bin/sh\n{test}\n")
    return root


def the_task(tmp_path: Path, **how: str) -> Task:
    [task] = load_tasks(make_task(tmp_path, **how)).tasks
    return task


def run(task: Task, agent: EvaluatedAgent, tmp_path: Path) -> TrialResult:
    return Run(RunPlan([task], agent), tmp_path / "out")()[TrialKey(task.id, 1)]


def everything(root: Path) -> bytes:
    """All names and all bytes below root."""
    return b"\0".join(
        str(path).encode() + (path.read_bytes() if path.is_file() else b"") for path in sorted(root.rglob("*"))
    )


def answers(request: Request) -> Reply:
    """Two calls, then words; the key comes back in them."""
    spoken = sum(message["role"] == "assistant" for message in request.body["messages"])
    if spoken == 0:
        return calls(("execute_bash", {"command": "echo 1 >/tmp/answer"}))
    return text(f"Done with {request.headers['authorization']}.")


def test_a_program_in_the_sandbox_that_asks_a_model_is_an_agent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MODEL_KEY", TOKEN)
    subnet = docker.from_env().networks.get("bridge").attrs["IPAM"]["Config"][0]["Subnet"]
    bridge = str(next(ipaddress.IPv4Network(subnet).hosts()))  # an engine started for the first time names no gateway
    make_task(tmp_path)
    setup = f"cat >/usr/local/bin/agent.py <<'EOF'\n{LITTLE_AGENT}\nEOF\n"
    with FakeProvider(answer=answers, host=bridge) as provider:
        how = EvalOptions(
            agent_command="python3 /usr/local/bin/agent.py", agent_setup=setup, agent_network="open",
            agent_allow=[bridge], agent_env=["MODEL_KEY", f"MODEL_URL={provider.base_url}"], output=tmp_path / "out",
        )  # fmt: skip
        assert run_tasks([tmp_path / "tasks"], how, RunOptions()) == 0
    assert [one.headers["authorization"] for one in provider.requests] == [f"Bearer {TOKEN}"] * 2
    said = provider.requests[0].body["messages"]
    assert said == [{"role": "user", "content": "Write 1 to /tmp/answer."}]
    log = (tmp_path / "out" / "trials" / "answer" / "1" / "agent" / "output.txt").read_text()
    assert log == "model: None\n$ echo 1 >/tmp/answer \nmodel: Done with Bearer <secret:MODEL_KEY>.\n"
    assert TOKEN.encode() not in everything(tmp_path / "out")


def test_a_secret_that_the_agent_prints_is_in_no_file_of_the_results(tmp_path: Path) -> None:
    leak = (
        "echo $TOKEN; echo $TOKEN >&2; echo 1 >/tmp/answer; echo $TOKEN >/tmp/note; "
        "echo $TOKEN | base64 >/logs/agent/b; "
        'echo "is $TOKEN" >/logs/artifacts/$TOKEN; ln -s $TOKEN /logs/artifacts/link; head -c 100000 /dev/zero | '
        'tr "\\0" a >/logs/artifacts/big; echo $TOKEN >>/logs/artifacts/big; exit 1'
    )
    test = f"cat /tmp/note; cp /tmp/answer /logs/verifier/reward.txt; echo '{{}}' >/logs/verifier/x; env; echo {TOKEN}"
    task = the_task(tmp_path, test=test)
    result = run(task, CommandAgent(leak, secrets=Secrets({"TOKEN": TOKEN})), tmp_path)
    assert result.outcome == "pass"
    found = everything(tmp_path / "out")
    assert TOKEN.encode() not in found
    assert found.count(b"<secret:TOKEN>") >= 6
    assert b"TOKEN=" not in (tmp_path / "out/trials/answer/1/verifier/test-stdout.txt").read_bytes()


def test_the_model_works_as_the_user_of_the_step_and_cannot_forge_its_own_log(tmp_path: Path) -> None:
    command = "id -un; mkdir -p /logs/agent/conversation/x; echo forged >/logs/agent/conversation/x/sdk_events.jsonl"
    replies = (
        calls(("execute_bash", {"command": command})),
        calls(("file_write", {"path": "/tmp/answer", "content": "1"})),
    )
    task = the_task(tmp_path, more='[agent]\nuser = "nobody"\n')
    with FakeProvider(*replies, text("Done.")) as provider:
        settings = Settings(model="openai/fake", base_url=provider.base_url, api_key=TOKEN)
        result = run(task, OhsandboxAgent(settings), tmp_path)
    assert (result.outcome, result.fault, result.usage["prompt_tokens"]) == ("pass", None, 30)
    agent = tmp_path / "out/trials/answer/1/agent"
    [log] = (agent / "conversation").glob("*/sdk_events.jsonl")
    events = read_events(log.parent)
    assert "user: nobody" in next(event.data["content"] for event in events if event.type == "system_message")
    [first, _] = [event.data for event in events if event.type == "tool_result"]
    assert first["result"]["output"].startswith("nobody")
    assert (agent / "logs/conversation/x/sdk_events.jsonl").read_text() == "forged\n"


@pytest.mark.slow
@pytest.mark.parametrize("command", ["sleep 600", "trap '' INT TERM HUP; while :; do sleep 1; done"])
def test_cancelled_an_agent_at_work_ends_with_its_log_whole(tmp_path: Path, command: str) -> None:
    task = the_task(tmp_path)
    out = ResultsDirectory(tmp_path / "out").begin(TrialKey(task.id, 1))
    at_work = threading.Event()

    def ask(_: Request) -> Reply:
        at_work.set()
        return calls(("execute_bash", {"command": command}))

    with FakeProvider(answer=ask) as provider:
        settings = Settings(model="openai/fake", base_url=provider.base_url, api_key=TOKEN)
        executor = LocalExecutor(1, Images(), lambda _: None)
        agent = OhsandboxAgent(settings)
        future = executor.submit(TrialSpec(task, task.digest(), 1, agent, TrialOptions(run_id="r")), out)
        assert at_work.wait(60)
        time.sleep(1)  # the command runs by then; if not, the end is the same
        executor.close()
    assert future.done()
    [log] = (out / "agent" / "conversation").glob("*/sdk_events.jsonl")
    events = read_events(log.parent)
    assert events[-1].data["status"] == "CANCELED"
    assert json.loads(log.read_bytes().splitlines()[-1])["type"] == "status_update"
