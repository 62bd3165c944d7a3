"""Write docs/images/*.png, of what is made up here and in tests: `python -m docs.generate_pictures`."""

# needs `chromium`
# ruff: noqa: S311 - the same pictures each time
from __future__ import annotations

import random
import subprocess
import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path

from ohsandbox.cli.viewer.page import write_page
from ohsandbox.evaluation.reports import read_results
from ohsandbox.evaluation.reports.comparison import compare, comparison_html
from ohsandbox.evaluation.reports.html import html
from ohsandbox.evaluation.results import Fault, Outcome, Phase, ResultsDirectory, TrialKey, TrialResult
from ohsandbox.evaluation.runner import RUN_NAME, RunRecord
from tests.cli.viewer import example
from tests.cli.viewer.chromium import Chromium

IMAGES = Path(__file__).parent / "images"
NAMES = [
    f"{verb}-{what}" for verb in ("fix", "build", "port", "speed-up") for what in (
        "the-parser", "a-kernel-module", "legacy-script", "log-rotation", "csv-import", "cache", "tls-setup",
        "web-form", "git-history", "unit-tests",
    )
]  # fmt: skip
BEGAN = datetime(2026, 11, 22, 9, tzinfo=UTC)
PHASES = (("image", 0.1), ("sandbox", 0.6), ("setup", 0.1), ("agent", 0.0), ("collect", 0.3), ("verifier", 3.0))
SIZE = "1120,900"


def main() -> None:
    """Write them."""
    IMAGES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as place:
        base = Path(place)
        before, after = (_results(base / name, seed) for seed, name in enumerate(("before", "after")))
        (base / "report.html").write_text(html(read_results([after])))
        reports = [read_results([path]).report for path in (before, after)]
        (base / "compare.html").write_text(comparison_html(compare(*reports, names=("before", "after"))))
        for page in ("report", "compare"):
            _photograph(base / f"{page}.html", IMAGES / f"{page}.png")
        with (base / "view.html").open("wb") as file:
            write_page(file, example.usual(base))
        with Chromium(base / "browser") as browser:
            browser.open((base / "view.html").as_uri(), width=1120, height=1180)
            browser.evaluate("document.querySelector('#e10 .folded').show(true)")
            browser.frame()
            browser.picture(IMAGES / "view.png")


def _results(path: Path, seed: int) -> Path:
    draw, hardness = random.Random(seed), random.Random(0)
    results = ResultsDirectory(path)
    record = RunRecord(run_id=f"made-up-{seed}", agent="ohsandbox", attempts=1, tasks=dict.fromkeys(NAMES, "sha256:1"))
    results.write_json(RUN_NAME, record.model_dump_json())
    for number, name in enumerate(NAMES):
        passed = draw.random() < hardness.betavariate(1.2, 0.8) + 0.1 * seed
        results.begin(TrialKey(name, 1))
        results.finish(_trial(name, draw, BEGAN + timedelta(seconds=9 * number), passed=passed))
    return path


def _trial(name: str, draw: random.Random, began: datetime, *, passed: bool) -> TrialResult:
    outcome: Outcome = (
        "pass" if passed else draw.choice(("fail", "fail", "fail", "agent_error", "infrastructure_error"))
    )
    fault = Fault(phase="agent", kind="Timeout", message="it took longer than 600 s")
    phases, seconds = [], 0.0
    for phase, usual in PHASES:
        length = usual * draw.uniform(0.7, 1.5) or draw.lognormvariate(3.2, 0.7)
        phases.append(Phase(name=phase, started_at=began + timedelta(seconds=seconds), seconds=length))
        seconds += length
    return TrialResult(
        task=name, attempt=1, outcome=outcome, reward=float(passed), rewards={"reward": float(passed)},
        fault=None if outcome in {"pass", "fail"} else fault, agent="ohsandbox", model="example/model",
        task_digest="sha256:1", image="python:3.12", image_digest="sha256:0", started_at=began, seconds=seconds,
        phases=phases, usage={"input_tokens": draw.randint(5000, 90000), "output_tokens": draw.randint(500, 9000)},
        cost_usd=draw.lognormvariate(-3, 0.7),
    )  # fmt: skip


def _photograph(page: Path, picture: Path) -> None:
    command = [
        "chromium", "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--disable-background-networking",
        "--disable-component-update", "--disable-sync", "--hide-scrollbars", f"--window-size={SIZE}",
        "--blink-settings=preferredColorScheme=1", f"--user-data-dir={page.parent / 'profile'}",
        f"--screenshot={picture}", f"file://{page}",
    ]  # fmt: skip
    subprocess.run(command, check=True, timeout=100, capture_output=True)


if __name__ == "__main__":
    main()
