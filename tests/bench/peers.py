"""mini-swe-agent's docker environment and SWE-ReX's runtime, each in a virtual environment of its own, same work."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from rich.table import Table

CACHE = Path(".cache/peers")

_MINI = """
import json, statistics, sys, time
from minisweagent.environments.docker import DockerEnvironment
env = DockerEnvironment(image=sys.argv[1], cwd="/")
def call(command):
    try: env.execute({"command": command})
    except (TypeError, AttributeError): env.execute(command)
times = {}
for command in ("true", "ls /"):
    call(command); seen = []
    for _ in range(20):
        began = time.perf_counter(); call(command); seen.append(time.perf_counter() - began)
    times[command] = statistics.median(seen)
env.cleanup()
print(json.dumps(times))
"""

_REX = """
import asyncio, json, statistics, time
from swerex.runtime.abstract import BashAction, CreateBashSessionRequest
from swerex.runtime.local import LocalRuntime
async def main():
    runtime = LocalRuntime()
    await runtime.create_session(CreateBashSessionRequest())
    times = {}
    for command in ("true", "ls /"):
        seen = []
        for _ in range(21):
            began = time.perf_counter()
            await runtime.run_in_session(BashAction(command=command))
            seen.append(time.perf_counter() - began)
        times[command] = statistics.median(seen[1:])
    await runtime.close()
    print(json.dumps(times))
asyncio.run(main())
"""

PEERS = {
    "mini-swe-agent, docker environment": ("mini-swe-agent", _MINI),
    "SWE-ReX, runtime on this host (its server's own work)": ("swe-rex", _REX),
}


def peer_rows(image: str) -> Table:
    """A table of their medians, or of why one could not be measured."""
    table = Table(title="peers, the same commands")
    for column in ("peer", "true", "ls /"):
        table.add_column(column)
    for name, (package, script) in PEERS.items():
        table.add_row(name, *_measured(package, script, image))
    return table


def _measured(package: str, script: str, image: str) -> tuple[str, str]:
    python = CACHE / package / "bin" / "python"
    try:
        if not python.exists():
            subprocess.run([sys.executable, "-m", "venv", str(CACHE / package)], check=True, capture_output=True)
            subprocess.run([str(python), "-m", "pip", "install", "-q", package], check=True, capture_output=True)
        done = subprocess.run(
            [str(python), "-c", script, image], check=True, capture_output=True, text=True, timeout=300
        )
        times = json.loads(done.stdout.strip().splitlines()[-1])
    except (subprocess.SubprocessError, ValueError, IndexError) as error:
        said = getattr(error, "stderr", "") or str(error)
        last = (said if isinstance(said, str) else said.decode()).strip().splitlines()
        return (f"not measured: {last[-1][:80] if last else error}", "")
    return (f"{times['true'] * 1000:.1f} ms", f"{times['ls /'] * 1000:.1f} ms")
