"""The command in this process (`invoke`), in one of its own (`start`), and at a terminal (`at_terminal`)."""

from __future__ import annotations

import fcntl
import gc
import json
import os
import pty
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self

import pyte
import pytest

from ohsandbox.cli.app import app
from ohsandbox.cli.entrypoint import DEBUG_VARIABLE, exit_code_of
from tests.conftest import drop_checkpoints

COMMAND = (sys.executable, "-m", "ohsandbox")
NO_ENGINE = "unix:///nonexistent/docker.sock"
TIMEOUT_S = 60.0


class Ended(NamedTuple):
    """How a command ended."""

    code: int
    out: str
    err: str


class Recorded(NamedTuple):
    """What a terminal received."""

    code: int
    raw: bytes
    restored: bool
    """Its modes are those that it had before."""
    unread: int
    """How many typed bytes nobody has read; what is typed without a newline counts not before one comes."""


Invoke = Callable[..., Ended]
Start = Callable[..., "subprocess.Popen[bytes]"]
WriteScript = Callable[..., str]
Answer = bytes | Callable[["subprocess.Popen[bytes]", int], object]


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    directory = tmp_path / "work"
    directory.mkdir()
    return directory


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A home of the test's own; no key, model or debug flag of whoever runs it."""
    directory = tmp_path / "home"
    directory.mkdir()
    for name in [*os.environ]:
        if name.endswith("_API_KEY") or name.startswith("OHSANDBOX_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(directory))
    monkeypatch.setenv(DEBUG_VARIABLE, "")
    monkeypatch.setenv("PROMPT_TOOLKIT_NO_CPR", "1")  # nobody answers a cursor position request here
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    yield directory
    drop_checkpoints(directory / ".ohsandbox")


@pytest.fixture(scope="session")
def image() -> str:
    """Read before `home` clears the environment: fixtures of a session come first."""
    return os.environ.get("OHSANDBOX_TEST_IMAGE", "ohsandbox-base:debian")


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of a project, with a repository, in which commands are run."""
    directory = tmp_path / "project"
    (directory / ".git").mkdir(parents=True)
    monkeypatch.chdir(directory)
    return directory


@pytest.fixture
def no_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", NO_ENGINE)


@pytest.fixture
def invoke(capfd: pytest.CaptureFixture[str]) -> Iterator[Invoke]:
    """Run a command in this process."""

    def run(*arguments: str) -> Ended:
        code = exit_code_of(lambda: app([*arguments], prog_name="ohsandbox", standalone_mode=False))
        return Ended(code, *capfd.readouterr())

    yield run
    gc.unfreeze()  # hypothesis looks for who holds a module's state, and growth is measured by what is collected


@pytest.fixture
def start() -> Iterator[Start]:
    """Start a command in a process of its own; it is killed at the end of the test."""
    started: list[subprocess.Popen[bytes]] = []

    def begin(*arguments: str, **options: Any) -> subprocess.Popen[bytes]:
        pipes: dict[str, Any] = {
            "stdin": subprocess.DEVNULL,
            "stdout": subprocess.PIPE,
            "stderr": subprocess.PIPE,
        } | options
        started.append(subprocess.Popen([*COMMAND, *arguments], **pipes))
        return started[-1]

    yield begin
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()


@pytest.fixture
def write_script(tmp_path: Path) -> WriteScript:
    """A scripted model's file from (text, command or None) pairs or whole turns; returns the model's name."""

    def write(*turns: dict[str, Any] | tuple[str, str | None]) -> str:
        path = tmp_path / "script.json"
        path.write_text(json.dumps({"turns": [turn if isinstance(turn, dict) else _turn(*turn) for turn in turns]}))
        return f"scripted:{path}"

    return write


def _turn(text: str, command: str | None) -> dict[str, Any]:
    calls = [] if command is None else [{"name": "execute_bash", "arguments": {"command": command}}]
    return {"content": text, "tool_calls": calls}


@pytest.fixture
def at_terminal() -> Callable[..., Recorded]:
    """Run a command on a pseudo-terminal.

    Each of `answers` is (what to wait for, what to type then or to do with the process and our end of the terminal).
    """

    def run(*arguments: str, answers: Sequence[tuple[bytes, Answer]] = (), cwd: Path | None = None) -> Recorded:
        master, slave = pty.openpty()
        before = termios.tcgetattr(slave)
        process = subprocess.Popen(
            [*COMMAND, *arguments], stdin=slave, stdout=slave, stderr=slave, cwd=cwd,
            # GNU readline puts LINES and COLUMNS of pytest's terminal into the environment of what pytest starts
            env={name: value for name, value in os.environ.items() if name not in {"LINES", "COLUMNS"}},
            preexec_fn=lambda: _take_terminal(slave), start_new_session=True,  # noqa: PLW1509 - a fork is what it is
        )  # fmt: skip
        try:
            code, raw = _record(process, master, list(answers))
            waiting = fcntl.ioctl(slave, termios.FIONREAD, bytes(4))
            return Recorded(code, raw, termios.tcgetattr(slave) == before, int.from_bytes(waiting, sys.byteorder))
        finally:
            os.close(slave)
            os.close(master)
            if process.poll() is None:
                process.kill()
            process.wait()

    return run


def _take_terminal(slave: int, columns: int = 100, rows: int = 40) -> None:
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    fcntl.ioctl(slave, termios.TIOCSCTTY, 0)


class Emulator:
    """A terminal with a command in it, as a person sees it: rows of characters."""

    def __init__(self, *arguments: str, columns: int = 100, rows: int = 40, cwd: Path | None = None) -> None:
        self._master, slave = pty.openpty()
        self.screen = pyte.HistoryScreen(columns, rows, history=20_000, ratio=1)
        self._stream = pyte.ByteStream(self.screen)
        self.raw = bytearray()
        environment = {name: value for name, value in os.environ.items() if name not in {"LINES", "COLUMNS"}}
        self.process = subprocess.Popen(
            [*COMMAND, *arguments], stdin=slave, stdout=slave, stderr=slave, cwd=cwd,
            env={"TERM": "xterm-256color"} | environment, start_new_session=True,
            preexec_fn=lambda: _take_terminal(slave, columns, rows),  # noqa: PLW1509 - a fork is what it is
        )  # fmt: skip
        os.close(slave)

    @property
    def shown(self) -> str:
        """What is on the screen."""
        return "\n".join(row.rstrip() for row in self.screen.display)

    @property
    def scrollback(self) -> str:
        """What is above it and what is on it."""
        rows = ["".join(line[at].data for at in sorted(line)).rstrip() for line in self.screen.history.top]
        return "\n".join([*rows, self.shown])

    def wait(self, text: str, *, times: int = 1, gone: bool = False) -> Self:
        """Until text was printed so many times, or is no longer to be seen."""
        deadline = time.monotonic() + TIMEOUT_S
        while (text in self.shown) if gone else (self.scrollback.count(text) < times):
            assert time.monotonic() < deadline, f"{'still' if gone else 'never'}: {text!r} in\n{self.scrollback}"
            assert self._take(), f"It ended; {'still' if gone else 'never'}: {text!r} in\n{self.scrollback}"
        return self

    def type(self, keys: str) -> Self:
        os.write(self._master, keys.encode())
        return self

    def resize(self, columns: int, rows: int) -> Self:
        self.screen.resize(rows, columns)
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        return self

    def end(self) -> int:
        """Wait for the command's end; its exit code."""
        deadline = time.monotonic() + TIMEOUT_S
        while self._take():
            assert time.monotonic() < deadline, f"It goes on:\n{self.scrollback}"
        return self.process.wait(60)

    def hang_up(self) -> None:
        """As a terminal's window is closed."""
        os.close(self._master)
        self._master = -1

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        if self._master >= 0:
            os.close(self._master)

    def _take(self) -> bool:
        """Take what comes next; False where nothing will."""
        try:
            if select.select([self._master], [], [], 0.1)[0]:
                data = os.read(self._master, 65536)
                self.raw += data
                self._stream.feed(data)
                return bool(data)
        except OSError:  # EIO: nobody has the other end any more
            return False
        return True


@pytest.fixture
def emulator() -> Iterator[Callable[..., Emulator]]:
    """Run a command in a terminal that can be looked at."""
    opened: list[Emulator] = []

    def run(*arguments: str, **options: Any) -> Emulator:
        opened.append(Emulator(*arguments, **options))
        return opened[-1]

    yield run
    for one in opened:
        one.close()


def _record(process: subprocess.Popen[bytes], master: int, answers: list[tuple[bytes, Answer]]) -> tuple[int, bytes]:
    raw, seen = bytearray(), 0
    deadline = time.monotonic() + TIMEOUT_S
    while time.monotonic() < deadline:
        if select.select([master], [], [], 0.1)[0]:
            raw += os.read(master, 65536)
        elif process.poll() is not None:
            break
        if answers and (at := raw.find(answers[0][0], seen)) >= 0:
            seen = at + len(answers[0][0])
            answer = answers.pop(0)[1]
            os.write(master, answer) if isinstance(answer, bytes) else answer(process, master)
        elif answers:
            seen = max(seen, len(raw) - len(answers[0][0]) + 1)
    assert not answers, f"never appeared: {answers[0][0]!r}; there was {raw[-1000:]!r}"
    return process.wait(60), bytes(raw)
