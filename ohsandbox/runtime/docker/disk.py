"""A floor under the free space of the disks that a sandbox writes to: the engine's, and the bound workspace's.

One file's size is bounded by a resource limit, the root file system only by some storage drivers. So we look at what is
free, the oftener the less there is, and kill what writes once the floor is reached: the processes whose bytes written
have grown, each sandbox its own. Looking costs a statvfs (2 us) where the disk is on this machine, and a line of shell
in the sandbox where it is not.
"""

from __future__ import annotations

import logging
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from ohsandbox.errors import OhsandboxError, SandboxUnavailable
from ohsandbox.runtime.disk_space import DiskSpace, floor_bytes, floor_files, shortage, space
from ohsandbox.runtime.docker.container_config import GIB, MIB
from ohsandbox.runtime.docker.error_mapping import one_line

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ohsandbox.runtime.docker.engine import Engine
    from ohsandbox.runtime.process.worker import CallResult

log = logging.getLogger(__name__)

FASTEST_BYTES_S = 4 * GIB
"""Into the page cache: one `dd` wrote 2.1 GB/s on two processors. Our filter refuses fallocate, which takes any size at
once."""
FASTEST_FILES_S = 200_000
"""A C program made 90,000 empty files a second on ext4 with one processor."""
SHORTEST_S, LONGEST_S = 0.1, 10.0
"""Between two looks: the time in which the fastest writer could reach the floor, within these bounds."""
ALERT_S = 1.0
"""Closer to the floor than this, we remember what each process has written."""
ALERT_LOOKS = 50
"""That is brought up to date after so many looks: what counts as writing is what is recent."""
ALLOWANCE_BYTES = 32 * MIB
"""What a process may write below the floor: enough to compile a file, and 64 of them end a floor of 2 GiB."""
STEADY_BYTES = 128 * 1024
"""What a process may write below the floor from one look to the next, twice in a row: so the parent of writers that end
soon is found, and one that is only charged with what a killed child wrote is not."""
STEADY_TICKS = 2
"""Of 10 ms in the kernel, likewise, while inodes are short: no counter says who makes files (ext4 writes their metadata
from its journal's thread)."""
PATIENT_LOOKS = 3
"""For so many looks a process is spared of which it is not known what it writes."""
KILL_ROUNDS = 6
"""Killing writers one by one is given up for killing all after so many rounds."""
ASK_SPACE = b"stat -f -c '%S %a %b %d %c' /"
"""POSIX has no such command; coreutils and busybox agree on this one (`df -i` is optional in busybox)."""


class FileSystem(NamedTuple):
    """A file system that the sandbox can write to, and how to ask for its free space."""

    name: str
    """As the beginning of a sentence."""
    ask: Callable[[], DiskSpace | None]
    near: bool = True
    """On this machine."""


class ProcessWrites(NamedTuple):
    """What a process of the sandbox has written."""

    own_bytes: int | None
    """To disks, by its first thread. None: it may not be known."""
    disk_bytes: int | None
    """To disks, by all of it and by the children that it has waited for. tmpfs and FUSE (a directory of Docker
    Desktop's host) are not counted."""
    call_bytes: int | None
    """By write(2), to anything; otherwise as disk_bytes."""
    ticks: int | None
    """In the kernel, of 10 ms; with its children as disk_bytes."""
    user: str
    """uid:gid."""
    name: str


class MonitoredSandbox(Protocol):
    """What the monitor needs of a sandbox; a `DockerRuntime` implements it."""

    def snippet(self, body: bytes, *, user: str | int | None = None) -> CallResult:
        """Run a line of worker shell."""

    def tell(self, notice: str) -> None:
        """Have the next result say so."""

    def end_processes(self) -> None:
        """Kill every process of the sandbox but the one that keeps it."""

    def restart(self, failure: SandboxUnavailable) -> str:
        """Kill the sandbox and start it again, files kept; what was lost, in a sentence."""


def writable_file_systems(
    engine: Engine, found: Mapping[str, Any], facts: Mapping[str, str], workspace: Path | None, hands: MonitoredSandbox
) -> list[FileSystem]:
    """The file systems of a container.

    Args:
        engine: whose container it is.
        found: the engine's description of it.
        facts: of its self-check.
        workspace: what is bound in.
        hands: to ask inside, where the engine's disk is not on this machine.
    """
    data = (found.get("GraphDriver") or {}).get("Data") or {}
    upper = reachable(data.get("UpperDir") or facts.get("upper") or found.get("ResolvConfPath") or "")
    here = engine.address.is_local and sys.platform == "linux" and "desktop" not in engine.address.url
    known = (
        [FileSystem("The engine's disk", lambda: space(upper))]
        if upper and here
        else [FileSystem("The engine's disk", lambda: _asked_inside(hands), near=False)]
    )
    if workspace is not None:
        known.append(FileSystem("The workspace's disk", lambda: space(workspace)))
    return known


def first_shortage(where: Sequence[FileSystem], asked: int | None) -> str | None:
    """A sentence, where one of them has less than must stay free. Places that must be asked inside are not."""
    for place in where:
        if place.near and (found := place.ask()) is not None and (short := shortage(found, asked)) is not None:
            return f"{place.name} {short}"
    return None


def room(where: Sequence[FileSystem], asked: int | None) -> int | None:
    """How much may be written to the engine's disk above its floor; None where that is not on this machine."""
    engines = where[0] if where and where[0].near else None
    if engines is None or (found := engines.ask()) is None:
        return None
    return found.free_bytes - floor_bytes(found, asked)


def reachable(path: str) -> Path | None:
    """The path, or the first directory above it that we may enter; None where it is not on this machine."""
    for candidate in (Path(path), *Path(path).parents) if path.startswith("/") else ():
        try:
            candidate.stat()
        except PermissionError:
            continue
        except OSError:
            return None
        return candidate
    return None


def _asked_inside(hands: MonitoredSandbox) -> DiskSpace | None:
    said = hands.snippet(ASK_SPACE).stdout.split()
    if len(said) != len(DiskSpace._fields) + 1 or not all(word.isdigit() for word in said):
        return None
    size, free, total, free_files, total_files = map(int, said)
    return DiskSpace(size * free, size * total, free_files, total_files)


class DiskMonitor:
    """Checks free space in a thread of its own, from `start` to `stop`."""

    def __init__(self, where: Sequence[FileSystem], hands: MonitoredSandbox, *, least: int | None) -> None:
        """Least bytes stay free; None is the default floor."""
        self._where, self._hands, self._least = where, hands, least
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ohsandbox-disk", daemon=True)
        self._base: dict[int, ProcessWrites] = {}
        """From before the floor was reached."""
        self._age = 0
        self._last: dict[int, ProcessWrites] = {}
        self._steady: dict[int, int] = {}
        """For how many looks in a row each process has written."""
        self._low: tuple[str, bool] | None = None
        """The place that is below its floor, and whether it is short of inodes."""
        self._killed: set[int] = set()
        self._last_free = 0
        self._rounds = 0
        """Of killing since it fell below."""
        self.kills = 0
        """How often something was killed."""

    def start(self) -> None:
        """Begin to look."""
        self._thread.start()

    def stop(self) -> None:
        """No look begins any more; twice is fine."""
        self._stopped.set()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(1)

    def _run(self) -> None:
        pause = SHORTEST_S
        while not self._stopped.wait(pause):
            try:
                pause = self.look()
            except (OhsandboxError, OSError) as error:  # the sandbox or the engine is gone, or does not answer
                log.debug("the disk was not looked at: %s", error)
                pause = LONGEST_S / 10

    def look(self) -> float:
        """Look once, act where a floor is reached, and say in how many seconds to look again.

        Raises:
            SandboxUnavailable: the sandbox cannot be asked.
        """
        left_s = LONGEST_S
        for place in self._where:
            if (found := place.ask()) is None:
                continue
            if (short := shortage(found, self._least)) is not None:
                of_files = found.free_bytes >= floor_bytes(found, self._least)
                left = found.free_files if of_files else found.free_bytes
                writes = self._act(f"{place.name} {short}", (place.name, of_files), left)
                return SHORTEST_S if writes else ALERT_S
            left_s = min(left_s, (found.free_bytes - floor_bytes(found, self._least)) / FASTEST_BYTES_S)
            if found.total_files:
                left_s = min(left_s, (found.free_files - floor_files(found)) / FASTEST_FILES_S)
        self._low, self._rounds = None, 0
        self._remember(near=left_s < ALERT_S)
        return max(left_s, SHORTEST_S)

    def _remember(self, *, near: bool) -> None:
        if not near:
            self._base = {}
        elif not self._base or self._age >= ALERT_LOOKS:
            self._base, self._age = self._written(), 0
        self._age += 1

    def _act(self, fact: str, what: tuple[str, bool], left: int) -> bool:
        """One look below the floor; whether something writes. What: the place, and whether it is short of inodes."""
        first, fell = self._low != what, self._low == what and self._last_free > left
        self._low, self._last_free = what, left
        try:
            if first:
                self._begin_below()
            now = self._written()
            writers = self._writers(now, fell=fell, of_files=what[1])
            if writers:
                self._kill(fact, writers, now)
            elif first:
                self._hands.tell(f"{fact}; nothing here was seen to fill it; what goes on writing is killed")
        except SandboxUnavailable as failure:
            if fell:
                self.kills += 1
                self._say(f"{fact}, and no process could be started to find what writes: the sandbox was killed")
                self._hands.tell(self._hands.restart(failure))
            return fell
        return fell or bool(writers)

    def _begin_below(self) -> None:
        self._steady, self._killed = {}, set()
        if not self._base:
            self._base = self._written()
            self._stopped.wait(SHORTEST_S)
        self._last = self._base

    def _written(self) -> dict[int, ProcessWrites]:
        """What each process has written, as told by itself's user: /proc/PID/io is for those who may trace."""
        known = _parsed(self._hands.snippet(b"ohs_written", user="0").stdout)
        for user in sorted({one.user for one in known.values() if one.disk_bytes is None}):
            more = _parsed(self._hands.snippet(b"ohs_written", user=user).stdout)
            known |= {pid: one for pid, one in more.items() if one.disk_bytes is not None and pid in known}
        return known

    def _writers(self, now: dict[int, ProcessWrites], *, fell: bool, of_files: bool) -> list[int]:
        """Who is to be killed: who wrote much by itself, who goes on writing, and at last of whom that is not known."""
        found = []
        self._killed &= now.keys()
        for pid, one in now.items():
            if pid in self._killed:  # one that waits for the disk in the kernel dies later
                continue
            base, last = self._base.get(pid, _NOTHING), self._last.get(pid, _NOTHING)
            steady = _more(one.disk_bytes, last.disk_bytes, STEADY_BYTES) or (
                of_files and fell and _more(one.ticks, last.ticks, STEADY_TICKS)
            )
            hidden = fell and (one.disk_bytes is None or _more(one.call_bytes, last.call_bytes, STEADY_BYTES))
            self._steady[pid] = self._steady.get(pid, 0) + 1 if steady or hidden else 0
            patience = 1 if steady else PATIENT_LOOKS
            if _more(one.own_bytes, base.own_bytes, ALLOWANCE_BYTES) or self._steady[pid] > patience:
                found.append(pid)
        self._last = now
        return found

    def _kill(self, fact: str, pids: Sequence[int], now: Mapping[int, ProcessWrites]) -> None:
        self._rounds += 1
        self.kills += 1
        self._killed.update(pids)
        if self._rounds > KILL_ROUNDS:
            self._say(f"{fact}: what wrote went on in other processes, so all processes of this sandbox were killed")
            self._hands.end_processes()
            return
        names = ", ".join(f"{one_line(now[pid].name)[:20]} ({pid})" for pid in pids[:5])
        more = f" and {len(pids) - 5} more" if len(pids) > 5 else ""  # noqa: PLR2004 - a line's worth
        self._say(f"{fact}: {names}{more} wrote to it and was killed. Delete what is not needed before writing more")
        for user in {now[pid].user for pid in pids}:
            theirs = " ".join(str(pid) for pid in pids if now[pid].user == user)
            self._hands.snippet(b"kill -KILL %s 2>/dev/null" % theirs.encode(), user=user)

    def _say(self, what: str) -> None:
        """Before it is done: the result of what is killed shall tell why."""
        self._hands.tell(what)
        log.warning("%s", what)


_NOTHING = ProcessWrites(0, 0, 0, 0, "", "")


def _more(now: int | None, before: int | None, least: int) -> bool:
    return now is not None and now - (before or 0) >= least


def _parsed(said: bytes) -> dict[int, ProcessWrites]:
    known = {}
    for line in said.decode("utf-8", "replace").splitlines():
        pid, *numbers, user, name = (*line.split(" ", 6), *[""] * 7)[:7]
        if pid.isdigit() and user:
            own, disk, calls, ticks = (int(word) if word.isdigit() else None for word in numbers)
            known[int(pid)] = ProcessWrites(own, disk, calls, ticks, user, name)
    return known
