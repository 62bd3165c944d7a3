"""A test that needs a program which is not here: in CI it has failed, since nobody reads what was skipped."""

from __future__ import annotations

import os
from typing import NoReturn

import pytest


def lacking(missing: str) -> NoReturn:
    """End the test that needs it."""
    if os.environ.get("CI") == "true":
        pytest.fail(missing, pytrace=False)
    pytest.skip(missing)
