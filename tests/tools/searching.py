"""The places and engines that `glob` and `grep` are tried with, and trees to try them on."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING, Any

import pytest

from ohsandbox.state import ConversationState
from ohsandbox.tools.glob import make_glob_tool
from ohsandbox.tools.grep import make_grep_tool
from ohsandbox.tools.search.script import SearchEngine, use_engine

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from ohsandbox.runtime.base import Runtime
    from ohsandbox.tool import ToolDefinition

ENGINES = (
    pytest.param(("debian", "posix"), marks=pytest.mark.docker, id="debian"),
    pytest.param(("busybox", "posix"), marks=pytest.mark.docker, id="busybox"),
    pytest.param(("cli", "posix"), id="cli"),
    pytest.param(("cli", "rg"), id="rg"),
)
"""A place, and what is searched with there."""


def choose(runtime: Runtime, engine: str) -> None:
    """Have the runtime's searches use this engine; in CI a missing rg fails, else it skips."""
    if engine == "rg" and shutil.which("rg") is None:
        if os.environ.get("CI") == "true":
            pytest.fail("CI has no rg (apt-get install ripgrep)", pytrace=False)
        pytest.skip("no rg (apt-get install ripgrep)")
    use_engine(runtime, SearchEngine(has_rg=engine == "rg"))


def plant(directory: Path, tree: Mapping[str, str | bytes], *, age: int = 0) -> None:
    """Files with these contents, the first age seconds old and each a second older than the one before."""
    for number, (name, content) in enumerate(tree.items(), age):
        path = os.path.join(os.fsencode(directory), name.encode("utf-8", "surrogateescape"))  # noqa: PTH118 - bytes
        os.makedirs(os.path.dirname(path), exist_ok=True)  # noqa: PTH103, PTH120
        with open(path, "wb") as file:  # noqa: PTH123
            file.write(content if isinstance(content, bytes) else content.encode())
        os.utime(path, (1_700_000_000 - number,) * 2)


def send(runtime: Runtime, directory: Path, tree: Mapping[str, str | bytes], folder: str) -> None:
    """The tree in the sandbox's folder."""
    plant(directory, tree)
    runtime.upload(directory, folder)


def tool(name: str, runtime: Runtime) -> Any:
    """`tool("glob", runtime)(pattern="*")` is an observation."""
    state = ConversationState(conversation_id="c", runtime=runtime)
    makers: dict[str, Callable[..., ToolDefinition[Any, Any]]] = {"glob": make_glob_tool, "grep": make_grep_tool}
    made = makers[name](conv_state=state)
    return lambda **arguments: made(made.action_from_arguments(arguments))
