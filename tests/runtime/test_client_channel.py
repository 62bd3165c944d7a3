"""ClientChannel with a client that runs its scripts in a shell of this host, one that greets as a login shell may."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest

from ohsandbox.errors import SandboxUnavailable, WorkdirMissingError
from ohsandbox.runtime.client_channel import ClientChannel

if TYPE_CHECKING:
    from collections.abc import Sequence


class ShellHere:
    """A client that connects nowhere."""

    lost_code = 7

    def __init__(self, before: str = "echo Welcome; ", lost: str = "") -> None:
        self._before, self._lost = before, lost

    def argv(self, script: str, *arguments: str, tty: bool = False) -> list[str]:
        assert not tty
        return ["/bin/sh", "-c", self._before + script, *arguments]

    def loss(self) -> SandboxUnavailable | None:
        return SandboxUnavailable(self._lost) if self._lost else None

    def __str__(self) -> str:
        return "shell-here"


def opened(argv: Sequence[str], client: ShellHere | None = None, workdir: str = "/") -> ClientChannel:
    return ClientChannel(client or ShellHere(), argv, env={"WORD": "$(id)\n'"}, workdir=workdir)


def heard(channel: ClientChannel) -> bytes:
    found = b""
    while chunks := channel.read(60):
        found += b"".join(chunk.data for chunk in chunks)
    return found


def test_a_greeting_of_the_shell_is_no_output_and_variables_arrive_as_they_are() -> None:
    with opened(["sh", "-c", 'printf "%s" "$WORD$1"', "sh", "a b"], workdir="/usr") as channel:
        assert heard(channel) == b"$(id)\n'a b"
        assert channel.wait(60) == 0


def test_a_process_that_a_signal_ended_has_the_exit_code_of_the_signal() -> None:
    with opened(["sh", "-c", "kill -TERM $$"]) as channel:
        assert channel.wait(60) == 128 + signal.SIGTERM


def test_kill_ends_the_process_and_its_children() -> None:
    with opened(["sh", "-c", "sleep 600 & echo on; wait"]) as channel:
        assert heard_line(channel) == b"on\n"
        channel.kill()
        assert channel.wait(60) == 128 + signal.SIGKILL  # once nothing holds its streams any more
        assert heard(channel) == b""


def heard_line(channel: ClientChannel) -> bytes:
    found = b""
    while not found.endswith(b"\n"):
        chunks = channel.read(60)
        assert chunks
        found += b"".join(chunk.data for chunk in chunks)
    return found


def test_a_directory_that_is_not_there_is_told() -> None:
    with pytest.raises(WorkdirMissingError):
        opened(["true"], workdir="/no/such/directory")


def test_what_a_client_says_that_starts_no_process_is_told() -> None:
    with pytest.raises(SandboxUnavailable, match="shell-here started no process: no route"):
        opened(["true"], ShellHere("echo no route >&2; exit 1; "))


def test_the_clients_own_exit_code_is_a_processs_too_unless_the_connection_is_lost() -> None:
    with opened(["sh", "-c", "exit 7"]) as channel:
        assert channel.wait(60) == 7
    client = ShellHere()
    with opened(["sh", "-c", "read line; exit 7"], client) as channel:
        client._lost = "The machine is gone."
        channel.close_stdin()
        with pytest.raises(SandboxUnavailable, match="gone"):
            channel.wait(60)
