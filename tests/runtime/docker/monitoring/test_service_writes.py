"""What services write, asked in their own containers."""

from __future__ import annotations

import time
from typing import Any

import pytest

from ohsandbox.runtime.docker.monitoring import service_writes

pytestmark = pytest.mark.docker
OTHERS = "grep -sl 2147483648 /proc/[0-9]*/status"


def test_a_process_whose_user_cannot_be_asked_hides_no_other(sandbox: Any) -> None:
    """The engine starts no process for a user id of 2**31 and more, which the kernel knows."""
    runtime = sandbox()
    runtime.execute("setpriv --reuid 2147483648 --regid 2147483648 --clear-groups sleep 1000 &")
    deadline = time.monotonic() + 240
    while not runtime.execute(OTHERS).output:
        assert time.monotonic() < deadline
    processes = service_writes._written(runtime._sandbox.container)
    assert 0 not in processes
    users = {process.user: process.disk_bytes for process in processes.values()}
    assert users["2147483648:2147483648"] is None
    assert users["0:0"] is not None
