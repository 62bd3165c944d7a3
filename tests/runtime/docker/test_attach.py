"""A container that was joined says what it reaches beyond itself."""

from __future__ import annotations

import secrets
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from ohsandbox import DockerRuntime
from ohsandbox.errors import SandboxGone
from ohsandbox.runtime.docker.attach import exposures, join
from ohsandbox.runtime.docker.container import Container

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from ohsandbox.runtime.docker.engine.connection import Engine


def bind(source: str, target: str) -> dict[str, Any]:
    return {"Type": "bind", "Source": source, "Destination": target}


@pytest.mark.parametrize(
    ("found", "fact"),
    [
        ({"HostConfig": {"Privileged": True}}, "it is privileged"),
        ({"HostConfig": {"CapAdd": ["SYS_ADMIN"]}}, "added capabilities (SYS_ADMIN)"),
        ({"HostConfig": {"Devices": [{"PathOnHost": "/dev/sda"}]}}, "devices of the machine (/dev/sda)"),
        ({"HostConfig": {"SecurityOpt": ["seccomp=unconfined"]}}, "seccomp=unconfined"),
        ({"HostConfig": {"NetworkMode": "host"}}, "the machine's network"),
        ({"HostConfig": {"PidMode": "host"}}, "the machine's processes"),
        ({"HostConfig": {"PidMode": "container:abc"}}, "another container's processes"),
        ({"HostConfig": {"IpcMode": "host"}}, "the machine's shared memory"),
        ({"Mounts": [bind("/var/run/docker.sock", "/s")]}, "the engine's socket /var/run/docker.sock"),
        ({"Mounts": [bind("/", "/host")]}, "/ of the machine, with the engine's socket"),
        ({"Mounts": [bind("/home/me", "/w"), bind("/home/me/x", "/w/x")]}, "/home/me of the machine, as /w"),
        ({"Config": {"Env": ["A=b", "DOCKER_HOST=tcp://x"]}}, "an engine, by its variable DOCKER_HOST"),
    ],
)
def test_each_way_out_is_named(found: dict[str, Any], fact: str) -> None:
    assert exposures(found) == [fact]


def test_a_container_that_keeps_to_itself_has_none() -> None:
    host = {"NetworkMode": "default", "IpcMode": "private", "PidMode": "", "CapAdd": None, "SecurityOpt": None}
    volume = {"Type": "volume", "Source": "/var/lib/docker/volumes/x/_data", "Destination": "/data"}
    assert exposures({"HostConfig": host, "Mounts": [volume], "Config": {"Env": ["PATH=/bin"]}}) == []


@pytest.mark.docker
def test_attaching_says_it_in_one_line(foreign: Callable[..., str], tmp_path: Path) -> None:
    quiet = foreign()
    with DockerRuntime(attach=quiet) as runtime:
        assert runtime.workspace_notes == ()
        assert "reaches beyond itself" not in runtime.describe()
    host = {
        "NetworkMode": "host", "PidMode": "host", "Binds": ["/var/run/docker.sock:/s", f"{tmp_path}:/mine"],
    }  # fmt: skip
    name = foreign(HostConfig=host)
    facts = ("network", "processes", "docker.sock", str(tmp_path))
    with DockerRuntime(attach=name) as runtime:
        (line,) = runtime.workspace_notes
        assert all(fact in line and fact in runtime.describe()["reaches beyond itself"] for fact in facts)
    words = [sys.executable, "-m", "ohsandbox", "exec", "--attach", name, "--", "echo", "done"]
    ended = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout, len(ended.stderr.splitlines())) == (0, "done\n", 1)
    assert all(fact in ended.stderr for fact in (name, *facts))


@pytest.mark.docker
def test_a_container_is_looked_at_once_before_it_is_joined(
    foreign: Callable[..., str], engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, inspect, looked = foreign(), Container.inspect, list[str]()

    def inspect_once(container: Container) -> dict[str, Any]:
        looked.append(container.name)
        if len(looked) > 1:
            raise SandboxGone("it was removed meanwhile")
        return inspect(container)

    monkeypatch.setattr(Container, "inspect", inspect_once)
    joined = join(engine, DockerRuntime(attach=name)._options)
    assert joined.container.name == name
    assert joined.container.started
    assert looked == [name]


@pytest.fixture
def disguised(engine: Engine, tmp_path: Path) -> Iterator[str]:
    """A volume that is a directory of this machine."""
    options = {"type": "none", "o": "bind", "device": str(tmp_path)}
    name = engine.api.create_volume(f"volume-{secrets.token_hex(4)}", driver_opts=options)["Name"]
    yield name
    engine.api.remove_volume(name)


@pytest.mark.docker
def test_a_volume_that_stands_for_a_directory_of_the_machine_is_named(
    disguised: str, foreign: Callable[..., str], tmp_path: Path
) -> None:
    name = foreign(HostConfig={"NetworkMode": "none", "Binds": [f"{disguised}:/data"]})
    with DockerRuntime(attach=name) as runtime:
        (line,) = runtime.workspace_notes
        assert f"{tmp_path} of the machine, as /data" in line
