"""`ohsandbox shell` on pseudo-terminals: what is typed and printed, the window's size, and every way out."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import signal
import struct
import subprocess
import sys
import termios
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.cli.conftest import Answer, Recorded, Start

    AtTerminal = Callable[..., Recorded]

ON_HOST = ("--runtime", "cli", "--")
KEYS = (
    b"\x1b[200~pasted\r\ntext\x1b[201~"  # bracketed paste
    b"\x1b[<0;12;34M\x1b[<0;12;34m\x1b[M !!"  # mouse, SGR and X10
    b"\x1b[I\x1bOA\x1b[1;5C\x1b[97;5u"  # focus, keys
) + bytes(range(256))
SCREEN = b"\x1b[?1049h\x1b[38;2;1;2;3mcolour\x1b[0m\x1b]52;c;eA==\x07\x1b[?1049l" + bytes(range(256))
ECHO = f"""
import sys, tty
tty.setraw(0)
sys.stdout.buffer.write({SCREEN!r} + b"<ready>")
sys.stdout.flush()
print(ascii(sys.stdin.buffer.read({len(KEYS)})), end="", flush=True)
"""
JOB = """
import os, signal
signal.signal(signal.SIGCONT, lambda *_: os.write(1, b"<on>\\n"))  # a print may be under way when it is stopped
os.write(1, b"<up>\\n")
while True:
    signal.pause()
"""
STOPPABLE = "trap 'stty size; exit 3' WINCH; stty size; echo '<ready>'; while :; do sleep 0.1; done"
PROMPT = b"$ "


def resize(columns: int, rows: int) -> Answer:
    return lambda _, master: fcntl.ioctl(master, termios.TIOCSWINSZ, struct.pack("4H", rows, columns, 0, 0))


def send(number: int) -> Answer:
    return lambda process, _: process.send_signal(number)


@pytest.mark.parametrize(
    ("arguments", "options", "told"),
    [
        ([], {}, "`ohsandbox shell` needs a terminal, and stdin is not a terminal. Use `ohsandbox exec"),
        (["--secret", "NOT_SET"], {"stdin": "terminal"}, "and stdout is not a terminal"),
    ],
)
def test_without_a_terminal_it_is_refused_and_exec_is_named(
    start: Start, arguments: list[str], options: dict[str, Any], told: str
) -> None:
    master, slave = os.openpty()
    process = start("shell", *arguments, *ON_HOST, "true", **({"stdin": slave} if options else {}))
    _, err = process.communicate(timeout=60)
    os.close(slave)
    os.close(master)
    assert process.returncode == 2
    assert told in err.decode()
    assert err.count(b"\n") == 1


def test_every_byte_passes_unchanged_both_ways(at_terminal: AtTerminal) -> None:
    ended = at_terminal("shell", *ON_HOST, sys.executable, "-c", ECHO, answers=[(b"<ready>", KEYS)])
    assert (ended.code, ended.restored) == (0, True)
    assert SCREEN + b"<ready>" + ascii(KEYS).encode() in ended.raw


def test_the_window_s_size_is_passed_at_the_start_and_at_each_change(at_terminal: AtTerminal) -> None:
    ended = at_terminal("shell", *ON_HOST, "sh", "-c", STOPPABLE, answers=[(b"<ready>", resize(77, 33))])
    assert ended.code == 3
    assert re.search(rb"40 100\r\n<ready>\r\n33 77\r\n", ended.raw)


def test_the_kind_of_terminal_is_passed_and_nothing_keeps_programs_quiet(
    at_terminal: AtTerminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLORTERM", "truecolor")
    script = "echo $TERM $COLORTERM ${GIT_PAGER-unset} ${PAGER-unset} $A"
    ended = at_terminal("shell", "-e", "A=b=c", "-e", "PAGER=less", *ON_HOST, "sh", "-c", script)
    assert b"xterm truecolor unset less b=c\r\n" in ended.raw


def test_jobs_are_stopped_continued_and_interrupted_by_keys_and_the_code_is_the_shell_s(
    at_terminal: AtTerminal, tmp_path: Path
) -> None:
    (tmp_path / ".bashrc").write_text("PS1='$ '\n")
    (tmp_path / "job").write_text(JOB)
    job = f"{sys.executable} ~/job\r".encode()  # not `sh`: dash forks by vfork, and a stop in the middle of that hangs
    ended = at_terminal(
        "shell", "--env", f"HOME={tmp_path}", "--runtime", "cli",
        answers=[
            (PROMPT, job), (b"<up>", b"\x1a"), (b"Stopped", b""), (PROMPT, b"jobs\r"), (b"Stopped", b""),
            (PROMPT, b"fg\r"), (b"<on>", b"\x03"), (PROMPT, b"kill -l $?\r"), (b"INT", b""),
            (PROMPT, job), (b"<up>", b"\x1c"), (b"Quit", b""), (PROMPT, b"exit 9\r"),
        ],
    )  # fmt: skip
    assert (ended.code, ended.restored) == (9, True)


def test_a_signal_that_ends_the_program_is_128_and_its_number(at_terminal: AtTerminal) -> None:
    assert at_terminal("shell", *ON_HOST, "sh", "-c", "kill -USR1 $$").code == 128 + signal.SIGUSR1


def test_a_missing_program_is_127(at_terminal: AtTerminal) -> None:
    assert at_terminal("shell", *ON_HOST, "no-such-program").code == 127


ENDING = [signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGUSR1, signal.SIGALRM, signal.SIGXCPU]


@pytest.mark.slow
@pytest.mark.parametrize("number", ENDING)
def test_a_signal_to_us_ends_the_program_and_restores_the_terminal(
    at_terminal: AtTerminal, tmp_path: Path, number: int
) -> None:
    script = f"echo $$ >{tmp_path}/pid; echo '<ready>'; exec sleep 60"
    ended = at_terminal("shell", *ON_HOST, "sh", "-c", script, answers=[(b"<ready>", send(number))])
    assert (ended.code, ended.restored) == (128 + number, True)
    pid = int((tmp_path / "pid").read_text())
    assert not Path(f"/proc/{pid}").exists() or "zombie" in Path(f"/proc/{pid}/status").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("cut", [0, 3, 7])
def test_modes_that_a_killed_program_leaves_are_switched_back(at_terminal: AtTerminal, cut: int) -> None:
    modes = r"\033[?1049h\033[?1000;1006h\033[?2004h\033[?25l"
    at = cut and cut + 3  # the escape is four characters here
    script = f"printf '%b' '{modes[:at]}'; sleep 0.2; printf '%b<ready>' '{modes[at:]}'; exec sleep 60"
    ended = at_terminal("shell", *ON_HOST, "sh", "-c", script, answers=[(b"<ready>", send(signal.SIGTERM))])
    after = re.findall(rb"\x1b\[\?(\d+[hl])", ended.raw.split(b"<ready>")[-1])
    assert {b"1000l", b"1006l", b"2004l", b"1049l", b"25h"} <= set(after)


@pytest.mark.slow
@pytest.mark.parametrize("left", [r"\033[8m\033]0;", r"\033[?01000h", r"\016", r"\033[3;5r"])
def test_what_follows_a_program_is_seen_whatever_it_has_left(at_terminal: AtTerminal, left: str) -> None:
    ended = at_terminal("shell", *ON_HOST, "sh", "-c", f"printf '{left}'")
    reset = ended.raw[ended.raw.rindex(b"\x18") :]
    assert reset.startswith(b"\x18\x1b\\")  # ends a string, in which the rest would be read as a title
    assert b"\x1b[?1049l" not in reset  # it has not left this screen
    for mode in (b"\x1b[0m", b"\x0f", b"\x1b[r", b"\x1b[?1000l"):
        assert mode in reset


def test_plain_output_is_followed_by_nothing(at_terminal: AtTerminal) -> None:
    assert at_terminal("shell", *ON_HOST, "echo", "plain").raw.endswith(b"plain\r\n")


def test_the_answer_to_a_programs_last_question_is_not_typed_into_our_shell(at_terminal: AtTerminal) -> None:
    asks = "printf '\\033[21t<ready>'"
    ended = at_terminal("shell", *ON_HOST, "sh", "-c", asks, answers=[(b"<ready>", b"\x1b]lrm -rf\r")])
    assert ended.unread == 0


def test_a_megabyte_is_pasted_into_a_program_that_reads_late(at_terminal: AtTerminal) -> None:
    pasted = os.urandom(1 << 20)
    program = (
        "import sys, tty, time, hashlib; tty.setraw(0); print('<ready>', flush=True); time.sleep(0.5)\n"
        f"print(hashlib.sha256(sys.stdin.buffer.read({len(pasted)})).hexdigest())"
    )
    ended = at_terminal("shell", *ON_HOST, sys.executable, "-c", program, answers=[(b"<ready>", pasted)])
    assert hashlib.sha256(pasted).hexdigest().encode() in ended.raw


def test_ctrl_c_ends_a_flood(at_terminal: AtTerminal) -> None:
    ended = at_terminal("shell", *ON_HOST, "yes", "flood", answers=[(b"flood\r\n" * 100_000, b"\x03")])
    assert (ended.code, ended.restored) == (130, True)


def test_secrets_are_variables_and_their_names_are_told(
    at_terminal: AtTerminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-canary-of-the-test")
    ended = at_terminal("shell", "--secret", "OPENAI_API_KEY", *ON_HOST, "sh", "-c", "echo ${#OPENAI_API_KEY}")
    assert b"Secrets in its environment: OPENAI_API_KEY. What prints one shows it" in ended.raw
    assert b"\r\n21\r\n" in ended.raw
    assert b"canary" not in ended.raw


def test_a_process_that_still_holds_the_terminal_does_not_keep_the_shell(at_terminal: AtTerminal) -> None:
    script = "setsid sleep 60 & sleep 0.2; echo $! is left; exit 5"
    ended = at_terminal("shell", *ON_HOST, "sh", "-c", script)
    assert ended.code == 5
    left = re.search(rb"(\d+) is left", ended.raw)
    assert left is not None
    os.kill(int(left[1]), signal.SIGKILL)  # it was there to hold it


# --- in a container ---


def _containers() -> list[str]:
    listed = subprocess.run(
        [sys.executable, "-m", "ohsandbox", "ps", "--json"], capture_output=True, check=True, timeout=60
    )
    return [found["name"] for found in json.loads(listed.stdout) if found["ours"]]


def _of(answered: bytes) -> str:
    """The container that a terminal told of."""
    found = re.search(rb"Container (ohsandbox-\w+)", answered)
    assert found is not None
    return found[1].decode()


@pytest.mark.slow
@pytest.mark.docker
def test_in_a_container_every_byte_passes_and_nothing_of_it_is_left(at_terminal: AtTerminal, image: str) -> None:
    where = ("shell", "--image", image, "--", "python3", "-c", ECHO)
    ended = at_terminal(*where, answers=[(b"<ready>", KEYS)])
    assert (ended.code, ended.restored) == (0, True), ended.raw
    assert SCREEN + b"<ready>" + ascii(KEYS).encode() in ended.raw
    assert _of(ended.raw) not in _containers()


@pytest.mark.docker
@pytest.mark.parametrize("name", ["debian", "busybox"])
def test_in_a_container_the_size_follows_and_a_shell_is_the_default(at_terminal: AtTerminal, name: str) -> None:
    ended = at_terminal(
        "shell", "--image", f"ohsandbox-base:{name}",
        answers=[
            (b"# ", b"stty size\r"), (b"40 100", b""),
            (b"# ", b'until [ "$(stty size)" = "33 77" ]; do sleep 0.1; done; exit 3\r'),
            (b"exit 3\r\n", resize(77, 33)),
        ],
    )  # fmt: skip
    assert ended.code == 3


@pytest.mark.docker
def test_a_sandbox_that_dies_is_one_line_and_exit_code_4(at_terminal: AtTerminal, image: str) -> None:
    script = "(setsid sleep 600 &); echo '<ready>'; exec sleep 600"

    def kill(*_: object) -> None:
        subprocess.run(["docker", "kill", name], check=True, timeout=60, capture_output=True)

    name = subprocess.run(
        ["docker", "run", "-d", "--label", "shell-test", image, "sleep", "600"],
        check=True, timeout=60, capture_output=True, text=True,
    ).stdout.strip()[:12]  # fmt: skip
    try:
        where = ("shell", "--attach", name, "--", "sh", "-c", script)
        ended = at_terminal(*where, answers=[(b"<ready>", kill)])
    finally:
        subprocess.run(["docker", "rm", "-f", name], check=True, timeout=60, capture_output=True)
    assert (ended.code, ended.restored) == (4, True)
    assert len(ended.raw.split(b"<ready>")[-1].strip().splitlines()) == 1


@pytest.mark.slow
@pytest.mark.docker
def test_a_kept_sandbox_s_processes_go_on_and_a_second_terminal_sees_them(at_terminal: AtTerminal, image: str) -> None:
    left = "trap '' HUP; setsid sleep 4242 >/dev/null 2>&1 & echo left"
    ended = at_terminal("shell", "--image", image, "--keep", "--", "sh", "-c", left)
    name = _of(ended.raw)
    try:
        assert f"ohsandbox shell --attach {name}".encode() in ended.raw
        look = "cat /proc/[0-9]*/cmdline | tr '\\0' ' '"
        seen = at_terminal("shell", "--attach", name, "--", "sh", "-c", look)
        assert (seen.code, b"sleep 4242" in seen.raw) == (0, True)
        assert name in _containers()
    finally:
        subprocess.run(["docker", "rm", "-f", name], check=True, timeout=60, capture_output=True)


@pytest.mark.slow
@pytest.mark.docker
def test_what_it_left_in_a_workspace_that_this_machine_may_run_is_told(
    at_terminal: AtTerminal, image: str, tmp_path: Path
) -> None:
    workspace = tmp_path / "work"
    workspace.mkdir()
    plant = "mkdir .vscode && echo '{}' >.vscode/tasks.json; exit 2"
    ended = at_terminal("shell", "--image", image, "--workspace", str(workspace), "--", "sh", "-c", plant)
    assert ended.code == 2
    assert b"Look at these before you work in" in ended.raw
    assert b".vscode/tasks.json" in ended.raw


@pytest.mark.slow
@pytest.mark.docker
def test_a_copy_is_worked_on_and_the_workspace_stays(at_terminal: AtTerminal, image: str, tmp_path: Path) -> None:
    workspace = tmp_path / "work"
    workspace.mkdir()
    (workspace / "file").write_text("before")
    script = "cat file; echo after >file"
    ended = at_terminal("shell", "--image", image, "--workspace", str(workspace), "--copy", "--", "sh", "-c", script)
    assert (ended.code, b"before" in ended.raw) == (0, True)
    assert b"is deleted with the container" in ended.raw
    assert (workspace / "file").read_text() == "before"


@pytest.mark.slow
@pytest.mark.docker
def test_a_flood_costs_this_process_no_memory(at_terminal: AtTerminal, image: str) -> None:
    seen: list[int] = []

    def look(process: subprocess.Popen[bytes], master: int) -> None:
        status = Path(f"/proc/{process.pid}/status").read_text()
        found = re.search(r"VmHWM:\s+(\d+) kB", status)
        assert found is not None
        seen.append(int(found[1]))
        os.write(master, b"\r")

    script = "printf '<%s>' start; read x; head -c 20000000 /dev/zero | tr '\\0' x; printf '<%s>' end; read x"
    ended = at_terminal(
        "shell", "--image", image, "--", "sh", "-c", script, answers=[(b"<start>", look), (b"<end>", look)]
    )
    assert ended.code == 0
    before_kib, after_kib = seen
    assert after_kib - before_kib < 8 * 1024
