from __future__ import annotations

import stat
from typing import TYPE_CHECKING

from rich.text import Text

from ohsandbox.cli.rendering.tables import print_paged

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_a_file_is_not_paged(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pager = tmp_path / "pager"
    pager.write_text("#!/bin/sh\ntouch called\n")
    pager.chmod(pager.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PAGER", str(pager))
    print_paged(Text(f"line {number}", style="red") for number in range(500))
    assert capsys.readouterr().out == "".join(f"line {number}\n" for number in range(500))
    assert not (tmp_path / "called").exists()
