"""A conversation's container outlives its process, and is found again as it is."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import pytest

from ohsandbox.errors import SandboxUnavailable, UsageError
from ohsandbox.runtime.docker.config.container_config import SandboxLimits
from ohsandbox.runtime.docker.inventory.docker_inventory import DockerInventory
from ohsandbox.runtime.docker.mounts import caches
from ohsandbox.runtime.docker.mounts.caches import CACHE_DIR
from ohsandbox.runtime.docker.ownership import lease
from ohsandbox.runtime.docker.runtime import DockerRuntime

if TYPE_CHECKING:
    from pathlib import Path

    from ohsandbox.runtime.docker.engine.connection import Engine

KILLED_OWNER = """
import os, signal
from ohsandbox.runtime.docker.runtime import DockerRuntime
from ohsandbox.runtime.docker.config.container_config import SandboxLimits
runtime = DockerRuntime("ohsandbox-base:busybox", conversation="talk", **{options!r}).start()
{hold}
runtime.execute({command!r})
os.kill(os.getpid(), signal.SIGKILL)
"""


def run_killed_owner(command: str = "echo here >/tmp/file", *, hold: bool = True, **options: Any) -> None:
    code = KILLED_OWNER.format(hold="runtime.hold()" if hold else "", command=command, options=options)
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == -9


def test_a_held_lease_waits_three_days_from_its_last_use() -> None:
    held = lease.acquire(container="c", engine="e", image="i", conversation="talk")
    record = lease.read(held.id)
    assert record is not None
    assert not lease.is_resumable(record)
    held.hold()
    record = lease.read(held.id)
    assert record is not None
    assert lease.is_resumable(record)
    past = held.path.stat().st_mtime - lease.RESUMABLE_S - 1
    os.utime(held.path, (past, past))
    assert not lease.is_resumable(record)
    held.hold()
    assert lease.is_resumable(record)
    held.release()


def test_a_lease_that_was_used_under_a_clock_that_ran_ahead_waits_three_days_from_now() -> None:
    held = lease.acquire(container="c", engine="e", image="i", conversation="talk")
    held.hold()
    record = lease.read(held.id)
    assert record is not None
    ahead = time.time() + 400 * 86400
    os.utime(held.path, (ahead, ahead))
    assert lease.is_resumable(record)
    assert held.path.stat().st_mtime <= time.time()
    held.release()


def test_only_the_lease_of_a_dead_owner_can_be_adopted() -> None:
    held = lease.acquire(container="c", engine="e", image="i", conversation="talk")
    assert lease.adopt(held.id) is None
    held.leave()
    adopted = lease.adopt(held.id)
    assert adopted is not None
    assert lease.owner_alive(held.id)
    assert lease.adopt(held.id) is None
    adopted.release()
    assert lease.adopt(held.id) is None


@pytest.mark.docker
def test_a_checkpoint_goes_on_with_its_image_and_says_so() -> None:
    with DockerRuntime("ohsandbox-base:busybox") as first:
        first.write_bytes("/tmp/file", b"here")
        taken = first.checkpoint("talk")
    runtime = DockerRuntime("no-such-image:1", conversation="talk")
    resumed = runtime.resume([taken.id])
    try:
        assert resumed.how == "checkpoint"
        [note] = resumed.notes
        assert "image ohsandbox-base:busybox, and no-such-image:1 was asked for" in note
        assert runtime.describe()["image"] == "ohsandbox-base:busybox"
        assert runtime.read_bytes("/tmp/file") == b"here"
    finally:
        runtime.close(keep=False)


@pytest.mark.docker
def test_what_a_killed_process_left_is_found_with_its_files_and_without_its_processes(engine: Engine) -> None:
    run_killed_owner("echo here >/tmp/file; (trap '' TERM HUP; sleep 777) & export COLOUR=blue; cd /tmp")
    assert DockerInventory(engine).collect_garbage() == []
    with DockerRuntime("ohsandbox-base:busybox", conversation="talk") as other:  # plain start: a new one
        assert other.resumed is None
    runtime = DockerRuntime("ohsandbox-base:busybox", conversation="talk")
    resumed = runtime.resume()
    try:
        assert (resumed.how, resumed.notes) == ("same", ())
        assert runtime.read_bytes("/tmp/file") == b"here\n"
        runtime.reopen_session("main", workdir="/tmp")
        seen = runtime.execute("echo $COLOUR $PWD $(ps | grep -c '[s]leep 777')")
        assert seen.output == "blue /tmp 0\n"
        assert "exported environment is restored" in str(seen.notice)
        timed_out = runtime.execute("sleep 60", timeout_s=0.3)  # the shell's mark is our own: its processes are found
        assert timed_out.timed_out
    finally:
        runtime.close()
    assert not [one for one in DockerInventory(engine).list_sandboxes() if one.ours and one.conversation == "talk"]


@pytest.mark.slow
@pytest.mark.docker
def test_what_is_taken_up_keeps_cache_profile_user_variables_and_platform(engine: Engine) -> None:
    made: dict[str, Any] = {
        "env": {"A": "b"},
        "user": "1234",
        "platform": "linux/amd64",
        "profile": "trusted",
        "cache": "taken-up",
    }
    run_killed_owner(f"echo kept >{CACHE_DIR}/pip/wheel", **made)
    runtime = DockerRuntime("ohsandbox-base:busybox", conversation="talk")
    try:
        assert runtime.resume().how == "same"
        seen = runtime.run(
            ["sh", "-c", "echo $A $(id -u) $(cat $PIP_CACHE_DIR/wheel); grep NoNewPrivs /proc/self/status"]
        )
        assert seen.stdout == b"b 1234 kept\nNoNewPrivs:\t0\n"
        told = runtime.describe()
        assert {"profile", "package caches"} <= told.keys()
        assert told["platform"] == "linux/amd64"
    finally:
        runtime.close()
        for one in caches.infos(engine):
            assert caches.remove(engine, one.name)


@pytest.mark.slow
@pytest.mark.docker
def test_one_that_was_never_worked_in_is_removed_as_before(engine: Engine) -> None:
    run_killed_owner(hold=False)
    assert [done.outcome for done in DockerInventory(engine).collect_garbage()] == ["removed"]


@pytest.mark.docker
@pytest.mark.usefixtures("engine")
def test_each_difference_to_what_is_asked_is_told_and_the_container_stays_as_it_is() -> None:
    run_killed_owner(user="1000")
    asked = SandboxLimits(memory_bytes=512 * 1024**2, pids=100, cpuset="0")
    runtime = DockerRuntime("ohsandbox-base:debian", conversation="talk", network="open", limits=asked, user="1001")
    resumed = runtime.resume()
    try:
        assert [note.split(" has ")[1].split()[0] for note in resumed.notes] == [
            "image", "network", "user", "memory", "cpuset", "processes",
        ]  # fmt: skip
        assert "none: only" in runtime.describe()["network"]
        assert runtime.run(["id", "-u"]).stdout == b"1000\n"
    finally:
        runtime.close()


@pytest.mark.slow
@pytest.mark.docker
def test_a_container_without_todays_limit_on_a_files_size_is_taken_up_and_that_is_told() -> None:
    run_killed_owner(limits=SandboxLimits(file_bytes=None))
    runtime = DockerRuntime("ohsandbox-base:busybox", conversation="talk")
    try:
        [told] = runtime.resume().notes
        assert "has file size any, and 17179869184 was asked for" in told
        assert runtime.execute("ulimit -f").output == "unlimited\n"
    finally:
        runtime.close()


@pytest.mark.docker
def test_a_container_that_somebody_works_in_is_not_taken_over(sandbox: Any) -> None:
    sandbox("ohsandbox-base:busybox", conversation="talk")
    with pytest.raises(SandboxUnavailable, match="Another process uses"):
        DockerRuntime("ohsandbox-base:busybox", conversation="talk").resume()


@pytest.mark.docker
def test_a_runtime_that_leaves_keeps_the_container_and_ends_what_runs(engine: Engine) -> None:
    runtime = DockerRuntime("ohsandbox-base:busybox", conversation="talk").start()
    runtime.execute("echo here >/tmp/file; sleep 778 &")
    runtime.leave()
    runtime.close()
    (left,) = [one for one in DockerInventory(engine).list_sandboxes() if one.ours and one.conversation == "talk"]
    assert (left.state, left.resumable, left.owner_alive) == ("running", True, False)
    assert DockerInventory(engine).collect_garbage() == []
    seen = subprocess.run(["docker", "exec", left.name, "ps"], capture_output=True, text=True, check=True).stdout
    assert "sleep 778" not in seen
    with DockerRuntime("ohsandbox-base:busybox", conversation="talk") as again:
        assert again.id != left.id
    assert [done.outcome for done in DockerInventory(engine).collect_garbage(kept=True)] == ["removed"]


@pytest.mark.docker
def test_a_file_that_another_user_put_there_is_not_taken_for_the_environment() -> None:
    runtime = DockerRuntime("ohsandbox-base:busybox", conversation="talk").start()
    try:
        runtime.run(["sh", "-c", "echo 'touch /tmp/owned' >/run/ohs/main.env"], user=1000)
        runtime.reopen_session("main", workdir="/nosuch")
        seen = runtime.execute("pwd; ls /tmp/owned")
        assert "environment is lost" in str(seen.notice)
        assert ": /nosuch is gone" in str(seen.notice)
        assert seen.exit_code != 0
    finally:
        runtime.close()


@pytest.mark.docker
@pytest.mark.usefixtures("engine")
def test_a_workspace_that_is_refused_now_is_not_resumed_either(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "project").mkdir()
    run_killed_owner(workspace=str(tmp_path / "project"))
    monkeypatch.setenv("PATH", f"{os.environ['PATH']}:{tmp_path}/project")
    with pytest.raises(UsageError, match="on your PATH"):
        DockerRuntime("ohsandbox-base:busybox", conversation="talk").resume()
    monkeypatch.undo()
    monkeypatch.setenv("OHSANDBOX_HOME", str(tmp_path / "state"))
    runtime = DockerRuntime("ohsandbox-base:busybox", conversation="talk")
    runtime.resume()
    runtime.close()


BEATS = (
    "(trap '' TERM HUP; exec env -i setsid sh -c 'while :; do echo >>/workspace/beat; sleep 0.05; done') & sleep 0.3"
)
"""In the background, in a session of its own, without our mark: what nobody would find."""


@pytest.mark.slow
@pytest.mark.docker
@pytest.mark.parametrize("owner", [0, 12345])
def test_what_a_killed_process_left_does_not_go_on_changing_a_workspace(
    engine: Engine, tmp_path: Path, owner: int
) -> None:
    workspace = tmp_path / "project"
    workspace.mkdir()
    os.chown(workspace, owner, owner)
    run_killed_owner(f"echo kept >/tmp/file; {BEATS}", workspace=str(workspace))
    _until_stopped(engine)
    before = (workspace / "beat").stat().st_size
    assert before
    assert [done for done in DockerInventory(engine).collect_garbage() if done.reason] == []
    time.sleep(0.3)
    assert (workspace / "beat").stat().st_size == before
    runtime = DockerRuntime("ohsandbox-base:busybox", conversation="talk", workspace=workspace)
    try:
        assert runtime.resume().how == "same"
        assert runtime.read_bytes("/tmp/file") == b"kept\n"
        assert runtime.run(["sh", "-c", "ps | grep -c '[b]eat'"]).stdout == b"0\n"
    finally:
        runtime.close()


@pytest.mark.slow
@pytest.mark.docker
def test_one_that_is_resumed_at_once_is_ended_first(engine: Engine, tmp_path: Path) -> None:  # noqa: ARG001
    workspace = tmp_path / "project"
    workspace.mkdir()
    for _ in range(3):
        run_killed_owner(BEATS, workspace=str(workspace))
        runtime = DockerRuntime("ohsandbox-base:busybox", conversation="talk", workspace=workspace)
        assert runtime.resume().how == "same"
        time.sleep(0.3)
        assert runtime.run(["sh", "-c", "ps | grep -c '[b]eat'"]).stdout == b"0\n"
        runtime.close()


@pytest.mark.docker
def test_a_runtime_that_leaves_stops_what_has_a_workspace(engine: Engine, tmp_path: Path) -> None:
    workspace = tmp_path / "project"
    workspace.mkdir()
    runtime = DockerRuntime("ohsandbox-base:busybox", conversation="talk", workspace=workspace).start()
    runtime.execute(BEATS)
    runtime.leave()
    _until_stopped(engine)
    again = DockerRuntime("ohsandbox-base:busybox", conversation="talk", workspace=workspace)
    notes = " ".join(again.resume().notes)
    again.close()
    assert "was stopped when it was left, as each with a workspace is; it was started again" in notes
    assert "killed" not in notes


@pytest.mark.docker
def test_with_keep_it_goes_on(engine: Engine, tmp_path: Path) -> None:
    workspace = tmp_path / "project"
    workspace.mkdir()
    run_killed_owner(BEATS, workspace=str(workspace), keep=True, name=f"ohsandbox-{tmp_path.name[-20:]}")
    time.sleep(1)
    before = (workspace / "beat").stat().st_size
    time.sleep(0.5)
    assert (workspace / "beat").stat().st_size > before
    engine.api.remove_container(f"ohsandbox-{tmp_path.name[-20:]}", force=True)


@pytest.mark.slow
@pytest.mark.docker
def test_the_end_of_all_processes_does_not_end_the_watch(engine: Engine, tmp_path: Path) -> None:
    workspace = tmp_path / "project"
    workspace.mkdir()
    hold = "runtime.hold(); runtime.execute('kill -9 -1'); __import__('time').sleep(2)"
    code = KILLED_OWNER.format(hold=hold, command=BEATS, options={"workspace": str(workspace)})
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == -9
    assert (workspace / "beat").stat().st_size
    _until_stopped(engine)
    assert [done.outcome for done in DockerInventory(engine).collect_garbage(kept=True)] == ["removed"]


def _until_stopped(engine: Engine) -> None:
    mine = {lease.read(one).container for one in lease.all_ids()}  # type: ignore[union-attr]
    for _ in range(100):
        states = [one.state for one in DockerInventory(engine).list_sandboxes() if one.name in mine]
        if states == ["exited"]:
            return
        time.sleep(0.1)
    pytest.fail(f"it goes on: {states}")
