"""Compose files of several services: what is used of them, and what is refused."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from ohsandbox.evaluation import compose_client
from ohsandbox.evaluation.formats import harbor, terminal_bench
from ohsandbox.evaluation.formats.problems import InvalidTask
from tests.evaluation.formats.trees import COMPOSE, HARBOR, TERMINAL_BENCH, write_tree

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.docker
"""They call `docker compose config`, which comes with an engine."""
DB = "  db:\n    image: postgres\n"


def harbor_task(place: Path, compose: str) -> Path:
    root = write_tree(place / "add", HARBOR)
    (root / "environment" / "docker-compose.yaml").write_text(compose)
    (root / "environment" / "data").mkdir(exist_ok=True)
    return root


def refused(place: Path, compose: str) -> list[str]:
    root = harbor_task(place, compose)
    with pytest.raises(InvalidTask) as caught:
        harbor.read(root)
    return [str(one).replace(f"{root}/environment/", "") for one in caught.value.problems]


def test_services_of_harbor_keep_what_they_say_and_lose_ports_and_names(tmp_path: Path) -> None:
    text = (
        "services:\n  main:\n    environment: [MODE=test, 'COST=$$5']\n    volumes: ['data:/data']\n"
        "  db:\n    image: postgres\n    container_name: the-db\n"
        "    ulimits: {nofile: {soft: 9, hard: 10}, memlock: -1}\n    ports: ['5432:5432']\n    mem_limit: 512m\n"
        "    volumes: ['./data:/seed', '${HOST_AGENT_LOGS_PATH}:${ENV_AGENT_LOGS_PATH}']\nvolumes: {data: {}}\n"
    )
    root = harbor_task(tmp_path, text)
    environment = harbor.read(root).environment
    project = environment.compose
    assert project is not None
    assert (environment.build, environment.env) == (root / "environment", {"MODE": "test", "COST": "$5"})
    assert (project.main, project.volumes) == ("main", ("data",))
    assert project.environments["db"].memory_bytes == 512 * 1024**2
    seed = {"type": "bind", "source": str(root / "environment/data"), "target": "/seed", "read_only": True}
    assert project.services["db"] == {
        "networks": {"default": {"aliases": ["the-db"]}}, "volumes": [seed],
        "ulimits": {"nofile": {"soft": 9, "hard": 10}, "memlock": -1},
    }  # fmt: skip


def test_the_service_client_is_the_sandbox_of_terminal_bench(tmp_path: Path) -> None:
    root = write_tree(tmp_path / "sum", TERMINAL_BENCH, docker_compose_yaml=COMPOSE + DB)
    task = terminal_bench.read(root)
    assert task.environment.compose is not None
    assert task.environment.compose.main == "client"
    assert (task.environment.build, task.environment.cpus) == (root, 1)
    assert (task.steps[0].agent.network, task.steps[0].verifier.network) == ("none", "open")


@pytest.mark.parametrize(
    ("told", "problem"),
    [
        ("privileged: true", ":4: services.db.privileged: "),
        ("cap_add: [SYS_ADMIN]", ":4: services.db.cap_add: "),
        ("security_opt: [seccomp=unconfined]", ":4: services.db.security_opt: "),
        ("devices: ['/dev/kvm:/dev/kvm']", ":4: services.db.devices: "),
        ("pid: host", ":4: services.db.pid: "),
        ("ipc: host", ":4: services.db.ipc: "),
        ("userns_mode: host", ":4: services.db.userns_mode: "),
        ("cgroup: host", ":4: services.db.cgroup: "),
        ("network_mode: host", ":4: services.db.network_mode: "),
        ("network_mode: container:other", ":4: services.db.network_mode: "),
        ("volumes_from: ['container:other']", ":4: services.db.volumes_from: "),
        ("extra_hosts: ['h:host-gateway']", ":4: services.db.extra_hosts: "),
        ("sysctls: {net.core.somaxconn: 1}", ":4: services.db.sysctls: "),
        ("ulimits: {rtprio: 99}", ":4: services.db.ulimits.rtprio: is not supported"),
        ("ulimits: {nofile: 9223372036854775807}", ":4: services.db.ulimits.nofile: "),
        ("runtime: runc", ":4: services.db.runtime: "),
        ("deploy: {resources: {reservations: {devices: [{capabilities: [gpu]}]}}}", ":4: services.db.deploy.devices: "),
        ("volumes: ['/var/run/docker.sock:/s']", ":4: services.db.volumes: /var/run/docker.sock is outside"),
        ("volumes: ['~:/home']", ":4: services.db.volumes: "),
        ("volumes: ['../tests:/t']", ":4: services.db.volumes: "),
        ("volumes: ['..:/t']", ":4: services.db.volumes: "),
        ("volumes: ['./missing:/t']", ":4: services.db.volumes: "),
        ("build: ../..", ":4: services.db.build.context: '"),
        ("build: {context: data, dockerfile: ../../../x}", ":4: services.db.build.context: '"),
        ("build: {context: ., network: host}", ":4: services.db.build.network: "),
        ("build: {context: ., ssh: [default]}", ":4: services.db.build.ssh: "),
        ("build: https://example.org/x.git", ":4: services.db.build.context: '"),
        ("env_file: /etc/hostname", ":4: services.db.env_file: '/etc/hostname' leads out"),
        ("env_file: ['~/.netrc']", ":4: services.db.env_file: '~/.netrc' leads out"),
        ("env_file: '${HOME}/x'", ":4: services.db.env_file: '"),
        ("extends: {file: /etc/x.yaml, service: x}", ":4: services.db.extends: "),
        ("networks: {default: {ipv4_address: 10.1.2.3}}", ":4: services.db.networks.default.ipv4_address: "),
        ("environment: {KEY: '${NO_SUCH_KEY}'}", ": ${NO_SUCH_KEY} is not given to tasks"),
        ("nonsense: 1", ": Docker Compose refuses it: "),
    ],
)  # fmt: skip
def test_what_reaches_out_of_the_project_is_refused_with_its_line(tmp_path: Path, told: str, problem: str) -> None:
    found = refused(tmp_path, f"services:\n  main: {{}}\n  db:\n    {told}\n    image: postgres\n")
    assert found[0].startswith(f"docker-compose.yaml{problem}"), found


@pytest.mark.parametrize(
    ("told", "problem"),
    [
        ("networks: {default: {external: true, name: bridge}}", ":5: networks.default"),
        ("networks: {default: {driver: macvlan}}", ":5: networks.default.driver: 'macvlan'"),
        ("volumes: {vol: {driver_opts: {type: none, o: bind, device: /}}}", ":5: volumes.vol.driver_opts: "),
        ("include: [/etc/x.yaml]", ":5: include: "),
        ("secrets: {one: {file: /etc/shadow}}", ":5: secrets.one.file: /etc/shadow is outside of the task"),
        ("secrets: {one: {file: ../tests/test.sh}}", ":5: secrets.one.file: "),
        ("secrets: {one: {environment: HOME}}", ":5: secrets.one: is not a file of the task: write it to one"),
        ("secrets: {one: {external: true}}", ":5: secrets.one: is not a file of the task"),
    ],
)  # fmt: skip
def test_networks_volumes_and_secrets_are_the_projects_own(tmp_path: Path, told: str, problem: str) -> None:
    given = "secrets: [one]" if "secrets" in told else f"volumes: ['{'vol:/v' if 'volumes' in told else '/v'}']"
    text = f"services:\n  main: {{}}\n  db: {{image: postgres, {given}}}\n"
    found = refused(tmp_path, f"{text}\n{told}\n")
    assert found[0].startswith(f"docker-compose.yaml{problem}"), found


def test_variables_of_this_machine_do_not_come_into_a_task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_API_KEY", "secret")
    root = harbor_task(tmp_path, f"services:\n  main: {{environment: {{A: '${{SOME_API_KEY:-none}}'}}}}\n{DB}")
    assert harbor.read(root).environment.env == {"A": "none"}


def test_without_compose_the_task_is_told_to_need_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bin").mkdir()
    monkeypatch.setattr(compose_client, "_client", compose_client._client.__wrapped__)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    told = refused(tmp_path, f"services:\n  main: {{}}\n{DB}")[0]
    assert told.startswith("docker-compose.yaml: Program 'docker' was not found in ")
    assert "This task needs Docker Compose. Install" in told
    (tmp_path / "bin" / "docker").write_text("#!/bin/sh\nexit 1\n")
    shutil.copymode("/bin/sh", tmp_path / "bin" / "docker")
    assert "has no such plugin" in refused(tmp_path, f"services:\n  main: {{}}\n{DB}")[0]


def test_an_allowlist_that_no_project_has_is_told_before_a_run(tmp_path: Path) -> None:
    root = harbor_task(tmp_path, "services:\n  main: {}\n" + DB)
    hosts = 'network_mode = "allowlist"\nallowed_hosts = ["a.example"]\n'
    (root / "task.toml").write_text(f"[agent]\n{hosts}[verifier]\n{hosts}")
    with pytest.raises(InvalidTask) as caught:
        harbor.read(root)
    told = "network_mode: a Compose project has no allowlist: say public or no-network"
    assert [(one.line, one.message) for one in caught.value.problems] == [(2, f"agent.{told}"), (5, f"verifier.{told}")]
