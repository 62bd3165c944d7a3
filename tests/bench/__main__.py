"""`python -m tests.bench [--image IMAGE] [--peers]`: one table, medians, every comparison made in this run."""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from ohsandbox import DockerRuntime, SandboxPool
from tests.bench.awaited import awaited_rows
from tests.bench.editor import editor_rows
from tests.bench.engine import PlainContainer, docker_run_detached, remove_started
from tests.bench.evaluation import evaluation_rows, harbor_row
from tests.bench.first_request import first_request_rows
from tests.bench.log import log_rows
from tests.bench.masking import masking_rows
from tests.bench.mcp import mcp_rows
from tests.bench.packages import package_rows
from tests.bench.peers import peer_rows
from tests.bench.ports import port_rows
from tests.bench.rows import BIG, Row, faster, median_s, ms, share
from tests.bench.search import search_rows
from tests.bench.services import service_rows
from tests.bench.setups import setup_rows
from tests.bench.steps import step_rows
from tests.bench.toolcall import toolcall_rows

if TYPE_CHECKING:
    from ohsandbox.runtime import Runtime


def round_trips(runtime: Runtime, plain: PlainContainer) -> list[Row]:
    """Commands and small files."""
    exec_true = median_s(lambda: plain.exec_once("true"), rounds=30)
    exec_ls = median_s(lambda: plain.exec_once("ls", "/"), rounds=30)
    kilobyte = os.urandom(1024)

    def files() -> None:
        runtime.write_bytes("/tmp/bench", kilobyte)
        runtime.read_bytes("/tmp/bench")

    return [
        faster('execute("true")', median_s(lambda: runtime.execute("true"), rounds=300), exec_true, times=80),
        faster('execute("ls /")', median_s(lambda: runtime.execute("ls /"), rounds=100), exec_ls, times=18),
        faster('run(["true"])', median_s(lambda: runtime.run(["true"]), rounds=100), exec_true, times=15),
        faster(
            "write + read 1 KB", median_s(files, rounds=100),
            median_s(lambda: plain.archive_round_trip(kilobyte), rounds=20), times=15,
        ),
    ]  # fmt: skip


def streams(runtime: Runtime, plain: PlainContainer) -> list[Row]:
    """100 MB each way."""
    data = os.urandom(1024) * (BIG // 1024)
    make = ["sh", "-c", f"head -c {BIG} /dev/zero"]
    plain.raw_write(data, "sh", "-c", "cat > /tmp/big")
    runtime.write_bytes("/tmp/big", data)
    raw_out = median_s(lambda: plain.raw_read(*make), rounds=5)
    raw_read = median_s(lambda: plain.raw_read("cat", "/tmp/big"), rounds=5)
    raw_write = median_s(lambda: plain.raw_write(data, "sh", "-c", "cat > /tmp/big"), rounds=5)
    return [
        share("100 MB through run stdout", median_s(lambda: runtime.run(make), rounds=5), raw_out, least=0.7),
        share("read_bytes of 100 MB", median_s(lambda: runtime.read_bytes("/tmp/big"), rounds=5), raw_read, least=0.7),
        share(
            "write_bytes of 100 MB",
            median_s(lambda: runtime.write_bytes("/tmp/big", data), rounds=5),
            raw_write,
            least=0.7,
        ),
    ]


def start_up(image: str) -> list[Row]:
    """A checked sandbox, and one with a ready shell, against a started container."""
    started: list[DockerRuntime] = []

    def safe() -> None:
        started.append(DockerRuntime(image).start())

    def ready() -> None:
        safe()
        started[-1].execute("true")

    checked, ours = median_s(safe, rounds=5), median_s(ready, rounds=5)
    for runtime in started:
        runtime.close()
    plain = median_s(lambda: docker_run_detached(image), rounds=5)
    remove_started()
    return [
        Row(
            f"{what} / `docker run -d`",
            ms(took),
            ms(plain),
            f"{took / plain:.2f}x",
            f"<= {most}x",
            took / plain <= most,
        )
        for what, took, most in (("safe start, self-check done", checked, 1.25), ("ready shell", ours, 1.4))
    ]


def start_with_a_list(image: str) -> list[Row]:
    """A ready shell with its network, against one without a network and a started container, in turn."""
    started: list[DockerRuntime] = []

    def ready(**network: Any) -> float:
        began = time.perf_counter()
        started.append(DockerRuntime(image, **network).start())
        started[-1].execute("true")
        return time.perf_counter() - began

    def plain() -> float:
        began = time.perf_counter()
        docker_run_detached(image)
        return time.perf_counter() - began

    DockerRuntime(image, allow=["a.example.org"])  # its modules are imported once
    rounds = [(ready(allow=["a.example.org"]), ready(network="open"), ready(), plain()) for _ in range(7)]
    for runtime in started:
        runtime.close()
    remove_started()
    listed, opened, none, bare = (statistics.median(column) for column in zip(*rounds, strict=True))
    most = 2.2
    return [
        Row("ready shell with a list / `docker run -d`", ms(listed), ms(bare), f"{listed / bare:.2f}x",
            f"<= {most}x", listed / bare <= most),
        Row("ready shell with a list / without a network", ms(listed), ms(none), f"{listed / none:.2f}x", "", None),
        Row("ready shell, open network / `docker run -d`", ms(opened), ms(bare), f"{opened / bare:.2f}x", "",
            None),
    ]  # fmt: skip


def warm_start(image: str) -> list[Row]:
    """A sandbox with a ready shell out of a pool, and its first command: median and worst, against a started one."""
    took, ready, rounds = [], [], 30
    with SandboxPool(image, 4) as pool:
        for _ in range(rounds):
            pool.wait_full()
            began = time.perf_counter()
            sandbox = pool.get()
            took.append(time.perf_counter() - began)
            sandbox.execute("true")
            ready.append(time.perf_counter() - began)
            sandbox.close()
    median, worst = statistics.median(took), max(took)
    return [
        Row("warm sandbox, ready shell: median", ms(median), ms(worst) + " worst", "", "< 20 ms", worst < 0.02),
        Row("the same and its first command", ms(statistics.median(ready)), ms(max(ready)) + " worst", "", "", None),
    ]


def flood(runtime: Runtime) -> Row:
    """Host memory while a command prints 1 GB."""
    peak, stop = [_rss_mb()], threading.Event()

    def watch() -> None:
        while not stop.wait(0.02):
            peak.append(_rss_mb())

    watcher = threading.Thread(target=watch)
    before = _rss_mb()
    watcher.start()
    began = time.perf_counter()
    runtime.execute("yes | head -c 1000000000", timeout_s=120)
    took = time.perf_counter() - began
    stop.set()
    watcher.join()
    more = max(peak) - before
    return Row("host memory, 1 GB printed", f"{more:.0f} MB", f"in {took:.1f} s", "", "< 64 MB", more < 64)


def _rss_mb() -> float:
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    return int(status.split("VmRSS:")[1].split()[0]) / 1024


def five_hundred(runtime: Runtime) -> list[Row]:
    """The tail, and what stays behind."""
    before = (len([*Path("/proc/self/fd").iterdir()]), threading.active_count())
    times = []
    for _ in range(500):
        began = time.perf_counter()
        runtime.execute("true")
        times.append(time.perf_counter() - began)
    after = (len([*Path("/proc/self/fd").iterdir()]), threading.active_count())
    p99, middle = sorted(times)[494], statistics.median(times)
    return [
        Row("500 commands, p99 / median", ms(p99), ms(middle), f"{p99 / middle:.1f}x", "<= 5x", p99 <= 5 * middle),
        Row("descriptors, threads before/after", str(after), str(before), "", "the same", after == before),
    ]


def imports() -> list[Row]:
    """What a person waits for before anything happens."""
    python = median_s(lambda: _python("-c", "pass"), rounds=7)
    rows = []
    for work, argv, target in (
        ("import ohsandbox", ["-c", "import ohsandbox"], 0.15),
        ("ohsandbox --help", ["-m", "ohsandbox", "--help"], 0.25),
    ):
        took = median_s(lambda argv=argv: _python(*argv), rounds=7)  # type: ignore[misc]
        rows.append(Row(work, ms(took), f"{ms(python)} bare python", "", f"< {target} s", took < target))
    return rows


def _python(*argv: str) -> None:
    subprocess.run([sys.executable, *argv], check=True, capture_output=True)


def main() -> int:
    """Print the table; 1 when a target was missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--image", default=os.environ.get("OHSANDBOX_TEST_IMAGE", "ohsandbox-base:debian"))
    parser.add_argument(
        "--peers", action="store_true", help="install and time mini-swe-agent and SWE-ReX as well, and time Harbor"
    )
    chosen = parser.parse_args()
    console = Console()
    rows: list[Row] = []
    with console.status("measuring"), DockerRuntime(chosen.image) as runtime, PlainContainer(chosen.image) as plain:
        rows += round_trips(runtime, plain)
        rows += awaited_rows(runtime)
        rows += streams(runtime, plain)
        rows += [
            *start_up(chosen.image),
            *start_with_a_list(chosen.image),
            *warm_start(chosen.image),
            *service_rows(chosen.image),
            flood(runtime),
            *five_hundred(runtime),
            *imports(),
        ]
        rows += first_request_rows(chosen.image)
        rows += [
            *editor_rows(runtime),
            *search_rows(runtime),
            *mcp_rows(runtime),
            *toolcall_rows(),
            *port_rows(runtime),
            *step_rows(),
            *log_rows(),
            *masking_rows(),
        ]
    with console.status("measuring evaluations"):  # after the others: it is the work of many containers
        rows += setup_rows(chosen.image)
        rows += package_rows(chosen.image)
        rows += evaluation_rows(chosen.image)
        rows += [harbor_row(chosen.image)] if chosen.peers else []
    table = Table(title=f"ohsandbox on {chosen.image}, medians")
    for column in ("work", "ohsandbox", "compared with", "ratio", "target", "met"):
        table.add_column(column)
    for row in rows:
        table.add_row(*row[:5], {True: "yes", False: "NO", None: ""}[row.met])
    console.print(table)
    if chosen.peers:
        console.print(peer_rows(chosen.image))
    return 0 if all(row.met is not False for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
