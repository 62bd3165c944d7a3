"""An odd line gives in a session what its shell gives when the line is typed to it: code, output, and the next line."""

from __future__ import annotations

import os
import random
import re
from itertools import product
from typing import TYPE_CHECKING, Any

import pytest

from ohsandbox import DockerRuntime

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ohsandbox.runtime.base import Runtime

ERRORS = (
    "break 0", "break x", "continue x", "return x", ". ./no-such-file", ". /", ".", "eval '('", "eval 'fi'",
    "eval 'echo ${'", "exec /no/such/program", "exec no-such-program", "exec 3</no/such/file", "exec 77>&88",
    "export 1x=2", "export -z", "export a-b", "readonly 1x=2", "readonly R@=1; R@=2", "readonly R@=1; unset R@",
    "readonly R@=1; export R@=2", "readonly R@=1; read R@ </etc/passwd", "set -o no-such-option", "set -Z",
    "set +o no-such-option", "shift 99", "shift x", "shift -1", "times </no/such/file", "trap x NOSUCH", "trap - 999",
    "unset -x Y", "unset 1x", ": ${NO_NAME:?}", ": ${NO_NAME?told}", ": </no/such/file", ": >/no/such/file",
    ": $((1 / 0))", ": $((08))", ": ${HOME^^^}", "cd /no/such", "no-such-program", "/etc/passwd", "wait %99",
    "umask 999", "ulimit -n x", "command . ./no-such-file", "command shift 99",
    "test 1 -eq x", "[ a", "kill -NOSUCH 1", "local x=1", "alias no-such-alias", "hash no-such",
)  # fmt: skip
PLACES = {
    "top level": "{}; echo after $?",
    "subshell": "({}); echo after $?",
    "pipeline": "{} | cat; echo after $?",
    "substitution": "x=$({}); echo after $? $x",
    "function": "f() {{ {}; echo in $?; }}; f; echo after $?",
    "loop": "for i in 1 2; do {}; echo in $?; done; echo after $?",
    "eval": 'eval "{}; echo in \\$?"; echo after $?',
    "file": ". ./line-@; echo after $?",
}
"""Where an error can happen, and what follows it there. The file holds the error."""

CASES = [(error, place) for error, place in product(ERRORS, PLACES) if place != "eval" or not set(error) & set('"$')]
SAMPLE = len(CASES) if os.environ.get("OHSANDBOX_CONFORMANCE") == "all" else 30

SHELLS = {
    "shell-dash": "sh -i",
    "shell-busybox-1.35": "sh -i",
    "busybox": "sh -i",
    "shell-bash": "sh --noprofile --norc --noediting -i",
    "debian": "bash --noprofile --norc --noediting -i",
}
"""Images, and the shell that a person would type to there."""

TYPE = """
type_line() {
  { cat "$1.line"; sleep 0.5; echo 'echo "code $?"'; } | PS1= PS2= SHELL_COMMAND >"$1.out" 2>&1
  echo "left $?" >>"$1.out"
}
cd /tmp/typed
n=0
for line in *.line; do
  type_line "${line%.line}" &
  n=$((n + 1))
  [ $((n % 40)) != 0 ] || wait
done
wait
"""
"""The second line is not typed before the first has been executed: a shell that reads ahead discards it at an error."""

_PREFIX = re.compile(r"^(?:\S*/)?(?:sh|bash|dash)(?:\[\d+\])?: (?:(?:line )?\d+: |eval: |\./line-\d+: )*", re.MULTILINE)
_LINE = re.compile(r"\bline \d+: ")
_GREETING = re.compile(r".*(?:job control|terminal process group).*\n|\n*BusyBox .*\n.*help.*\n\n")
_CODE = re.compile(r"(?:code (\d+)\n\n?|)(?:exit\n)?left (\d+)\n\Z")


def _plain(output: str) -> str:
    """Output without the shell's own prefix and its numbers of lines, which count ours as well."""
    return _LINE.sub("", _PREFIX.sub("", _GREETING.sub("", output)))


def _line(number: int) -> str:
    error, place = CASES[number]
    return PLACES[place].format(error).replace("@", str(number))


def _typed(runtime: Runtime, numbers: list[int], shell: str) -> dict[int, tuple[str, str]]:
    """The output and exit code of each line, typed to a shell of its own."""
    for number in numbers:
        runtime.write_bytes(f"/tmp/typed/{number}.line", f"{_line(number)}\n".encode())
        runtime.write_bytes(f"/tmp/typed/line-{number}", f"{CASES[number][0]}\n".replace("@", str(number)).encode())
    runtime.run(["sh", "-c", TYPE.replace("SHELL_COMMAND", shell)], timeout_s=120)
    typed = {}
    for number in numbers:
        output = runtime.read_bytes(f"/tmp/typed/{number}.out").decode()
        end = _CODE.search(output)
        assert end, output
        typed[number] = (_plain(output[: end.start()]), end[1] or end[2])
    return typed


@pytest.mark.docker
@pytest.mark.parametrize(
    "image", [pytest.param(image, marks=() if image == "debian" else pytest.mark.slow) for image in SHELLS]
)
def test_an_odd_line_ends_as_if_it_were_typed(image: str) -> None:
    numbers = random.Random(image).sample(range(len(CASES)), SAMPLE)
    ended = {}
    with DockerRuntime(f"ohsandbox-base:{image}") as runtime:
        typed = _typed(runtime, numbers, SHELLS[image])
        runtime.execute("cd /tmp/typed")
        for number in numbers:
            observation = runtime.execute(_line(number), timeout_s=20)
            ended[number] = (_plain(observation.output), str(observation.exit_code))
            assert runtime.execute("echo ok").output == "ok\n", _line(number)
    assert {_line(number): end for number, end in ended.items() if end != typed[number]} == {
        _line(number): typed[number] for number in numbers if ended[number] != typed[number]
    }


# --- another user of the sandbox, who has taken a name of ours ------------------------------------

LONG = f"#{'x' * 20_000}\necho ran"
TAKE = "mv $0 $0-old && mkdir $0 && ln -s /root/file $0/command && echo theirs >$0/env && chown -R 65534 $0"
"""As after `rm -rf /run/ohs/*` of a command, when another user was faster than the shell."""


def _directory(runtime: DockerRuntime) -> str:
    session = runtime._shells["main"]._session
    assert session is not None
    return session.directory


@pytest.fixture(scope="module")
def attacked() -> Iterator[DockerRuntime]:
    with DockerRuntime("ohsandbox-base:debian") as runtime:
        yield runtime


@pytest.mark.docker
def test_a_long_command_is_written_through_no_link_of_another_user(attacked: DockerRuntime) -> None:
    attacked.execute("echo before >/root/file; kept=kept")
    taken = attacked.run(["sh", "-c", TAKE, _directory(attacked)])
    assert taken.exit_code == 0, taken.stderr
    assert attacked.execute(LONG).output == "ran\n"
    assert attacked.read_bytes("/root/file") == b"before\n"


@pytest.mark.docker
def test_a_long_command_is_not_read_from_a_file_of_another_user(
    attacked: DockerRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    attacked.execute("true")
    write, path = attacked.write_bytes, f"{_directory(attacked)}/command"

    def replaced(*arguments: Any, **options: Any) -> None:
        write(*arguments, **options)
        swap = "rm $0; echo 'echo evil; id -u' >$0; chown 65534 $0"
        assert attacked.run(["sh", "-c", swap, path]).exit_code == 0

    monkeypatch.setattr(attacked, "write_bytes", replaced)
    ended = attacked.execute(LONG)
    assert "another user has replaced" in ended.output
    assert ("evil" in ended.output, ended.exit_code) == (False, 126)
    monkeypatch.undo()
    assert attacked.execute(LONG).output == "ran\n"


@pytest.mark.docker
def test_the_end_of_a_session_moves_and_removes_nothing_of_another_user(attacked: DockerRuntime) -> None:
    attacked.execute("true")
    directory = _directory(attacked)
    assert attacked.run(["sh", "-c", TAKE, directory]).exit_code == 0
    session = attacked._shells["main"]._session
    assert session is not None
    ended = f"until ! [ -d /proc/{session.keeper_pid} ]; do sleep 0.1; done; cat $0/env; ls /run/ohs"
    session._keeper.close()
    left = attacked.run(["sh", "-c", ended, directory]).stdout.decode().split()
    assert left[0] == "theirs"
    assert [name for name in left if name.endswith(".env")] == []
