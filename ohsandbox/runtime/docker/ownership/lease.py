"""A lease: a locked file that shows that the owner of a container is alive.

The kernel releases the lock when the owner dies, however it dies, and no process id is ever compared. The file exists
and is locked *before* its container is created, so that every container without an owner can be found by its lease.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import socket
import time
import weakref
from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict, ValidationError

from ohsandbox import private_files
from ohsandbox.errors import UsageError
from ohsandbox.paths import DIRECTORY, subdirectory
from ohsandbox.private_files import create_locked, open_lock, open_locked, read_regular

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from ohsandbox.runtime.docker.engine.connection import Engine

_ID_BYTES = 16

_TREE_LOCK_S = 0.5
"""Seconds for which a removal of files of ours may delay a start; it locks a directory for some 50 us."""
RESUMABLE_S = 3 * 24 * 3600.0
"""Seconds for which the container of an interrupted conversation can be resumed: long enough for a weekend."""


class LeaseRecord(BaseModel):
    """The contents of a lease file."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    id: str
    container: str
    """The container's name: images committed from a sandbox inherit its labels, so a label alone proves nothing."""
    engine: str
    """The engine's address; containers of other engines are never removed."""
    image: str
    pid: int
    host: str
    created_at: float
    """Seconds since the epoch."""
    conversation: str | None = None
    keep: bool = False
    workspaces: tuple[str, ...] = ()
    """The directories of this machine that the container can write to."""
    network_owner: str | None = None
    """The name of the container that holds its network namespace (`open_network`), and shares this lease."""
    services: tuple[str, ...] = ()
    """Names of the services that share this lease and its network (`services`)."""
    resumable: bool = False
    """Whether a conversation has used the container, which then outlives a process that is killed."""


class Lease:
    """A held lease, created by `acquire`; `release` it when the container is gone, or `leave` it when it is kept."""

    def __init__(self, path: Path, descriptor: int, record: LeaseRecord) -> None:
        self.path = path
        self.record = record
        self._descriptor: int | None = descriptor
        self._trees = [locked for workspace in record.workspaces if (locked := _share(workspace)) is not None]
        """Shared locks on the workspaces: they show those whom this lease is not shown that they are used."""
        _held.add(self)

    @property
    def id(self) -> str:
        """The label's value: unguessable, and known only to this state directory."""
        return self.record.id

    def hold(self) -> None:
        """Make the container resumable for RESUMABLE_S from now; repeated calls cost 2 us."""
        if self._descriptor is not None:
            if not self.record.resumable:
                self.rewrite(resumable=True)
            os.utime(self._descriptor)

    def abandon(self) -> None:
        """Let `gc` remove the container at once: it still exists, and nobody needs it."""
        if self._descriptor is not None:
            self.rewrite(resumable=False)
        self.leave()

    def rewrite(self, **facts: object) -> None:
        """Update the file with one write, never shorter: after a kill it holds the old record or the new one."""
        assert self._descriptor is not None  # noqa: S101 - only for a held lease
        self.record = self.record.model_copy(update=facts)
        size = os.fstat(self._descriptor).st_size
        os.pwrite(self._descriptor, self.record.model_dump_json().encode().ljust(size), 0)

    def release(self) -> None:
        """Remove the file and then release the lock, once the container is gone. Calling it twice is fine."""
        self.path.unlink(missing_ok=True)
        self.leave()

    def leave(self) -> None:
        """Release the lock and keep the file, so that `gc` or `ps` finds the container. Calling it twice is fine."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)
        while self._trees:
            os.close(self._trees.pop())


_held: weakref.WeakSet[Lease] = weakref.WeakSet()


def _leave_all_in_child() -> None:
    """Release the leases in a forked child, which shares the locks and would keep a dead owner's lease alive."""
    for lease in list(_held):
        lease.leave()


os.register_at_fork(after_in_child=_leave_all_in_child)


def acquire(
    *, container: str, engine: str, image: str, conversation: str | None = None, keep: bool = False,
    workspaces: tuple[str, ...] = (), network_owner: str | None = None, services: tuple[str, ...] = (),
) -> Lease:  # fmt: skip
    """Return a new lease, locked before the file gets its name, so that no `gc` ever sees it unlocked.

    Raises:
        UsageError: the lease file cannot be written.
    """
    record = LeaseRecord(
        id=secrets.token_hex(_ID_BYTES), container=container, engine=engine, image=image, pid=os.getpid(),
        host=socket.gethostname(), created_at=time.time(), conversation=conversation, keep=keep,
        workspaces=workspaces, network_owner=network_owner, services=services,
    )  # fmt: skip
    path = _path(record.id)
    try:
        descriptor = create_locked(path, record.model_dump_json().encode())
    except OSError as error:
        raise UsageError(
            f"The lease {path} cannot be written: {error}. Set OHSANDBOX_HOME to a writable one."
        ) from error
    return Lease(path, descriptor, record)


def adopt(lease_id: str) -> Lease | None:
    """Take over the lease of a dead owner; None if the owner is alive or the lease does not exist."""
    record, descriptor = read(lease_id), None
    with contextlib.suppress(OSError):
        descriptor = None if record is None else open_locked(_path(lease_id), create=False)
    if record is None or descriptor is None:
        return None
    adopted = Lease(_path(lease_id), descriptor, record)
    adopted.rewrite(pid=os.getpid(), host=socket.gethostname())
    return adopted


def is_resumable(record: LeaseRecord) -> bool:
    """Whether the container can still be resumed.

    A lease whose last use is still to come counts from now on: the clock was wrong.
    """
    with contextlib.suppress(FileNotFoundError):
        unused_s = time.time() - _path(record.id).stat().st_mtime
        if unused_s < 0:
            with contextlib.suppress(PermissionError):  # a run under sudo left it
                os.utime(_path(record.id))
        return record.resumable and unused_s < RESUMABLE_S
    return False


def read(lease_id: str) -> LeaseRecord | None:
    """Return the record of the lease file with that id; None if it does not exist or is invalid."""
    if len(lease_id) != 2 * _ID_BYTES or not lease_id.isalnum():
        return None
    try:
        record = LeaseRecord.model_validate_json(read_regular(_path(lease_id)))
    except (OSError, ValidationError):
        return None
    return record if record.id == lease_id else None


def all_ids() -> list[str]:
    """Return the ids of all lease files here, held or not."""
    return sorted(path.name for path in subdirectory("leases").iterdir() if len(path.name) == 2 * _ID_BYTES)


def owner_alive(lease_id: str) -> bool:
    """Whether a process holds the lock; False for a missing file."""
    with try_lock(lease_id) as owner_is_dead:
        return owner_is_dead is False


@contextlib.contextmanager
def try_lock(lease_id: str) -> Iterator[bool | None]:
    """Yield True if the owner is dead (we hold the lock), False if it is alive, None if the file does not exist."""
    try:
        descriptor = open_lock(_path(lease_id), create=False)
    except OSError:
        yield None
        return
    try:
        is_free = False
        with contextlib.suppress(OSError):  # on a file system without locks the owner may be alive
            is_free = private_files.try_lock(descriptor)
        yield is_free
    finally:
        os.close(descriptor)


def remove_file(lease_id: str) -> None:
    """Remove the lease file of a container that is gone."""
    _path(lease_id).unlink(missing_ok=True)


def workspace_digest(workspace: str) -> str:
    """Return a directory's digest for WORKSPACE_LABEL, which lists one for each directory that is bound read-write."""
    return hashlib.sha256(os.fsencode(workspace)).hexdigest()[:32]


def orphans_here(engine: Engine) -> bool:
    """Whether a lease of this engine has a dead owner; reads only the state directory, 5 us each."""
    for one in all_ids():
        record = read(one)
        if record is None or record.keep or is_resumable(record) or record.engine != engine.address.url:
            continue
        if not owner_alive(one):
            return True
    return False


def _share(workspace: str) -> int | None:
    """Lock a directory with others; None if it is no directory, or has no lock to give."""
    with contextlib.suppress(OSError):
        descriptor = os.open(workspace, DIRECTORY)
        until = time.monotonic() + _TREE_LOCK_S
        with contextlib.suppress(OSError):  # a file system without locks
            while not (is_locked := private_files.try_lock(descriptor, shared=True)) and time.monotonic() < until:
                time.sleep(0.001)
            if is_locked:
                return descriptor
        os.close(descriptor)  # who else has locked it, as `flock . ohsandbox run` does, keeps removals out as well
    return None


def _path(lease_id: str) -> Path:
    return subdirectory("leases") / lease_id
