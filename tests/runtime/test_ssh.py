"""SshRuntime against a real OpenSSH server on loopback: the connection, and what the machine is shown and given."""

from __future__ import annotations

import os
import signal
import time
from typing import TYPE_CHECKING

import pytest

from ohsandbox.errors import SandboxUnavailable, UnknownUserError, UsageError, WorkdirMissingError
from ohsandbox.runtime.ssh import SshRuntime
from ohsandbox.secrets import Secrets
from tests.runtime.ssh_server import PROGRAM, ssh_server

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

needs_server = pytest.mark.skipif(PROGRAM is None, reason="sshd is not installed (Debian: openssh-server)")
AWKWARD = ["", "-n", "a b", "it's", '"$HOME"', "`id`", "$(id)", "two\nlines", "!!", "\\n", "é\udcff"]


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with ssh_server(tmp_path_factory.mktemp("ssh")) as config:
        yield config


@pytest.fixture
def machine(config: Path) -> Iterator[SshRuntime]:
    with SshRuntime("machine", "/tmp", config=config) as runtime:
        yield runtime


@pytest.mark.parametrize(
    "host", ["", "-oProxyCommand=id", "user@-x", "a b", "a;id", "$(id)", "`id`@host", "a\n", "../x", "ssh://-x"]
)
def test_a_host_that_could_be_an_option_or_a_command_is_refused(host: str) -> None:
    with pytest.raises(UsageError, match="Invalid host"):
        SshRuntime(host)


@pytest.mark.parametrize("host", ["h", "me@h.example", "ssh://me@h:2222", "10.0.0.1", "[::1]", "fe80::1%eth0"])
def test_a_host_as_ssh_takes_it_is_taken(host: str) -> None:
    assert SshRuntime(host).id == f"ssh-{host}"


@needs_server
def test_a_host_key_that_nobody_knows_is_not_accepted(config: Path) -> None:
    with pytest.raises(SandboxUnavailable, match="Host key verification failed"):
        SshRuntime("stranger", config=config).start()


@needs_server
def test_a_directory_that_is_not_there_is_told_before_anything_runs(config: Path) -> None:
    with pytest.raises(WorkdirMissingError):
        SshRuntime("machine", "/no/such/directory", config=config).start()


@needs_server
def test_each_argument_and_variable_arrives_as_it_is(machine: SshRuntime) -> None:
    script = 'printf "%s\\0" "$@" "$AWKWARD"'
    with machine.open_channel(["sh", "-c", script, "sh", *AWKWARD], env={"AWKWARD": "$(id)\n'"}) as channel:
        heard = b""
        while chunks := channel.read(60):
            heard += b"".join(chunk.data for chunk in chunks)
        assert heard.split(b"\0")[:-1] == [word.encode("utf-8", "surrogateescape") for word in (*AWKWARD, "$(id)\n'")]
        assert channel.wait(60) == 0


@needs_server
def test_no_secret_stands_in_an_argv_of_either_machine(machine: SshRuntime) -> None:
    machine.give_secrets(Secrets({"TOKEN": "not-in-any-argv-5417"}))
    assert machine.execute('[ "$TOKEN" = not-in-any-argv-$((5416+1)) ]').exit_code == 0
    listed = machine.run(["sh", "-c", "cat /proc/[0-9]*/cmdline"]).stdout
    assert b"ControlPath" in listed
    assert b"in-any-argv-5417" not in listed


@needs_server
def test_the_machine_gets_no_agent_and_no_way_back(config: Path, tmp_path: Path) -> None:
    generous = tmp_path / "config"
    generous.write_text(f"Host *\n  ForwardAgent yes\n  RemoteForward 0 127.0.0.1:9\nInclude {config}\n")
    with SshRuntime("machine", "/tmp", config=generous) as runtime:
        assert runtime.execute('[ -z "$SSH_AUTH_SOCK" ]').exit_code == 0
        words = " ".join(runtime._ssh())
    assert "ForwardAgent=no" in words
    assert "ClearAllForwardings=yes" in words


@needs_server
def test_a_connection_that_breaks_is_made_again_and_it_is_told(machine: SshRuntime) -> None:
    machine.execute("cd /usr; x=1")
    assert machine._life is not None
    os.kill(machine._life._process.pid, signal.SIGKILL)
    machine._life._process.wait()
    assert not machine.is_alive()
    (shell,) = machine._shells.values()
    deadline = time.monotonic() + 60
    while shell._session is not None and shell._session.alive:  # what is sent to it until then is lost with it
        assert time.monotonic() < deadline
        time.sleep(0.01)
    told = machine.execute("echo back; echo $x")
    assert (told.output, told.exit_code) == ("back\n\n", 0)
    assert "connection to machine was lost" in (told.notice or "")


@needs_server
def test_more_processes_than_one_connection_may_have_connect_by_themselves(machine: SshRuntime) -> None:
    channels = [machine.open_channel(["cat"]) for _ in range(12)]  # MaxSessions is 10
    for channel in channels:
        channel.close_stdin()
        assert channel.wait(60) == 0
        channel.close()


@needs_server
def test_its_directory_there_goes_with_the_connection(config: Path) -> None:
    with SshRuntime("machine", "/tmp", config=config) as runtime:
        there = runtime.state_dir
        runtime.execute("true")
        assert runtime.run(["test", "-d", there]).exit_code == 0
    with SshRuntime("machine", "/tmp", config=config) as runtime:
        assert runtime.run(["test", "-d", there]).exit_code == 1


@needs_server
def test_another_user_is_refused(machine: SshRuntime) -> None:
    with pytest.raises(UnknownUserError, match="nobody"):
        machine.run(["true"], user="nobody")
    assert machine.run(["true"], user=machine.run(["id", "-un"]).stdout.decode().strip()).exit_code == 0
