from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from ohsandbox.errors import SandboxGone
from ohsandbox.runtime.docker.monitoring.monitors import ServiceWatch


@pytest.mark.docker
@pytest.mark.usefixtures("engine")
def test_a_watch_of_services_that_ends_by_itself_closes_its_connection() -> None:
    watchers: list[threading.Thread] = []

    def ended() -> list[str]:
        watchers.append(threading.current_thread())
        has_asked.set()
        raise SandboxGone("The services are gone.", remedy="Start them again.")

    has_asked = threading.Event()
    pod: Any = SimpleNamespace(lease_id="of-no-service", ended=ended)
    watch = ServiceWatch(pod, listening=set, tell=print)
    assert has_asked.wait(60)
    watchers[0].join(60)
    assert watch._events._response.raw.closed
