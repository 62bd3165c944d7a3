from __future__ import annotations

import os
from typing import TYPE_CHECKING

from ohsandbox.cli.aftermath import MAX_LINES, Aftermath

if TYPE_CHECKING:
    from pathlib import Path

    from ohsandbox.events import SDKEvent
    from ohsandbox.llm.events import LLMEvent


class Heard:
    """A view that remembers."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def say(self, text: str) -> None:
        self.lines.append(text)

    warn = say

    streams = False

    def show(self, event: SDKEvent) -> None: ...
    def hear(self, event: LLMEvent) -> None: ...
    def status(self, text: str) -> None: ...
    def tick(self) -> None: ...


def make(path: Path, text: str = "x", mode: int = 0o644) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(mode)


def told(aftermath: Aftermath) -> list[str]:
    heard = Heard()
    aftermath.tell(heard)
    return heard.lines


def test_new_and_changed_things_that_run_by_themselves_are_told(tmp_path: Path) -> None:
    make(tmp_path / "old.sh", mode=0o755)
    make(tmp_path / ".git" / "config")
    make(tmp_path / "src" / "a.py")
    aftermath = Aftermath(tmp_path)
    make(tmp_path / ".git" / "hooks" / "pre-commit", mode=0o755)
    make(tmp_path / "lib" / ".git" / "config")
    make(tmp_path / ".vscode" / "tasks.json")
    make(tmp_path / "src" / "a.py", "changed")
    make(tmp_path / ".git" / "config", "changed")
    (tmp_path / ".envrc").symlink_to("/etc/passwd")
    lines = told(aftermath)
    assert lines[0].startswith("Look at these before")
    assert lines[1:] == [
        "  new: .envrc",
        "  changed: .git/config",
        "  new: .git/hooks/pre-commit",
        "  new: .vscode/tasks.json",
        "  new: lib/.git/config",
    ]


def test_a_file_of_the_same_size_and_time_is_seen_as_changed(tmp_path: Path) -> None:
    make(tmp_path / "run", "aaa", 0o755)
    before = (tmp_path / "run").stat()
    aftermath = Aftermath(tmp_path)
    make(tmp_path / "run", "bbb", 0o755)
    os.utime(tmp_path / "run", ns=(before.st_atime_ns, before.st_mtime_ns))
    assert told(aftermath)[1:] == ["  changed: run"]


def test_nothing_new_is_nothing_said(tmp_path: Path) -> None:
    make(tmp_path / "a.py")
    aftermath = Aftermath(tmp_path)
    make(tmp_path / "b.py")
    assert told(aftermath) == []


def test_many_are_counted(tmp_path: Path) -> None:
    aftermath = Aftermath(tmp_path)
    for number in range(MAX_LINES + 5):
        make(tmp_path / f"{number}.sh", mode=0o755)
    assert told(aftermath)[-1] == "  and 5 more"


def test_loops_and_missing_directories_are_no_trouble(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to(tmp_path)
    assert told(Aftermath(tmp_path)) == []
    assert told(Aftermath(tmp_path / "no")) == []
