"""What a probe says of a running command, also where a process of the agent has forged it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from ohsandbox.errors import SandboxUnavailable
from ohsandbox.runtime.shell.running import RunningCommand, ShellCommand


class Asked:
    """Answers the first look with reply, and those as another user with input; notes these."""

    def __init__(self, reply: bytes) -> None:
        self.reply, self.as_others = reply, list[tuple[bytes, int]]()

    def look(self, _body: bytes) -> Any:
        return SimpleNamespace(stdout=self.reply)

    def look_as(self, body: bytes, user: int) -> Any:
        self.as_others.append((body, user))
        if user == 7:
            raise SandboxUnavailable("No shell starts for this user.")
        return SimpleNamespace(stdout=b"input\n")

    def probe(self) -> str:
        session = cast("Any", SimpleNamespace(pid=5, keeper_pid=6, tty="/dev/pts/0"))
        command = RunningCommand(
            self.look, session, ShellCommand("x"), mark="m", timeout_s=None, snippet_as=self.look_as
        )
        return command.probe()


def test_processes_of_another_user_are_looked_at_as_that_user() -> None:
    asked = Asked(b"4711 /dev/pts/0 7 65534 \n")
    assert asked.probe() == "input"
    assert asked.as_others == [(b"ohs_asks 4711 /dev/pts/0 0", 7), (b"ohs_asks 4711 /dev/pts/0 0", 65534)]


@pytest.mark.parametrize(
    "reply",
    [
        b"1;id>/tmp/x; /dev/pts/0 1000\n",
        b"1;id>/tmp/x;touch${IFS}/x;echo /dev/pts/0 0 0\n",
        b"4711 /dev/pts/0;id 1000\n",
        b"4711 /tmp/a b 1000\n",
        b"4711 /dev/pts/../../tmp/x 1000\n",
        b"4711 /dev/pts/0 0\n",
        b"4711 /dev/pts/0 $(id)\n",
        b"4711 /dev/pts/0\n",
        b"12\n",
        "\u0664 /dev/pts/\u0660 \u0664\n".encode(),
        b"\xff\n",
        b"",
    ],
)
def test_a_forged_reply_gets_into_no_line_of_shell(reply: bytes) -> None:
    asked = Asked(reply)
    asked.probe()
    assert asked.as_others == []
