"""A session in a terminal, on this host, with a scripted model."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli.conftest import Emulator, WriteScript

Turns = Callable[..., "Emulator"]


@pytest.fixture
def talk(emulator: Callable[..., Emulator], write_script: WriteScript, workspace: Path) -> Turns:
    """Begin a session whose model answers with turns, and wait until it is the person's turn."""

    def begin(*turns: Any, task: tuple[str, ...] = (), options: tuple[str, ...] = (), **how: Any) -> Emulator:
        model = write_script(*turns)
        where = ("--model", model, "--runtime", "cli", "--workspace", str(workspace))
        confirm = () if "--confirm" in options else ("--confirm", "never")
        terminal = emulator("run", *task, *where, *confirm, *options, **how)
        return terminal if task else terminal.wait("your turn")

    return begin
