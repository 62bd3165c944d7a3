"""`ohsandbox eval` as a whole command, start and records included, against a shell loop over the engine's command."""

from __future__ import annotations

import itertools
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from tests.bench.rows import Row

CONCURRENT = 4
TASKS = 30
NOPS = (50, 250)
"""The runner's memory is compared between runs of so many tasks: the difference are 200."""
HARBOR = Path(".cache/harbor/bin/harbor")
_TEST = '#!/bin/sh\nif [ "$(cat /tmp/answer)" = 42 ]; then echo 1; else echo 0; fi >/logs/verifier/reward.txt\n'
_BARE = """
one() {
  c=$(docker run -d --network none "$IMAGE" sleep 3600)
  docker cp "$1/solution" "$c:/solution" >/dev/null; docker exec "$c" /solution/solve.sh
  docker cp "$1/tests" "$c:/tests" >/dev/null
  docker exec "$c" sh -c 'mkdir -p /logs/verifier; /tests/test.sh; cat /logs/verifier/reward.txt'
  docker rm -f "$c" >/dev/null
}
export -f one
ls -d "$TASKS"/* | xargs -P "$CONCURRENT" -I{} bash -c 'one {}'
"""


class Ended(NamedTuple):
    """What a command took."""

    wall_s: float
    cpu_s: float
    """Of the command and what it waited for; the engine's processes are not among them."""
    peak_kib: int
    """Resident memory of its biggest process."""


def write_tasks(place: Path, image: str, count: int) -> Path:
    """Write trivial tasks in Harbor's format, and return the place."""
    files = {
        "task.toml": f'[environment]\ndocker_image = "{image}"\n',
        "instruction.md": "Write the number 42 to /tmp/answer.\n",
        "solution/solve.sh": "#!/bin/sh\necho 42 >/tmp/answer\n",
        "tests/test.sh": _TEST,
    }
    for number, (name, text) in itertools.product(range(count), files.items()):
        path = place / f"task-{number:03}" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        path.chmod(0o755)
    return place


def timed(argv: list[str], **variables: str) -> Ended:
    """Run a command to its end.

    Raises:
        RuntimeError: its exit code is not 0.
    """
    with tempfile.TemporaryFile() as printed:
        began = time.perf_counter()
        process = subprocess.Popen(argv, stdout=printed, stderr=subprocess.STDOUT, env=os.environ | variables)
        _, status, used = os.wait4(process.pid, 0)
        wall = time.perf_counter() - began
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode != 0:
            printed.seek(0)
            raise RuntimeError(f"{argv[:3]} ended with {process.returncode}: {printed.read()[-2000:].decode()}")
    return Ended(wall, used.ru_utime + used.ru_stime, used.ru_maxrss)


def evaluate(tasks: Path, *options: str) -> Ended:
    """Run `ohsandbox eval` on the tasks, with new results."""
    with tempfile.TemporaryDirectory() as results:
        command = [sys.executable, "-m", "ohsandbox", "eval", str(tasks), "-o", results, "-n", str(CONCURRENT)]
        return timed([*command, *options])


def load() -> str:
    """The machine's load average over one minute, as a row shows it."""
    return f"load {os.getloadavg()[0]:.1f}"


def evaluation_rows(image: str, *, pairs: int = 3) -> list[Row]:
    """Whole runs of 30 tasks in alternating order; the runner's own share; its memory."""
    with tempfile.TemporaryDirectory() as directory:
        tasks = write_tasks(Path(directory) / "tasks", image, TASKS)
        bare = ["bash", "-c", _BARE]
        variables = {"IMAGE": image, "TASKS": str(tasks), "CONCURRENT": str(CONCURRENT)}
        timed(bare, **variables)
        ours: list[Ended] = []
        theirs: list[Ended] = []
        for number in range(pairs):
            for is_ours in (True, False) if number % 2 == 0 else (False, True):
                (ours if is_ours else theirs).append(evaluate(tasks) if is_ours else timed(bare, **variables))
        wall = statistics.median(one.wall_s for one in ours)
        other = statistics.median(one.wall_s for one in theirs)
        first = statistics.median(evaluate(tasks, "--filter", "task-000").cpu_s for _ in range(pairs))
        own = (statistics.median(one.cpu_s for one in ours) - first) / (TASKS - 1)
        return [
            Row(
                f"eval of {TASKS} tasks, -n {CONCURRENT} / shell loop", f"{wall:.1f} s", f"{other:.1f} s, {load()}",
                f"{wall / other:.2f}x", "<= 0.8x", wall / other <= 0.8,
            ),
            Row("processor time of eval for a task", f"{own * 1000:.0f} ms", "", "", "< 50 ms", own < 0.05),
            _memory_row(Path(directory), image),
        ]  # fmt: skip


def _memory_row(directory: Path, image: str) -> Row:
    few, many = (
        evaluate(write_tasks(directory / str(count), image, count), "--agent", "nop", "--min-pass-rate", "0").peak_kib
        for count in NOPS
    )
    more = (many - few) / 1024
    return Row(
        f"memory of eval after {NOPS[1]} tasks / {NOPS[0]}", f"{many / 1024:.0f} MB", f"{few / 1024:.0f} MB",
        f"{more:+.1f} MB", "< 8 MB", more < 8,
    )  # fmt: skip


def harbor_row(image: str) -> Row:
    """Harbor with its docker environment, the same tasks, once: it takes two minutes."""
    work = f"eval of {TASKS} tasks / Harbor"
    if not HARBOR.exists():
        return Row(work, "", f"not measured: {HARBOR} is missing (.ci/engine harbor)", "", "<= 1/10", None)
    with tempfile.TemporaryDirectory() as directory:
        tasks = write_tasks(Path(directory) / "tasks", image, TASKS)
        for task in tasks.iterdir():
            (task / "environment").mkdir()
            (task / "environment" / "Dockerfile").write_text(f"FROM {image}\n", encoding="utf-8")
        argv = [str(HARBOR), "run", "-y", "-p", str(tasks), "-a", "oracle", "-e", "docker", "-n", str(CONCURRENT)]
        other = timed([*argv, "-o", f"{directory}/jobs"]).wall_s
        wall = evaluate(tasks).wall_s
    return Row(
        work, f"{wall:.1f} s", f"{other:.1f} s, {load()}", f"1/{other / wall:.1f}", "<= 1/10", other >= 10 * wall
    )
