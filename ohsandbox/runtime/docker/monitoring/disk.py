"""Minimum free space on the disks that a sandbox writes to: the engine's disk and the bound workspace's.

A resource limit bounds the size of one file; only some storage drivers bound the root file system. So a monitor checks
the free space, more often when little is left. Below the minimum (the floor) it kills the processes whose written bytes
have grown, and stops the services that hold such processes; each sandbox monitors only what belongs to it. Where a
disk fills and no process is charged with it, the sandbox is paused for a moment to see whether it is the cause. A check
costs one statvfs (2 us) for a disk on this machine, otherwise one line of shell in the sandbox.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ohsandbox.errors import OhsandboxError, SandboxUnavailable, UnknownUserError
from ohsandbox.runtime.disk_space import DiskSpace, floor_bytes, floor_files, measure, shortage
from ohsandbox.runtime.docker.config.container_config import GIB, MIB
from ohsandbox.runtime.docker.engine.error_mapping import printable_line
from ohsandbox.runtime.docker.monitoring.process_writes import ProcessWrites, parse_writes
from ohsandbox.runtime.docker.mounts.caches import CACHE_DIR
from ohsandbox.text import natural_number

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ohsandbox.runtime.docker.container import Container
    from ohsandbox.runtime.docker.engine.connection import Engine
    from ohsandbox.runtime.docker.monitoring.pause_trial import PauseTrial
    from ohsandbox.runtime.docker.monitoring.service_writes import Services
    from ohsandbox.runtime.docker.runtime import DockerRuntime

log = logging.getLogger(__name__)

Writer = tuple[str, int]
"""A process: the name of its service, "" in the sandbox itself, and its pid there."""

_FASTEST_BYTES_S = 4 * GIB
"""Highest assumed write rate into the page cache: one `dd` reached 2.1 GB/s on two processors. Our filter refuses
fallocate, which reserves any size at once."""
_FASTEST_FILES_S = 200_000
"""Highest assumed rate of creating files: a C program created 90,000 empty files a second on ext4 with one
processor."""
SHORTEST_S, LONGEST_S = 0.1, 10.0
"""Interval between checks: the time in which the fastest writer could reach the floor, within these bounds."""
_ALERT_S = 1.0
"""If the floor could be reached within this time, the written bytes of each process are recorded."""
_ALERT_LOOKS = 50
"""The record is renewed after this many checks, so that only recent writes count."""
_ALLOWANCE_BYTES = 32 * MIB
"""Bytes that a process may write below the floor: enough to compile a file; 64 such processes use up a floor of 2
GiB."""
_STEADY_BYTES = 128 * 1024
"""A process that writes this much between two checks, twice in a row below the floor, is killed. This finds the parent
of short-lived writers, and spares a process that is only charged with the writes of a killed child."""
_STEADY_TICKS = 2
"""The same limit for system time, in ticks of 10 ms, while free inodes are few and become fewer: no counter shows which
process creates files (ext4 writes their metadata from its journal thread)."""
_PATIENT_LOOKS = 3
"""Number of consecutive checks for which a process is spared that may write unseen: its writes are unknown, or
pass through write(2) to a file system that is not counted."""
_KILL_ROUNDS = 6
"""Number of rounds of killing single writers before all processes are killed."""
_MISSED_ROUNDS = 3
"""Number of further rounds that one counts as whose processes had all ended before they could be killed."""
_ROUNDS_LAST_S = 30.0
"""Rounds are counted anew after this long without a kill: `while :; do dd of=big; done` truncates its file each time,
which frees the disk, and would fill it again for as long as it runs."""
_ASK_SPACE = b"stat -f -c '%S %a %b %d %c' /"
"""POSIX has no such command; this one works with coreutils and busybox (`df -i` is optional in busybox)."""


class FileSystem(NamedTuple):
    """A file system that the sandbox can write to, and a function that reads its free space."""

    name: str
    """Name, as the beginning of a sentence."""
    ask: Callable[[], DiskSpace | None]
    near: bool = True
    """Whether the file system is on this machine."""


def writable_file_systems(
    engine: Engine, found: Mapping[str, Any], facts: Mapping[str, str], writable: Sequence[str], sandbox: DockerRuntime
) -> list[FileSystem]:
    """Return the file systems that a container can write to: the engine's, then those of bound directories.

    found is the engine's description of the container, facts are its self-check's. The sandbox itself is asked about
    an engine's disk that is not on this machine.
    """
    data = (found.get("GraphDriver") or {}).get("Data") or {}
    upper = reachable(data.get("UpperDir") or facts.get("upper") or found.get("ResolvConfPath") or "")
    here = engine.address.is_local and sys.platform == "linux" and "desktop" not in engine.address.url
    if upper is not None and here:
        # a restore removes the directory, and its parent stays
        engines = FileSystem("The engine's disk", lambda: measure(reachable(str(upper)) or upper))
    else:
        engines = FileSystem("The engine's disk", lambda: _space_inside(sandbox), near=False)
    cache_disk = _reachable_cache(found) if here else None
    return [
        engines,
        *(FileSystem(f"The disk of {directory!r}", partial(measure, Path(directory))) for directory in writable),
        *([FileSystem("The disk of the package cache", lambda: measure(cache_disk))] if cache_disk else []),
    ]


def _reachable_cache(inspected: Mapping[str, Any]) -> Path | None:
    """Return the engine's directory of the cache volume if we can reach it on another disk than the containers'."""
    places = {
        str(mount.get("Destination")): mount for mount in inspected.get("Mounts") or [] if mount.get("Type") == "volume"
    }
    cache_path = reachable(str(places.get(CACHE_DIR, {}).get("Source") or ""))
    containers = reachable(str(inspected.get("ResolvConfPath") or ""))
    if cache_path is None or (containers is not None and cache_path.stat().st_dev == containers.stat().st_dev):
        return None
    return cache_path


def volumes_elsewhere(engine: Engine, inspected: Mapping[str, Any]) -> list[FileSystem]:
    """Return the file system of the engine's volumes if we can reach it on another disk than the containers'."""
    if not engine.address.is_local or sys.platform != "linux":
        return []
    volumes = reachable(f"{engine.info().get('DockerRootDir') or ''}/volumes")
    containers = reachable(str(inspected.get("ResolvConfPath") or ""))
    if volumes is None or containers is None or volumes.stat().st_dev == containers.stat().st_dev:
        return []
    return [FileSystem("The disk of the engine's volumes", lambda: measure(volumes))]


def first_shortage(where: Sequence[FileSystem], asked: int | None) -> str | None:
    """Return a sentence about the first file system below its floor; only those on this machine are checked."""
    for file_system in where:
        if (
            file_system.near
            and (space := file_system.ask()) is not None
            and (short := shortage(space, asked)) is not None
        ):
            return f"{file_system.name} {short}"
    return None


def _writable_bytes(file_systems: Sequence[FileSystem], asked: int | None) -> int | None:
    """Return the bytes that may be written to the engine's disk above its floor; None if it cannot be asked."""
    space = file_systems[0].ask()
    return None if space is None else space.free_bytes - floor_bytes(space, asked)


def room_bytes(container: Container, sandbox: DockerRuntime, asked: int | None) -> int | None:
    """Return the bytes that may be written to the disk of a container above its floor; None if unknown."""
    return _writable_bytes(writable_file_systems(container.engine, container.inspect(), {}, (), sandbox), asked)


def reachable(path: str) -> Path | None:
    """Return the path or its nearest ancestor that we may enter; None if it is not on this machine."""
    for candidate in (Path(path), *Path(path).parents) if path.startswith("/") else ():
        try:
            candidate.stat()
        except PermissionError:
            continue
        except OSError:
            return None
        return candidate
    return None


def _space_inside(sandbox: DockerRuntime) -> DiskSpace | None:
    numbers = [natural_number(word) for word in sandbox.snippet(_ASK_SPACE).stdout.split()]
    fields = [number for number in numbers if number is not None]
    if not len(fields) == len(numbers) == len(DiskSpace._fields) + 1:
        return None
    size, free, total, free_files, total_files = fields
    return DiskSpace(size * free, size * total, free_files, total_files)


class DiskMonitor:
    """Checks free space in a thread of its own, from `start` to `stop`."""

    def __init__(
        self,
        where: Sequence[FileSystem],
        sandbox: DockerRuntime,
        *,
        least: int | None,
        services: Services | None = None,
        has_processes: bool = True,
    ) -> None:
        """Set the floor to least bytes; None is the default floor.

        has_processes: whether processes run in the sandbox itself; set it once they do.
        """
        self._where, self._sandbox, self._least = where, sandbox, least
        self._services, self.has_processes = services, has_processes
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ohsandbox-disk", daemon=True)
        self._base: dict[Writer, ProcessWrites] = {}
        """Written bytes from before the floor was reached."""
        self._age = 0
        self._failure: SandboxUnavailable | None = None
        """Why the sandbox's own processes could not be asked, while services could."""
        self._last: dict[Writer, ProcessWrites] = {}
        self._steady: dict[Writer, int] = {}
        """For each process, the number of consecutive checks in which it has written."""
        self._low: tuple[str, bool] | None = None
        """The name of the file system below its floor, and whether its inodes are short; None if none is below."""
        self._killed: set[Writer] = set()
        self._last_free = 0
        self._rounds = 0
        """Number of killing rounds, each within _ROUNDS_LAST_S of the one before."""
        self._killed_at = 0.0
        self._unseen_falls = 0
        """Number of consecutive checks in which a disk filled further, and no process was seen to write to it."""
        self._trial: PauseTrial | None = None
        self.kills = 0
        """Number of times that processes were killed."""

    def start(self) -> None:
        """Start monitoring."""
        self._thread.start()

    def stop(self) -> None:
        """Stop checking. Calling it twice is fine."""
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
        """Check once, act if a floor is reached, and return the seconds until the next check."""
        left_s = LONGEST_S
        for file_system in self._where:
            if not (self.has_processes or file_system.near) or (space := file_system.ask()) is None:
                continue
            if (short := shortage(space, self._least)) is not None:
                of_files = space.free_bytes >= floor_bytes(space, self._least)
                remaining = space.free_files if of_files else space.free_bytes
                writes = self._act(f"{file_system.name} {short}", file_system, remaining, of_files=of_files)
                return SHORTEST_S if writes else _ALERT_S
            left_s = min(left_s, (space.free_bytes - floor_bytes(space, self._least)) / _FASTEST_BYTES_S)
            if space.total_files:
                left_s = min(left_s, (space.free_files - floor_files(space)) / _FASTEST_FILES_S)
        self._low = None
        self._remember(near=left_s < _ALERT_S)
        return max(left_s, SHORTEST_S)

    def _remember(self, *, near: bool) -> None:
        if not near:
            self._base = {}
        elif not self._base or self._age >= _ALERT_LOOKS:
            self._base, self._age = self._bytes_written(), 0
        self._age += 1

    def _act(self, fact: str, file_system: FileSystem, remaining: int, *, of_files: bool) -> bool:
        """Act once below the floor; return whether more may be written.

        of_files: whether inodes are short; remaining: the file system's free inodes or bytes.
        """
        resource = file_system.name, of_files
        first, fell = self._low != resource, self._low == resource and self._last_free > remaining
        self._low, self._last_free = resource, remaining
        try:
            if first:
                self._steady, self._killed = {}, set()
                if not self._base:
                    self._base = self._bytes_written()
                    self._stopped.wait(SHORTEST_S)
                self._last = self._base
            now = self._bytes_written()
            writers = self._writers(now, fell=fell, of_files=of_files)
            self._unseen_falls = self._unseen_falls + 1 if fell and not writers and not of_files else 0
            if self._unseen_falls > _PATIENT_LOOKS and file_system.near:
                before, (writers, now) = now, self._unseen_writers(file_system, now)
                if not writers and any(not service for service, _ in now.keys() - before.keys()):
                    self._end_processes(fact)
            if writers:
                self._stop_services(fact, {service for service, _ in writers if service})
                self._kill(fact, [pid for service, pid in writers if not service], now)
            elif self._failure is not None:
                raise self._failure
            elif first:
                self._sandbox.add_notice(f"{fact}; nothing here was seen to fill it; what goes on writing is killed")
        except SandboxUnavailable as failure:
            if fell:
                self.kills += 1
                self._report(f"{fact}, and no process could be started to find what writes: the sandbox was killed")
                self._sandbox.add_notice(self._sandbox.restart(failure))
            return fell
        return first or fell or bool(writers)  # within a second all inodes below the floor could be used

    def _unseen_writers(
        self, file_system: FileSystem, before: dict[Writer, ProcessWrites]
    ) -> tuple[list[Writer], dict[Writer, ProcessWrites]]:
        """Return whom a trial finds to fill the file system, and all processes after it; before: those before it.

        If it is this sandbox, and no process of it is busy, all that are new may each have written for an instant.
        """
        from ohsandbox.runtime.docker.monitoring.pause_trial import PauseTrial, busiest  # noqa: PLC0415 - rarely needed

        if self._trial is None:
            self._trial = PauseTrial(self._sandbox.paused)
        if not self._trial.fills(file_system.ask):
            return [], before
        now = self._bytes_written()
        return busiest(before, now), now

    def _bytes_written(self) -> dict[Writer, ProcessWrites]:
        """Read each process's written bytes as its own user: /proc/PID/io needs permission to trace."""
        writes = {} if self._services is None else self._services.written()
        self._failure = None
        if not self.has_processes:
            return writes
        try:
            processes = parse_writes(self._sandbox.snippet(b"ohs_written 1", user="0").stdout)
            for user in sorted({process.user for process in processes.values() if process.disk_bytes is None}):
                try:
                    more = parse_writes(self._sandbox.snippet(b"ohs_written 1", user=user).stdout)
                except UnknownUserError:  # its writes stay unknown
                    continue
                processes |= {
                    pid: process for pid, process in more.items() if process.disk_bytes is not None and pid in processes
                }
        except SandboxUnavailable as failure:
            if not writes:
                raise
            self._failure = failure
            return writes
        return writes | {("", pid): process for pid, process in processes.items()}

    def _writers(self, now: dict[Writer, ProcessWrites], *, fell: bool, of_files: bool) -> list[Writer]:
        """Return what to kill: processes that wrote much or keep writing, and last those with unknown writes."""
        writers, known = list[Writer](), False
        reaped = bool(self._killed - now.keys())  # their parents are charged with their bytes now
        self._killed &= now.keys()
        for writer, process in sorted(now.items(), key=lambda item: item[1].disk_bytes is None):
            if writer in self._killed:  # already killed; a process in uninterruptible disk sleep dies later
                continue
            base, last = self._base.get(writer, _NOTHING), self._last.get(writer, _NOTHING)
            steady = _more(process.disk_bytes, last.disk_bytes, _STEADY_BYTES) or (
                of_files and fell and _more(process.ticks, last.ticks, _STEADY_TICKS)
            )
            hidden = fell and (process.disk_bytes is None or _more(process.call_bytes, last.call_bytes, _STEADY_BYTES))
            hidden &= not (known and writer[0])  # a service whose writes are unknown is spared while another one writes
            rises = hidden or (steady and not reaped)
            self._steady[writer] = self._steady.get(writer, 0) + rises if steady or hidden else 0
            patience = 1 if steady else _PATIENT_LOOKS
            if _more(process.own_bytes, base.own_bytes, _ALLOWANCE_BYTES) or self._steady[writer] > patience:
                writers.append(writer)
            known |= steady or writer in writers
        self._last = now
        return writers

    def _stop_services(self, fact: str, names: set[str]) -> None:
        for name in sorted(names):
            self.kills += 1
            self._report(f"{fact}: service {name!r} wrote to it and was stopped; its files are kept")
            assert self._services is not None  # noqa: S101 - the names are theirs
            self._services.stop(name)

    def _kill(self, fact: str, pids: Sequence[int], now: Mapping[Writer, ProcessWrites]) -> None:
        if not pids:
            return
        now_s = time.monotonic()
        self._rounds = self._rounds + 1 if now_s - self._killed_at < _ROUNDS_LAST_S else 1
        self._killed_at = now_s
        if self._rounds > _KILL_ROUNDS:
            self._end_processes(fact)
            return
        self.kills += 1
        names = ", ".join(f"{printable_line(now['', pid].name)[:20]} ({pid})" for pid in pids[:5])
        more = f" and {len(pids) - 5} more" if len(pids) > 5 else ""  # noqa: PLR2004 - a line's worth
        self._report(f"{fact}: {names}{more} wrote to it and was killed. Delete what is not needed before writing more")
        hit = False
        for user in {now["", pid].user for pid in pids}:
            theirs = " ".join(str(pid) for pid in pids if now["", pid].user == user)
            killing = b"for ohs_p in %s; do kill -KILL $ohs_p && echo $ohs_p; done 2>/dev/null" % theirs.encode()
            hit |= bool(self._sandbox.snippet(killing, user=user).stdout)
        self._rounds += 0 if hit else _MISSED_ROUNDS
        self._killed.update(("", pid) for pid in pids)  # if the killing snippet fails, the next round tries again

    def _end_processes(self, fact: str) -> None:
        self.kills += 1
        self._report(f"{fact}: what wrote went on in other processes, so all processes of this sandbox were killed")
        self._sandbox.end_processes()
        self._rounds = 0

    def _report(self, message: str) -> None:
        """Report before killing, so that the result of a killed command states the reason."""
        self._sandbox.add_notice(message)
        log.warning("%s", message)


_NOTHING = ProcessWrites(0, 0, 0, 0, "", "")


def _more(now: int | None, before: int | None, least: int) -> bool:
    return now is not None and now - (before or 0) >= least
