from __future__ import annotations

import secrets
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from ohsandbox.errors import SandboxUnavailable
from ohsandbox.runtime.docker.container import Container
from ohsandbox.runtime.docker.services import service_checkpoints

if TYPE_CHECKING:
    from ohsandbox.runtime.docker.engine.connection import Engine


@pytest.mark.docker
def test_a_volume_for_which_there_is_no_room_leaves_its_container_usable(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An archive that is not read to its end blocks each request about its container."""
    monkeypatch.setattr(engine.api, "timeout", 60)
    tag, write = secrets.token_hex(4), "head -c 40000000 /dev/zero >/data/file; echo written; exec sleep 1000"
    config = {"Image": "ohsandbox-base:busybox", "Cmd": ["sh", "-c", write], "Volumes": {"/data": {}}}
    container = engine.api.create_container_from_config(config, f"ohsandbox-test-{tag}")["Id"]
    try:
        engine.api.start(container)
        deadline = time.monotonic() + 60
        while b"written" not in engine.api.logs(container):
            assert time.monotonic() < deadline
        running = SimpleNamespace(
            container=Container(engine, container, name="store"), service=SimpleNamespace(secrets=())
        )
        pod: Any = SimpleNamespace(engine=engine, running={"store": running})
        engine.api.pause(container)
        with pytest.raises(SandboxUnavailable, match="more room than the engine's disk has") as refused:
            service_checkpoints.commit(pod, "ohsandbox-test", tag, room=1_000_000)
        engine.api.unpause(container)
        assert refused.traceback, "what was raised is held while the engine answers"
    finally:
        engine.api.remove_container(container, force=True, v=True)
        engine.api.remove_image(f"ohsandbox-test:{tag}-store", force=True)
