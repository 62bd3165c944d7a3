"""A ready shell beside a service that is ready, too, against one without, in turn."""

from __future__ import annotations

import statistics
import time

from ohsandbox import DockerRuntime, Service
from tests.bench.rows import Row, ms

ROUNDS = 5
MOST = 3.5
"""Three containers in the place of one, and the service's own start: 0.1 s for a Python server."""


def service_rows(image: str) -> list[Row]:
    """One row; the service is an HTTP server of Python's, ready when it listens."""
    web = Service("web", image=image, command=["python3", "-m", "http.server", "8000"], ports=8000)

    def ready(*services: Service) -> float:
        began = time.perf_counter()
        with DockerRuntime(image, services=services) as runtime:
            runtime.execute("true")
            return time.perf_counter() - began

    rounds = [(ready(web), ready()) for _ in range(ROUNDS)]
    beside, alone = (statistics.median(column) for column in zip(*rounds, strict=True))
    return [
        Row("ready shell with a service / without", ms(beside), ms(alone), f"{beside / alone:.2f}x", f"<= {MOST}x",
            beside / alone <= MOST)
    ]  # fmt: skip
