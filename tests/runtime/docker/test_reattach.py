"""A conversation's container outlives its process, and is found again as it is."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from ohsandbox.errors import SandboxUnavailable
from ohsandbox.runtime.docker import lease
from ohsandbox.runtime.docker.gc import gc, list_sandboxes
from ohsandbox.runtime.docker.runtime import DockerRuntime
from ohsandbox.runtime.docker.spec import Limits

if TYPE_CHECKING:
    from ohsandbox.runtime.docker.engine import Engine

KILLED_OWNER = """
import os, signal
from ohsandbox.runtime.docker.runtime import DockerRuntime
runtime = DockerRuntime("ohsandbox-base:busybox", conversation="talk", **{options!r}).start()
{hold}
runtime.execute({command!r})
os.kill(os.getpid(), signal.SIGKILL)
"""


def run_killed_owner(command: str = "echo here >/tmp/file", *, hold: bool = True, **options: Any) -> None:
    code = KILLED_OWNER.format(hold="runtime.hold()" if hold else "", command=command, options=options)
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == -9


def test_a_held_lease_waits_three_days_from_its_last_use() -> None:
    held = lease.take(container="c", engine="e", image="i", conversation="talk")
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


def test_only_the_lease_of_a_dead_owner_can_be_adopted() -> None:
    held = lease.take(container="c", engine="e", image="i", conversation="talk")
    assert lease.adopt(held.id) is None
    held.leave()
    adopted = lease.adopt(held.id)
    assert adopted is not None
    assert lease.owner_alive(held.id)
    assert lease.adopt(held.id) is None
    adopted.release()
    assert lease.adopt(held.id) is None


@pytest.mark.docker
def test_what_a_killed_process_left_is_found_with_its_files_and_without_its_processes(engine: Engine) -> None:
    run_killed_owner("echo here >/tmp/file; (trap '' TERM HUP; sleep 777) & export COLOUR=blue; cd /tmp")
    assert gc(engine) == []
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
    assert not [one for one in list_sandboxes(engine) if one.conversation == "talk"]


@pytest.mark.docker
def test_one_that_was_never_worked_in_is_removed_as_before(engine: Engine) -> None:
    run_killed_owner(hold=False)
    assert [done.outcome for done in gc(engine)] == ["removed"]


@pytest.mark.docker
@pytest.mark.usefixtures("engine")
def test_each_difference_to_what_is_asked_is_told_and_the_container_stays_as_it_is() -> None:
    run_killed_owner(user="1000")
    asked = Limits(memory_bytes=512 * 1024**2, pids=100)
    runtime = DockerRuntime("ohsandbox-base:debian", conversation="talk", network="open", limits=asked, user="1001")
    resumed = runtime.resume()
    try:
        assert [note.split(" has ")[1].split()[0] for note in resumed.notes] == [
            "image", "network", "user", "memory", "processes",
        ]  # fmt: skip
        assert "none: only" in runtime.describe()["network"]
        assert runtime.run(["id", "-u"]).stdout == b"1000\n"
    finally:
        runtime.close()


@pytest.mark.docker
def test_a_container_that_somebody_works_in_is_not_taken_over(sandbox: Any) -> None:
    sandbox("ohsandbox-base:busybox", conversation="talk")
    with pytest.raises(SandboxUnavailable, match="Another process works"):
        DockerRuntime("ohsandbox-base:busybox", conversation="talk").resume()


@pytest.mark.docker
def test_a_runtime_that_leaves_keeps_the_container_and_ends_what_runs(engine: Engine) -> None:
    runtime = DockerRuntime("ohsandbox-base:busybox", conversation="talk").start()
    runtime.execute("echo here >/tmp/file; sleep 778 &")
    runtime.leave()
    runtime.close()
    (left,) = [one for one in list_sandboxes(engine) if one.conversation == "talk"]
    assert (left.state, left.resumable, left.owner_alive) == ("running", True, False)
    assert gc(engine) == []
    seen = subprocess.run(["docker", "exec", left.name, "ps"], capture_output=True, text=True, check=True).stdout
    assert "sleep 778" not in seen
    with DockerRuntime("ohsandbox-base:busybox", conversation="talk") as again:
        assert again.id != left.id
    assert [done.outcome for done in gc(engine, kept=True)] == ["removed"]


@pytest.mark.docker
def test_a_file_that_another_user_put_there_is_not_taken_for_the_environment() -> None:
    runtime = DockerRuntime("ohsandbox-base:busybox", conversation="talk").start()
    try:
        runtime.run(["sh", "-c", "echo 'touch /tmp/owned' >/run/ohs/main.env"], user=1000)
        runtime.reopen_session("main", workdir="/nosuch")
        seen = runtime.execute("pwd; ls /tmp/owned")
        assert "environment is lost" in str(seen.notice)
        assert "for /nosuch is gone" in str(seen.notice)
        assert seen.exit_code != 0
    finally:
        runtime.close()
