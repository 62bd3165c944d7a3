"""Sandboxes that something was taken from: each heals, or says what is wrong. None invents a result."""

from __future__ import annotations

import contextlib
import gc
import subprocess
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from ohsandbox.errors import ImageUnavailable, SandboxFileError, SandboxUnavailable
from ohsandbox.runtime.docker import container as containers
from ohsandbox.runtime.docker.checkpoints import checkpoint_images
from ohsandbox.runtime.docker.runtime import DockerRuntime

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

pytestmark = [
    pytest.mark.docker,
    # docker-py leaves the socket of an exec that could not start to the garbage collector
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

DEBIAN = "ohsandbox-base:debian"
TEN_MEGABYTES = bytes(range(256)) * 40_000


@pytest.fixture(autouse=True)
def _collect_here() -> Iterator[None]:
    """So that those sockets warn in this file, where that is ignored."""
    yield
    gc.collect()


@pytest.mark.slow
@pytest.mark.parametrize("base", ["debian", "busybox"])
@pytest.mark.parametrize("how", ["rm -f $(command -v dd)", "ln -sf /bin/true $(command -v dd)"], ids=["gone", "fake"])
def test_without_dd_every_byte_goes_in_and_out(sandbox: Any, base: str, how: str) -> None:
    place = sandbox(f"ohsandbox-base:{base}")
    assert place.execute(f"{how}; exit").exit_code == 0
    place._pool.discard_all()  # as after a day: no worker is left that has read its script already
    assert place.run(["false"]).exit_code == 1
    assert place.run(["cat"], stdin=b"\x00abc\n").stdout == b"\x00abc\n"
    assert place.run(["sh", "-c", "exit 3"], stdin=b"unread").exit_code == 3
    for size in (0, 1, 70_000, len(TEN_MEGABYTES)):
        place.write_bytes("/root/file", TEN_MEGABYTES[:size])
        assert place.read_bytes("/root/file") == TEN_MEGABYTES[:size]
    assert (
        place.run(["sh", "-c", "cat; read line || echo end"], stdin=b"one call only\n").stdout
        == b"one call only\nend\n"
    )
    place.upload(__file__, "/root/uploaded.py")
    assert b"def test_without_dd" in place.read_bytes("/root/uploaded.py")
    assert place.execute("echo ok").output == "ok\n"


def test_a_worker_that_has_lost_dd_meanwhile_serves_on(sandbox: Any) -> None:
    place = sandbox()
    assert place.run(["cat"], stdin=b"first").stdout == b"first"
    place.run(["sh", "-c", "rm -f $(command -v dd)"])
    assert place.run(["cat"], stdin=b"second").stdout == b"second"
    place.write_bytes("/root/file", b"third")
    assert place.read_bytes("/root/file") == b"third"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mkfifo", "cat"])
def test_what_a_shell_needs_and_the_image_lacks_is_named_at_the_first_command(
    image: Callable[..., str], sandbox: Any, name: str
) -> None:
    place = sandbox(image(base=DEBIAN, run=f"rm -f /usr/bin/{name}"))
    began = time.monotonic()
    with pytest.raises(SandboxUnavailable, match=f"has no `{name}`, without which no shell starts"):
        place.execute("echo ok")
    assert time.monotonic() - began < 30
    assert place.run(["echo", "one process needs none of it"]).exit_code == 0


def test_a_tool_that_a_file_operation_needs_is_named_and_nothing_is_written(sandbox: Any) -> None:
    place = sandbox()
    place.run(["rm", "/usr/bin/mv"])
    with pytest.raises(SandboxFileError, match="has no `mv`"):
        place.write_bytes("/root/file", b"x")
    place.run(["rm", "/usr/bin/dd", "/usr/bin/head"])
    with pytest.raises(SandboxFileError, match="has no `head`"):
        place.read_bytes("/etc/passwd")


@pytest.mark.slow
@pytest.mark.parametrize(
    "damage",
    [
        "rm -f /dev/ptmx; exit",
        "rm -rf /dev/*; exit",
        ":(){ :|:& };:; sleep 1; exit 3",
    ],
    ids=["ptmx", "dev", "bomb"],
)
def test_a_sandbox_that_can_start_no_process_is_restarted_with_its_files(sandbox: Any, damage: str) -> None:
    place = sandbox()
    place.write_bytes("/root/kept", b"kept")
    notices = [str(place.execute(damage, timeout_s=20).notice)]
    result = place.execute("echo ok", timeout_s=20)
    notices.append(str(result.notice))
    assert (result.output, result.exit_code) == ("ok\n", 0)
    died_by_itself = ":|:" in damage and "The shell ended with code 3" in notices[0]  # a bomb may
    assert died_by_itself or "could start no process any more and was restarted: files are kept" in " ".join(notices)
    assert place.read_bytes("/root/kept") == b"kept"
    assert place.run(["echo", "hi"]).stdout == b"hi\n"


def test_a_shell_comes_up_where_nothing_can_be_written_to_dev_null(sandbox: Any) -> None:
    place = sandbox()
    place.execute("ln -sf /dev/full /dev/null; exit", timeout_s=20)
    result = place.execute("echo ok", timeout_s=20)
    assert (result.output, result.exit_code) == ("ok\n", 0)
    assert place.run(["echo", "hi"]).stdout == b"hi\n"


FILL = """
import os, time
while True:
    try:
        if os.fork() == 0:
            time.sleep(1000)
    except OSError:
        time.sleep(0.005)
"""


def test_run_and_files_heal_it_as_well(sandbox: Any) -> None:
    place = sandbox()
    place.write_bytes("/root/kept", b"kept")
    subprocess.run(["docker", "exec", "-d", place.name, "python3", "-c", FILL], check=True, timeout=30)
    deadline = time.monotonic() + 60
    fork = ["docker", "exec", place.name, "sh", "-c", "(true) || exit 1; (true)"]
    while subprocess.run(fork, capture_output=True, check=False).returncode == 0:
        assert time.monotonic() < deadline
    place._pool.discard_all()
    assert place.run(["echo", "hi"]).stdout == b"hi\n"
    assert place.read_bytes("/root/kept") == b"kept"
    assert "was restarted" in str(place.take_notices())


PEAK = """
import os, sys
ends, holds = os.pipe()
try:
    while os.fork():
        pass
    os.close(holds)
    os.read(ends, 1)
    os._exit(0)
except OSError:
    print("full", flush=True)
sys.stdin.read()
"""
"""Fills the sandbox with processes; all of them end at the end of its input."""


@pytest.mark.parametrize("has_worker", [True, False], ids=["a worker cannot fork", "no worker starts"])
def test_a_peak_of_processes_that_passes_costs_no_restart(
    sandbox: Any, monkeypatch: pytest.MonkeyPatch, *, has_worker: bool
) -> None:
    place = sandbox()
    place.run(["true"])
    with place.open_channel(["python3", "-c", PEAK]) as peak:
        assert peak.read(60)[0].data == b"full\n"
        if not has_worker:
            place._pool.discard_all()
        # the loss is asked for after an attempt has failed; the peak takes as long to pass as the machine needs
        monkeypatch.setattr("ohsandbox.runtime.recovery._STARVED_S", 60.0)
        failed = threading.Event()
        loss: Callable[[], SandboxUnavailable | None] = place._loss

        def loss_after_failure() -> SandboxUnavailable | None:
            failed.set()
            peak.close_stdin()
            return loss()

        monkeypatch.setattr(place, "_loss", loss_after_failure)
        assert place.run(["echo", "hi"]).stdout == b"hi\n"
        assert failed.is_set()
    assert "was restarted" not in str(place.take_notices())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("damage", "said"),
    [
        ("ln -sf true /usr/bin/sh; exit", "cannot start a process"),
        ("rm -f /lib64/ld-linux-x86-64.so.2; exit", "does not start any more|cannot start a process"),
        ("rm -rf /usr/bin/* /usr/sbin/*; exit", "does not start any more"),
    ],
    ids=["false-shell", "no-loader", "nothing"],
)
def test_what_a_restart_cannot_heal_is_told_with_the_way_back(sandbox: Any, damage: str, said: str) -> None:
    place = sandbox()
    place.execute(damage, timeout_s=20)
    for _ in range(2):
        with pytest.raises(SandboxUnavailable, match=said) as told:
            place.execute("echo ok", timeout_s=20)
        assert "files are kept" in str(told.value)
        assert "ohsandbox undo" in str(told.value)
        assert "\n" not in str(told.value)
    with pytest.raises(SandboxUnavailable):
        place.run(["false"])


@pytest.mark.parametrize("base", ["debian", "nonroot"])
@pytest.mark.parametrize("used", [True, False], ids=["used before", "never used before"])
def test_a_container_restarted_from_outside_goes_on_with_its_files(sandbox: Any, base: str, *, used: bool) -> None:
    place = sandbox(f"ohsandbox-base:{base}")
    keep = "printf kept > /var/tmp/kept"
    if used:
        place.execute(keep)
    else:
        subprocess.run(["docker", "exec", place.name, "sh", "-c", keep], check=True, timeout=60)
    # the other user by kill and start: after `restart` engine 20.10 may take the files away at any later moment
    for words in [["restart", "-t", "0"]] if base == "debian" else [["kill"], ["start"]]:
        subprocess.run(["docker", *words, place.name], capture_output=True, check=True, timeout=60)
    result = place.execute("cat /var/tmp/kept")
    if result.exit_code is None:  # the engine took the files away after the shell had come up: told, not run again
        assert "was restarted" in str(result.notice)
        result = place.execute("cat /var/tmp/kept")
    assert (result.output, result.exit_code) == ("kept", 0)
    assert place.run(["echo", "hi"]).stdout == b"hi\n"


@pytest.mark.slow
@pytest.mark.parametrize("by_run", [False, True], ids=["execute", "run"])
def test_a_kill_of_the_container_that_its_engine_shows_late_is_no_exit_code(
    sandbox: Any, monkeypatch: pytest.MonkeyPatch, *, by_run: bool
) -> None:
    place = sandbox()
    place.execute("true")
    container, is_shown = place._sandbox.container, threading.Event()
    loss = container.loss
    monkeypatch.setattr(container, "loss", lambda: loss() if is_shown.is_set() else None)

    def kill() -> None:
        subprocess.run(["docker", "kill", place.name], capture_output=True, check=True, timeout=60)
        is_shown.wait(0.5)
        is_shown.set()

    threading.Timer(0.5, kill).start()
    if by_run:
        with pytest.raises(SandboxUnavailable, match="was killed"):
            place.run(["sleep", "60"])
    else:
        result = place.execute("sleep 60")
        assert result.exit_code is None
        assert "The sandbox was killed (exit code 137) and was started again" in str(result.notice)
    assert is_shown.wait(60)


def test_a_foreign_container_is_not_restarted_by_us(foreign: Callable[..., str]) -> None:
    name = foreign(DEBIAN)
    with DockerRuntime(attach=name) as place:
        place.execute("true")
        place.execute("rm -f /dev/ptmx; exit")
        began = subprocess.run(
            ["docker", "inspect", "-f", "{{.State.StartedAt}}", name], capture_output=True, check=True
        )
        with pytest.raises(SandboxUnavailable, match="not ours to restart"):
            place.execute("true")
        after = subprocess.run(
            ["docker", "inspect", "-f", "{{.State.StartedAt}}", name], capture_output=True, check=True
        )
        assert began.stdout == after.stdout


@pytest.mark.slow
def test_resuming_is_ready_only_when_a_process_can_start() -> None:
    with DockerRuntime(DEBIAN, conversation="damaged-one") as first:
        first.write_bytes("/root/kept", b"kept")
        first.hold()
        first.execute(
            "rm -f /dev/ptmx; f() { while :; do sleep 100 & done 2>/dev/null; }; f", timeout_s=1, idle_timeout_s=0.5
        )
        first.leave(at_once=True)
    second = DockerRuntime(DEBIAN, conversation="damaged-one")
    try:
        resumed = second.resume()
        assert resumed.how == "same"
        assert second.execute("cat /root/kept").output == "kept"
    finally:
        second.close()


def test_the_parent_of_the_control_groups_takes_no_files(sandbox: Any) -> None:
    said = sandbox().run(["sh", "-c", "chmod u+w /sys/fs/cgroup; echo x >/sys/fs/cgroup/x; ls /sys/fs/cgroup/x"])
    assert said.exit_code != 0
    assert b"Read-only file system" in said.stderr


NOBODY_READS_ON = r"""
keeper=$(cd /proc; grep -ls OHSANDBOX_KEEPER=1 [0-9]*/environ | head -n 1); keeper=/proc/${keeper%/*}
setsid sleep 3 <>"$(echo /run/ohs/*/out)" >$keeper/fd/1 2>/dev/null &
sleep 0.5
kill -9 $(cd /proc; grep -ls OHSANDBOX_KEEPER=1 [0-9]*/environ | cut -d/ -f1)
"""
"""Ends the processes that bring a shell its commands and take its reports, as `kill -9 -1` does on a busy machine: the
shell goes on, reads the end of its input, and exits with 0, long before the end of their stream is seen outside."""


@pytest.mark.slow
def test_a_shell_that_is_left_alone_is_told_as_killed_and_never_as_a_success(sandbox: Any) -> None:
    place = sandbox()
    place.execute("cd /tmp")
    result = place.execute(NOBODY_READS_ON, timeout_s=60)
    assert (result.exit_code, result.timed_out) == (137, False)
    assert "The shell ended with code 137" in str(result.notice)
    assert place.execute("pwd").output == "/tmp\n"


_NONCE = '"$(echo "$2" | grep -o "[0-9a-f]\\{16\\}" | sed q)"'


@pytest.mark.slow
@pytest.mark.parametrize(
    "script",
    [
        f'read go; printf "%s 7 no colons\\n" {_NONCE}; cat',
        f'read go; printf "%s %s\\n" {_NONCE} "$(printf "%05000d" 1)"',
        f'read go; printf "%s 7 \\377:\\376 x\\n" {_NONCE}; cat',
        "yes",
        "exit 0",
    ],
    ids=["words", "digits", "bytes", "flood", "leaves"],
)
def test_a_hostile_shell_of_an_image_is_an_error_of_ours(image: Callable[..., str], script: str) -> None:
    lines = f"cat >/bin/hostile <<'EOF'\n#!/bin/dash\ncase $2 in trap*) exec /bin/dash \"$@\";; esac\n{script}\nEOF\n"
    name = image(base=DEBIAN, run=f"{lines}chmod +x /bin/hostile; ln -sf hostile /bin/sh")
    with pytest.raises(SandboxUnavailable) as told, DockerRuntime(name) as place:
        place.run(["true"], timeout_s=5)
    assert "\n" not in str(told.value)


def test_an_image_whose_sh_is_no_shell_is_refused_by_its_first_call_and_not_repaired(
    image: Callable[..., str], sandbox: Any
) -> None:
    place = sandbox(image(base=DEBIAN, run="ln -sf true /bin/sh"))
    with pytest.raises(ImageUnavailable, match="Use an image whose /bin/sh is a POSIX shell"):
        place.execute("echo ok")


@pytest.mark.parametrize("workdir", ["/etc/passwd", "/nowhere/at/all/" + "x" * 300])
def test_a_shell_whose_directory_cannot_be_entered_says_where_it_is(sandbox: Any, workdir: str) -> None:
    place = sandbox(workdir=workdir)
    shown = place.execute("pwd")
    assert (shown.output, shown.cwd) == ("/\n", "/")
    assert shown.notice == f"The working directory {workdir} cannot be entered; the shell is in /"
    assert place.execute("cd /tmp; pwd").notice is None


@pytest.mark.slow
@pytest.mark.one_engine
def test_a_shell_without_job_control_is_refused_by_name_and_runs_processes(sandbox: Any) -> None:
    place = sandbox("ohsandbox-base:shell-posh")
    with pytest.raises(SandboxUnavailable, match=r"/bin/sh is posh, which has no job control.*run\(\)"):
        place.execute("echo ok")
    assert place.run(["echo", "ok"]).stdout == b"ok\n"


def test_data_that_a_failed_call_left_unread_is_not_run_as_a_command(sandbox: Any) -> None:
    place = sandbox()
    with pytest.raises(FileNotFoundError):
        place.run(["cat"], stdin=b"touch /tmp/one\n", workdir="/nonexistent")
    with pytest.raises(SandboxFileError):
        place.write_bytes("/proc/nothing", b"touch /tmp/two\n")
    with pytest.raises(NotADirectoryError):
        place.write_bytes("/etc/passwd/x", b"touch /tmp/three\n")
    assert place.run(["sh", "-c", "exit 3"], stdin=b"touch /tmp/four\n").exit_code == 3
    time.sleep(1)
    assert place.run(["ls", "/tmp"]).stdout == b""


@pytest.mark.slow
@pytest.mark.parametrize("fake", ["exit 0", "read -r line; echo $line"], ids=["reads-nothing", "reads-a-line"])
def test_data_that_a_replaced_dd_left_unread_is_no_command_and_no_success(sandbox: Any, fake: str) -> None:
    place = sandbox()
    data = b"one\ntouch /tmp/ran\n" * 3
    assert place.run(["cat"], stdin=data).stdout == data
    place.run(["sh", "-c", f"d=$(command -v dd); rm -f $d; printf '#!/bin/sh\n{fake}\n' >$d; chmod +x $d"])
    with pytest.raises(SandboxUnavailable, match=r"cut off.*`dd`"):  # the worker has looked for dd before
        place.run(["wc", "-c"], stdin=data)
    for _ in range(2):
        with contextlib.suppress(SandboxUnavailable, SandboxFileError):
            place.write_bytes("/root/file", data)
            assert place.read_bytes("/root/file") == data
    assert subprocess.run(["docker", "exec", place.id, "ls", "/tmp"], capture_output=True, check=True).stdout == b""


def test_a_replaced_mv_is_no_success(sandbox: Any) -> None:
    place = sandbox()
    place.write_bytes("/root/old", b"old")
    place.run(["ln", "-sf", "/bin/true", "/usr/bin/mv"])
    with pytest.raises(SandboxFileError):
        place.write_bytes("/root/new", b"new")
    place.write_bytes("/root/old", b"new")
    assert place.read_bytes("/root/old") == b"new"


@pytest.mark.parametrize("base", ["debian", pytest.param("busybox", marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "damage",
    [
        pytest.param("rm -rf /run/ohs/*", marks=pytest.mark.slow),
        "kill -STOP $$",
        pytest.param("kill -STOP -1", marks=pytest.mark.slow),
    ],
)
def test_a_command_without_a_limit_that_takes_its_own_shell_away_returns(sandbox: Any, base: str, damage: str) -> None:
    place = sandbox(f"ohsandbox-base:{base}")
    for session in ("main", "other"):
        place.execute("cd /tmp", session=session)
    assert place.execute(f"{damage}; echo done").output == "done\n"
    for session in ("main", "other"):
        assert place.execute("echo seen", session=session).output == "seen\n"
        again = place.execute("pwd", session=session)
        assert (again.output, again.exit_code) == ("/tmp\n", 0)


def test_another_user_gains_nothing_by_the_name_of_a_removed_session(sandbox: Any) -> None:
    place = sandbox()
    removed = place.execute("d=$(echo /run/ohs/main-*); rm -rf $d; ln -s /root $d")
    assert "was restarted" in str(removed.notice)
    assert place.run(["ls", "/root"]).stdout == b""
    assert place.execute("set -o vi; pwd").output == "/workspace\n"
    gain = "echo 'touch /root/gained' >$d/env; chmod -R a+rX $d; chown -R 65534 $d"
    place.execute(f"d=$(echo /run/ohs/main-*); rm -rf $d; mkdir $d; {gain}")
    assert place.execute("set -o vi; echo on").output == "on\n"
    assert place.run(["ls", "/root"]).stdout == b""


@pytest.mark.slow
@pytest.mark.parametrize(
    "damage", ["rm /etc/passwd; mkfifo /etc/passwd", "mkfifo /root/f; ln -sf /root/f /etc/group"], ids=["fifo", "link"]
)
def test_a_sandbox_whose_start_the_engine_would_wait_for_is_not_started_and_goes_away(
    sandbox: Any, damage: str
) -> None:
    place = sandbox()
    with contextlib.closing(place.open_channel(["sh", "-c", f"{damage}; echo made"])) as channel:
        assert channel.read()[0].data == b"made\n"
    place._sandbox.container.kill()
    with pytest.raises(SandboxUnavailable, match="is a FIFO or a device"):
        place.run(["true"])
    name = place.name
    place.close()
    gone = subprocess.run(["docker", "inspect", name], capture_output=True, timeout=30, check=False)
    assert gone.returncode == 1


@pytest.mark.slow
def test_a_process_that_the_engine_would_wait_for_is_given_up_and_holds_no_checkpoint(
    sandbox: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(containers, "_DETACHED_TIMEOUT_S", 3.0)
    place = sandbox()
    shell = place.open_channel(["sh", "-c", "rm /etc/group; mkfifo /etc/group; echo made; sleep 1000"])
    assert shell.read()[0].data == b"made\n"
    with pytest.raises(SandboxUnavailable):
        shell.kill()
    checkpoint_images.drop(place._sandbox.container.engine, place.checkpoint("with it").id)
    shell.close()


@pytest.mark.slow
def test_the_engine_is_not_asked_for_files_while_a_process_could_swap_them(
    sandbox: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Engine 20.10 mounts the binds to answer: at /data/x it follows a link that took the place of /data."""
    (tmp_path / "data").mkdir()
    place = sandbox(mounts=[f"{tmp_path}/data:/data/x"])
    requests, api = list[str](), place._sandbox.container.engine.api
    send = api.send

    def note(request: Any, **options: Any) -> Any:
        requests.append(str(request.url))
        return send(request, **options)

    monkeypatch.setattr(api, "send", note)
    assert place.run(["sleep", "100"], timeout_s=0.5).timed_out
    shell = place.open_channel(["sleep", "1000"])
    shell.kill()
    shell.close()
    assert place._sandbox.container._starts_a_process()
    assert any("/exec/" in url for url in requests)
    assert not [url for url in requests if "/archive" in url]


@pytest.mark.parametrize(
    ("run", "reason"),
    [
        (r"n=$(printf '/f\377'); mkfifo $n; ln -sf $n /etc/passwd", "is a link to a name that is not UTF-8"),
        ("yes 0:x:0: | head -c 1100000 >>/etc/group", "/etc/group has 1100"),
        ("mkdir -p /data/x; mkfifo /data/x/f; ln -sf /data/x/f /etc/passwd", "is a link into a mount"),
    ],
    ids=["name", "size", "below a mount"],
)
def test_an_image_with_files_that_the_engine_reads_otherwise_than_they_show_is_refused(
    image: Callable[..., str], tmp_path: Path, run: str, reason: str
) -> None:
    (tmp_path / "data").mkdir()
    runtime = DockerRuntime(image(base=DEBIAN, run=run), mounts=[f"{tmp_path}/data:/data/x"])
    with pytest.raises(SandboxUnavailable, match=reason):
        runtime.start()


def test_an_image_whose_start_the_engine_would_wait_for_is_refused(image: Callable[..., str]) -> None:
    name = image(base=DEBIAN, run="rm /etc/group; mkfifo /etc/group")
    with pytest.raises(SandboxUnavailable, match="its /etc/group is a FIFO or a device"):
        DockerRuntime(name).start()
