"""Services that end while their sandbox lives are started again, and that is told."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from typing import TYPE_CHECKING, Any

from ohsandbox.errors import OhsandboxError
from ohsandbox.runtime.docker.engine import connect
from ohsandbox.runtime.docker.error_mapping import engine_errors
from ohsandbox.runtime.docker.services import SERVICE_OF_LABEL, bring_back

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from ohsandbox.runtime.docker.services import Pod

log = logging.getLogger(__name__)

MAX_RESTARTS, RESTARTS_S = 3, 60.0
"""So often in so long: one that ends again at once is broken, or is being ended on purpose."""


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
        try:
            engine = connect()
        except OhsandboxError as error:
            log.warning("The services are not watched: %s", error)
            return
        try:
            with contextlib.suppress(OhsandboxError), engine_errors("watching the services"):
                filters = {"label": [f"{SERVICE_OF_LABEL}={self._pod.lease_id}"], "event": ["die"]}
                self._events = engine.api.events(decode=True, filters=filters)
                self._look()  # what has ended before
                for _ in self._events:
                    if self._over.is_set():
                        return
                    self._look()
        except (OSError, ValueError):  # the stream was closed by `leave`, or by the engine's end
            pass
        finally:
            engine.close()

    def _look(self) -> None:
        ended = [name for name in self._pod.ended() if not self._over.is_set()]
        for name in ended:
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
