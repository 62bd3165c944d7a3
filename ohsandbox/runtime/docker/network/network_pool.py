"""Network namespaces that sandboxes use one after another, such as the trials of an evaluation."""

from __future__ import annotations

import contextlib
import logging
import secrets
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING

from ohsandbox.errors import OhsandboxError
from ohsandbox.runtime.docker.engine.connection import connect
from ohsandbox.runtime.docker.labels import LEASE_LABEL
from ohsandbox.runtime.docker.network import open_network
from ohsandbox.runtime.docker.ownership import lease

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ohsandbox.runtime.docker.engine.connection import Engine
    from ohsandbox.runtime.docker.network.open_network import LentNetwork
    from ohsandbox.runtime.docker.ownership.lease import Lease

log = logging.getLogger(__name__)

WAIT_S = 1.0
"""Seconds to wait for a namespace that is in use: on a busy machine it takes as long to create one, and a trial may
need two."""

_REMOVALS = 8
"""Number of concurrent removals, which mostly wait for the engine."""


class NetworkPool:
    """Containers that own a network namespace (see `open_network`); each serves one sandbox at a time.

    A sandbox that joins an existing namespace starts in half the time of one that needs a new namespace. No process,
    address, route or connection of the previous sandbox is left: processes end with their sandbox, the interface is
    removed, and the engine's name server becomes unreachable. Only the kernel's counters remain. Each owner has a lease
    of its own, so that `gc` removes the owners of a dead process.
    """

    def __init__(self) -> None:
        self._free: list[str] = []
        self._owners: dict[str, tuple[LentNetwork, Lease]] = {}
        self._enough: int | None = None
        self._making = 0
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._beginning: ThreadPoolExecutor | None = None
        self._removals: ThreadPoolExecutor | None = None

    def begin(self, count: int) -> None:
        """Create count owners in the background; beyond them, one is created only if none becomes free.

        Failures are only logged: `acquire` tries again and raises the error.
        """
        if self._beginning is not None or count < 1:
            return
        self._enough = self._making = count
        self._beginning = ThreadPoolExecutor(count, thread_name_prefix="network")
        for _ in range(count):
            self._beginning.submit(self._make_free)

    def _make_free(self) -> None:
        owner = None
        try:
            with contextlib.closing(connect()) as engine:
                owner = self._made(engine)
        except OhsandboxError as error:
            log.info("No network could be made before it was needed: %s", error)
        finally:
            with self._changed:
                self._making -= 1
                if owner is not None:
                    self._free.append(owner)
                self._changed.notify_all()

    def acquire(self, engine: Engine) -> str:
        """Return the id of an owner that is not connected to the bridge; create one if all are in use.

        Raises:
            SandboxRefused, SandboxUnavailable: as for `open_network.make_owner`.
        """
        while (owner := self._next_free()) is not None:
            if open_network.is_running(engine, owner):
                return owner
            with self._lock:
                self._forget(engine, owner)
        return self._made(engine)

    def _next_free(self) -> str | None:
        """Return an owner that is free or becomes free within WAIT_S seconds; None if another one must be created."""

        def is_decided() -> bool:
            return bool(self._free) or self._enough is None or len(self._owners) + self._making < self._enough

        with self._changed:
            self._changed.wait_for(is_decided, WAIT_S)
            return self._free.pop() if self._free else None

    def _made(self, engine: Engine) -> str:
        name = f"ohsandbox-network-{secrets.token_hex(4)}"
        held = lease.acquire(container=name, engine=engine.address.url, image=open_network.REPOSITORY)
        try:
            lent = open_network.lend_owner(engine, name=name, lease_id=held.id, labels={LEASE_LABEL: held.id})
        except BaseException:
            held.release()
            raise
        with self._lock:
            self._owners[lent.owner] = lent, held
        return lent.owner

    def open(self, owner: str) -> None:
        """Make the engine's name server reachable for the owner's sandbox, which is about to be connected.

        Raises:
            SandboxUnavailable: the owner is gone.
        """
        lent, _ = self._owners[owner]
        lent.set_name_server(reachable=True)

    def give_back(self, engine: Engine, owner: str, remove: Callable[[], object] | None = None) -> None:
        """Call remove, which removes the owner's sandbox; return the owner to the pool, or after `finish` remove it.

        Raises:
            Exception: as remove; the owner is then not used again.
        """
        with ThreadPoolExecutor(1, thread_name_prefix="network") as beside:
            cleared = beside.submit(self._is_cleared, engine, owner)
            if remove is not None:
                remove()
        if cleared.result():
            with self._changed:
                self._free.append(owner)
                self._changed.notify()

    def _is_cleared(self, engine: Engine, owner: str) -> bool:
        """Clear a namespace for the next sandbox; False if it is not used again and its owner was removed."""
        if self._removals is not None:
            self._forget(engine, owner)
            return False
        try:
            open_network.disconnect(engine, owner)
            self._owners[owner][0].set_name_server(reachable=False)
        except OhsandboxError as error:
            log.warning("A network is not used again: %s", error)
            with self._changed:
                self._forget(engine, owner)
                self._changed.notify_all()
            return False
        return True

    def finish(self) -> None:
        """Start removing the free owners, while the last sandboxes run: no other sandbox will take one."""
        with self._lock:
            owners, self._free = self._free, []
            self._removals = removals = ThreadPoolExecutor(1, thread_name_prefix="network-removal")
        if owners:
            removals.submit(self._forget_all, owners)

    def close(self) -> None:
        """Remove all owners; no sandbox uses them any more. Those that cannot be removed are left to `gc`."""
        if self._beginning is not None:
            self._beginning.shutdown()
        if self._removals is not None:
            self._removals.shutdown()
        with self._lock:
            self._free.clear()
            owners = [*self._owners]
        self._forget_all(owners)

    def _forget_all(self, owners: Sequence[str]) -> None:
        if not owners:
            return
        with contextlib.suppress(OhsandboxError), ThreadPoolExecutor(_REMOVALS) as removals:
            engine = connect()
            for _ in removals.map(partial(self._forget, engine), owners):
                pass
            engine.close()

    def _forget(self, engine: Engine, owner: str) -> None:
        lent, held = self._owners.pop(owner)
        lent.close()
        try:
            open_network.remove_owner(engine, held.record.container, held.id)
        except OhsandboxError as error:
            log.warning("A network is left behind; `ohsandbox gc` removes it: %s", error)
            held.abandon()
        else:
            held.release()
