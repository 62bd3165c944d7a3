"""docs/adding-a-backend.md is true: its backend runs, prints what the page says, and passes the conformance suite."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ohsandbox.runtime import Channel, Runtime
from ohsandbox.testing.conformance import CASES, Case, files, run, sessions, tools, trees

if TYPE_CHECKING:
    from collections.abc import Iterator

PAGE = Path(__file__).parents[1] / "docs" / "adding-a-backend.md"
SHOWN = (run, files, sessions, trees, tools)
"""Themes that are held against the page's backend; the whole suite passes, and takes a minute."""


def _blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def names() -> dict[str, Any]:
    """What the page's first example defines."""
    defined: dict[str, Any] = {"__name__": "page"}
    exec(compile(_blocks("python")[0].partition("\nwith SubprocessRuntime")[0], str(PAGE), "exec"), defined)
    return defined


@pytest.fixture(scope="module")
def runtime(names: dict[str, Any]) -> Iterator[Runtime]:
    with names["SubprocessRuntime"]() as started:
        yield started


def test_the_example_prints_what_the_page_says(capfd: pytest.CaptureFixture[str]) -> None:
    exec(compile(_blocks("python")[0], str(PAGE), "exec"), {"__name__": "page"})
    assert capfd.readouterr().out == _blocks("text")[0]


@pytest.mark.parametrize(
    "case", [one for one in CASES if any(hasattr(theme, one.name) for theme in SHOWN)], ids=lambda case: str(case.name)
)
def test_the_example_passes_the_conformance_suite(case: Case, runtime: Runtime) -> None:
    if why := case.missing(runtime):
        pytest.skip(why)
    case.check(runtime)


def test_the_page_names_every_abstract_member() -> None:
    text = PAGE.read_text(encoding="utf-8")
    wanted = {*Runtime.__abstractmethods__, *Channel.__abstractmethods__}
    assert [name for name in sorted(wanted) if f"`{name}" not in text] == []


def test_the_page_names_only_members_that_exist() -> None:
    tables = PAGE.read_text(encoding="utf-8").partition("## Where the suite was run")[0]
    rows = re.findall(r"^\| (`.*?`) \|", tables, re.MULTILINE)
    named = [name for row in rows for name in re.findall(r"`(\w+)", row)]
    assert len(named) > 10
    assert [name for name in named if not hasattr(Runtime, name) and name not in Runtime.__annotations__] == [
        "state_dir"
    ]
