"""`python -m tests.bench.scale [--image IMAGE] [--ray]`: how cost grows with sandboxes, on this machine."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import docker
from rich.console import Console
from rich.table import Table

from ohsandbox import DockerRuntime
from tests.bench.evaluation import CONCURRENT, TASKS, evaluate, load, write_tasks

if TYPE_CHECKING:
    from collections.abc import Sequence

STARTED = 24
"""Sandboxes for one figure of throughput."""
CONCURRENCIES = (1, 2, 4, 8)
IDLE = (10, 25, 50)
IDLE_COLUMNS = (
    "sandboxes", "shim KiB", "inside KiB", "engine KiB", "runner KiB", "disk KiB", "engine fds", "runner fds",
)  # fmt: skip
KERNEL_LIMITS = (
    "fs/file-max", "fs/inotify/max_user_instances", "kernel/pid_max", "kernel/threads-max", "kernel/pty/max",
    "net/ipv4/neigh/default/gc_thresh3", "vm/max_map_count",
)  # fmt: skip


def throughput(image: str, concurrent: int) -> float:
    """Sandboxes that were started, checked, used for one command and removed, by second."""

    def one(_: int) -> None:
        with DockerRuntime(image) as runtime:
            runtime.run(["true"])

    with ThreadPoolExecutor(concurrent) as pool:
        list(pool.map(one, range(concurrent)))
        began = time.perf_counter()
        list(pool.map(one, range(STARTED)))
    return STARTED / (time.perf_counter() - began)


def idle_rows(image: str) -> list[tuple[str, ...]]:
    """What so many idle sandboxes with a ready shell hold, in KiB and descriptors for each."""
    client = docker.from_env()
    rows: list[tuple[str, ...]] = []
    engine = _processes("dockerd")
    before = (_pss_kib([os.getpid()]), _descriptors([os.getpid()]), _pss_kib(engine), _descriptors(engine))
    with contextlib.ExitStack() as stack:
        open_ones: list[str] = []
        for wanted in IDLE:
            while len(open_ones) < wanted:
                runtime = stack.enter_context(DockerRuntime(image))
                runtime.execute("true")
                open_ones.append(runtime.id)
            details = [client.api.inspect_container(one) for one in open_ones]
            sizes = client.api.containers(size=True, filters={"id": open_ones})
            shims = [pid for one in open_ones for pid in _processes("containerd-shim", one)]
            inside = [pid for one in details for pid in _family(one["State"]["Pid"])]
            ours = _pss_kib([os.getpid()]) - before[0], _descriptors([os.getpid()]) - before[1]
            theirs = _pss_kib(engine) - before[2], _descriptors(engine) - before[3]
            disk = sum(one.get("SizeRw") or 0 for one in sizes) // 1024
            numbers = (_pss_kib(shims), _pss_kib(inside), theirs[0], ours[0], disk, theirs[1], ours[1])
            rows.append((str(wanted), *(f"{number / wanted:.1f}" for number in numbers)))
    client.close()
    return rows


def _processes(name: str, argument: str = "") -> list[int]:
    """The processes of a program, with an argument."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            words = path.read_bytes().decode(errors="replace").split("\0")
            if Path(words[0]).name.startswith(name) and (not argument or argument in words):
                found.append(int(path.parent.name))
    return found


def _family(pid: int) -> list[int]:
    """A process and all below it."""
    found = [pid]
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            found += [one for child in path.read_text().split() for one in _family(int(child))]
    return found


def _pss_kib(pids: Sequence[int]) -> int:
    """Resident memory, with what processes share counted once."""
    total = 0
    for pid in pids:
        with contextlib.suppress(OSError):
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="utf-8").splitlines()
            total += sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return total


def _descriptors(pids: Sequence[int]) -> int:
    total = 0
    for pid in pids:
        with contextlib.suppress(OSError):
            total += len([*Path(f"/proc/{pid}/fd").iterdir()])
    return total


def limit_rows() -> list[tuple[str, ...]]:
    """The limits of this kernel and engine that sandboxes share."""
    rows: list[tuple[str, ...]] = [
        (name, Path("/proc/sys", name).read_text(encoding="utf-8").strip()) for name in KERNEL_LIMITS
    ]
    for pid in _processes("dockerd"):
        lines = Path(f"/proc/{pid}/limits").read_text(encoding="utf-8").splitlines()
        rows += [("dockerd: open files", line.split()[3]) for line in lines if line.startswith("Max open files")]
    return rows


def ray_rows(image: str) -> list[tuple[str, ...]]:
    """Runs of a few and of 30 tasks here and on Ray: what is left of the difference is Ray's, for each task."""
    few = 4
    with tempfile.TemporaryDirectory() as directory:
        short = write_tasks(Path(directory) / "short", image, few)
        long = write_tasks(Path(directory) / "long", image, TASKS)
        took = {
            engine: (evaluate(short, "--engine", engine).wall_s, evaluate(long, "--engine", engine).wall_s)
            for engine in ("local", "ray")
        }
    each = {engine: (long_s - short_s) / (TASKS - few) for engine, (short_s, long_s) in took.items()}
    rows: list[tuple[str, ...]] = [
        (name, f"{took[name][0]:.1f} s", f"{took[name][1]:.1f} s", f"{each[name]:.2f} s") for name in took
    ]
    return [*rows, ("ray adds", "", "", f"{each['ray'] - each['local']:+.2f} s")]


def _table(title: str, columns: Sequence[str], rows: Sequence[tuple[str, ...]]) -> Table:
    table = Table(title=f"{title}, {load()}")
    for column in columns:
        table.add_column(column)
    for row in rows:
        table.add_row(*row)
    return table


def main() -> int:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--image", default=os.environ.get("OHSANDBOX_TEST_IMAGE", "ohsandbox-base:debian"))
    parser.add_argument("--ray", action="store_true", help="compare --engine ray with local; needs ohsandbox[ray]")
    chosen, console = parser.parse_args(), Console(width=120)
    rates: list[tuple[str, ...]] = [
        (str(number), f"{throughput(chosen.image, number):.1f}") for number in CONCURRENCIES
    ]
    console.print(_table("started, used and removed", ("concurrent", "sandboxes/s"), rates))
    console.print(_table("held by each idle sandbox", IDLE_COLUMNS, idle_rows(chosen.image)))
    console.print(_table("limits", ("of", "is"), limit_rows()))
    if chosen.ray:
        compared = ("engine", "4 tasks", f"{TASKS} tasks", "each more")
        console.print(_table(f"evaluation, -n {CONCURRENT}", compared, ray_rows(chosen.image)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
