"""Calls of the scripts: a search is one process of the sandbox, with limits of time and output."""

from __future__ import annotations

import re
import secrets
from dataclasses import dataclass
from functools import cache, cached_property
from importlib.resources import files
from typing import TYPE_CHECKING, NamedTuple
from weakref import WeakKeyDictionary

from ohsandbox.errors import ToolError

if TYPE_CHECKING:
    from ohsandbox.runtime.base import Runtime

_FOLDER = files("ohsandbox.tools.search").joinpath("scripts")
_JOBS = {
    "look": ("common", "enter", "look", "contents"),
    "contents": ("common", "contents"),
    **{
        job: ("common", "limited", "stats", "enter", job)
        for job in ("posix-list", "rg-list", "posix-match", "rg-match")
    },
    **{job: ("common", "limited", "bounded", job) for job in ("posix-lines", "rg-lines")},
}
"""The parts of each job's script: every call sends it to the sandbox, where 1 KB of it takes 0.7 ms."""

LIMIT_S = 30.0
"""A search that takes longer is too wide to be useful."""
GRACE_S = 5.0
"""Time for the work after the limited programs: reading the times of the files found."""
MAX_LIST_BYTES = 64 * 1024 * 1024
"""Limit of a list of files: some 600,000 of them."""

STOPPED = 143
"""The exit code of a program that the script ended after its limit: 128 + SIGTERM."""
UNREADABLE = 2
"""The exit code of grep and rg if they could not read a file."""
KILLED = 137
"""The exit code of a program that the kernel killed for its memory use: 128 + SIGKILL."""
NOT_EXECUTABLE, MISSING = 126, 127
_PROGRAMS = "find, grep, xargs, stat, tr, cut, head"

RG_OPTIONS = (
    "--no-config", "--no-messages", "--no-require-git", "--no-ignore-dot", "--no-ignore-exclude", "--no-ignore-global",
    "--binary", "--encoding", "none",
)  # fmt: skip
"""Of all that rg reads, .gitignore alone counts, and it counts outside of repositories, too. Binary files are searched,
and NULs end lines: with `--text` a sparse file of 5 GB is one line, held in memory."""

_NO_MEMORY = re.compile("terminated by signal 9|out of memory|memory exhausted|memory allocation")
"""Messages of xargs, busybox, GNU grep and rg about exhausted memory."""

_PROBE = """\
rg "$@" --files /dev/null >/dev/null 2>&1; test $? -lt 2 && echo rg
find -files0-from - -maxdepth 0 -printf x </dev/null >/dev/null 2>&1 && echo find"""


class SearchEngine(NamedTuple):
    """The search programs of a sandbox."""

    has_rg: bool
    """An `rg` that supports our options (12.0 and newer)."""
    times: str = "stat"
    """The program that reports files' times: `find` (GNU, 4.9 and newer) or `stat`."""

    @property
    def name(self) -> str:
        """The first part of the names of its jobs."""
        return "rg" if self.has_rg else "posix"


_engines: WeakKeyDictionary[Runtime, SearchEngine] = WeakKeyDictionary()


@dataclass(frozen=True)
class ScriptReply:
    """The result of a call of the script."""

    exit_code: int | None
    """None: the whole call was stopped."""
    stdout: str
    """Undecodable bytes as surrogate escapes."""
    token: str
    """The prefix of each record in stdout."""
    records: tuple[str, ...]
    """The records of stderr: a letter for the kind, and a text."""
    truncated: bool

    @cached_property
    def statuses(self) -> dict[str, int]:
        """Exit codes of the programs that the script limits, by their names."""
        return {name: int(code) for name, code in (text.split() for text in self.texts("s"))}

    @property
    def stopped(self) -> bool:
        """Whether a time limit was reached."""
        return self.exit_code is None or STOPPED in self.statuses.values()

    def texts(self, kind: str) -> list[str]:
        """The texts of the records of a kind."""
        return [record[1:] for record in self.records if record.startswith(kind)]


def engine_of(runtime: Runtime) -> SearchEngine:
    """The search programs of this sandbox; detected once per runtime."""
    if runtime not in _engines:
        probe = runtime.run(["sh", "-c", _PROBE, "sh", *RG_OPTIONS], workdir="/", timeout_s=GRACE_S)
        words = probe.stdout.split()
        _engines[runtime] = SearchEngine(b"rg" in words, "find" if b"find" in words else "stat")
    return _engines[runtime]


def use_engine(runtime: Runtime, engine: SearchEngine | None) -> None:
    """Set the engine; None detects it again."""
    if engine is None:
        _engines.pop(runtime, None)
    else:
        _engines[runtime] = engine


@cache
def _script(job: str) -> str:
    """The job's script without comments and indentation."""
    text = "".join(_FOLDER.joinpath(f"{part}.sh").read_text("utf-8") for part in _JOBS[job])
    return re.sub(r"(?m)^ *#.*\n|^ +|^\n", "", text)


def run_job(runtime: Runtime, job: str, *arguments: str, limit_s: float = LIMIT_S) -> ScriptReply:
    """Run a job of the script.

    Raises:
        ToolError: the sandbox lacks a program or memory, or one of them refused the pattern.
    """
    token = secrets.token_hex(8)
    result = runtime.run(
        ["sh", "-c", _script(job), "sh", token, f"{limit_s:g}", engine_of(runtime).times, *arguments],
        workdir="/",
        timeout_s=limit_s + GRACE_S,
        limit_bytes=MAX_LIST_BYTES,
    )
    complaint, *records = result.stderr.decode("utf-8", "surrogateescape").split(token)
    texts, _, rests = zip(*(record.partition("\0") for record in records), strict=True) if records else ((), (), ())
    complaint += "".join(rests)
    out = result.stdout.decode("utf-8", "surrogateescape")
    reply = ScriptReply(result.exit_code, out, token, texts, result.truncated)
    codes = {result.exit_code, *reply.statuses.values()}
    if NOT_EXECUTABLE in codes or MISSING in codes:
        use_engine(runtime, None)
        raise ToolError(f"The sandbox lacks a program that a search needs: one of {_PROGRAMS}. Install it.")
    if KILLED in codes or _NO_MEMORY.search(complaint):
        raise ToolError(
            "The search ran out of the sandbox's memory: some file has a line too long to hold, as disk images and "
            "files of /proc have. Search another `path`, or leave it out with `include`."
        )
    if complaint.strip() and not reply.stopped:
        last_line = complaint.strip().splitlines()[-1].encode("utf-8", "replace").decode()
        raise ToolError(
            f"The search did not run: {last_line[:300]!r}. Escape {{, ( and [ that stand for themselves with \\."
        )
    return reply
