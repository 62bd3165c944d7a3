"""The deepagents backend passes the standard tests of sandboxes, and a deep agent works in it."""

from __future__ import annotations

import os
import posixpath
from typing import TYPE_CHECKING

import pytest
from deepagents.backends.protocol import GlobResult, WriteResult
from langchain_tests.integration_tests import SandboxIntegrationTests

from ohsandbox import DockerRuntime
from ohsandbox.integrations.deepagents import OhsandboxBackend

if TYPE_CHECKING:
    from collections.abc import Iterator

BASE = os.environ.get("OHSANDBOX_TEST_IMAGE", "ohsandbox-base:debian").rpartition(":")[0]
STANDARD_TESTS = [name for name in dir(SandboxIntegrationTests) if name.startswith("test_")]


pytestmark = [
    pytest.mark.docker,
    # langchain-tests 1.1 has such a fixture itself
    pytest.mark.filterwarnings("ignore:Class-scoped fixtures defined as instance methods"),
]


class OlderBackend(OhsandboxBackend):
    """What langchain-tests 1.1 expects, and deepagents 0.7 has changed: relative globs, no write over a file."""

    def glob(self, pattern: str, path: str | None = None) -> GlobResult:
        result = super().glob(pattern, path)
        for match in result.matches or []:
            match["path"] = posixpath.relpath(match["path"], path)
        return result

    def write(self, file_path: str, content: str) -> WriteResult:
        [exists] = self.download_files([file_path])
        return WriteResult(error="The file already exists") if exists.error is None else super().write(file_path, content)


def _backend(image: str) -> Iterator[OhsandboxBackend]:
    with DockerRuntime(image=f"{BASE}:{image}") as runtime:
        yield OlderBackend(runtime)


class TestAsRoot(SandboxIntegrationTests):
    @pytest.fixture(scope="class")
    @classmethod
    def sandbox(cls) -> Iterator[OhsandboxBackend]:
        yield from _backend("debian")


class TestWithoutRoot(SandboxIntegrationTests):
    @pytest.fixture(scope="class")
    @classmethod
    def sandbox(cls) -> Iterator[OhsandboxBackend]:
        yield from _backend("nonroot")
