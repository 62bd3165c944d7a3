"""Tasks of several services on an engine: verdicts, isolation, and that nothing is left of them."""

from __future__ import annotations

import itertools
import json
import signal
import socket
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

import docker
import pytest

from ohsandbox import SandboxLimits
from ohsandbox.errors import SandboxUnavailable
from ohsandbox.evaluation import load_tasks
from ohsandbox.evaluation.agents import NopAgent, OracleAgent
from ohsandbox.evaluation.compose import ProjectOptions, ServiceRuntime, project_name
from ohsandbox.evaluation.images import Images
from ohsandbox.evaluation.runner import Run, RunPlan
from ohsandbox.runtime.disk_space import DiskSpace
from ohsandbox.runtime.docker.config.container_config import GIB
from ohsandbox.runtime.docker.monitoring import disk
from ohsandbox.runtime.factory import open_inventory
from tests.processes import running

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.docker, pytest.mark.timeout(600)]

HANG_S = 240.0
COMPOSE = """\
services:
  {main}:
    {image}
    container_name: ${{T_BENCH_TASK_DOCKER_CLIENT_CONTAINER_NAME:-the-main}}
    command: ["sh", "-c", "sleep infinity"]
    depends_on: {{web: {{condition: service_healthy}}}}
  web:
    image: ohsandbox-base:busybox
    command: ["sh", "-c", "mkdir /www && echo serves && echo 42 >/www/answer && exec httpd -f -p 80 -h /www"]
    ports: ["8080:80"]
    healthcheck: {{test: ["CMD", "wget", "-q", "-O-", "http://127.0.0.1/answer"], interval: 1s}}
"""
ASK = "wget -q -O- http://web/answer"
CHECK = f'[ "$(cat /tmp/answer)" = "$({ASK})" ] && echo 1 >$L || echo 0 >$L\n'
OVER_TCP = "exec 3<>/dev/tcp/web/80; printf 'GET /answer HTTP/1.0\\r\\n\\r\\n' >&3; tail -1 <&3 >/tmp/answer\n"
PRINT = '[ "$(cat /tmp/answer)" = 42 ] && echo PASSED t.py::test_a || echo FAILED t.py::test_a\n'


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)
    return root


def harbor(root: Path, compose: str = COMPOSE) -> Path:
    return write(root, {
        "task.toml": '[verifier]\nnetwork_mode = "no-network"\n', "instruction.md": "Ask the service web.\n",
        "environment/docker-compose.yaml": compose.format(main="main", image="image: ohsandbox-base:busybox"),
        "solution/solve.sh": f"#!/bin/sh\n{ASK} >/tmp/answer\n",
        "tests/test.sh": f"#!/bin/sh\nL=/logs/verifier/reward.txt\n{CHECK}",
    })  # fmt: skip


def terminal_bench(root: Path) -> Path:
    return write(root, {
        "task.yaml": "instruction: Ask the service web.\n", "Dockerfile": "FROM ohsandbox-base:debian\nWORKDIR /app\n",
        "docker-compose.yaml": COMPOSE.format(main="client", image="build: ."),
        "solution.sh": f"#!/bin/bash\n{OVER_TCP}",
        "run-tests.sh": f"#!/bin/bash\necho '= short test summary info ='\n{PRINT}",
    })  # fmt: skip


def service(
    root: Path, *, labels: dict[str, str] | None = None, cancel: threading.Event | None = None
) -> ServiceRuntime:
    [task] = load_tasks(root).tasks
    options = ProjectOptions(
        project_name("test", task.id, "1"), "none", SandboxLimits(), labels or {}, cancel or threading.Event()
    )
    return ServiceRuntime(task.environment, Images(), options, env={}, workdir=None, ca_bundle=None)


def run(runtime: ServiceRuntime, script: str) -> str:
    return runtime.run(["/bin/sh", "-c", script], timeout_s=20).stdout.decode().strip()


@pytest.fixture
def engine() -> Any:
    client = docker.from_env()
    yield client
    client.close()


def left(engine: Any, part: str) -> list[str]:
    """Names alone: `containers.list()` inspects each container, and another test's may be gone by then."""
    found = [name.lstrip("/") for one in engine.api.containers(all=True) for name in one["Names"] or ()]
    found += [one["Name"] for one in (*engine.api.networks(), *(engine.api.volumes()["Volumes"] or ()))]
    return [name for name in found if part in name]


def test_the_oracle_solves_tasks_of_two_services_and_nop_does_not(tmp_path: Path, engine: Any) -> None:
    harbor(tmp_path / "tasks" / "of-harbor")
    terminal_bench(tmp_path / "tasks" / "of-tb")
    tasks = load_tasks(tmp_path / "tasks").tasks
    for agent, outcome in ((OracleAgent(), "pass"), (NopAgent(), "fail")):
        going = Run(RunPlan(tasks, agent, concurrent=2), tmp_path / agent.name)
        results = going()
        assert {key.task: one.outcome for key, one in results.items()} == {"of-harbor": outcome, "of-tb": outcome}
        for key, one in results.items():
            [web] = one.services
            assert (web.name, web.status, web.exit_code, web.oom_killed) == ("web", "running", None, False)
            assert min(web.cpu_s or 0, web.memory_bytes or 0) > 0
            assert (going.results.trial(key) / "services" / "web.log").read_text().endswith(" serves\n")
        assert left(engine, going.record.run_id) == []


OF_A_SERVICE = """\
artifacts = [{source = "/www", service = "web", exclude = ["*.log"]}, {source = "/none", service = "ended"}]
[verifier]
network_mode = "no-network"
environment_mode = "separate"
[[verifier.collect]]
command = "wget -q -O /www/asked http://127.0.0.1/answer && cp /www/asked /www/answer.log"
service = "web"
"""
ENDED = """\
  ended:
    image: ohsandbox-base:busybox
    command: [grep, "42", /run/secrets/word, /run/secrets/renamed, /word, /etc/word]
    secrets: [word, {{source: word, target: renamed}}]
    configs: [word, {{source: word, target: /etc/word}}]
secrets: {{word: {{file: ./word}}}}
configs: {{word: {{file: ./word}}}}
"""


@pytest.mark.slow
def test_artifacts_and_collect_commands_of_another_service(tmp_path: Path) -> None:
    root = harbor(tmp_path / "tasks" / "two", COMPOSE + ENDED)
    (root / "task.toml").write_text(OF_A_SERVICE)
    (root / "environment" / "word").write_text("42\n")
    (root / "tests" / "Dockerfile").write_text("FROM ohsandbox-base:busybox\nCOPY . /tests\n")
    check = "[ -f /www/asked ] && [ ! -e /www/answer.log ] && echo 1 >$L || echo 0 >$L\n"
    (root / "tests" / "test.sh").write_text(f"#!/bin/sh\nL=/logs/verifier/reward.txt\n{check}")
    going = Run(RunPlan(load_tasks(tmp_path / "tasks").tasks, OracleAgent()), tmp_path / "out")
    [(key, result)] = going().items()
    assert result.outcome == "pass"
    kept = going.results.trial(key) / "artifacts" / "web" / "www"
    assert {path.name: path.read_text() for path in kept.iterdir()} == {"answer": "42\n", "asked": "42\n"}
    assert [note for note in result.notes if note.startswith("not all is kept of service 'ended': ")] == result.notes


def test_a_service_that_fails_to_start_is_told_with_its_last_words(tmp_path: Path, engine: Any) -> None:
    broken = COMPOSE.replace("mkdir /www &&", "echo no disk; exit 3;")
    runtime = service(harbor(tmp_path / "broken", broken))
    with pytest.raises(SandboxUnavailable, match=r"services did not start.*web said: no disk"):
        runtime.start()
    assert left(engine, "broken") == []


@pytest.mark.slow
def test_two_trials_at_once_do_not_see_each_other_nor_this_machine(tmp_path: Path, engine: Any) -> None:
    root = harbor(tmp_path / "apart")
    with socket.create_server(("0.0.0.0", 0)) as server, service(root) as one, service(root) as other:
        assert run(one, f"{ASK}") == "42"
        found = engine.containers.get(other.id).attrs["NetworkSettings"]["Networks"]
        [(network, place)] = found.items()
        reach = "nc -w 2 {} {} -e /bin/true && echo open || echo closed"
        assert run(other, reach.format("web", 80)) == "open"
        web = engine.containers.get(other.name.replace("-main", "-web")).attrs["NetworkSettings"]["Networks"][network]
        assert run(one, reach.format(web["IPAddress"], 80)) == "closed"
        gateway = place["Gateway"] or engine.networks.get(network).attrs["IPAM"]["Config"][0]["Gateway"]
        assert run(other, reach.format(gateway, server.getsockname()[1])) == "closed"
        other.set_network("open")
        outside = engine.containers.get(other.id).attrs["NetworkSettings"]["Networks"]
        [joined] = outside.keys() - {network}
        assert run(other, reach.format(outside[joined]["Gateway"], server.getsockname()[1])) == "open"
        other.set_network("none")
        assert run(other, ASK) == "42"
        assert list(engine.containers.get(other.id).attrs["NetworkSettings"]["Networks"]) == [network]
    assert left(engine, "apart") == []


def test_services_have_no_more_rights_than_a_sandbox(tmp_path: Path, engine: Any) -> None:
    with service(harbor(tmp_path / "rights"), labels={"eval": "some-run"}) as runtime:
        for name in (runtime.name, runtime.name.replace("-main", "-web")):
            found = engine.containers.get(name)
            host = found.attrs["HostConfig"]
            assert (host["CapDrop"], host["Privileged"], host["PortBindings"]) == (["ALL"], False, {})
            assert "no-new-privileges:true" in host["SecurityOpt"]
            assert any(one.startswith(("seccomp={", "seccomp:{")) for one in host["SecurityOpt"])
            assert host["PidsLimit"] == SandboxLimits().pids
            assert found.labels["eval"] == "some-run"
        with open_inventory() as inventory:
            assert runtime.name in [
                one.name for one in inventory.list_sandboxes(labels={"eval": "some-run"}) if one.ours
            ]


@pytest.mark.slow
def test_a_service_that_fills_the_disk_is_stopped_and_named_in_the_next_result(
    tmp_path: Path, engine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The space is injected: it becomes less from the moment at which somebody has connected."""
    is_full, asked = threading.Event(), itertools.count()

    def space() -> DiskSpace:
        return DiskSpace(GIB - next(asked) if is_full.is_set() else 50 * GIB, 100 * GIB, 0, 0)

    monkeypatch.setattr(disk, "writable_file_systems", lambda *_: [disk.FileSystem("The engine's disk", space)])
    write_on_request = "nc -l -p 90 </dev/null; while :; do dd if=/dev/zero of=/big bs=1M count=20 conv=fsync; done"
    compose = COMPOSE.replace("mkdir /www", f"({write_on_request}) >/dev/null 2>&1 & mkdir /www", 1)
    with service(harbor(tmp_path / "full", compose)) as runtime:
        name = runtime.name.replace("-main", "-web")
        assert run(runtime, f"nc web 90 </dev/null; {ASK}") == "42"
        is_full.set()
        deadline, notices = time.monotonic() + HANG_S, ""
        while "was stopped" not in notices:
            notices += str(runtime.execute("sleep 0.2").notice)
            assert time.monotonic() < deadline, notices
        assert "The engine's disk has " in notices
        assert "service 'web' wrote to it and was stopped" in notices
        while engine.api.inspect_container(name)["State"]["Running"]:  # it is named before it is stopped
            assert time.monotonic() < deadline
        assert run(runtime, "echo serves") == "serves"


@pytest.mark.slow
def test_ending_the_processes_leaves_the_sandbox_and_its_services(tmp_path: Path) -> None:
    own_command = COMPOSE.replace('"sleep infinity"', '"touch /tmp/began; sleep 1000; sleep 1000"', 1)
    for compose in (COMPOSE, own_command):
        with service(harbor(tmp_path / f"end{len(compose)}", compose)) as runtime:
            run(runtime, "sleep 777 >/dev/null 2>&1 & echo kept >/tmp/file")
            runtime.end_processes()
            assert (
                run(runtime, f"cat /proc/[0-9]*/cmdline | tr '\\0' ' ' | grep -o 'sleep 77[7]'; cat /tmp/file; {ASK}")
                == "kept\n42"
            )


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_nothing_is_left_after_an_interrupted_run(tmp_path: Path, engine: Any, how: signal.Signals) -> None:
    harbor(tmp_path / "tasks" / "slow", COMPOSE)
    (tmp_path / "tasks" / "slow" / "solution" / "solve.sh").write_text("#!/bin/sh\nsleep 1000\n")
    command = [sys.executable, "-m", "ohsandbox", "eval", "tasks", "-o", "out", "--agent", "oracle"]
    record = tmp_path / "out" / "run.json"

    def of_the_run() -> list[str]:
        assert process.poll() is None, process.communicate()[0]
        return left(engine, json.loads(record.read_text())["run_id"]) if record.exists() else []

    with running(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        while len(of_the_run()) < 3:
            time.sleep(0.05)
        if how is signal.SIGINT:  # in the midst of the start
            time.sleep(0.2)
        while how is signal.SIGKILL and not any(one.endswith("-main") for one in of_the_run()):
            time.sleep(0.05)  # what was asked of the engine before is there
        process.send_signal(how)
        process.communicate(timeout=HANG_S)
    if how is signal.SIGKILL:
        with open_inventory() as inventory:
            inventory.collect_garbage()
    assert left(engine, json.loads(record.read_text())["run_id"]) == []
