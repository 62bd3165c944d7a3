"""What a person waits for: the first request to the model after Enter, and the end of the process after the answer."""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from typing import NamedTuple

from ohsandbox.testing.provider import FakeProvider, Reply, Request, text
from tests.bench.rows import Row, median_s, ms

ROUNDS = 7
_AS_INSTALLED = "import sys; sys.modules['trio'] = None; from ohsandbox.cli.app import main; main()"
"""trio is here for tests of our own alone, and httpx's client imports it where it is: 0.04 s."""


class Start(NamedTuple):
    """Of one `ohsandbox run`, all in seconds; medians where there are many."""

    to_request: float
    """From the start of the process to its request at the server."""
    to_end: float
    """From the answer's last byte to the end of the process, its container removed."""
    cpu: float
    """User and system time of the process and its children."""


def timed_run(model: str, image: str, *more: str, home: str) -> Start:
    """Run a task of one answer in a fresh container, with a server of our own."""
    arrived: list[float] = []

    def answer(_: Request) -> Reply:
        arrived.append(time.perf_counter())
        return text("Done.")

    with FakeProvider(answer=answer, models=[model.partition("/")[2]]) as provider:
        url = provider.base_url.removesuffix("/v1") if model.startswith("anthropic/") else provider.base_url
        argv = [sys.executable, "-c", _AS_INSTALLED, "run", "Say done.", "--no-tui", "--image", image]
        argv += ["--model", model, "--base-url", url, "--api-key", "none", *more]
        # as installed packages are: compiled. home is warm from the second run on
        env = {**os.environ, "OHSANDBOX_HOME": home, "PYTHONPYCACHEPREFIX": f"{home}/bytecode"}
        env.pop("PYTHONDONTWRITEBYTECODE", None)
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        began = time.perf_counter()
        ended = subprocess.run(argv, capture_output=True, env=env, check=False)
        over = time.perf_counter()
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if ended.returncode or len(arrived) != 1:
        raise RuntimeError(f"{argv}: exit code {ended.returncode}, {len(arrived)} requests. {ended.stderr.decode()}")
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Start(arrived[0] - began, over - arrived[0], cpu)


def medians(model: str, image: str, *more: str, rounds: int = ROUNDS) -> Start:
    """Of rounds runs, after one that warms up."""
    with tempfile.TemporaryDirectory(prefix="ohsandbox-bench-") as home:
        runs = [timed_run(model, image, *more, home=home) for _ in range(rounds + 1)][1:]
    return Start(*(statistics.median(values) for values in zip(*runs, strict=True)))


def first_request_rows(image: str) -> list[Row]:
    """The two wire formats that are spoken directly, and what an import of litellm takes."""
    env = {**os.environ, "LITELLM_LOCAL_MODEL_COST_MAP": "True"}  # it would ask the network for prices
    import_s = median_s(lambda: subprocess.run([sys.executable, "-c", "import litellm"], check=True, env=env), rounds=3)
    rows = []
    for what, model in (("OpenAI's format", "openai/fake"), ("Anthropic's", "anthropic/claude-sonnet-4-5")):
        took = medians(model, image)
        rows += [
            Row(
                f"Enter to first request, {what}", ms(took.to_request), f"{ms(import_s)} import litellm",
                f"{took.cpu:.2f} s CPU", "< 0.8 s", took.to_request < 0.8,
            ),
            Row(f"answer to end, {what}", ms(took.to_end), "", "", "< 0.3 s", took.to_end < 0.3),
        ]  # fmt: skip
    return rows
