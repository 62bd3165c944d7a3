"""A whole trial: what an agent cannot do to its verdict or to other trials, and what the record says."""

from __future__ import annotations

import json
import threading
from typing import TYPE_CHECKING, Any

import pytest

from ohsandbox.evaluation.agents.base import AgentReport, EvaluatedAgent
from ohsandbox.evaluation.images import Images
from ohsandbox.evaluation.processors import CpuShare, LoadMeter, Processors
from ohsandbox.evaluation.task import Task
from ohsandbox.evaluation.trial import Trial, TrialSpec
from ohsandbox.evaluation.trial_sandbox import TrialOptions
from tests.evaluation.test_agent_patch import BASE, give_git
from tests.network.credentials.played_host import played_host
from tests.network.credentials.tls_host import HOST, KEY

if TYPE_CHECKING:
    from pathlib import Path

    from ohsandbox import DockerRuntime
    from ohsandbox.evaluation.agents.base import Assignment
    from ohsandbox.evaluation.results import TrialResult

pytestmark = pytest.mark.docker
IMAGE = "ohsandbox-base:debian"
REWARD = ">/logs/verifier/reward.txt"


class Script(EvaluatedAgent):
    """Runs the step's instruction as a command."""

    name = "script"

    def work(self, runtime: Any, assignment: Assignment) -> AgentReport:
        step = assignment.step
        done = runtime.run(
            ["/bin/sh", "-c", step.instruction], user=step.agent.user, timeout_s=assignment.timeout_s, limit_bytes=4096
        )
        if done.timed_out:
            return AgentReport(fault="Timeout", message="it took too long")
        return AgentReport() if done.exit_code == 0 else AgentReport(fault="ExitCode", message=str(done.stderr))


def task(place: Path, *steps: dict[str, Any], **asked: Any) -> Task:
    """A task whose steps are {"do": command of the agent, "test": command of the verifier, ...}."""
    environment = {"image": IMAGE, **asked.pop("environment", {})}
    written = []
    for step in steps:
        verifier = {"command": step.pop("test"), **step.pop("verifier", {})}
        written.append({"instruction": step.pop("do"), "verifier": verifier, **step})
    return Task.model_validate(
        {"id": "t", "path": place, "format": "inline", "environment": environment, "steps": written, **asked}
    )


def carry_out(
    what: Task,
    place: Path,
    *,
    attempt: int = 1,
    processors: Processors | None = None,
    credentials: tuple[str, ...] = (),
    **options: Any,
) -> Any:
    directory = place / "result" / str(attempt)
    directory.mkdir(parents=True)
    agent = Script()
    agent.credentials = credentials
    spec = TrialSpec(what, "d", attempt, agent, TrialOptions(run_id="r", **options))
    lent = processors or Processors((), concurrent=1)
    images = Images()
    try:
        return Trial(
            spec, directory, images=images, processors=lent, cancel=threading.Event(), tell=lambda _: None
        ).run()
    finally:
        images.networks.close()


def test_the_record_tells_networks_processors_and_resources(tmp_path: Path) -> None:
    what = task(tmp_path, {
        "do": "test $(nproc) = 1 && ! ls -d /sys/class/net/eth*", "verifier": {"network": "open"},
        "test": f"ls -d /sys/class/net/eth* && umask && [ $TZ = UTC ] && [ $(hostname) = sandbox ] && echo 1 {REWARD}",
    }, environment={"cpus": 1})  # fmt: skip
    result: TrialResult = carry_out(what, tmp_path, processors=Processors((0, 1), concurrent=8))
    assert result.outcome == "pass", result.fault
    assert {phase.name: phase.network for phase in result.phases} == {
        "image": None, "sandbox": "none", "setup": "none", "agent": "none", "collect": "none", "verifier": "open",
        "close": "open",
    }  # fmt: skip
    assert result.load is not None
    assert (result.load.cpus, result.load.time_factor) == (1, 4)
    assert len(result.load.processors) == 1
    assert result.resources.oom_kills == result.resources.verifier_oom_kills == 0
    assert (result.resources.peak_memory_bytes or 0) > 2**20
    assert (result.resources.cpu_s or 0) > 0
    assert result.resources.no_route == 0


def test_what_agent_and_verifier_asked_their_allowlists_for_is_kept(tmp_path: Path) -> None:
    ask = "python3 -c \"import urllib.request as u; u.urlopen('http://{}.example/')\" || true"
    what = task(tmp_path, {
        "do": ask.format("agent"), "test": f"{ask.format('other')}; {ask.format('verifier')}; echo 0 {REWARD}",
        "agent": {"network": "allowlist", "allow": ["other.example"]},
        "verifier": {"network": "allowlist", "allow": ["other.example"]},
    })  # fmt: skip
    result: TrialResult = carry_out(what, tmp_path)
    assert result.outcome == "fail", result.fault  # an agent that could make it more would hide what it failed at
    [line] = (tmp_path / "result/1/agent/network.jsonl").read_text().splitlines()
    told = json.loads(line)
    assert (told["host"], told["allowed"]) == ("agent.example", False)
    lines = (tmp_path / "result/1/verifier-network.jsonl").read_text().splitlines()
    assert [json.loads(line)["host"] for line in lines] == ["other.example", "verifier.example"]
    notes = [note.partition(": it ") for note in result.notes if "could not reach" in note]
    assert [host for host, _, _ in notes] == [
        f"the verifier could not reach {name}.example:80" for name in ("other", "verifier")
    ]
    assert all(reason for _, _, reason in notes)


def test_a_user_of_the_verifier_whom_the_image_lacks_makes_the_task_invalid(tmp_path: Path) -> None:
    for user, outcome in (("nobdy", "invalid"), ("nobody", "pass"), ("1234:0", "pass")):
        what = task(tmp_path, {"do": "true", "test": f"echo 1 {REWARD}", "verifier": {"user": user}})
        result = carry_out(what, tmp_path / user)
        assert result.outcome == outcome, result.fault
    assert (
        carry_out(task(tmp_path, {"do": "true", "test": "true", "verifier": {"user": "x"}}), tmp_path).fault.phase
        == "setup"
    )


@pytest.mark.parametrize("who", ["agent", "verifier"])
def test_whose_memory_ran_out_is_told(who: str, tmp_path: Path) -> None:
    hog = "head -c 500m /dev/zero | tail -n 1 >/dev/null"
    does = {"agent": {"do": f"{hog} || exit 1", "test": f"echo 0 {REWARD}"}, "verifier": {"do": "true", "test": hog}}
    result = carry_out(task(tmp_path, does[who], environment={"memory_bytes": 128 * 2**20}), tmp_path)
    assert result.outcome == f"{who}_error"
    assert "memory ran out" in result.fault.message
    kills = {"agent": result.resources.oom_kills, "verifier": result.resources.verifier_oom_kills}
    assert kills.pop(who) >= 1
    assert kills.popitem()[1] == 0


FORGERIES = {
    "replaced program": "printf '#!/bin/sh\\necho 1 >/logs/verifier/reward.txt\\n' >/bin/grep; chmod +x /bin/grep",
    "preloaded library": "echo /lib/evil.so >/etc/ld.so.preload",
    "daemon": "setsid sh -c 'while :; do echo 1 >/logs/verifier/reward.txt; sleep 0.01; done' >/dev/null 2>&1 &",
}


@pytest.mark.parametrize("forgery", FORGERIES)
def test_a_separate_verifier_gets_nothing_of_a_root_agents_but_its_files(forgery: str, tmp_path: Path) -> None:
    test = f"grep -qx 42 answer; test $? = 0 && echo 1 {REWARD} || echo 0 {REWARD}"
    for attempt, answer in enumerate(("41", "42"), start=1):
        what = task(tmp_path, {"do": f"echo {answer} >answer; {FORGERIES[forgery]}", "test": test})
        result = carry_out(what, tmp_path, attempt=attempt, separate_verifier=True)
        assert (result.outcome, result.notes) == ("pass" if answer == "42" else "fail", []), result.fault


def test_a_separate_verifier_gets_artifacts_and_what_earlier_steps_were_set_up_with(tmp_path: Path) -> None:
    first = {"do": "echo made >/srv/out", "test": f"[ -e /etc/tool ] && grep -q made /srv/out && echo 1 {REWARD}",
             "name": "one", "setup": "touch /etc/tool",
             "agent": {"network": "open"}, "artifacts": [{"source": "/srv/out"}]}  # fmt: skip
    second = {"do": "! ls -d /sys/class/net/eth* && echo x >x; rm y 2>/dev/null; touch /tmp/stays", "name": "two",
              "test": f"[ -e /etc/tool ] && [ -e x ] && [ ! -e /tmp/stays ] && echo 1 {REWARD}"}  # fmt: skip
    result = carry_out(task(tmp_path, first, second), tmp_path, separate_verifier=True)
    assert result.outcome == "pass", (result.fault, result.steps)
    assert (tmp_path / "result/1/steps/one/artifacts/srv/out").read_text() == "made\n"


@pytest.fixture
def with_git(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each sandbox of a trial has git and a repository before it is prepared."""
    from ohsandbox.evaluation import trial_sandbox  # noqa: PLC0415 - patched for this test

    prepare = trial_sandbox.TrialSandboxes.prepare
    stamp = "export GIT_AUTHOR_DATE=2020-01-01T00:00:00Z GIT_COMMITTER_DATE=2020-01-01T00:00:00Z"

    def prepared(self: Any, runtime: DockerRuntime, environment: Any) -> None:
        give_git(runtime)
        made = BASE.replace("head -c 5000 /dev/urandom", "seq 900").replace("cd /repo", "cd /workspace")
        assert runtime.run(["/bin/sh", "-c", f"{stamp}; {made}"]).exit_code == 0
        prepare(self, runtime, environment)

    monkeypatch.setattr(trial_sandbox.TrialSandboxes, "prepare", prepared)


@pytest.mark.usefixtures("with_git")
@pytest.mark.parametrize("change", ["", "rm -rf .git; git init -q .;", "mkdir in; cd in; git init -q .; cd ..;"])
def test_a_patch_is_saved_and_judged_in_a_fresh_repository(change: str, tmp_path: Path) -> None:
    what = task(tmp_path, {
        "do": f"echo new >new; rm dir/x; {change} echo '#!/bin/sh' >.git/hooks/post-checkout",
        "test": "[ -e new ] && [ ! -e dir/x ] && [ ! -e .git/hooks/post-checkout ] && "
        f"git log -1 --format=%s | grep -qx base && echo 1 {REWARD}",
    })  # fmt: skip
    result = carry_out(what, tmp_path, separate_verifier=True)
    assert result.outcome == "pass", (result.fault, result.notes)
    assert bool(result.notes) is bool(change)
    if not change:
        assert "+new" in (tmp_path / "result/1/patch.diff").read_text()


def test_the_next_trial_knows_nothing_of_daemons_and_full_disks(tmp_path: Path) -> None:
    do = (
        "[ ! -e /srv/mark ] && [ $(ls -d /proc/[0-9]* | wc -l) -lt 12 ] || exit 9; touch /srv/mark;"
        "for i in 1 2 3; do setsid sh -c 'trap \"\" TERM HUP; sleep 1000' >/dev/null 2>&1 & done;"
        "head -c 64m /dev/zero >/dev/shm/full 2>/dev/null; head -c 64m /dev/zero >/run/ohs/full 2>/dev/null; true"
    )
    what = task(tmp_path, {"do": do, "test": f"[ -e /srv/mark ] && echo 1 {REWARD}"})
    trials = [threading.Thread(target=lambda n=n: found.append(carry_out(what, tmp_path, attempt=n))) for n in (1, 2)]
    found: list[Any] = []
    for one in trials:  # the same task twice at the same time
        one.start()
    for one in trials:
        one.join()
    found.append(carry_out(what, tmp_path, attempt=3))
    assert [(one.outcome, one.fault) for one in found] == [("pass", None)] * 3


@pytest.mark.parametrize("options", [{}, {"separate_verifier": True}])
def test_an_agent_that_wrecks_its_sandbox_still_counts(options: dict[str, Any], tmp_path: Path) -> None:
    do = "rm /etc/passwd; mkdir /logs/agent/d"  # a tree: not fetched by the shell that is there
    result = carry_out(task(tmp_path, {"do": do, "test": f"echo 1 {REWARD}"}), tmp_path, **options)
    assert result.outcome == "verifier_error", result.fault
    assert "no user 'root'" in result.fault.message


def test_steps_have_rewards_gates_and_networks_of_their_own(tmp_path: Path) -> None:
    def step(name: str, reward: str, **more: Any) -> dict[str, Any]:
        test = f"echo '{reward}' >/logs/verifier/reward.json"
        return {
            "name": name,
            "do": "! ls -d /sys/class/net/eth*",
            "test": test,
            "verifier": {"network": "open"},
            **more,
        }

    both = task(tmp_path, step("a", '{"reward": 1, "extra": 1}'), step("b", '{"reward": 0.5}'))
    result = carry_out(both, tmp_path)
    assert (result.outcome, result.reward, result.rewards) == ("fail", 0.75, {"reward": 0.75, "extra": 0.5})
    final = task(tmp_path, step("a", "0"), step("b", "1"), reward_strategy="final")
    assert carry_out(final, tmp_path, attempt=2).outcome == "pass"
    gated = task(tmp_path, step("a", "0.5", min_reward={"reward": 0.6}), step("b", "1"), reward_strategy="final")
    result = carry_out(gated, tmp_path, attempt=3)
    assert (result.outcome, [one.name for one in result.steps]) == ("fail", ["a"])


def test_whose_fault_a_healthcheck_is_depends_on_when_it_fails(tmp_path: Path) -> None:
    check = {"command": "echo sick; [ ! -e /tmp/broken ]", "retries": 2, "interval_s": 0.01}
    first = {"name": "a", "do": "touch /tmp/broken", "test": f"echo 1 {REWARD}", "healthcheck": check}
    then = {**first, "name": "b"}
    result = carry_out(task(tmp_path, dict(first), dict(then)), tmp_path)
    assert (result.outcome, result.fault.kind) == ("agent_error", "HealthcheckFailed")
    never = task(tmp_path, {"do": "true", "test": "true"}, environment={"healthcheck": {**check, "command": "false"}})
    assert carry_out(never, tmp_path, attempt=2).outcome == "infrastructure_error"


def test_a_timeout_while_others_used_the_processors_is_no_verdict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    what = task(tmp_path, {"do": "true", "test": "sleep 100", "verifier": {"timeout_s": 0.2}})
    assert carry_out(what, tmp_path).outcome == "verifier_error"
    monkeypatch.setattr(LoadMeter, "read", lambda *_: CpuShare(seconds=1.0, own=0.12, others=0.88, pressure=1.0))
    result = carry_out(what, tmp_path, attempt=2)
    assert (result.outcome, result.fault.kind) == ("infrastructure_error", "Contention")
    assert "others used 88% of its processors" in result.fault.message


ASK = (
    "import os, sys, urllib.request as u; "
    f"u.urlopen(u.Request('https://{HOST}/' + sys.argv[1], headers={{'x-own': os.environ.get('TOKEN', '')}}))"
)


def test_a_credential_is_the_agents_in_each_step_and_never_the_verifiers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOKEN", KEY)
    listed = {"network": "allowlist", "allow": (HOST,)}
    steps = [
        {
            "name": name,
            "do": f'python3 -c "{ASK}" agent-{name}',
            "test": f'python3 -c "{ASK}" verifier-{name} && echo 1 {REWARD}',
            "agent": {"network": "allowlist"},
            "verifier": listed,
        }
        for name in ("first", "second")
    ]
    with played_host(monkeypatch, tmp_path) as (host, bundle):
        what = task(tmp_path, *steps)
        result = carry_out(what, tmp_path, credentials=(f"{HOST}=env:TOKEN",), ca_bundle=str(bundle))
    assert result.outcome == "pass", result
    told = {seen.target: (seen.all("authorization"), seen.all("x-own")) for seen in host.seen}
    assert told == {
        **dict.fromkeys(("/agent-first", "/agent-second"), ([f"Bearer {KEY}"], ["ohsandbox-placeholder"])),
        **dict.fromkeys(("/verifier-first", "/verifier-second"), ([], [""])),
    }
