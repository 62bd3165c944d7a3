from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.cli.viewer.chromium import PROGRAM, Chromium
from tests.lacking import lacking

if TYPE_CHECKING:
    from collections.abc import Iterator

AXE_VERSION = "4.14.1"
AXE_PLACE = Path(__file__).parents[3] / ".cache" / f"axe-core-{AXE_VERSION}"


@pytest.fixture(scope="session")
def _profile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("chromium")


@pytest.fixture(scope="module")
def started_browser(_profile: Path) -> Iterator[Chromium]:
    if PROGRAM is None:
        lacking("no chromium on this machine: apt-get install chromium")
    with Chromium(_profile) as browser:
        yield browser


@pytest.fixture
def browser(started_browser: Chromium) -> Chromium:
    """One that has seen nothing yet."""
    started_browser.open("about:blank#")
    started_browser.forget()
    return started_browser


@pytest.fixture(scope="session")
def axe() -> str:
    """The source of axe-core, which finds what people with disabilities could not use."""
    found = AXE_PLACE / "node_modules" / "axe-core" / "axe.min.js"
    if not found.exists():
        if shutil.which("npm") is None:
            lacking("npm is not here, to install axe-core: install Node 20 or newer")
        own = AXE_PLACE.with_name(f"{AXE_PLACE.name}.{os.getpid()}")  # several processes may want it at once
        own.mkdir(parents=True)
        command = ["npm", "install", "--no-audit", "--no-fund", "--prefix", str(own), f"axe-core@{AXE_VERSION}"]
        subprocess.run(command, check=True, capture_output=True, timeout=110)
        with contextlib.suppress(OSError):  # another one was there first
            own.rename(AXE_PLACE)
        shutil.rmtree(own, ignore_errors=True)
    return found.read_text(encoding="utf-8")
