"""Processes that tests start, which a test that fails does not leave behind."""

from __future__ import annotations

import contextlib
import subprocess
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextlib.contextmanager
def running(*arguments: Any, **options: Any) -> Iterator[subprocess.Popen[Any]]:
    """`subprocess.Popen`, killed at the end: `with Popen` waits for its end instead, also where an assertion failed."""
    with subprocess.Popen(*arguments, **options) as process:
        try:
            yield process
        finally:
            process.kill()
