from __future__ import annotations

import threading
import time
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import docker
import pytest

from ohsandbox.errors import (
    SandboxGone,
    SandboxPaused,
    SandboxUnavailable,
    UnknownUserError,
    UsageError,
    WorkdirMissingError,
    WorkdirNotADirectoryError,
)

if TYPE_CHECKING:
    from ohsandbox.runtime.docker.engine.connection import Engine

pytestmark = pytest.mark.docker
Sandbox = "Callable[..., DockerRuntime]"


@pytest.fixture(params=["debian", "busybox"])
def runtime(request: pytest.FixtureRequest, sandbox: Any) -> Any:
    return sandbox(f"ohsandbox-base:{request.param}")


def test_the_streams_are_apart_and_binary(runtime: Any, sh: Any) -> None:
    result = sh(runtime, "printf 'a\\000b'; printf 'c\\n' >&2; exit 3")
    assert result == (3, "a\0b", "c\n")


def test_megabytes_go_in_while_they_come_out(runtime: Any) -> None:
    payload = bytes(range(256)) * 4096 * 8
    with runtime.open_channel(["cat"]) as channel:
        writer = threading.Thread(target=lambda: (channel.write(payload), channel.close_stdin()))
        writer.start()
        heard = bytearray()
        while chunks := channel.read(60):
            heard += b"".join(chunk.data for chunk in chunks)
        writer.join()
        assert bytes(heard) == payload
        assert channel.wait(60) == 0


def test_a_process_leads_its_session_and_knows_its_own_pid(runtime: Any, sh: Any) -> None:
    with runtime.open_channel(["sh", "-c", "read -r pid rest </proc/self/stat; echo $$; cat"]) as channel:
        heard = channel.read(60)
        assert heard is not None
        assert int(heard[0].data) == channel.pid
        stat = sh(runtime, f"cat /proc/{channel.pid}/stat").out.rsplit(")", 1)[1].split()
        assert int(stat[2]) == int(stat[3]) == channel.pid


def test_a_terminal_is_one(runtime: Any, sh: Any) -> None:
    assert "/dev/pts/" in sh(runtime, "tty; test -t 0 && test -t 1 && test -t 2 && echo all", tty=True).out


def test_a_read_that_gets_nothing_returns_none_in_time(runtime: Any) -> None:
    with runtime.open_channel(["sleep", "100"]) as channel:
        began = time.monotonic()
        assert channel.read(0.2) is None
        assert 0.19 < time.monotonic() - began < 10
        with pytest.raises(TimeoutError):
            channel.wait(0.1)
        channel.kill()
        assert channel.read(60) == []
        assert channel.wait(60) == 137


def test_kill_takes_the_whole_group(runtime: Any, sh: Any) -> None:
    with runtime.open_channel(["sh", "-c", "sleep 4321 & echo up; wait"]) as channel:
        assert channel.read(60)
        channel.kill()
        channel.wait(60)
    assert "4321" not in sh(runtime, "cat /proc/[0-9]*/cmdline | tr '\\0' ' '").out.replace("cat /proc", "")


def test_a_kill_whose_own_process_is_killed_as_it_starts_is_made_again(
    runtime: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = "OCI runtime exec failed: error writing config to pipe: write init-p: broken pipe: unknown"
    with runtime.open_channel(["sleep", "100"]) as channel:
        api, failures = channel._container.engine.api, [docker.errors.APIError(broken)]
        start = api.exec_start

        def exec_start(*args: Any, **options: Any) -> Any:
            if failures:
                raise failures.pop()
            return start(*args, **options)

        monkeypatch.setattr(api, "exec_start", exec_start)
        channel.kill()
        assert channel.wait(60) == 137


def test_what_a_process_says_at_once_can_be_polled_for(runtime: Any) -> None:
    import select  # noqa: PLC0415

    for _ in range(5):
        with runtime.open_channel(["sh", "-c", "echo early; cat"]) as channel:
            poller = select.poll()
            for descriptor in channel.filenos() or ():
                poller.register(descriptor, select.POLLIN)
            assert poller.poll(5000)
            heard = channel.read(0)
            assert heard is not None
            assert heard[0].data == b"early\n"


def test_close_wakes_a_reader_in_another_thread(runtime: Any) -> None:
    channel = runtime.open_channel(["sleep", "100"])
    threading.Timer(0.3, channel.close).start()
    assert channel.read(60) == []
    channel.close()


def test_writing_to_an_ended_process_is_a_broken_pipe(runtime: Any) -> None:
    with runtime.open_channel(["true"]) as channel:
        assert channel.wait(60) == 0
        with pytest.raises(BrokenPipeError):
            channel.write(b"x" * 10_000_000)


def test_a_missing_program_is_127_and_one_that_may_not_run_126(runtime: Any) -> None:
    for argv, code in ((["nosuch"], 127), (["/etc/passwd"], 126)):
        with runtime.open_channel(argv) as channel:
            assert channel.wait(60) == code


def test_an_exit_code_of_126_is_the_commands_own(runtime: Any, sh: Any) -> None:
    assert sh(runtime, "echo 'OCI runtime exec failed: unable to find user x'; exit 126").code == 126


def test_unknown_users_and_workdirs_are_typed(runtime: Any) -> None:
    for options, kind in (
        ({"user": "nosuch"}, UnknownUserError),
        ({"workdir": "/nosuch"}, WorkdirMissingError),
        ({"workdir": "/etc/passwd"}, WorkdirNotADirectoryError),
    ):
        with pytest.raises(kind):
            runtime.open_channel(["true"], **options)


def test_a_numeric_user_and_an_environment_reach_the_process(runtime: Any, sh: Any) -> None:
    assert sh(runtime, 'id -u; echo "$A"', user=4321, env={"A": "x\ny='1'"}).out == "4321\nx\ny='1'\n"


@pytest.mark.parametrize("argv", [[], [""], ["-x"], ["echo", "a\0b"], ["echo", "x" * 140_000]])
def test_what_no_kernel_takes_is_refused(sandbox: Any, argv: list[str]) -> None:
    runtime = sandbox("ohsandbox-base:busybox")
    with pytest.raises(UsageError):
        runtime.open_channel(argv)


def test_sixteen_arguments_of_64_kib_pass(runtime: Any) -> None:
    with runtime.open_channel(["sh", "-c", 'echo $#; echo "${#16}"', "sh", *["x" * 65536] * 16]) as channel:
        heard = b""
        while chunks := channel.read(60):
            heard += chunks[0].data
    assert heard == b"16\n65536\n"


def test_a_container_removed_behind_our_back_is_gone_not_137(sandbox: Any, engine: Engine) -> None:
    runtime = sandbox()
    with runtime.open_channel(["sh", "-c", "echo partial; sleep 100"]) as channel:
        assert channel.read(60)
        engine.api.remove_container(runtime.id, force=True)
        assert channel.read(60) == []
        with pytest.raises(SandboxGone, match="No such container"):
            channel.wait(60)
    with pytest.raises(SandboxGone):
        runtime.open_channel(["true"])
    assert not runtime.is_alive()


def test_a_stopped_container_is_unavailable_and_revived_with_its_files(sandbox: Any, engine: Engine, sh: Any) -> None:
    runtime = sandbox()
    sh(runtime, "echo kept >/root/file")
    with runtime.open_channel(["sleep", "100"]) as channel:
        engine.api.stop(runtime.id, timeout=0)
        with pytest.raises(SandboxUnavailable, match="was killed"):
            channel.wait(60)
    with pytest.raises(SandboxUnavailable, match="Start it again"):
        runtime.open_channel(["true"])
    assert "was started again: files are kept" in runtime._revive()
    assert sh(runtime, "cat /root/file").out == "kept\n"
    assert runtime.is_alive()


def test_a_paused_container_is_an_error_that_says_paused(sandbox: Any, engine: Engine) -> None:
    runtime = sandbox()
    runtime.open_channel(["true"]).close()
    engine.api.pause(runtime.id)
    try:
        for act in (lambda: runtime.open_channel(["true"]), runtime._revive):
            with pytest.raises(SandboxPaused, match="docker unpause"):
                act()
    finally:
        engine.api.unpause(runtime.id)


def test_an_out_of_memory_kill_of_the_whole_container_is_told() -> None:
    from ohsandbox.runtime.docker.container import how_it_ended  # noqa: PLC0415

    assert how_it_ended({"OOMKilled": True, "ExitCode": 137}) == "was killed because it ran out of memory"
    assert how_it_ended({"ExitCode": 1, "Error": "boom"}) == "ended with exit code 1: boom"


def test_a_command_over_the_memory_limit_dies_and_the_sandbox_lives(sandbox: Any, sh: Any) -> None:
    from ohsandbox.runtime.docker.config.container_config import SandboxLimits  # noqa: PLC0415

    runtime = sandbox(limits=SandboxLimits(memory_bytes=64 * 1024**2))
    result = sh(runtime, "head -c 200000000 /dev/zero | tail >/dev/null; echo ${PIPESTATUS:-$?}")
    assert "137" in result.out or result.code == 137
    assert sh(runtime, "echo alive").out == "alive\n"


@pytest.mark.slow
def test_channels_leave_neither_descriptors_nor_threads(runtime: Any, sh: Any) -> None:
    for _ in range(15):  # until docker-py's pool of ten idle connections is full
        sh(runtime, ":")
    before = len(list(Path("/proc/self/fd").iterdir())), threading.active_count()
    for _ in range(10):
        sh(runtime, ":")
    after = len(list(Path("/proc/self/fd").iterdir())), threading.active_count()
    assert after[0] <= before[0] + 1
    assert after[1] == before[1]


@pytest.mark.slow
@pytest.mark.docker
@pytest.mark.parametrize(
    "target", ["/proc/self/fd/8", "/proc/self/fd/7/../../..", "/proc/1/cwd", "/nosuch", "/etc/passwd"]
)
def test_a_working_directory_that_became_a_hostile_link_costs_nothing(sandbox: Any, sh: Any, target: str) -> None:
    """The shape of CVE-2024-21626: the engine's runtime never goes to a directory that an agent can replace."""
    runtime = sandbox()
    inside = runtime.execute("echo file > /etc/only-inside; stat -c %d:%i /").output
    assert runtime.execute(f"cd / && rm -rf /workspace && ln -s {target} /workspace").exit_code == 0
    assert runtime.execute("cd /workspace; stat -L -c %d:%i /; cat /etc/only-inside").output.endswith(inside + "file\n")
    here = sh(runtime, "cat /etc/only-inside; stat -c %d:%i /; ls -d ../etc/only-inside || ls -d etc/only-inside")
    assert here.out.startswith("file\n" + inside)
    runtime.open_session("other")
    assert runtime.execute("echo lives", session="other").output == "lives\n"
    with pytest.raises((WorkdirMissingError, WorkdirNotADirectoryError)) if target != "/proc/1/cwd" else nullcontext():
        runtime.run(["true"], workdir="/workspace")
    for hostile in ("/proc/self/fd/8", "/proc/self/fd/99"):
        with pytest.raises((WorkdirMissingError, WorkdirNotADirectoryError)):
            runtime.run(["true"], workdir=hostile)
    assert runtime.run(["cat", "/etc/only-inside"], workdir="/").stdout == b"file\n"
    runtime._restart()
    assert runtime.run(["cat", "/etc/only-inside"], workdir="/").stdout == b"file\n"


@pytest.mark.docker
def test_an_image_whose_workdir_is_a_hostile_link_is_only_without_it(sandbox: Any, image: Any) -> None:
    hostile = image(run="ln -s /proc/self/fd/8 /app", changes=["WORKDIR /app"])
    runtime = sandbox(hostile)
    assert runtime.run(["true"], workdir="/").exit_code == 0
    assert runtime.execute("pwd").exit_code == 0
