"""What every test may rely on: its own state directory, no provider in reach, and an engine where it is marked so."""

from __future__ import annotations

import functools
import os
import signal
from typing import TYPE_CHECKING

import pytest

from ohsandbox.errors import EngineUnavailable

if TYPE_CHECKING:
    from collections.abc import Iterator

PROVIDER_KEYS = ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "GEMINI_API_KEY", "OPENROUTER_API_KEY", "OHSANDBOX_API_KEY")


def pytest_configure() -> None:
    """Ctrl-C works, for us and all that we start, also where a shell has put us into the background (POSIX 2.11)."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@functools.cache
def missing_engine() -> str | None:
    """Why no engine can be had, or None."""
    from ohsandbox.runtime.docker.engine import connect  # noqa: PLC0415 - docker is slow to import, and optional here

    try:
        connect().close()
    except EngineUnavailable as error:
        return str(error)
    return None


def pytest_runtest_setup(item: pytest.Item) -> None:
    """A docker test without an engine is skipped, counted; in CI it fails."""
    if item.get_closest_marker("docker") is None or (why := missing_engine()) is None:
        return
    if os.environ.get("CI") == "true":
        pytest.fail(f"CI has no engine: {why}", pytrace=False)
    pytest.skip(f"no engine: {why}")


@pytest.fixture(autouse=True, scope="session")
def _own_state(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Nothing of a test lands in the home of who runs it, and no test can spend anybody's money."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OHSANDBOX_HOME", str(tmp_path_factory.mktemp("ohsandbox-home")))
        for name in PROVIDER_KEYS:
            patch.delenv(name, raising=False)
        yield
