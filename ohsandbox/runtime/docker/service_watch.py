"""Services that end while their sandbox lives are started again, and that is told."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from typing import TYPE_CHECKING, Any

from ohsandbox.errors import OhsandboxError, SandboxGone
from ohsandbox.runtime.docker.engine import connect
from ohsandbox.runtime.docker.error_mapping import engine_errors
from ohsandbox.runtime.docker.services import SERVICE_OF_LABEL, bring_back

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from ohsandbox.runtime.docker.services import Pod

log = logging.getLogger(__name__)

MAX_RESTARTS, RESTARTS_S = 3, 60.0
"""So often in so long: one that ends again at once is broken, or is being ended on purpose."""
AGAIN_S = 5.0
"""After an engine that failed, or was restarted, it is asked again."""


class ServiceWatch:
    """Listens to the engine's events in a thread of its own, which sleeps while nothing ends."""

    def __init__(self, pod: Pod, *, listening: Callable[[], Collection[int]], tell: Callable[[str], None]) -> None:
        """Start the thread. listening: see `Pod.await_ready`; tell is given a sentence, in the thread."""
        self._pod, self._listening, self._tell = pod, listening, tell
        self._over = threading.Event()
        self._events: Any = None
        self._restarts: dict[str, list[float]] = {}
        threading.Thread(target=self._watch, name="ohsandbox-services", daemon=True).start()

    def leave(self) -> None:
        """Start nothing again from now on."""
        self._over.set()
        if self._events is not None:
            with contextlib.suppress(OSError, AttributeError):
                self._events.close()

    def _watch(self) -> None:
        said = ""
        while not self._over.is_set():
            try:
                self._listen()
            except SandboxGone:
                return
            except (OhsandboxError, ValueError) as error:  # `leave` closes the stream
                if not self._over.is_set() and str(error) != said:
                    said = str(error)
                    log.warning("The services are not watched: %s It is tried again every %g s.", said, AGAIN_S)
            self._over.wait(AGAIN_S)

    def _listen(self) -> None:
        """Start again what has ended, and what ends until the engine says no more, or `leave` is called."""
        engine = connect()
        try:
            with engine_errors("watching the services"):
                filters = {"label": [f"{SERVICE_OF_LABEL}={self._pod.lease_id}"], "event": ["die"]}
                self._events = engine.api.events(decode=True, filters=filters)
                self._look()  # what has ended before
                for _ in () if self._over.is_set() else self._events:
                    self._look()
        finally:
            engine.close()

    def _look(self) -> None:
        for name in () if self._over.is_set() else self._pod.ended():
            now = time.monotonic()
            recent = [one for one in self._restarts.get(name, []) if one > now - RESTARTS_S]
            if len(recent) >= MAX_RESTARTS:
                if len(recent) == MAX_RESTARTS:  # told once
                    self._tell(
                        f"Service {name!r} ended {MAX_RESTARTS + 1} times within {RESTARTS_S:g} s and is not started "
                        "again."
                    )
                self._restarts[name] = [*recent, now]
                continue
            self._restarts[name] = [*recent, now]
            try:
                notes = bring_back(self._pod, listening=self._listening, only=[name])
            except OhsandboxError as error:
                if not self._over.is_set():
                    self._tell(str(error))
            else:
                for note in notes:
                    self._tell(note)
