"""A Compose file of a project: what of it becomes services, and what is refused, with its line."""

from __future__ import annotations

import json
import subprocess
from typing import TYPE_CHECKING

import pytest

from ohsandbox.errors import UsageError
from ohsandbox.evaluation.formats.compose import collapse
from ohsandbox.evaluation.formats.problems import InvalidTask
from ohsandbox.project.compose_file import ProjectServices, services_of_compose
from ohsandbox.project.project_file import find_project
from ohsandbox.runtime.build_options import Build
from ohsandbox.runtime.service_options import Service

if TYPE_CHECKING:
    from pathlib import Path

WHOLE = """\
version: "3.9"
x-common: &common {logging: {driver: none}}
services:
  db:
    <<: *common
    image: postgres:17
    restart: always
    ports: ["127.0.0.1:15432:5432", {target: 9187, published: 1}, "53:53/udp"]
    environment: [POSTGRES_PASSWORD, "MODE=${MODE:-fast}", "PRICE=5$$"]
    volumes: [data:/var/lib/postgresql/data, /scratch]
    healthcheck: {test: pg_isready -U postgres, interval: 10s, retries: 12, start_period: 1m30s}
    deploy: {resources: {limits: {cpus: "1.5", memory: 512M, pids: 99}}, replicas: 1}
  web:
    image: web:latest
    build: {context: ./web, dockerfile: Dockerfile, args: {A: 1}}
    entrypoint: /bin/server --port 80
    depends_on: {db: {condition: service_healthy}, migrate: {condition: service_completed_successfully}}
    environment: {TOKEN: "${WEB_TOKEN}", DEBUG: true, EMPTY: ""}
    expose: ["80"]
    privileged: false
  migrate: {image: busybox, command: migrate}
  debug: {image: busybox, profiles: [debug]}
volumes: {data: }
networks: {back: {internal: true}}
"""


def read(directory: Path, text: str, *only: str) -> ProjectServices:
    (directory / "web").mkdir(exist_ok=True)
    (directory / "web" / "Dockerfile").write_text("FROM scratch\n")
    (directory / "compose.yaml").write_text(text)
    return services_of_compose(directory / "compose.yaml", directory, only=only)


def test_what_a_compose_file_says_becomes_services(tmp_path: Path) -> None:
    (db, migrate, web), notes = read(tmp_path, WHOLE)
    assert (migrate.run_once, db.run_once) == (True, False)
    assert (db.name, db.image, db.ports, db.volumes) == (
        "db", "postgres:17", (5432, 9187), ("/var/lib/postgresql/data", "/scratch")
    )  # fmt: skip
    assert db.env == {"MODE": "fast", "PRICE": "5$"}
    assert db.secrets == {"POSTGRES_PASSWORD": "env:POSTGRES_PASSWORD"}
    assert db.healthcheck == ("/bin/sh", "-c", "pg_isready -U postgres")
    assert (db.start_timeout_s, db.cpus, db.memory, db.pids) == (210.0, 1.5, 512 * 1024**2, 99)
    assert web.build == Build(str(tmp_path / "web"), "Dockerfile", {"A": "1"})
    assert (web.image, web.entrypoint, web.depends_on) == (None, ("/bin/server", "--port", "80"), ("db", "migrate"))
    assert (web.env, web.secrets) == ({"DEBUG": "true", "EMPTY": ""}, {"TOKEN": "env:WEB_TOKEN"})
    assert "services.db.restart has no meaning here" in notes
    assert "service 'debug' is of a profile and not started" in notes


def test_scalars_become_the_texts_that_compose_writes(tmp_path: Path) -> None:
    (service,), _ = read(
        tmp_path,
        "services:\n  on:\n    image: x\n    user: yes\n    privileged: no\n    healthcheck: {test: a, disable: yes}\n"
        "    environment: {A: yes, B: off, C: true, D: 1.0, E: 1e3, F: 010, G: 1.10, NO: y, H: '1.0'}\n",
    )
    assert (service.name, service.user, service.healthcheck) == ("on", "yes", ())
    assert service.env == {
        "A": "yes", "B": "off", "C": "true", "D": "1", "E": "1000", "F": "8", "G": "1.1", "NO": "y", "H": "1.0"
    }  # fmt: skip


SCALARS = """
08 09 0_8 -08 +08 010 0o10 -0o10 0O17 0o8 0x1F -0x1F 0x_1 0xg 0b101 0b2 007 0123456789 00 -0 1_000 1__0 1_ _1
1.0 1.50 1.10 .5 5. +1.5 -0.0 08.5 1_0.5 3.14159265358979 123456.789 999999.5 999999.0 100000.0 1000000.0 1234567.5
123456789.0 1e3 1e5 1e6 1E6 1e+06 1.5e3 1.e3 1e15 1e16 1e20 1e21 1e22 1e1_0 0.1e1 1e-4 1e-5 0.0001 0.00001 .e1 0x1p3
9007199254740993 12345678901234567890 18446744073709551615
2026-11-28 2026-1-8 2026-02-30 2026-11-28T10:00:00Z 2026-11-28t1:2:3.120Z 2001-12-14t21:59:43.10-05:00
2001-12-14T21:59:43+05:45 2026-11-28T10:00:00 2026-11-28_10:00 22:22 1:30:00
yes no on off y n true True TRUE false FALSE nulL = '08' '2026-11-28' "1e6"
""".split()  # noqa: SIM905 - as they are written
"""Values as a Compose file has them, without a blank."""


@pytest.mark.docker
def test_each_scalar_is_what_docker_compose_makes_of_it(tmp_path: Path) -> None:
    scalars = [*SCALARS, "2026-11-28 10:00:00", "2026-11-28 1:2:3.5"]
    environment = "".join(f"      V{number}: {scalar}\n" for number, scalar in enumerate(scalars))
    text = f"services:\n  a:\n    image: x\n    environment:\n{environment}"
    (service,), _ = read(tmp_path, text)
    collapsed = collapse(tmp_path / "compose.yaml", tmp_path, known={}, ignored_volumes=frozenset())
    (tmp_path / "config.yaml").write_text(text)
    argv = ["docker", "compose", "-f", str(tmp_path / "config.yaml"), "config", "--format", "json"]
    config = json.loads(subprocess.run(argv, check=True, capture_output=True, timeout=60).stdout)
    values = config["services"]["a"]["environment"]
    of_compose = {scalar: values[f"V{number}"] for number, scalar in enumerate(scalars)}
    for env in (service.env, collapsed.service.env):
        assert {scalar: env[f"V{number}"] for number, scalar in enumerate(scalars)} == of_compose


@pytest.mark.parametrize("key", ["null", "~", "08", "1.5", "true", "2026-11-28"])
def test_a_variable_whose_name_is_no_text_is_refused_as_compose_refuses_it(tmp_path: Path, key: str) -> None:
    text = f"services:\n  a:\n    image: x\n    environment:\n      {key}: v\n"
    with pytest.raises(UsageError, match=r"line 4: services.a.environment has a key .*, which is no text. Quote it"):
        read(tmp_path, text)
    (tmp_path / "task.yaml").write_text(text)
    with pytest.raises(InvalidTask, match="is no text: quote it"):
        collapse(tmp_path / "task.yaml", tmp_path, known={}, ignored_volumes=frozenset())


def test_only_those_that_are_named_and_what_they_need(tmp_path: Path) -> None:
    assert [one.name for one in read(tmp_path, WHOLE, "web").services] == ["db", "migrate", "web"]
    with pytest.raises(UsageError, match=r"has no service 'wbe'\. Did you mean 'web'"):
        read(tmp_path, WHOLE, "wbe")


def test_variables_of_this_machine_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TAG", "evil")
    text = "services: {db: {image: 'postgres:${TAG:-17}', command: 'run ${TAG-x}'}}"
    assert read(tmp_path, text).services[0].image == "postgres:17"
    with pytest.raises(UsageError, match=r"line 1: services\.db\.image \$\{TAG\} has no default"):
        read(tmp_path, "services: {db: {image: 'postgres:$TAG'}}")


@pytest.mark.parametrize(
    ("field", "told"),
    [
        ("privileged: true", "privileged is given to no service"),
        ("cap_add: [SYS_ADMIN]", "cap_add is given to no service"),
        ("network_mode: host", "network_mode is given to no service"),
        ("pid: host", "pid is given to no service"),
        ("devices: [/dev/kvm]", "devices is given to no service"),
        ("volumes: ['/var/run/docker.sock:/var/run/docker.sock']", "is a directory of this machine"),
        ("volumes: ['./data:/data']", "is a directory of this machine"),
        ("volumes: ['~/.ssh:/ssh']", "is a directory of this machine"),
        ("volumes: ['$HOME:/home']", "is a directory of this machine"),
        ("volumes: ['../x:/x:ro']", "is a directory of this machine"),
        ("volumes: ['data:/x:nocopy']", "volumes"),
        ("volumes: [{type: bind, source: /, target: /host}]", "is a directory of this machine"),
        ("env_file: .env", "env_file is given to no service"),
        ("extends: {file: ../other.yaml, service: a}", "extends is given to no service"),
        ("build: ../elsewhere", "outside of"),
        ("build: {context: web, network: host}", r"build\.network is not taken"),
        ("healtcheck: {}", "healtcheck is not known"),
        ("ports: ['a:b']", "'a:b' is not a port"),
        ("mem_limit: lots", "memory"),
        ("deploy: {resources: {reservations: {devices: [{capabilities: [gpu]}]}}}", "asks for devices"),
        ("healthcheck: {test: a, interval: soon}", "'soon' is not a time"),
    ],
)
def test_what_no_service_is_given_is_refused_with_its_line(tmp_path: Path, field: str, told: str) -> None:
    with pytest.raises(UsageError, match=told) as refused:
        read(tmp_path, f"services:\n  db:\n    image: postgres\n    {field}\n")
    assert "line " in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("a: b", "names no services"),
        ("services: [", "not YAML|expected"),
        ("services: {a: {image: b}, a: {image: c}}", "twice"),
        ("services: {a: {image: b}}\nsecrets: {k: {file: /etc/shadow}}", "secrets is not taken"),
        ("services: {a: {image: b}}\nvolumes: {v: {driver_opts: {type: none, device: /}}}", "volumes.v has options"),
        ("services: {a: {image: b}}\ninclude: [other.yaml]", "include is not taken"),
    ],
)
def test_a_file_that_is_none_is_refused(tmp_path: Path, text: str, told: str) -> None:
    with pytest.raises(UsageError, match=told):
        read(tmp_path, text)


def test_a_link_is_no_compose_file(tmp_path: Path) -> None:
    (tmp_path / "real.yaml").write_text(WHOLE)
    (tmp_path / "compose.yaml").symlink_to("real.yaml")
    with pytest.raises(UsageError):
        services_of_compose(tmp_path / "compose.yaml", tmp_path)


def test_a_project_file_names_services_in_tables_or_a_compose_file(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    file = tmp_path / ".ohsandbox.toml"
    file.write_text('[services.db]\nimage = "postgres:17"\nenv = {A = "b"}\nsecrets = {K = "env:K"}\n')
    project = find_project(tmp_path)
    assert project is not None
    assert project.services == (Service("db", image="postgres:17", env={"A": "b"}, secrets={"K": "env:K"}),)
    before = project.digest()
    (tmp_path / "compose.yaml").write_text("services: {a: {image: b}, c: {image: d, restart: always}}")
    file.write_text('services = "compose.yaml"\nservices_only = ["c"]\n')
    project = find_project(tmp_path)
    assert project is not None
    assert project.services == (Service("c", image="d"),)
    assert (project.notes, project.digest() != before) == (("services.c.restart has no meaning here",), True)
    trusted = project.digest()
    (tmp_path / "compose.yaml").write_text("services: {c: {image: other}}")
    project = find_project(tmp_path)
    assert project is not None
    assert project.digest() != trusted, "what the Compose file says is a part of what is trusted"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[services.Db]\nimage = 'a'", "not a service name"),
        ("[services.db]\nimages = 'a'", "unknown key 'images'"),
        (
            "[services.db]\nimage = 'a'\nsecrets = {K = 'file:/etc/shadow'}",
            "names no variable of yours. Write env:NAME.",
        ),
        ("[services.db]\nbuild = '..'", "outside of"),
        ("services = '../compose.yaml'", "outside of"),
        ("services = 'nowhere.yaml'", "is not there"),
        ("services = ['a']", "services"),
        ("services_only = ['a']", "services_only"),
        ("[services]\ndb = 'postgres'", "is not a table"),
    ],
)
def test_a_wrong_service_of_a_project_file_is_one_line(tmp_path: Path, text: str, told: str) -> None:
    (tmp_path / "project").mkdir()
    (tmp_path / "compose.yaml").write_text("services: {a: {image: b}}")
    (tmp_path / "project" / ".ohsandbox.toml").write_text(text)
    with pytest.raises(UsageError, match=told) as refused:
        find_project(tmp_path / "project")
    assert "\n" not in str(refused.value)
