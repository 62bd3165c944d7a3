"""Which directories of this machine sandboxes use, so that nothing is removed on which one of them has a mount.

Linux drops a mount in every mount namespace when its name is unlinked on the host. What a sandbox has mounted lies at
or below a directory that it can write to, whichever directory the other sandbox has that ends.
"""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from ohsandbox.paths import DIRECTORY
from ohsandbox.private_files import try_lock
from ohsandbox.runtime.docker.engine.error_mapping import engine_errors
from ohsandbox.runtime.docker.labels import WORKSPACE_LABEL
from ohsandbox.runtime.docker.ownership import lease

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ohsandbox.runtime.docker.engine.connection import Engine

_WITHOUT_MOUNTS = {"exited", "dead", "stopped", "removing"}
"""States of a container without processes (Docker Engine API, ContainerList; Podman adds "stopped"). It may be started
again, with the mounts of that moment. A paused one goes on with those that it has."""
_TRIES = 5
_RETRY_S = 0.01
"""Another removal, which holds the same lock for some 50 us, is no use of the directory."""


class TreeUses(NamedTuple):
    """The directories that sandboxes can write to, by `lease.workspace_digest`, as `find` saw them."""

    mounted: frozenset[str] = frozenset()
    """Of sandboxes that may have mounts in them now."""
    stopped: frozenset[str] = frozenset()
    """Of sandboxes that can be started again."""

    @contextlib.contextmanager
    def excluded(self, directory: str, *, mounted_only: bool = False) -> Iterator[None]:
        """Context in which no sandbox uses a directory, and no owner on this machine begins to.

        The owners of other engines, state directories and users, which `find` cannot see, are known by their locks.

        Args:
            directory: a path without links.
            mounted_only: whether a stopped sandbox is no use.

        Raises:
            BlockingIOError: a sandbox uses it, or a directory above it.
            OSError: a directory cannot be opened, so that nobody knows.
        """
        used = self.mounted if mounted_only else self.mounted | self.stopped
        above = [directory, *map(str, Path(directory).parents)]
        if any(lease.workspace_digest(path) in used for path in above):
            raise BlockingIOError
        with contextlib.ExitStack() as locks:
            for path in above:
                try:
                    descriptor = os.open(path, DIRECTORY)
                except PermissionError:
                    if Path(path).stat().st_uid:  # its owner may work there
                        raise
                    continue
                locks.callback(os.close, descriptor)
                if not _lock(descriptor):
                    raise BlockingIOError
            yield


def find(engine: Engine) -> TreeUses:
    """Return the directories that sandboxes of this engine, and any of this state directory, can write to."""
    with engine_errors("looking for other sandboxes of the workspace"):
        listed = engine.api.containers(all=True, filters={"label": [WORKSPACE_LABEL]})
    mounted: set[str] = set()
    stopped: set[str] = set()
    for found in listed:
        state = str(found.get("State")).lower()
        (stopped if state in _WITHOUT_MOUNTS else mounted).update(str(found["Labels"][WORKSPACE_LABEL]).split())
    for record in filter(None, map(lease.read, lease.all_ids())):
        if record.engine != engine.address.url or lease.owner_alive(record.id):
            mounted.update(map(lease.workspace_digest, record.workspaces))
    return TreeUses(frozenset(mounted), frozenset(stopped))


def _lock(descriptor: int) -> bool:
    for is_last in (*[False] * (_TRIES - 1), True):
        try:
            if try_lock(descriptor):
                return True
        except OSError:  # a file system without locks, where owners cannot lock either
            return True
        if not is_last:
            time.sleep(_RETRY_S)
    return False
