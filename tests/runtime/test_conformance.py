"""Every case of the shipped suite, against every flavour of runtime that is ours."""

from __future__ import annotations

import os
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from ohsandbox.testing.conformance import (
    CASES,
    THEMES,
    Case,
    run,
    sessions,
    shell_interactive,
    shell_output,
    shell_recovery,
    tools,
    trees,
)
from tests.runtime.ssh.server import PROGRAM as SSHD

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from ohsandbox.runtime.base import Runtime

IMAGES = ("debian", "nonroot", "busybox", "hostile")
KNOWN_FAILURES: dict[tuple[str, str], str] = {
    ("busybox", "a_program_inherits_no_descriptor_of_ours"): "ash leaves its saved descriptors, 10 and up, to children",
}
"""(flavour, case) -> why it cannot pass there. Strict: one that passes must leave this list."""


SERVER = pytest.mark.skipif(SSHD is None, reason="sshd is not installed (Debian: openssh-server)")


def _marks(name: str, case: Case) -> list[pytest.MarkDecorator]:
    why = KNOWN_FAILURES.get((name, case.name))
    known = [pytest.mark.xfail(reason=why, strict=True)] if why else []
    needed = [SERVER] if name == "ssh" else [pytest.mark.docker] if name in IMAGES else []
    return [*needed, *known]


READ_BY_A_SESSION = (sessions, shell_output, shell_interactive, shell_recovery)
"""Themes in which two channels are read at once, which is another code path where they have no descriptors."""

OF_A_CONNECTION = (run, sessions, shell_interactive, trees, tools)
"""Themes in which `ssh` has a part: streams, ends, terminals, bulk data. OHSANDBOX_CONFORMANCE=all: every case."""
THEMES_OF: dict[str, tuple[ModuleType, ...]] = {
    "descriptorless": READ_BY_A_SESSION,
    "ssh": THEMES if os.environ.get("OHSANDBOX_CONFORMANCE") == "all" else OF_A_CONNECTION,
}

FLAVOURED = [
    pytest.param(name, case, marks=_marks(name, case), id=f"{name}-{case.name}")
    for name in ("fake", "descriptorless", "cli", "ssh", *IMAGES)
    for case in CASES
    if any(hasattr(theme, case.name) for theme in THEMES_OF.get(name, THEMES))
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
