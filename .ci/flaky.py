"""Run tests N times with all processors kept busy; print what failed, and how often: python .ci/flaky.py N TEST...

Each run is a pytest of its own, and as many of them run at a time as there are processors. `.ci/pytest` calls this with
the images and engines of the tests, and `make flaky` calls that. Exit code 1: a run failed; 2: no test was run.
"""

import collections
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import NamedTuple

BUSY = "import os\nparent = os.getppid()\nwhile os.getppid() == parent: sum(range(1_000_000))"
"""A program that keeps a processor busy until it is ended, or its parent has gone."""
VARYING = re.compile(r"0x[0-9a-f]+|(?=[0-9a-z_]*\d)[0-9a-z_]{6,}|\d+")
"""What makes two texts of one fault differ: addresses, names made at random, numbers."""


class Failure(NamedTuple):
    """Why one test failed in one run."""

    test: str
    message: str
    text: str


def run_once(directory: Path, tests: list[str]) -> list[Failure]:
    """Run the tests once; return the failures, one without a test if none was run."""
    report = directory / "junit.xml"
    command = [sys.executable, "-m", "pytest", "-q", "--tb=short", "-p", "no:cacheprovider", "-p", "no:xdist"]
    command += [f"--junitxml={report}", f"--basetemp={directory / 'tmp'}", *tests]
    run = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    failures = [
        Failure(f"{case.get('classname')}::{case.get('name')}", found.get("message", ""), found.text or "")
        for case in (ET.parse(report).iter("testcase") if report.exists() else ())
        for found in case
        if found.tag in {"failure", "error"}
    ]
    if run.returncode and not failures:
        failures = [Failure("", f"pytest ended with exit code {run.returncode}", run.stdout + run.stderr)]
    return failures


def run_all(count: int, tests: list[str], directory: Path) -> list[list[Failure]]:
    """Run the tests count times beside as many busy processes as there are processors; Ctrl-C and SIGTERM end it."""
    processors = os.cpu_count() or 1
    busy = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(processors)]
    places = [directory / f"run-{number}" for number in range(count)]
    runs = []
    for place in places:
        place.mkdir()
    pool = ThreadPoolExecutor(processors)
    try:
        for run in as_completed([pool.submit(run_once, place, tests) for place in places]):
            runs.append(run.result())
            print("F" if runs[-1] else ".", end="", flush=True)
    except KeyboardInterrupt:
        print(" interrupted: it waits for the runs that have begun")
    finally:
        pool.shutdown(cancel_futures=True)
        for process in busy:
            process.kill()
            process.wait()
    return runs


def main() -> int:
    """Print a table of the failures; return the exit code."""
    try:
        count, tests = int(sys.argv[1]), sys.argv[2:]
    except (IndexError, ValueError):
        tests = []
    if not tests:
        print("Name the tests: make flaky N=50 TESTS='tests/test_text.py -k lines'", file=sys.stderr)
        return 2
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    directory = Path(tempfile.mkdtemp(prefix="flaky-"))
    runs = run_all(count, tests, directory)
    shutil.rmtree(directory, ignore_errors=True)
    kinds = collections.defaultdict(list)
    for failure in (failure for run in runs for failure in run):
        kinds[failure.test, VARYING.sub("*", failure.message)].append(failure)
    for (test, _), failures in sorted(kinds.items(), key=lambda kind: -len(kind[1])):
        print(f"\n{len(failures)} x {test or 'no test was run'}\n{failures[0].text.strip() or failures[0].message}")
    failed = sum(map(bool, runs))
    print(f"\n{'runs':>6} {'passed':>6} {'failed':>6} {'kinds of failure':>16}")
    print(f"{len(runs):>6} {len(runs) - failed:>6} {failed:>6} {len(kinds):>16}")
    return 2 if all(not failure.test for run in runs for failure in run) and failed else int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
