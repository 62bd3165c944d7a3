"""A server in a sandbox without a network is found, whatever the image."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.runtime.docker.conftest import BASE

if TYPE_CHECKING:
    from collections.abc import Callable

    from ohsandbox.runtime.docker.runtime import DockerRuntime

PYTHON = """python3 -m http.server --bind {address} 3000 >/tmp/log 2>&1 &
until grep -q Serving /tmp/log; do sleep 0.1; done"""
LISTENERS = {
    "debian": PYTHON.format(address="127.0.0.1"),
    "nonroot": PYTHON.format(address="127.0.0.1"),
    "hostile": PYTHON.format(address="0.0.0.0"),
    "busybox": "httpd -p 3000",
}


@pytest.mark.docker
@pytest.mark.parametrize("image", LISTENERS)
def test_a_server_is_found_without_a_network(sandbox: Callable[..., DockerRuntime], image: str) -> None:
    runtime = sandbox(f"{BASE}:{image}")
    assert runtime.listening_ports() == ()
    started = runtime.execute(f"export PYTHONUNBUFFERED=1\n{LISTENERS[image]}", timeout_s=20)
    assert not started.timed_out
    assert runtime.listening_ports() == (3000,), started.output
