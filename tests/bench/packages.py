"""`pip install` through the allowlist, beside the open network: interleaved, and without a cache."""

from __future__ import annotations

import os
import socket
import statistics
import time
from pathlib import Path

import pip

from ohsandbox import DockerRuntime
from ohsandbox.network.package_hosts import shared_package_hosts
from tests.bench.rows import Row, ms

WHEELS = "requests rich pydantic"
ROUNDS = 5
TARGET = 1.15
INSTALL = (
    f"rm -rf /tmp/t && python3 -m pip install -q --no-cache-dir --disable-pip-version-check --target /tmp/t {WHEELS}"
)


def package_rows(image: str) -> list[Row]:
    """One row; none where this machine's pip names no host."""
    hosts = [one.host for one in shared_package_hosts().all() if one.tool == "pip"]
    if not hosts:
        return []
    bundle = next(filter(None, map(os.environ.get, ("PIP_CERT", "REQUESTS_CA_BUNDLE", "SSL_CERT_FILE"))), None)
    # the open network closes private addresses, which a site's own index may have
    own = {str(info[4][0]) for host in hosts for info in socket.getaddrinfo(host, 443, socket.AF_INET)}
    with (
        DockerRuntime(image, network="allowlist", allow=("packages",), ca_bundle=bundle) as listed,
        DockerRuntime(image, network="open", allow=sorted(own), ca_bundle=bundle) as opened,
    ):
        times: dict[str, list[float]] = {listed.name: [], opened.name: []}
        for sandbox in (listed, opened):
            sandbox.upload(Path(pip.__file__).parent, "/opt/pip/pip")
            sandbox.set_env({"PYTHONPATH": "/opt/pip"})
        for turn in range(ROUNDS + 1):
            for sandbox in (listed, opened) if turn % 2 else (opened, listed):
                began = time.perf_counter()
                done = sandbox.execute(INSTALL, timeout_s=300)
                times[sandbox.name].append(time.perf_counter() - began)
                if done.exit_code != 0:
                    raise RuntimeError(f"pip install failed: {done.output[-500:]}")
        ours, other = (statistics.median(times[one.name][1:]) for one in (listed, opened))  # the first warms up
    ratio = ours / other
    return [
        Row(
            f"pip install {WHEELS}, allowlist",
            ms(ours),
            f"{ms(other)} (open)",
            f"{ratio:.2f}x",
            f"<= {TARGET}x",
            ratio <= TARGET,
        )
    ]
