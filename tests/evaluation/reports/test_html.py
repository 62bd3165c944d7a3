from __future__ import annotations

import base64
import hashlib
import re
import subprocess
from html.parser import HTMLParser
from typing import TYPE_CHECKING

import pytest

from ohsandbox.evaluation.reports import read_results
from ohsandbox.evaluation.reports.comparison import compare_reports, comparison_html
from ohsandbox.evaluation.reports.html import html
from ohsandbox.evaluation.results import Load, Phase, Resources, StepResult
from tests.cli.viewer.chromium import PROGRAM
from tests.evaluation.results import BEGAN, HOSTILE_NAMES, HOSTILE_OUTPUT, trial, write_run
from tests.lacking import lacking

if TYPE_CHECKING:
    from pathlib import Path

POLICY = r"default-src 'none'; style-src '(sha256-\S+)'; script-src '(sha256-\S+)'; base-uri 'none'; form-action 'none'"
LOADING = {"src", "href", "srcset", "action", "formaction", "data", "poster", "background", "style", "srcdoc", "ping"}
"""Attributes that fetch something, lead somewhere, or are code."""


class Page(HTMLParser):
    """What a browser would make of a page, as far as these tests ask."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: dict[str, list[str]] = {}
        self._open = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._open = tag

    def handle_data(self, data: str) -> None:
        self.texts.setdefault(self._open, []).append(data)

    def attributes(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


def _hostile(path: Path) -> Path:
    trials = [trial(name, "agent_error", notes=[name], image=name, rewards={name: 0.0}) for name in HOSTILE_NAMES]
    phases = [Phase(name=f"{HOSTILE_NAMES[0]}: agent", started_at=BEGAN, seconds=1.0)]
    return write_run(path, [trials[0].model_copy(update={"phases": phases}), *trials[1:]], output=HOSTILE_OUTPUT)


@pytest.fixture(params=["report", "comparison"])
def page(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    source = read_results([_hostile(tmp_path)])
    return html(source) if request.param == "report" else comparison_html(compare_reports(source.report, source.report))


def test_the_policy_allows_one_style_and_one_script_by_hash_and_nothing_else(page: str) -> None:
    read = Page(page)
    policies = [one for one in read.attributes("meta") if one.get("http-equiv") == "Content-Security-Policy"]
    found = re.fullmatch(POLICY, policies[0]["content"] or "")
    assert found is not None
    for tag, allowed in zip(("style", "script"), found.groups(), strict=True):
        assert len(read.attributes(tag)) == 1
        text = re.search(rf"<{tag}>(.*?)</{tag}>", page, re.DOTALL)
        assert text is not None
        assert base64.b64encode(hashlib.sha256(text[1].encode()).digest()).decode() == allowed.removeprefix("sha256-")


def test_nothing_is_loaded_and_nothing_hostile_is_markup(page: str) -> None:
    read = Page(page)
    for tag, attributes in read.tags:
        assert tag not in {"img", "a", "link", "iframe", "object", "embed", "base", "form", "b0"}
        assert not LOADING & attributes.keys()
        assert not [name for name in attributes if name.startswith("on")]
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]", page)


def test_hostile_names_are_shown_as_they_are(page: str) -> None:
    assert "</script><script>alert(1)</script>" in Page(page).texts["bdi"]
    assert "a\\u{202e}gnp.exe" in Page(page).texts["bdi"]


def test_a_trial_shows_its_phases_its_fault_and_the_end_of_its_output(tmp_path: Path) -> None:
    phases = [Phase(name=name, started_at=BEGAN, seconds=1.0) for name in ("sandbox", "agent", "new-one")]
    used = Resources(peak_memory_bytes=64 * 1024**2, cpu_s=3.5, oom_kills=1, verifier_oom_kills=1)
    steps = [StepResult(name="first", rewards={"reward": 0.5}), StepResult(name="second")]
    failed = trial(
        "a", "agent_error", phases=phases, infrastructure_tries=2, cost_usd=0.25, resources=used, steps=steps,
        load=Load(cpus=1, others=0.25),
    )  # fmt: skip
    page = html(read_results([write_run(tmp_path, [failed, trial("b")], output=b"the end")]))
    for expected in (
        "agent: Timeout: it took too long",
        "the end",
        "2 tries",
        "$0.25",
        'class="phase-other"',
        "peak memory 64 MiB",
    ):
        assert expected in page
    for expected in (
        "step first: reward 0.5 · step second: no verdict",
        "2 processes killed",
        "others used 25.0 %",
        "64 MiB",
    ):
        assert expected in page
    assert page.count("<pre") == 1, "the output of a trial that passed is not shown"


def test_many_tasks_share_columns(tmp_path: Path) -> None:
    page = html(read_results([write_run(tmp_path, [trial(f"t{number}") for number in range(401)])]))
    assert "a column for 3 tasks" in page
    assert page.count("3 tasks, mean: 2.0 s, 100 % passed") == 133


def test_a_partial_report_says_so(tmp_path: Path) -> None:
    page = html(read_results([write_run(tmp_path, [], tasks={"a": "sha256:1"})]))
    assert "0 of 1 trials are finished" in page
    assert "No trial has a verdict." in page


@pytest.mark.slow
def test_a_browser_runs_our_script_and_no_other(page: str, tmp_path: Path) -> None:
    if PROGRAM is None:
        lacking("no chromium on this machine: apt-get install chromium")
    injected = page.replace(
        "<main>", "<main><script>document.title='owned'</script><img src=x onerror='document.title=1'>"
    )
    (tmp_path / "page.html").write_text(injected)
    command = [
        PROGRAM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--disable-background-networking",
        "--disable-component-update", "--disable-sync", f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom",
        f"file://{tmp_path / 'page.html'}",
    ]  # fmt: skip
    shown = subprocess.run(command, capture_output=True, text=True, check=True, timeout=100).stdout
    assert '<html lang="en" class="js">' in shown
    assert not re.search("<title>(owned|1)</title>", shown)
