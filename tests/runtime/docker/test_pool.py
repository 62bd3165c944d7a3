"""A pool of containers: nothing is left, whatever happens to it."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
import textwrap
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ohsandbox import SandboxPool
from ohsandbox.errors import ImageUnavailable
from ohsandbox.runtime.docker.inventory.docker_inventory import DockerInventory
from ohsandbox.runtime.docker.ownership import lease
from tests.processes import running
from tests.runtime.docker.conftest import BASE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ohsandbox.runtime.docker.engine.connection import Engine

pytestmark = [pytest.mark.docker, pytest.mark.one_engine]
LABEL = "pool-test"


@pytest.fixture
def label(engine: Engine) -> Iterator[str]:
    """The label of this test's sandboxes, none of which is there at its end."""
    mine = secrets.token_hex(8)  # of this run alone: one that was killed has left its own
    yield mine
    assert labelled(engine, mine) == []


def labelled(engine: Engine, mine: str) -> list[str]:
    found = engine.api.containers(all=True, filters={"label": f"{LABEL}={mine}"})
    return [str(one["Id"]) for one in found]


def descriptors() -> int:
    return len([*Path("/proc/self/fd").iterdir()])


def test_sandboxes_are_ready_never_the_same_and_gone_with_all_they_held(engine: Engine, label: str) -> None:
    SandboxPool(f"{BASE}:busybox", 1)  # its modules are imported once
    before = descriptors(), threading.active_count()
    names = set[str]()
    with SandboxPool(f"{BASE}:busybox", 2, labels={LABEL: label}) as pool:
        assert pool.wait_full(60)
        victim = labelled(engine, label)
        engine.api.remove_container(victim[0], force=True)
        engine.api.pause(victim[1])
        for _ in range(4):
            with pool.get() as sandbox:
                assert sandbox.id not in {*victim, *names}
                names.add(sandbox.id)
                assert sandbox.run(["cat", "/tmp/mine"]).exit_code == 1
                assert sandbox.execute("echo x >/tmp/mine; id -u").output == "0\n"
    assert len(names) == 4
    assert labelled(engine, label) == []
    assert lease.all_ids() == []
    assert descriptors() <= before[0]
    assert threading.active_count() <= before[1]


def test_an_image_that_is_not_there_is_told_to_who_asks(label: str) -> None:
    with (
        SandboxPool("localhost:1/none/such:x", 2, labels={LABEL: label}) as pool,
        pytest.raises(ImageUnavailable, match="none/such"),
    ):
        pool.get()


def test_what_a_killed_process_kept_ready_is_collected(engine: Engine, label: str) -> None:
    program = textwrap.dedent(f"""
        import sys
        from ohsandbox import SandboxPool
        with SandboxPool("{BASE}:busybox", 2, labels={{"{LABEL}": "{label}"}}) as pool:
            pool.wait_full()
            print("full", flush=True)
            sys.stdin.read()
    """)
    with running([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == b"full\n"
        os.kill(owner.pid, signal.SIGKILL)
    assert len(labelled(engine, label)) >= 2
    DockerInventory(engine).collect_garbage()
    assert labelled(engine, label) == []
    assert lease.all_ids() == []
