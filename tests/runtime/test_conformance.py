"""Every case of the shipped suite, against every flavour of runtime that is ours."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest

from ohsandbox.testing.conformance import CASES, Case, sessions, shell_interactive, shell_output, shell_recovery

if TYPE_CHECKING:
    from collections.abc import Callable

    from ohsandbox.runtime.base import Runtime

IMAGES = ("debian", "nonroot", "busybox", "hostile")
KNOWN_FAILURES: dict[tuple[str, str], str] = {
    ("busybox", "a_program_inherits_no_descriptor_of_ours"): "ash leaves its saved descriptors, 10 and up, to children",
}
"""(flavour, case) -> why it cannot pass there. Strict: one that passes must leave this list."""


def _marks(name: str, case: Case) -> list[pytest.MarkDecorator]:
    why = KNOWN_FAILURES.get((name, case.name))
    known = [pytest.mark.xfail(reason=why, strict=True)] if why else []
    return [pytest.mark.docker, *known] if name in IMAGES else known


READ_BY_A_SESSION = (sessions, shell_output, shell_interactive, shell_recovery)
"""Themes in which two channels are read at once, which is another code path where they have no descriptors."""

FLAVOURED = [
    pytest.param(name, case, marks=_marks(name, case), id=f"{name}-{case.name}")
    for name in ("fake", "descriptorless", "cli", "ssh", *IMAGES)
    for case in CASES
    if name != "descriptorless" or any(hasattr(theme, case.name) for theme in READ_BY_A_SESSION)
]


@pytest.mark.parametrize(("name", "case"), FLAVOURED)
def test_conformance(name: str, case: Case, flavour: Callable[[str], Runtime]) -> None:
    runtime = flavour(name)
    if why := case.missing(runtime):
        pytest.skip(why)
    case.check(runtime)


def test_every_case_has_a_name_of_its_own() -> None:
    assert Counter(case.name for case in CASES).most_common(1)[0][1] == 1


def test_known_failures_name_cases_that_exist() -> None:
    assert {case for _, case in KNOWN_FAILURES} <= {case.name for case in CASES}
