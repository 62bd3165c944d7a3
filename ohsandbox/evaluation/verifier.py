"""The verdict of a step: reward files, an exit code, or the outcome of each named test."""

from __future__ import annotations

import contextlib
import math
import posixpath
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from ohsandbox.evaluation.printed_outcomes import failures, outcomes
from ohsandbox.evaluation.sandbox_files import copy_from_sandbox, end_of_output, put_for_all
from ohsandbox.private_files import read_regular
from ohsandbox.strict_json import parse_json

if TYPE_CHECKING:
    import threading
    from pathlib import Path

    from ohsandbox.evaluation.task import Verifier
    from ohsandbox.runtime import ExecResult, Runtime

LOGS = "/logs/verifier"
REWARD_JSON, REWARD_TEXT = "reward.json", "reward.txt"
OUTPUT_NAME = "test-stdout.txt"
_MAX_REWARD_BYTES = 64 * 1024
KEPT_BYTES = 2 * 1024**2
"""Bytes kept of a verifier's output, at its beginning and at its end each."""
_CLEAR_PLACES = """
[ ! -h /logs ] && [ -d /logs ] || rm -rf /logs
rm -rf -- "$@" || for one; do
  [ "$(ls -A -- "$one")" = "" ] || exit 1
done
mkdir -m 777 -- "$1" 2>/dev/null || { mkdir -p -- "$1" && chmod 777 -- "$1" && [ ! -h "$1" ]; }
"""
"""Script that root runs before the tests come in: removes anything that the agent has put there, be it a link, a
directory or a file. A mount point (a VOLUME of the image) stays, empty."""
_CLEAR_S = 300.0
"""Time limit of that script: a million files are removed in some 20 s."""


SETUP_FAILED = 113
"""Exit code of a command whose verdict is "tests": the tests were not begun. No shell and no signal gives it."""


class NoVerdict(Exception):  # noqa: N818 - becomes a verifier_error
    """The verifier gave no verdict that can be read."""


class Score(NamedTuple):
    """A verifier's rewards."""

    rewards: dict[str, float]
    """The rewards by name, at least one; `reward` is the one that decides, or the only one."""

    @property
    def reward(self) -> float:
        """The reward that decides."""
        return self.rewards.get("reward", next(iter(self.rewards.values())))


def run_verifier(
    runtime: Runtime, verifier: Verifier, directory: Path, *, timeout_s: float, cancel: threading.Event
) -> Score:
    """Judge the state of the sandbox. directory receives the verifier's files and output.

    Raises:
        NoVerdict: it wrote none, or one that is not a finite number.
        TimeoutError: it took longer than timeout_s.
        SandboxUnavailable: the sandbox went away.
    """
    _prepare(runtime, verifier)
    printed = Printed()
    ended = runtime.run(
        ["/bin/sh", "-c", verifier.command], env=verifier.env, user=verifier.user, timeout_s=timeout_s,
        merge_streams=True, limit_bytes=0, on_output=lambda _, data: printed.add(data), cancel=cancel,
    )  # fmt: skip
    directory.mkdir(parents=True, exist_ok=True)
    left_out = copy_from_sandbox(runtime, LOGS, directory)
    if output := printed.text():
        (directory / OUTPUT_NAME).unlink(missing_ok=True)  # a verifier that writes that name may have made a link
        (directory / OUTPUT_NAME).write_bytes(output)
    if left_out:
        (directory / "left-out.txt").write_text("\n".join(left_out) + "\n")
        _fetch_rewards(runtime, directory)
    if ended.timed_out:
        raise TimeoutError(f"the verifier took longer than {timeout_s:g} s")
    match verifier.verdict:
        case "exit code":
            return _by_exit_code(ended)
        case "tests":
            return _by_tests(ended, output.decode(errors="replace"), verifier)
        case "reward":
            return _by_reward(directory, ended)


def _fetch_rewards(runtime: Runtime, directory: Path) -> None:
    """Fetch only the reward files, where the verifier has written more than may be taken out of a sandbox."""
    for name in (REWARD_JSON, REWARD_TEXT):
        with contextlib.suppress(OSError):
            data = runtime.read_bytes(f"{LOGS}/{name}", user="root", limit_bytes=_MAX_REWARD_BYTES)
            if not (directory / name).is_symlink():
                (directory / name).write_bytes(data)


class Printed:
    """The beginning and the end of a program's output."""

    def __init__(self, kept_bytes: int = KEPT_BYTES) -> None:
        self._kept = kept_bytes
        self._head, self._tail, self._total = bytearray(), bytearray(), 0

    def add(self, data: bytes) -> None:
        """Append output."""
        self._total += len(data)
        room = self._kept - len(self._head)
        self._head += data[:room]
        self._tail += data[room:]
        if len(self._tail) > 2 * self._kept:
            del self._tail[: -self._kept]

    def text(self) -> bytes:
        """Return all output, or its beginning and end with a line between them that says what is left out."""
        left_out = self._total - len(self._head) - min(len(self._tail), self._kept)
        if not left_out:
            return bytes(self._head + self._tail)
        return bytes(self._head + f"\n[... {left_out} bytes left out ...]\n".encode() + self._tail[-self._kept :])


def _prepare(runtime: Runtime, verifier: Verifier) -> None:
    """Remove what the agent may have left where rewards and tests belong, and put the tests in, as root."""
    as_root = partial(runtime.run, user="root", workdir="/", timeout_s=_CLEAR_S)
    cleared = as_root(["/bin/sh", "-c", _CLEAR_PLACES, "sh", LOGS, *_replaced(runtime, verifier)])
    if cleared.exit_code != 0:
        output = end_of_output(cleared.stderr)
        raise NoVerdict(f"what lies at {LOGS} or at the place of the tests cannot be removed: {output}")
    put_for_all(runtime, verifier.files)


def _replaced(runtime: Runtime, verifier: Verifier) -> list[str]:
    """The paths that the verifier's files replace: whole directories of their own, else file by file."""
    paths = []
    for files in verifier.files:
        base = posixpath.normpath(posixpath.join(runtime.workdir, files.target))
        if files.target.startswith("/") and not runtime.workdir.startswith(base):
            paths.append(base)
        else:
            paths += [posixpath.join(base, name) for name in files.texts]
    return paths


def _by_exit_code(ended: ExecResult) -> Score:
    if ended.not_started:
        raise NoVerdict(f"the check could not be started: {ended.stderr.decode(errors='replace').strip()}")
    return Score({"reward": float(ended.exit_code == 0)})


def _by_tests(ended: ExecResult, printed: str, verifier: Verifier) -> Score:
    """By the outcome of each test; none may have failed where none are named.

    What prints no outcome that can be read, as programs of other languages than Python, fails at nothing.
    """
    if ended.exit_code == SETUP_FAILED:
        raise NoVerdict(f"the tests could not be set up: {printed.strip()[-500:]}")
    by_test, required = outcomes(printed), (*verifier.must_pass, *verifier.must_not_fail)
    if not by_test:
        raise NoVerdict(
            f"the tests ended with exit code {ended.exit_code} and printed no test's outcome in a form that is known "
            "(pytest, unittest, Django, SymPy)"
        )
    failed = failures(by_test, verifier.must_pass, verifier.must_not_fail)
    passed = len(required or by_test) - len(failed)
    return Score({"reward": float(not failed), "passed": float(passed), "failed": float(len(failed))})


def _by_reward(directory: Path, ended: ExecResult) -> Score:
    """Score by the reward files that were fetched: whatever a process writes there later does not count."""
    if (data := _read(directory / REWARD_JSON)) is not None:
        return Score(_rewards(data))
    if (data := _read(directory / REWARD_TEXT)) is not None:
        return Score({"reward": _number(data.decode(errors="replace").strip(), REWARD_TEXT)})
    killed = f" ({ended.cause})" if ended.cause else ""
    raise NoVerdict(
        f"the verifier ended with exit code {ended.exit_code}{killed} and wrote neither {LOGS}/{REWARD_TEXT} nor "
        f"{LOGS}/{REWARD_JSON}"
    )


def _read(path: Path) -> bytes | None:
    try:
        return read_regular(path, limit_bytes=_MAX_REWARD_BYTES)
    except FileNotFoundError:
        return None
    except OSError:
        raise NoVerdict(f"{path.name} is not a regular file of at most {_MAX_REWARD_BYTES} bytes") from None


def _rewards(data: bytes) -> dict[str, float]:
    try:
        rewards = parse_json(data)
    except ValueError:
        raise NoVerdict(f"{REWARD_JSON} is not JSON: {data[:80]!r}") from None
    rewards = rewards if isinstance(rewards, dict) else {"reward": rewards}
    if not rewards:
        raise NoVerdict(f"{REWARD_JSON} holds no reward")
    return {str(name): _number(value, REWARD_JSON) for name, value in rewards.items()}


def _number(value: object, source: str) -> float:
    try:
        number = float(value) if isinstance(value, int | float | str) else math.nan
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise NoVerdict(f"{source} holds {str(value)[:80]!r}: expected a finite number")
    return number
