"""The verdict of a step: reward files, an exit code, or the outcome of each named test."""

from __future__ import annotations

import json
import math
import posixpath
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from ohsandbox.errors import OhsandboxError, SandboxUnavailable
from ohsandbox.evaluation.sandbox_files import fetch, put

if TYPE_CHECKING:
    import threading
    from pathlib import Path

    from ohsandbox.evaluation.task import Verifier
    from ohsandbox.runtime import ExecResult, Runtime

LOGS = "/logs/verifier"
REWARD_JSON, REWARD_TEXT = f"{LOGS}/reward.json", f"{LOGS}/reward.txt"
OUTPUT_NAME = "test-stdout.txt"
MAX_REWARD_BYTES = 64 * 1024
MAX_OUTPUT_BYTES = 4 * 1024**2
"""Of what a verifier prints, this much is kept: its beginning."""
_TIDY = 'rm -rf -- "$@" && mkdir -p -- "$1" && chmod 777 -- "$1"'
"""As root, before the tests come in: whatever the agent has put there is gone, be it a link or a directory."""
_EXECUTABLE = 'for one; do for script in "$one"/*.sh; do [ ! -f "$script" ] || chmod a+rx -- "$script"; done; done'
"""As root: archives and checkouts lose modes."""


class NoVerdict(Exception):  # noqa: N818 - becomes a verifier_error
    """The verifier gave no verdict that can be read."""


class Score(NamedTuple):
    """What a verifier says."""

    rewards: dict[str, float]
    """At least one; `reward` is the one that decides, or the only one."""

    @property
    def reward(self) -> float:
        """The one that decides."""
        return self.rewards.get("reward", next(iter(self.rewards.values())))


def verify(
    runtime: Runtime, verifier: Verifier, directory: Path, *, timeout_s: float, cancel: threading.Event
) -> Score:
    """Judge what stands in the sandbox. directory receives what the verifier wrote and printed.

    Raises:
        NoVerdict: it wrote none, or one that is not a finite number.
        TimeoutError: it took longer than timeout_s.
        SandboxUnavailable: the sandbox went away.
    """
    as_root = partial(runtime.run, user="root", workdir="/")
    as_root(["/bin/sh", "-c", _TIDY, "sh", LOGS, *_replaced(runtime, verifier)])
    for files in verifier.files:
        put(runtime, files, user="root")
    as_root(["/bin/sh", "-c", _EXECUTABLE, "sh", *(one.target for one in verifier.files if one.source)])
    directory.mkdir(parents=True, exist_ok=True)
    ended = runtime.run(
        ["/bin/sh", "-c", verifier.command], env=verifier.env, user=verifier.user, timeout_s=timeout_s,
        merge_streams=True, limit_bytes=MAX_OUTPUT_BYTES, cancel=cancel,
    )  # fmt: skip
    if ended.stdout:
        (directory / OUTPUT_NAME).write_bytes(ended.stdout)
    for line in fetch(runtime, LOGS, directory):
        (directory / "left-out.txt").open("a").write(f"{line}\n")
    if ended.timed_out:
        raise TimeoutError(f"the verifier took longer than {timeout_s:g} s")
    match verifier.verdict:
        case "exit code":
            return _by_exit_code(ended)
        case "tests":
            return _by_tests(ended.stdout.decode(errors="replace"), verifier.must_pass)
        case "reward":
            return _by_reward(runtime, ended)


def _replaced(runtime: Runtime, verifier: Verifier) -> list[str]:
    """What the verifier's files take the place of: whole directories of their own, else file by file."""
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


def _by_tests(printed: str, must_pass: tuple[str, ...]) -> Score:
    """By the lines of pytest's summary, `PASSED NAME`; a test that is not named there has not passed."""
    passed = {
        line.split(maxsplit=1)[1].split(" - ")[0].strip()
        for line in printed.splitlines()
        if line.startswith(("PASSED ", "XFAIL "))
    }
    missing = [name for name in must_pass if name not in passed]
    return Score({"reward": float(not missing), "passed": float(len(must_pass) - len(missing))})


def _by_reward(runtime: Runtime, ended: ExecResult) -> Score:
    if (data := _read(runtime, REWARD_JSON)) is not None:
        return Score(_rewards(data))
    if (data := _read(runtime, REWARD_TEXT)) is not None:
        return Score({"reward": _number(data.decode(errors="replace").strip(), REWARD_TEXT)})
    raise NoVerdict(
        f"the verifier ended with exit code {ended.exit_code} and wrote neither {REWARD_TEXT} nor {REWARD_JSON}"
    )


def _read(runtime: Runtime, path: str) -> bytes | None:
    try:
        return runtime.read_bytes(path, user="root", limit_bytes=MAX_REWARD_BYTES)
    except FileNotFoundError:
        return None
    except SandboxUnavailable:
        raise
    except (OhsandboxError, OSError) as error:
        raise NoVerdict(f"{path} cannot be read: {error}") from None


def _rewards(data: bytes) -> dict[str, float]:
    try:
        told = json.loads(data)
    except ValueError:
        raise NoVerdict(f"{REWARD_JSON} is not JSON: {data[:80]!r}") from None
    told = told if isinstance(told, dict) else {"reward": told}
    if not told:
        raise NoVerdict(f"{REWARD_JSON} holds no reward")
    return {str(name): _number(value, REWARD_JSON) for name, value in told.items()}


def _number(value: object, where: str) -> float:
    try:
        number = float(value) if isinstance(value, int | float | str) else math.nan
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise NoVerdict(f"{where} holds {str(value)[:80]!r}: expected a finite number")
    return number
