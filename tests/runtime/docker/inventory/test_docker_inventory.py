from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import pytest

from ohsandbox.runtime.docker.inventory.docker_inventory import DockerInventory
from ohsandbox.runtime.docker.ownership import lease
from ohsandbox.runtime.docker.runtime import DockerRuntime

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from ohsandbox.runtime.docker.engine.connection import Engine


def take(container: str = "c", engine: str = "unix:///x", **options: Any) -> lease.Lease:
    return lease.acquire(container=container, engine=engine, image="i", **options)


def test_a_held_lease_has_a_living_owner_and_a_left_one_has_none() -> None:
    held = take()
    assert lease.owner_alive(held.id)
    held.leave()
    held.leave()
    assert not lease.owner_alive(held.id)
    assert lease.all_ids() == [held.id]
    held.release()
    assert lease.all_ids() == []


def test_a_forked_child_does_not_keep_a_dead_owners_lease_alive() -> None:
    held = take()
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(writing)
        os.read(reading, 1)  # until the parent is done
        os._exit(0)
    os.close(reading)
    held.leave()
    deadline = time.monotonic() + 60
    while lease.owner_alive(held.id) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not lease.owner_alive(held.id)
    os.close(writing)
    os.waitpid(child, 0)


def test_a_lease_file_is_private_and_says_whose_it_is(state: Path) -> None:
    held = take(conversation="abc")
    assert held.path.stat().st_mode & 0o777 == 0o600
    assert state.stat().st_mode & 0o777 == 0o700
    record = lease.read(held.id)
    assert record is not None
    assert (record.container, record.pid, record.conversation) == ("c", os.getpid(), "abc")
    held.release()


@pytest.mark.parametrize("name", ["", "../../etc/passwd", "x" * 32, "/etc/passwd"])
def test_a_label_is_never_a_path(name: str) -> None:
    assert lease.read(name) is None


@pytest.mark.docker
def test_a_running_sandbox_is_listed_and_left_alone(sandbox: Any, engine: Engine) -> None:
    runtime = sandbox("ohsandbox-base:busybox", conversation="conv-1")
    assert DockerInventory(engine).collect_garbage() == []
    (info,) = [one for one in DockerInventory(engine).list_sandboxes() if one.id == runtime.id]
    assert (info.name, info.image, info.state) == (runtime.name, "ohsandbox-base:busybox", "running")
    assert (info.ours, info.owner_pid, info.owner_alive, info.keep) == (True, os.getpid(), True, False)
    assert info.conversation == "conv-1"
    assert runtime.is_alive()


KILLED_OWNER = """
import os, signal
from ohsandbox.runtime.docker import container, runtime
{fault}
sandbox = runtime.DockerRuntime("ohsandbox-base:busybox", name={name!r}, keep={keep!r}, **{options!r}).start()
sandbox.hold()
os.kill(os.getpid(), signal.SIGKILL)
"""
DIE_BEFORE_START = "container.Container.start = lambda self, **_: os.kill(os.getpid(), signal.SIGKILL)"


def run_killed_owner(name: str, *, fault: str = "", keep: bool = False, **options: Any) -> None:
    code = KILLED_OWNER.format(name=name, fault=fault, keep=keep, options=options)
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == -signal.SIGKILL


@pytest.mark.docker
@pytest.mark.parametrize("fault", ["", DIE_BEFORE_START])
def test_a_killed_owners_sandbox_is_removed_even_between_create_and_start(engine: Engine, fault: str) -> None:
    name = f"ohsandbox-test-{secrets.token_hex(4)}"
    run_killed_owner(name, fault=fault)
    (info,) = [one for one in DockerInventory(engine).list_sandboxes() if one.name == name]
    assert not info.owner_alive
    (done,) = DockerInventory(engine).collect_garbage()
    assert (done.name, done.outcome) == (name, "removed")
    assert not [one for one in DockerInventory(engine).list_sandboxes() if one.name == name]
    assert DockerInventory(engine).collect_garbage() == []


@pytest.mark.slow
@pytest.mark.docker
@pytest.mark.parametrize("options", [{}, {"conversation": "to-be-resumed"}])
def test_the_locks_in_a_killed_owners_workspace_are_removed(
    engine: Engine, tmp_path: Path, options: dict[str, Any]
) -> None:
    workspace = tmp_path / "project"
    subprocess.run(["git", "init", "-q", str(workspace)], check=True)
    name = f"ohsandbox-test-{secrets.token_hex(4)}"
    lock = workspace / ".git" / "config.lock"
    with DockerRuntime("ohsandbox-base:busybox", workspace=workspace):
        run_killed_owner(name, workspace=str(workspace), **options)
        DockerInventory(engine).collect_garbage(kept=True)
        assert lock.exists()  # another sandbox works there
    assert not lock.exists()
    run_killed_owner(name, workspace=str(workspace), **options)
    assert lock.exists()
    engine.api.kill(name)
    DockerInventory(engine).collect_garbage()
    assert not lock.exists()
    subprocess.run(["git", "-C", str(workspace), "config", "user.name", "me"], check=True)
    assert [one.name for one in DockerInventory(engine).list_sandboxes() if one.name == name] == (
        [name] if options else []
    )
    DockerInventory(engine).collect_garbage(kept=True)


@pytest.mark.docker
def test_the_next_start_removes_what_a_killed_owner_left(engine: Engine) -> None:
    name = f"ohsandbox-test-{secrets.token_hex(4)}"
    run_killed_owner(name)
    with DockerRuntime("ohsandbox-base:busybox"):
        assert not [one for one in DockerInventory(engine).list_sandboxes() if one.name == name]


@pytest.mark.docker
def test_a_kept_sandbox_is_listed_and_only_taken_when_asked(engine: Engine) -> None:
    name = f"ohsandbox-test-{secrets.token_hex(4)}"
    run_killed_owner(name, keep=True)
    assert DockerInventory(engine).collect_garbage() == []
    assert [one.keep for one in DockerInventory(engine).list_sandboxes() if one.name == name] == [True]
    assert [done.outcome for done in DockerInventory(engine).collect_garbage(kept=True)] == ["removed"]


@pytest.mark.docker
def test_a_label_without_its_lease_file_is_never_enough(engine: Engine, foreign: Callable[..., str]) -> None:
    stolen = take("another-name", engine.address.url)
    stolen.leave()
    names = [
        foreign(Labels={"ohsandbox": "1"}),
        foreign(Labels={"ohsandbox": "1", "ohsandbox.lease": "0" * 32}),
        foreign(Labels={"ohsandbox.lease": "../../../etc/passwd"}),
        foreign(Labels={"ohsandbox.lease": stolen.id}),  # as an image committed from a sandbox passes it on
    ]
    DockerInventory(engine).collect_garbage()
    for name in names:
        assert engine.api.inspect_container(name)["State"]["Running"]
    assert not any(one.ours for one in DockerInventory(engine).list_sandboxes() if one.name in names)


@pytest.mark.docker
def test_a_sandbox_whose_lease_file_was_deleted_stays(sandbox: Any, engine: Engine) -> None:
    runtime = sandbox("ohsandbox-base:busybox")
    runtime._sandbox.lease.path.unlink()
    assert DockerInventory(engine).collect_garbage() == []
    assert runtime.is_alive()


@pytest.mark.docker
def test_a_lease_whose_container_is_gone_is_forgotten_unless_it_is_anothers(engine: Engine) -> None:
    ours, other = take("gone", engine.address.url), take("gone", "tcp://elsewhere:2376")
    ours.leave()
    other.leave()
    assert [(done.name, done.outcome) for done in DockerInventory(engine).collect_garbage()] == [("gone", "forgotten")]
    assert lease.all_ids() == [other.id]
