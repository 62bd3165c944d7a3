"""Asserted from inside, with positive controls where a denial could have another reason."""

from __future__ import annotations

import shutil
import socket
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ohsandbox.errors import SandboxUnavailable
from ohsandbox.runtime.docker.config import selfcheck
from ohsandbox.runtime.docker.config.seccomp import profile_json

if TYPE_CHECKING:
    from ohsandbox.runtime.docker.engine.connection import Engine

PROBE = Path(__file__).parent / "probe.c"


@pytest.mark.docker
def test_capabilities_are_exactly_the_six(sandbox: Any, sh: Any) -> None:
    status = sh(sandbox(), "cat /proc/self/status").out
    assert "CapEff:\t00000000000000eb" in status
    assert "CapBnd:\t00000000000000eb" in status
    assert "NoNewPrivs:\t1" in status
    assert "Seccomp:\t2" in status


@pytest.mark.docker
def test_an_ordinary_user_has_no_capability_and_gets_none(sandbox: Any, sh: Any) -> None:
    runtime = sandbox("ohsandbox-base:nonroot")
    assert "CapEff:\t0000000000000000" in sh(runtime, "cat /proc/self/status").out
    sh(runtime, "cp /usr/bin/id /tmp/suid && chmod 4755 /tmp/suid", user="root")
    assert "euid" not in sh(runtime, "/tmp/suid").out


@pytest.mark.docker
def test_kernel_settings_are_not_writable(sandbox: Any, sh: Any) -> None:
    runtime = sandbox()
    for path in (
        "/proc/sys/kernel/core_pattern",
        "/proc/sysrq-trigger",
        "/sys/kernel/mm/ksm/run",
        "/proc/sys/vm/swappiness",
    ):
        assert sh(runtime, f"echo 1 >{path}").code != 0
    assert sh(runtime, "mount -t tmpfs x /mnt; unshare -m true; chroot / true").code != 0


@pytest.mark.docker
def test_the_engines_socket_is_not_there(sandbox: Any, sh: Any) -> None:
    found = sh(sandbox(), "ls /var/run/docker.sock /run/docker.sock; find / -xdev -type s 2>/dev/null")
    assert found.out == ""


@pytest.mark.docker
def test_without_a_network_there_is_only_the_loopback(sandbox: Any, sh: Any) -> None:
    runtime = sandbox()
    names = [line.split(":")[0].strip() for line in sh(runtime, "cat /proc/net/dev").out.splitlines()[2:]]
    assert names == ["lo"]
    with socket.create_server(("127.0.0.1", 0)) as server:
        for host in ("127.0.0.1", "172.17.0.1", "169.254.169.254", "10.0.0.1"):
            assert sh(runtime, f"bash -c 'exec 3<>/dev/tcp/{host}/{server.getsockname()[1]}'").code != 0
    assert sh(runtime, "getent hosts example.org").code != 0


RESERVE = """
import ctypes, errno, fcntl, os, struct
libc = ctypes.CDLL(None, use_errno=True)
file = os.open("/tmp/reserved", os.O_RDWR | os.O_CREAT)
for mode in (0, 1, 0x10, 0x11, 0x20, 0x40, 0x3):
    ctypes.set_errno(0)
    libc.fallocate(file, mode, ctypes.c_long(0), ctypes.c_long(1 << 26))
    print(mode, errno.errorcode.get(ctypes.get_errno(), "done"))
for request in (0x40305828, 0x4030582A, 0x40305839):
    try:
        fcntl.ioctl(file, request, struct.pack("hhqqiI4I", 0, 0, 0, 1 << 26, 0, 0, 0, 0, 0, 0))
        print(request, "done")
    except OSError as error:
        print("ioctl", errno.errorcode[error.errno])
print("blocks", os.fstat(file).st_blocks)
os.posix_fallocate(file, 0, 1 << 20)
print("written", os.fstat(file).st_blocks * 512)
"""


@pytest.mark.docker
def test_space_cannot_be_reserved_only_written(sandbox: Any) -> None:
    """fallocate and its older ioctl take any size of the disk at once, before anybody can look."""
    said = sandbox().run(["python3", "-c", RESERVE]).stdout.decode().splitlines()
    assert said[:7] == [*(f"{mode} ENOTSUP" for mode in (0, 1, 16, 17, 32, 64)), "3 done"]
    assert said[7:10] == ["ioctl EPERM"] * 3
    assert said[10] == "blocks 0"
    assert int(said[11].removeprefix("written ")) >= 1 << 20  # more once ext4 has allocated a block of extents


REQUESTS = """
import errno, fcntl, os
file = os.open("/tmp/asked", os.O_RDWR | os.O_CREAT)
def ask(request, argument):
    try:
        fcntl.ioctl(file, request, argument)
        return "done"
    except OSError as error:
        return errno.errorcode[error.errno]
hint, read_only, trim = 0x401C5820, 0x4008941A, 0xC0185879
print([ask(request, bytes(64)) for request in (hint, read_only, trim)])
clones = (0x40049409, 0x4020940D, 0xC0189436)
print("EPERM" in [ask(request, bytes(64)) for request in (0x801C581F, 0x80086601, *clones)])
others = [kind for kind in range(256) if kind not in (0x58, 0x94)]
print([kind for kind in others if ask(0x40040000 | kind << 8 | 0xFE, bytes(64)) == "EPERM"])
"""


@pytest.mark.docker
def test_a_file_system_is_asked_only_to_read_and_to_clone(sandbox: Any) -> None:
    """An extent size hint claims a whole disk by a write of 4 KiB (XFS); a subvolume can be set read-only (Btrfs)."""
    said = sandbox().run(["python3", "-c", REQUESTS]).stdout.decode().splitlines()
    assert said == ["['EPERM', 'EPERM', 'EPERM']", "False", "[]"]


@pytest.mark.docker
def test_an_exec_is_never_privileged_and_has_the_configured_user(sandbox: Any, engine: Engine) -> None:
    runtime = sandbox("ohsandbox-base:nonroot")
    with runtime.open_channel(["sleep", "100"]) as channel:
        exec_id = engine.api.inspect_container(runtime.id)["ExecIDs"][0]
        config = engine.api.exec_inspect(exec_id)["ProcessConfig"]
        channel.kill()
    assert config["privileged"] is False
    assert config["user"] == "agent"


@pytest.mark.docker
def test_a_sandbox_that_is_weaker_than_asked_is_refused(sandbox: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = sandbox()
    real = selfcheck.verdict
    monkeypatch.setattr(selfcheck, "verdict", lambda facts, plan: real({**facts, "NoNewPrivs": "0"}, plan))
    with pytest.raises(SandboxUnavailable, match="not as strict as asked: NoNewPrivs is '0'"):
        runtime.open_channel(["true"])


@pytest.fixture(scope="session")
def probe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("gcc") is None:
        pytest.skip("no gcc to build the system-call probe")
    program = tmp_path_factory.mktemp("probe") / "probe"
    subprocess.run(["gcc", "-static", "-o", program, PROBE], check=True)
    program.parent.chmod(0o755)
    return program


@pytest.mark.docker
def test_our_filter_denies_all_that_the_engines_default_denies(engine: Engine, probe: Path) -> None:
    def denied(*options: str) -> set[str]:
        body = {
            "Image": "ohsandbox-base:busybox", "Entrypoint": ["/probe"],
            "HostConfig": {
                "NetworkMode": "none", "CapDrop": ["ALL"], "SecurityOpt": list(options), "Binds": [f"{probe}:/probe"],
            },
        }  # fmt: skip
        container = engine.api.create_container_from_config(body, None)["Id"]
        try:
            engine.api.start(container)
            engine.api.wait(container)
            return {line.split(":")[0] for line in engine.api.logs(container).decode().split()}
        finally:
            engine.api.remove_container(container, force=True)

    default = denied()
    assert len(default) > len(denied("seccomp=unconfined"))
    assert not default - denied(f"seccomp={profile_json()}")


TRACE = """
import ctypes, os, subprocess, sys
libc = ctypes.CDLL(None)
attach = lambda pid: libc.ptrace(16, ctypes.c_long(pid), 0, 0)
child = subprocess.Popen(["sleep", "5"])
print(attach(1), attach(1 + 2**32), attach(child.pid), flush=True)
child.kill()
open("/proc/1/mem", "wb").write(b"x" * 4096)
"""


def test_root_in_the_sandbox_can_trace_its_own_processes_and_never_its_keeper(sandbox: Any) -> None:
    runtime = sandbox()
    assert runtime.run(["python3", "-c", TRACE]).stdout == b"-1 -1 0\n"
    assert runtime.execute("echo ok").output == "ok\n"
