"""The page in headless Chromium: without one these tests fail in CI, and are skipped elsewhere."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from ohsandbox.cli.viewer.page import write_page
from tests.cli.viewer import example

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.cli.viewer.chromium import Chromium

SHOWN = "document.querySelectorAll('#log > .events > .entry').length"


@pytest.fixture
def address(tmp_path: Path) -> Callable[..., str]:
    """The address of the page of an example."""

    def write(kind: str = "usual", *more: Any) -> str:
        directory = getattr(example, kind)(tmp_path, *more)
        with (tmp_path / "page.html").open("wb") as file:
            write_page(file, directory)
        return (tmp_path / "page.html").as_uri()

    return write


@pytest.mark.parametrize("kind", ["usual", "hostile"])
@pytest.mark.parametrize(("width", "dark"), [(1400, False), (800, True), (390, False)])
def test_nothing_is_loaded_and_nothing_fails(
    browser: Chromium, address: Callable[..., str], kind: str, width: int, *, dark: bool
) -> None:
    page = address(kind)
    browser.open(page, width=width, dark=dark)
    browser.click("#unfold")
    browser.frame()
    assert browser.evaluate(SHOWN) > 5
    assert browser.evaluate("document.documentElement.scrollWidth") <= width, "it scrolls to no side"
    assert browser.evaluate("document.title").endswith("ohsandbox")
    assert browser.problems == []
    assert browser.requests == [page]


def test_markup_that_came_through_would_do_nothing(
    browser: Chromium, tmp_path: Path, address: Callable[..., str]
) -> None:
    page = address()
    file = tmp_path / "page.html"
    hostile = "<script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\"><img src=http://127.0.0.1:9/x>"
    file.write_text(file.read_text().replace('<main id="log"', f'{hostile}<main id="log"'))
    browser.open(page)
    browser.frame()
    assert browser.evaluate("document.title").endswith("ohsandbox")
    assert browser.requests == [page]
    browser.problems.clear()
    assert (
        browser.evaluate("(() => { try { document.body.innerHTML = '<b>x</b>'; } catch { return 'refused'; } })()")
        == "refused"
    )


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["usual", "hostile"])
@pytest.mark.parametrize("dark", [False, True])
def test_axe_finds_nothing_serious(
    browser: Chromium, address: Callable[..., str], axe: str, kind: str, *, dark: bool
) -> None:
    browser.open(address(kind), dark=dark)
    browser.click("#unfold")
    browser.frame()
    browser.evaluate(f"{axe}; true")
    found = json.loads(browser.evaluate("axe.run().then((told) => JSON.stringify(told.violations))"))
    assert [
        (one["id"], one["nodes"][0]["html"][:200])
        for one in found
        if one["impact"] in {"serious", "critical", "moderate"}
    ] == []


def test_search_counts_jumps_and_opens(browser: Chromium, address: Callable[..., str]) -> None:
    browser.open(address())
    browser.key("/")
    for key in "touching":
        browser.key(key)
    browser.wait_for("document.getElementById('found').textContent.includes('match')")
    told = browser.evaluate("document.getElementById('found').textContent")
    assert told == "4 events, 5 matches"
    browser.key("Enter")
    browser.wait_for("CSS.highlights.get('found')?.size > 0")
    assert browser.evaluate("document.getElementById('found').textContent").startswith("1 of 4 events")
    assert browser.evaluate("document.querySelector('.current .output').textContent").count("touching") > 0


def test_an_address_leads_to_an_event_of_a_sub_agent(browser: Chromium, address: Callable[..., str]) -> None:
    browser.open(f"{address()}#reviewer-1/e1")
    browser.wait_for("document.querySelector('.current')?.id === 'reviewer-1/e1'")
    assert browser.evaluate("document.querySelector('.current .body').hidden") is False


def test_keys_move_fold_and_help(browser: Chromium, address: Callable[..., str]) -> None:
    browser.open(address())
    for _ in range(4):
        browser.key("j")
    assert browser.evaluate("document.querySelector('.current').id") == "e4"
    browser.key("o")
    assert browser.evaluate("document.querySelector('.current .fold').getAttribute('aria-expanded')") == "true"
    browser.key("J")
    assert "Thank you" in browser.evaluate("document.querySelector('.current').textContent")
    browser.key("?")
    assert browser.evaluate("document.getElementById('help').open") is True


def test_a_refusal_is_no_failure_and_a_persons_thinking_is_not_its_time(
    browser: Chromium, address: Callable[..., str]
) -> None:
    browser.open(address())
    said = browser.evaluate("document.getElementById('e18').textContent")
    assert "ada said no" in said
    assert "failed" not in said
    assert "1 min" not in said
    assert "waiting for you 1 h" in browser.evaluate("document.getElementById('legend').textContent")


def test_a_filter_shows_the_changes(browser: Chromium, address: Callable[..., str]) -> None:
    browser.open(address())
    choose = "one.value = 'changes'; one.dispatchEvent(new Event('change'));"
    browser.evaluate(f"(() => {{ const one = document.getElementById('show'); {choose} }})()")
    browser.wait_for(f"{SHOWN} === 3")
    ids = browser.evaluate("[...document.querySelectorAll('#log .entry')].map((one) => one.id)")
    assert ids == ["e3", "e10", "e30.98"]  # the checkpoint, the edit, what was changed in all


def test_the_theme_is_switched(browser: Chromium, address: Callable[..., str]) -> None:
    browser.open(address(), dark=True)
    dark = browser.evaluate("getComputedStyle(document.body).backgroundColor")
    browser.key("t")
    assert browser.evaluate("document.documentElement.dataset.theme") == "light"
    assert browser.evaluate("getComputedStyle(document.body).backgroundColor") != dark


@pytest.mark.slow
def test_of_ten_thousand_events_what_is_far_away_is_not_made(browser: Chromium, address: Callable[..., str]) -> None:
    browser.open(address("long", 10_000))
    browser.frame()
    assert browser.evaluate(SHOWN) < 500
    browser.key("G")
    browser.wait_for("document.getElementById('e9998') !== null || document.querySelector('.current') !== null")
    assert browser.evaluate("document.querySelector('.current').getBoundingClientRect().top < innerHeight")
    assert browser.evaluate(SHOWN) < 800
