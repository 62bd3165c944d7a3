from __future__ import annotations

import os
import stat
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any

import pytest

from ohsandbox.errors import ImageUnavailable, SandboxGone, UsageError
from ohsandbox.runtime import recovery
from ohsandbox.runtime.docker.config.container_config import SandboxLimits
from ohsandbox.runtime.docker.inventory.docker_inventory import DockerInventory
from ohsandbox.runtime.docker.ownership import lease
from ohsandbox.runtime.docker.runtime import DockerRuntime

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from ohsandbox.runtime.docker.engine.connection import Engine

pytestmark = pytest.mark.docker


def test_importing_the_package_does_not_import_docker() -> None:
    code = "import sys, ohsandbox.runtime.docker; sys.exit('docker' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.slow
def test_a_timeout_ends_its_own_daemons_of_another_user_and_nobody_elses() -> None:
    daemon = "su nobody -s /bin/sh -c 'setsid sleep {} >/dev/null 2>&1 &'; sleep 60"
    running = "for f in /proc/[0-9]*/cmdline; do tr '\\000' ' ' <$f; echo; done 2>/dev/null | grep '^sleep [0-9]*4 '"
    with DockerRuntime("ohsandbox-base:debian") as runtime:
        others = [
            threading.Thread(target=lambda: runtime.execute(daemon.format(414), session="other", timeout_s=8)),
            threading.Thread(target=lambda: runtime.run(["sh", "-c", daemon.format(424)], timeout_s=8)),
        ]
        for other in others:
            other.start()
        assert runtime.execute(daemon.format(434), timeout_s=2).timed_out
        assert runtime.run(["sh", "-c", daemon.format(444)], timeout_s=1).timed_out
        assert sorted(runtime.run(["sh", "-c", running]).stdout.split()[1::2]) == [b"414", b"424"]
        for other in others:
            other.join()
        assert runtime.run(["sh", "-c", running]).stdout == b""


def test_before_start_and_after_close_there_is_no_sandbox() -> None:
    runtime = DockerRuntime("ohsandbox-base:busybox")
    with pytest.raises(SandboxGone, match="not started"):
        runtime.open_channel(["true"])
    runtime.close()
    assert not runtime.is_alive()


def kill(engine: Engine, runtime: DockerRuntime) -> None:
    """Kill the container; engine 26.1 answers before its processes have ended."""
    engine.api.kill(runtime.id)
    engine.api.wait(runtime.id)


def test_variables_set_later_outlast_a_restart_of_the_container(engine: Engine) -> None:
    with DockerRuntime("ohsandbox-base:busybox") as runtime:
        runtime.execute("true")
        runtime.set_env({"LATER": "a b"})
        kill(engine, runtime)
        runtime.execute("true")  # engine 26.1 may close its streams later: then this one tells that the shell ended
        assert runtime.execute("echo $LATER").output == "a b\n"
        kill(engine, runtime)
        assert runtime.run(["sh", "-c", "echo $LATER"]).stdout == b"a b\n"
        runtime.open_session("other")
        assert runtime.execute("echo $LATER", session="other").output == "a b\n"


def test_close_decides_that_a_sandbox_stays_and_another_goes_on_in_it(engine: Engine) -> None:
    with DockerRuntime("ohsandbox-base:busybox", conversation="kept-at-close") as runtime:
        runtime.write_bytes("note", b"still here")
        name = runtime.name
        runtime.close(keep=True)
    assert not runtime.is_alive()
    assert [one.keep for one in DockerInventory(engine).list_sandboxes() if one.name == name] == [True]
    assert DockerInventory(engine).collect_garbage() == []
    with DockerRuntime(attach=name) as joined:
        assert joined.read_bytes("note") == b"still here"
        with pytest.raises(UsageError, match="was joined, so it is not ours to remove"):
            joined.close(keep=False)
    again = DockerRuntime("ohsandbox-base:busybox", conversation="kept-at-close")
    assert again.resume().how == "same"
    assert (again.name, again.read_bytes("note")) == (name, b"still here")
    again.close(keep=False)
    assert engine.api.containers(all=True, filters={"name": name}) == []


def test_close_decides_that_a_sandbox_made_to_be_kept_goes(engine: Engine) -> None:
    runtime = DockerRuntime("ohsandbox-base:busybox", keep=True).start()
    held = runtime.id
    runtime.close(keep=False)
    assert engine.api.containers(all=True, filters={"id": held}) == []


def test_starting_and_closing_twice_is_fine(engine: Engine) -> None:
    runtime = DockerRuntime("ohsandbox-base:busybox").start()
    first = runtime.id
    assert runtime.start().id == first
    closers = [threading.Thread(target=runtime.close) for _ in range(3)]
    for thread in closers:
        thread.start()
    for thread in closers:
        thread.join()
    runtime.close()
    assert first not in {found["Id"] for found in engine.api.containers(all=True)}
    assert lease.all_ids() == []


def test_a_name_that_is_taken_is_a_usage_error_and_leaves_the_other_alone(sandbox: Any) -> None:
    first = sandbox("ohsandbox-base:busybox", name="ohsandbox-test-taken")
    with pytest.raises(UsageError, match="already in use"):
        DockerRuntime("ohsandbox-base:busybox", name="ohsandbox-test-taken").start()
    assert first.is_alive()
    assert len(lease.all_ids()) == 1


def test_an_unknown_runtime_is_a_hard_error() -> None:
    with pytest.raises(UsageError, match="nosuch-runtime"):
        DockerRuntime("ohsandbox-base:busybox", runtime="nosuch-runtime").start()
    assert lease.all_ids() == []


def test_an_image_without_a_shell_is_unavailable(image: Callable[..., str]) -> None:
    bare = image(run="/bin/busybox rm -f /bin/sh")
    with pytest.raises(ImageUnavailable, match="POSIX shell"):
        DockerRuntime(bare).start()


def test_an_image_for_another_processor_is_unavailable(image: Callable[..., str]) -> None:
    # an ELF header of machine 183 (arm64) and nothing behind it: exec format error
    elf = "\\177ELF\\002\\001\\001" + "\\000" * 9 + "\\002\\000\\267\\000\\001\\000\\000\\000" + "\\000" * 40
    other = image(run=f"printf '{elf}' >/tmp/x; /bin/busybox chmod 755 /tmp/x; /bin/busybox mv -f /tmp/x /bin/sh")
    runtime = DockerRuntime(other)
    try:
        with pytest.raises(ImageUnavailable):
            runtime.start().open_channel(["true"])
    finally:
        runtime.close()


def test_an_image_with_an_environment_that_shells_cannot_carry_is_refused(image: Callable[..., str]) -> None:
    large = image(changes=["ENV " + " ".join(f"V{number}=x" for number in range(4097))])
    with pytest.raises(UsageError, match=rf"Image '{large}' with env= has 4,\d+ environment variables"):
        DockerRuntime(large).start()
    assert lease.all_ids() == []


def test_a_container_with_an_environment_that_shells_cannot_carry_is_not_joined(foreign: Callable[..., str]) -> None:
    name = foreign(Env=[f"V{number}=x" for number in range(4097)])
    with pytest.raises(UsageError, match=rf"Container '{name}' with env= has 4,\d+ environment variables"):
        DockerRuntime(attach=name).start()


@pytest.mark.slow
def test_the_largest_environment_outlives_a_shell(sandbox: Any) -> None:
    runtime = sandbox(env={f"V{number}": "x" * 100 for number in range(4000)})
    assert runtime.execute("export MINE=1; exit 3", timeout_s=30).exit_code == 3
    assert runtime.execute("echo ${#V3999} $MINE", timeout_s=30).output == "100 1\n"


def test_a_hostile_image_is_neutral(sandbox: Any, sh: Any) -> None:
    runtime = sandbox("ohsandbox-base:hostile")
    assert runtime.workdir == "/workspace"
    result = sh(runtime, "id -u; pwd; touch ok && ls; echo $HOME; cd && touch x; env")
    lines = result.out.splitlines()
    assert lines[:4] == ["12345", "/workspace", "ok", "/home/ohsandbox"]
    assert not [line for line in lines[4:] if line.startswith(("LD_", "ENV=", "PROMPT_COMMAND", "PS1"))]
    assert result.err == ""


def test_programs_get_the_variables_that_their_image_sets_for_them(
    image: Callable[..., str], sandbox: Any, sh: Any
) -> None:
    made = image(
        base="ohsandbox-base:debian",
        run="mkdir /opt/lib && mv /usr/lib/*/libpcre2-8.so* /opt/lib && echo TOOL=loaded >/etc/bash_env",
        changes=["ENV LD_LIBRARY_PATH=/opt/lib BASH_ENV=/etc/bash_env"],
    )
    runtime = sandbox(made)
    needs_both = "echo found | grep found; bash -c 'echo $TOOL'"
    assert sh(runtime, needs_both).out == "found\nloaded\n"
    assert runtime.execute(needs_both, timeout_s=30).output == "found\nloaded\n"
    with DockerRuntime(attach=runtime.name) as joined:
        assert joined.execute(needs_both, timeout_s=30).output == "found\nloaded\n"


def test_our_root_processes_run_no_program_that_the_agent_wrote(image: Callable[..., str], sandbox: Any) -> None:
    path = "/home/agent/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    made = image(
        base="ohsandbox-base:nonroot",
        run="mkdir -p /home/agent/bin && chown -R agent /home/agent",
        changes=["USER agent", f"ENV PATH={path}"],
    )
    runtime = sandbox(made)
    planted = """
    for name in chmod mkdir cat ls chown id kill; do
        printf '#!/bin/sh\\n/usr/bin/id -u >>/tmp/ran\\nexec /usr/bin/%s "$@"\\n' $name >/home/agent/bin/$name
        /usr/bin/chmod 755 /home/agent/bin/$name
    done
    chmod 644 /dev/null; cat /tmp/ran
    """
    assert runtime.execute(planted).output != "", "they are the agent's own programs now"
    runtime.restore(runtime.checkpoint().id)
    runtime.end_processes()
    assert runtime.execute("command -v chmod; sort -u /tmp/ran").output == "/home/agent/bin/chmod\n1000\n"


def test_the_volumes_of_an_image_go_with_its_sandbox(engine: Engine) -> None:
    before = {volume["Name"] for volume in engine.api.volumes()["Volumes"] or []}
    with DockerRuntime("ohsandbox-base:hostile") as runtime:
        runtime.open_channel(["true"]).close()
    assert {volume["Name"] for volume in engine.api.volumes()["Volumes"] or []} <= before


def test_the_images_user_is_the_default_and_root_is_root(sandbox: Any, sh: Any) -> None:
    runtime = sandbox("ohsandbox-base:nonroot")
    assert sh(runtime, "id -un; touch here").out == "agent\n"
    assert sh(runtime, "id -u; useradd other && su other -c id", user="root").code == 0


def test_the_environment_is_the_images_ours_and_the_callers(
    sandbox: Any, sh: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "canary")
    runtime = sandbox(env={"MINE": "1"})
    names = {line.split("=", 1)[0] for line in sh(runtime, "env").out.splitlines()}
    assert names <= {
        "PATH", "HOME", "HOSTNAME", "PWD", "LANG", "TERM", "PAGER", "GIT_PAGER", "GIT_TERMINAL_PROMPT",
        "DEBIAN_FRONTEND", "PIP_NO_INPUT", "MINE", "SHLVL", "_",
    }  # fmt: skip


@pytest.mark.parametrize("owner", [0, 1234])
def test_files_of_a_workspace_belong_to_the_caller(sandbox: Any, sh: Any, tmp_path: Path, owner: int) -> None:
    if os.getuid() != 0 and owner != os.getuid():
        owner = os.getuid()
    project = tmp_path / "project"
    project.mkdir()
    os.chown(project, owner, owner)
    runtime = sandbox(workspace=project)
    result = sh(runtime, "whoami; pwd; echo x >made; cd && touch home-works; grep CapEff /proc/self/status")
    assert result.code == 0
    assert result.out.splitlines()[1:] == ["/workspace", "CapEff:\t0000000000000000"]
    assert (project / "made").read_text() == "x\n"
    assert (project / "made").stat().st_uid == owner


@pytest.mark.parametrize("owner", [0, 1234])
def test_nobody_can_leave_a_setuid_file_in_a_workspace(sandbox: Any, sh: Any, tmp_path: Path, owner: int) -> None:
    (tmp_path / "project").mkdir()
    if os.getuid() == 0:
        os.chown(tmp_path / "project", owner, owner)
    runtime = sandbox(workspace=tmp_path / "project")
    attempts = (
        "cp /bin/true a; chmod u+s a; chmod g+s a; install -m 6755 /bin/true b; install -m 2755 /bin/true e; umask 0; "
        "perl -e 'use Fcntl; sysopen(F, \"c\", O_CREAT|O_WRONLY, 06777)'; chmod 755 a; echo >d; ls"
    )
    for user in (None, "root"):
        assert "d" in sh(runtime, attempts, user=user).out
    for path in (tmp_path / "project").iterdir():
        assert not path.stat().st_mode & (stat.S_ISUID | stat.S_ISGID)


def test_a_ca_bundle_is_there_and_named(sandbox: Any, sh: Any, tmp_path: Path) -> None:
    bundle = tmp_path / "ca.pem"
    bundle.write_bytes(b"-----BEGIN CERTIFICATE-----\n" * 1000)
    runtime = sandbox("ohsandbox-base:nonroot", ca_bundle=bundle)
    assert sh(runtime, 'cat "$SSL_CERT_FILE"; test "$PIP_CERT" = "$GIT_SSL_CAINFO"').out.encode() == bundle.read_bytes()


def test_an_attached_container_is_used_and_left_alone(foreign: Callable[..., str], engine: Engine, sh: Any) -> None:
    name = foreign(Env=["LD_PRELOAD=/bad.so", "KEPT=1"], WorkingDir="/tmp")
    runtime = DockerRuntime(attach=name)
    with runtime:
        assert runtime.name == name
        result = sh(runtime, "pwd; echo $KEPT; echo ${LD_PRELOAD-unset}")
        assert result.out == "/tmp\n1\nunset\n"
    assert engine.api.inspect_container(name)["State"]["Running"]
    assert lease.all_ids() == []


def test_attaching_to_our_own_sandbox_keeps_its_user_and_workdir(sandbox: Any, sh: Any) -> None:
    first = sandbox("ohsandbox-base:nonroot")
    with DockerRuntime(attach=first.name) as second:
        assert sh(second, "id -un; pwd").out == "agent\n/home/agent\n"
    assert first.is_alive()


def test_attaching_to_nothing_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="Container 'nosuch-container' does not exist"):
        DockerRuntime(attach="nosuch-container").start()


def test_a_kept_sandbox_outlives_its_runtime(engine: Engine) -> None:
    with DockerRuntime("ohsandbox-base:busybox", keep=True) as runtime:
        name = runtime.name
    try:
        assert engine.api.inspect_container(name)["State"]["Running"]
    finally:
        engine.api.remove_container(name, force=True, v=True)


def test_limits_are_real(sandbox: Any, sh: Any) -> None:
    runtime = sandbox(limits=SandboxLimits(memory_bytes=128 * 1024**2, pids=50, cpus=0.5))
    read = "cat /sys/fs/cgroup/{memory/memory.limit_in_bytes,memory.max,pids/pids.max,pids.max} 2>/dev/null"
    numbers = sh(runtime, f"bash -c '{read}'").out.split()
    assert str(128 * 1024**2) in numbers
    assert "50" in numbers
    assert sh(runtime, "ulimit -c").out == "0\n"


def test_a_disk_limit_that_cannot_be_kept_is_refused() -> None:
    try:
        with DockerRuntime("ohsandbox-base:busybox", limits=SandboxLimits(disk_bytes=10 * 1024**3)):
            pytest.skip("this engine's storage bounds disk")
    except UsageError as error:
        assert "disk_bytes" in str(error)  # noqa: PT017


DAEMONS = (
    "su nobody -s /bin/sh -c 'setsid sleep 4{0} >/dev/null 2>&1 &'; setsid sleep 4{0} >/dev/null 2>&1 & echo started"
)
RUNNING = (
    "for f in /proc/[0-9]*/cmdline; do tr '\\000' ' ' <$f; echo; done 2>/dev/null | grep -c '^sleep [0-9]*[1-9]4 '"
)


@pytest.mark.parametrize("image", ["debian", "nonroot"])
def test_end_processes_kills_what_anybody_has_started_and_the_sandbox_serves_on(image: str) -> None:
    with DockerRuntime(f"ohsandbox-base:{image}") as runtime:
        runtime.execute("sleep 454 & sleep 464 &")
        runtime.run(["sh", "-c", DAEMONS.format(74)], user="root")
        assert runtime.run(["sh", "-c", RUNNING], user="root").stdout == b"4\n"
        runtime.end_processes()
        assert runtime.run(["sh", "-c", RUNNING], user="root").stdout == b"0\n"
        assert runtime.run(["echo", "on"]).stdout == b"on\n"
        answers = [runtime.execute("echo on") for _ in range(2)]  # the first may tell of the shell that has ended
        assert answers[0].exit_code in {0, 137}
        assert answers[1].output == "on\n"


def test_no_fork_bomb_outlives_end_processes() -> None:
    bomb = "(f() { f & f & sleep 5; }; f) >/dev/null 2>&1 &"
    with DockerRuntime("ohsandbox-base:debian", limits=SandboxLimits(pids=100)) as runtime:
        runtime.run(["sh", "-c", bomb])
        runtime.end_processes()
        running = "for p in /proc/[0-9]*/stat; do read -r _ _ state _ <$p; echo $state; done 2>/dev/null"
        left = runtime.run(["sh", "-c", running]).stdout.split()
        assert len([state for state in left if state != b"Z"]) <= 4, left  # PID 1, its sleep, our shell, this one


def test_root_by_name_shares_the_processes_of_an_image_of_root() -> None:
    with DockerRuntime("ohsandbox-base:debian") as runtime:
        parents = {runtime.run(["sh", "-c", "echo $PPID"], user=user).stdout for user in (None, "root", 0, "0")}
        assert len(parents) == 1
        assert runtime.run(["id", "-un"], user="nobody").stdout == b"nobody\n"
    with DockerRuntime("ohsandbox-base:nonroot") as runtime:
        assert runtime.run(["id", "-un"], user="root").stdout == b"root\n"
        assert runtime.run(["id", "-un"]).stdout == b"agent\n"


@pytest.mark.parametrize("image", ["debian", "busybox"])
def test_a_daemon_retires_the_shell_that_started_it_only_if_it_holds_its_streams(image: str) -> None:
    with DockerRuntime(f"ohsandbox-base:{image}") as runtime:

        def keeps_its_shell(streams: str) -> bool:
            [before] = {runtime.run(["sh", "-c", "echo $PPID"]).stdout for _ in range(2)}
            runtime.run(["sh", "-c", f"sleep 30 {streams} & sleep 0.3"])  # it redirects before its parent ends
            return before == runtime.run(["sh", "-c", "echo $PPID"]).stdout

        assert keeps_its_shell("</dev/null >/dev/null 2>&1")
        assert not keeps_its_shell("</dev/null >/dev/zero")  # it may print to stderr later
        assert not keeps_its_shell("</dev/null 2>/dev/zero")


def test_a_call_whose_processes_cannot_be_killed_from_inside_ends_with_the_sandbox_restarted(
    sandbox: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    hung = threading.Event()
    monkeypatch.setattr(recovery, "KILL_PATIENCE_S", 0.0)
    monkeypatch.setattr(recovery.RecoveringBackend, "_kill_tree", lambda *_: hung.wait())
    runtime = sandbox()
    runtime.write_bytes("kept", b"1")
    assert runtime.run(["sleep", "1000"], timeout_s=0.1).timed_out
    hung.set()
    assert b"sleep 1000" not in runtime.run(["sh", "-c", "cat /proc/[0-9]*/cmdline | tr '\\0' ' '"]).stdout
    assert runtime.read_bytes("kept") == b"1"
    assert "was restarted" in str(runtime.take_notices())
