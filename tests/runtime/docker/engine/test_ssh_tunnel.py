"""An engine over ssh, by an OpenSSH server on loopback that leads to this machine's engine."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ohsandbox import DockerRuntime, SandboxPool
from ohsandbox.errors import EngineUnavailable, SandboxUnavailable, UsageError
from ohsandbox.mcp import create_mcp_tools
from ohsandbox.runtime.docker.engine import ssh_tunnel
from ohsandbox.runtime.docker.engine.connection import connect
from ohsandbox.runtime.docker.engine.ssh_tunnel import SshAddress, SshTunnel, tunnel_to
from ohsandbox.runtime.docker.inventory.docker_inventory import DockerInventory
from ohsandbox.runtime.docker.ownership import lease
from ohsandbox.schema import text_of
from tests.mcp.conftest import SERVER as MCP_SERVER
from tests.mcp.conftest import odd
from tests.network.credentials.played_host import played_host
from tests.network.credentials.tls_host import HOST, KEY, TlsHost, whole
from tests.processes import running
from tests.runtime.docker.conftest import BASE
from tests.runtime.ssh_server import PROGRAM, ssh_program, ssh_server

if TYPE_CHECKING:
    from collections.abc import Iterator


needs_server = pytest.mark.skipif(PROGRAM is None, reason="sshd is not installed (Debian: openssh-server)")
MACHINE = "ssh://machine"
ASK = """
import os, urllib.request
request = urllib.request.Request(os.environ["ASKED"], headers={"Authorization": "Bearer " + os.environ["TOKEN"]})
print(urllib.request.urlopen(request, timeout=30).read().decode())
"""
ECHO = """
import socket
server = socket.create_server(("127.0.0.1", 8000))
print("listens", flush=True)
client, _ = server.accept()
client.sendall(client.makefile("rb").read())
client.close()
"""


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with ssh_server(tmp_path_factory.mktemp("ssh")) as config:
        yield config


@pytest.fixture
def machine(config: Path, tmp_path: Path) -> Iterator[str]:
    """The address of the engine; nothing of a connection is left at the end."""
    place = Path(tempfile.mkdtemp(prefix="ohs-"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", f"{ssh_program(tmp_path / 'bin', config)}:{os.environ['PATH']}")
        patch.setenv("DOCKER_HOST", MACHINE)
        patch.delenv("XDG_RUNTIME_DIR", raising=False)
        patch.setattr(tempfile, "tempdir", str(place))
        yield MACHINE
        for url in (MACHINE, "ssh://stranger"):
            tunnel_to(url).close()
    place.rmdir()


@pytest.mark.parametrize(
    "url",
    [
        "ssh://", "ssh:///var/run/docker.sock", "ssh://-oProxyCommand=id", "ssh://user@-x", "ssh://$(id)", "ssh://`id`@h",
        "ssh://a;id", "ssh://a'b", "ssh://a|b", "ssh://a b", "ssh://h\n", "ssh://h:x", "ssh://h:99999", "ssh://me:pw@h",
        "ssh://h/run/a:b", "ssh://h/run/%h", "ssh://h/run/a b", "ssh://h?x", "ssh://-l@h", "ssh://[::1;id]",
    ],
)  # fmt: skip
def test_an_address_that_a_shell_or_ssh_could_read_as_something_else_is_refused(url: str) -> None:
    with pytest.raises(UsageError) as caught:
        connect({"DOCKER_HOST": url})
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("ssh://h", ["--", "h"]),
        ("ssh://me@h.example:2222", ["-l", "me", "-p", "2222", "--", "h.example"]),
        ("ssh://[::1]:22", ["-p", "22", "--", "::1"]),
        ("ssh://Machine_1/run/user/1000/docker.sock", ["--", "Machine_1"]),
    ],
)
def test_an_address_as_people_write_it_becomes_words_of_ssh(url: str, words: list[str]) -> None:
    assert SshAddress.parse(url).words == words


def test_without_the_program_ssh_it_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(EngineUnavailable, match="Install OpenSSH's client"):
        connect({"DOCKER_HOST": "ssh://nobody.invalid"})


def test_a_machine_that_does_not_answer_is_told_once_for_all_who_ask(machine: str, config: Path) -> None:
    del machine, config
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        url = f"ssh://127.0.0.1:{closed.getsockname()[1]}"
        first = _refusal(url)
        assert "Connection refused" in first
        assert "Have `ssh 127.0.0.1 docker version` work" in first
        assert _refusal(url) == first


def _refusal(url: str) -> str:
    with pytest.raises(EngineUnavailable) as caught:
        connect({"DOCKER_HOST": url})
    assert "\n" not in str(caught.value)
    return str(caught.value)


@needs_server
def test_a_host_key_that_is_unknown_or_another_one_is_refused_with_what_to_do(machine: str, config: Path) -> None:
    assert "host key of stranger is not known. Run `ssh stranger` once" in _refusal("ssh://stranger")
    known = config.with_name("known_hosts")
    before = known.read_text()
    other = config.with_name("other")
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", other], check=True)
    try:
        known.write_text(before.split()[0] + " " + other.with_suffix(".pub").read_text())
        told = _refusal(machine)
    finally:
        known.write_text(before)
        other.unlink()
    assert "not the one that is known, as where somebody is in between" in told
    assert "ssh-keygen -R machine" in told


@needs_server
@pytest.mark.usefixtures("machine")
def test_what_ssh_says_is_told_although_it_is_read_late(monkeypatch: pytest.MonkeyPatch) -> None:
    at_once = SshTunnel._listen

    def late(tunnel: SshTunnel, process: subprocess.Popen[bytes]) -> None:
        process.wait()
        time.sleep(1.5)  # as a thread that gets no processor
        at_once(tunnel, process)

    monkeypatch.setattr(SshTunnel, "_listen", late)
    assert "host key of stranger is not known" in _refusal("ssh://stranger")


def test_what_ssh_says_is_told_although_a_program_of_its_keeps_the_pipe(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    program, left = tmp_path / "ssh", tmp_path / "pid"
    program.write_text(
        f"#!/bin/sh\nsleep 1000 >/dev/null & echo $! >{left}\necho 'me@h: Permission denied (publickey).' >&2; exit 255"
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(ssh_tunnel, "_LAST_WORDS_S", 3600.0)
    try:
        assert "does not accept a key" in _refusal("ssh://pipe.invalid")
    finally:
        os.kill(int(left.read_text()), signal.SIGKILL)


@needs_server
@pytest.mark.docker
def test_an_address_with_the_path_of_a_socket_waits_for_the_connection_as_well(machine: str) -> None:
    tunnel = SshTunnel(f"{machine}/var/run/docker.sock")
    try:
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(tunnel.open())
            client.sendall(b"GET /_ping HTTP/1.0\r\n\r\n")
            assert b"200 OK" in client.recv(4096)
    finally:
        tunnel.close()


@needs_server
@pytest.mark.docker
@pytest.mark.one_engine
def test_all_of_a_sandbox_works_over_one_connection_that_is_lost_and_made_again(
    machine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOKEN", KEY)
    with (
        played_host(monkeypatch, tmp_path, answer=lambda _: whole(b"from outside")) as (there, bundle),
        DockerRuntime(f"{BASE}:debian", credentials=[f"{HOST}=env:TOKEN"], ca_bundle=bundle) as sandbox,
    ):
        assert lease.read(lease.all_ids()[0]) is not None
        tunnel = tunnel_to(machine)
        assert sandbox.execute("cd /tmp; echo here >f; cat f").output == "here\n"
        payload = os.urandom(3_000_000)
        sandbox.write_bytes("/tmp/big", payload)
        assert (
            sandbox.run(["sha256sum"], stdin=payload).stdout[:64] == sandbox.run(["sha256sum", "/tmp/big"]).stdout[:64]
        )
        sandbox.download("/tmp/big", tmp_path / "big")
        assert (tmp_path / "big").read_bytes() == payload
        assert "refused" in sandbox.execute("exec 3<>/dev/tcp/127.0.0.1/1 2>&1").output  # no way of its own
        _talk_through_it(sandbox, there)
        checkpoint = sandbox.checkpoint()
        _cut(tunnel)
        again = sandbox.execute("cat f")
        assert (again.output, again.cwd) == ("here\n", "/tmp")
        assert f"The connection to {machine} was lost and restored" in str(again.notice)
        assert not sandbox.execute("true").notice
        threading.Timer(0.5, _cut, [tunnel]).start()
        with pytest.raises(SandboxUnavailable, match=r"cut off|broke|was lost"):
            sandbox.run(["sleep", "30"])
        sandbox.execute("echo changed >/tmp/f")
        sandbox.restore(checkpoint)
        assert sandbox.read_bytes("/tmp/f") == b"here\n"
    with DockerInventory() as inventory:
        inventory.drop_checkpoint(checkpoint.id)
    assert lease.all_ids() == []
    with SandboxPool(f"{BASE}:debian", 1) as pool, pool.get() as warm:
        assert warm.execute("echo 1").output == "1\n"


@needs_server
@pytest.mark.docker
@pytest.mark.one_engine
def test_a_lost_connection_leaves_no_sandbox_paused_and_no_part_of_a_file(
    machine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with DockerRuntime(f"{BASE}:debian") as sandbox:
        tunnel = tunnel_to(machine)
        api = sandbox._require_sandbox().container.engine.api
        ssh = tmp_path / "bin/ssh"

        def lose_the_network(*_: object, **__: object) -> None:
            ssh.rename(ssh.with_name("no-ssh"))
            _cut(tunnel)
            threading.Timer(1, ssh.with_name("no-ssh").rename, [ssh]).start()
            raise EngineUnavailable("The engine did not answer.")

        with monkeypatch.context() as patch:
            patch.setattr(api, "commit", lose_the_network)
            with pytest.raises(EngineUnavailable):
                sandbox.checkpoint()
        assert sandbox.execute("echo runs").output == "runs\n"

        sandbox.write_bytes("/tmp/big", b"old")
        (tmp_path / "big").write_bytes(os.urandom(1 << 20) * 300)
        threading.Timer(0.3, _cut, [tunnel]).start()
        with pytest.raises(SandboxUnavailable, match=r"connection to the sandbox"):
            sandbox.upload(tmp_path / "big", "/tmp/big")
        assert sandbox.read_bytes("/tmp/big") == b"old"
        assert sandbox.execute("ls -A /tmp").output == "big\n"


def _talk_through_it(sandbox: DockerRuntime, there: TlsHost) -> None:
    """What is allowed is reached, with its key, and nothing else; a port and an MCP server of the sandbox answer."""
    asked = sandbox.run(["python3", "-c", ASK], env={"ASKED": f"https://{HOST}/"})
    assert asked.stdout == b"from outside\n", asked.stderr
    assert [one.all("authorization") for one in there.seen] == [[f"Bearer {KEY}"]]
    assert b"403" in sandbox.run(["python3", "-c", ASK], env={"ASKED": "https://b.example.org/"}).stderr
    decided = [(one.host, one.allowed) for one in sandbox.network_decisions()]
    assert decided == [(HOST, True), ("b.example.org", False)]
    with sandbox.open_channel(["python3", "-c", ECHO]) as server:
        server.read(30)  # it listens
        with sandbox.forward(8000) as forward, socket.create_connection(("127.0.0.1", forward.port)) as client:
            client.sendall(b"through")
            client.shutdown(socket.SHUT_WR)
            assert client.makefile("rb").read() == b"through"
    sandbox.write_bytes("odd.py", MCP_SERVER.read_bytes())
    tools = create_mcp_tools({"mcpServers": {"odd": odd(include=["echo"])}}, sandbox)
    answer = tools[0](tools[0].action_from_arguments({"text": "by a server inside"}))
    assert "by a server inside" in text_of(answer)
    tools[0].close()


def _cut(tunnel: ssh_tunnel.SshTunnel) -> None:
    """End the `ssh` of the connection, as a network does that is gone."""
    process = tunnel._process
    assert process is not None
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    for one in children:
        os.kill(int(one), signal.SIGKILL)
    process.wait(60)


@pytest.mark.slow
@needs_server
@pytest.mark.docker
@pytest.mark.one_engine
def test_of_a_process_that_is_killed_the_connection_ends_and_gc_removes_the_rest(machine: str) -> None:
    del machine
    program = (
        "import sys; from ohsandbox import DockerRuntime\n"
        f"with DockerRuntime('{BASE}:busybox') as s: print(s.id, flush=True); sys.stdin.read()"
    )
    environment = {**os.environ, "TMPDIR": tempfile.gettempdir()}
    with running(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
    ) as owner:
        assert owner.stdout is not None
        sandbox = owner.stdout.readline().decode().strip()
        [directory] = Path(tempfile.gettempdir()).iterdir()
        os.kill(owner.pid, signal.SIGKILL)
    while directory.exists():
        time.sleep(0.05)
    with DockerInventory() as inventory:
        assert [one.id for one in inventory.list_sandboxes() if one.id == sandbox] == [sandbox]
        assert [done.id for done in inventory.collect_garbage()] == [sandbox]
