"""The hosts of this person's package tools, found once, in the background (`package_tools` asks and reads)."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from ohsandbox.network.packages.package_tools import found_on_this_machine

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ohsandbox.network.packages.package_tools import PackageHost

SOON_S = 2.0
"""A run sends its first request within a second, and its model thinks for some; the tools take 0.5 s of a processor."""
WAIT_S = 10.0
"""How long a decision waits for the tools' answers; all together take about a second."""


class PackageHosts:
    """Found once, in the background, at the first `start` or soon; may be used from any thread.

    Args:
        find: finds them; None asks the tools of this machine.
    """

    def __init__(self, find: Callable[[], Iterable[PackageHost]] | None = None) -> None:
        self._find = find or found_on_this_machine
        self._guard = threading.Lock()
        self._thread: threading.Thread | None = None
        self._timer: threading.Timer | None = None
        self._done = threading.Event()
        self._found: tuple[PackageHost, ...] = ()
        self._by_place: dict[tuple[str, int], PackageHost] = {}

    def start(self) -> None:
        """Begin to find them, unless that has begun."""
        with self._guard:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="ohsandbox-package-hosts", daemon=True)
                self._thread.start()

    def start_soon(self) -> None:
        """Begin to find them in SOON_S, when a command has begun, or at the first question for one of them."""
        with self._guard:
            if self._thread is None and self._timer is None:
                self._timer = threading.Timer(SOON_S, self.start)
                self._timer.daemon = True
                self._timer.start()

    def _run(self) -> None:
        try:
            self._found = tuple(self._find())
            self._by_place = {(one.host, port): one for one in reversed(self._found) for port in one.ports}
        finally:
            self._done.set()

    @property
    def ready(self) -> bool:
        """Whether they are known."""
        return self._done.is_set()

    def all(self, *, timeout_s: float = WAIT_S) -> tuple[PackageHost, ...]:
        """All of them, with what names each; none where they are not known after timeout_s seconds."""
        self.start()
        self._done.wait(timeout_s)
        return self._found

    def find(self, host: str, port: int) -> PackageHost | None:
        """What names a normalized host and port first; None where nothing does."""
        self.all()
        return self._by_place.get((host, port))


_shared_guard = threading.Lock()
_shared: PackageHosts | None = None


def shared_package_hosts() -> PackageHosts:
    """Those of this process: the tools are asked once."""
    global _shared  # noqa: PLW0603 - found once for all sandboxes of the process
    with _shared_guard:
        if _shared is None:
            _shared = PackageHosts()
        return _shared
