"""Ports over any backend: what a connector that cannot be opened leaves behind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ohsandbox import CLIRuntime
from ohsandbox.errors import SandboxUnavailable
from ohsandbox.runtime.port_forwarding import open_connector


def test_a_connector_that_cannot_be_opened_leaves_no_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> Any:
        raise SandboxUnavailable("No more channels.")

    with CLIRuntime(tmp_path, bubblewrap=False, quiet=True) as runtime:
        monkeypatch.setattr(runtime, "open_channel", refuse)
        for _ in range(2):
            with pytest.raises(SandboxUnavailable, match="No more channels"):
                open_connector(runtime)
        assert [*Path(runtime.state_dir).glob("ohs-net-*")] == []
