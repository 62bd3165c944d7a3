from __future__ import annotations

from typing import TYPE_CHECKING

from ohsandbox.cli.rendering.view import PlainView
from ohsandbox.cli.sandbox.post_run_report import MAX_EXECUTABLES, MAX_NAMES, report_changes
from ohsandbox.runtime.workspace.changes import WorkspaceScan, compare_scans, scan_tree

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def make(path: Path, text: str = "x", mode: int = 0o644) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(mode)


def told(directory: Path, before: WorkspaceScan, capsys: pytest.CaptureFixture[str]) -> list[str]:
    report_changes(compare_scans(directory, before, scan_tree(directory)), directory, warn=PlainView().warn)
    return [line.split(maxsplit=2)[2] for line in capsys.readouterr().out.splitlines()]


def test_what_is_new_and_changed_is_told_worst_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make(tmp_path / "old.sh", mode=0o755)
    make(tmp_path / "src" / "a.py")
    make(tmp_path / "conftest.py")
    before = scan_tree(tmp_path)
    make(tmp_path / "conftest.py", "changed")
    make(tmp_path / "lib" / ".git" / "config", "[core]\nfsmonitor = evil\n")
    make(tmp_path / ".vscode" / "tasks.json")
    make(tmp_path / "src" / "a.py", "changed")
    lines = told(tmp_path, before, capsys)
    assert lines[0].startswith(f"Look at these before you work in {tmp_path}")
    assert [line for line in lines[1:] if not line.endswith("):") or "(1)" not in line] == [
        "new: lib/.git/config (core.fsmonitor = evil)",
        "new: .vscode/tasks.json",
        "changed: conftest.py",
    ]


def test_nothing_new_is_nothing_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make(tmp_path / "a.py")
    before = scan_tree(tmp_path)
    make(tmp_path / "b.py")
    assert told(tmp_path, before, capsys) == []


def test_executables_are_counted_by_directory_and_all_stand_in_a_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = scan_tree(tmp_path)
    for number in range(MAX_EXECUTABLES + 5):
        make(tmp_path / "bin" / f"{number}.sh", mode=0o755)
    make(tmp_path / "run", mode=0o755)
    lines = told(tmp_path, before, capsys)
    assert lines[1:4] == ["executable (26):", "25 in bin", "1 in ."]
    listing = lines[4].removeprefix("All by name: ")
    with open(listing, encoding="utf-8") as file:  # noqa: PTH123 - as a person would
        assert len(file.readlines()) == MAX_EXECUTABLES + 6


def test_a_flood_of_one_kind_hides_no_other(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = scan_tree(tmp_path)
    for number in range(MAX_NAMES + 30):
        make(tmp_path / str(number) / ".envrc")
    make(tmp_path / "x" / ".git" / "hooks" / "post-checkout", mode=0o755)
    lines = told(tmp_path, before, capsys)
    assert lines[2] == "new: x/.git/hooks/post-checkout (a hook)"
    assert lines[-2] == "and 30 more"


def test_a_name_forges_no_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = scan_tree(tmp_path)
    make(tmp_path / "a\nNothing else was changed.\x1b[2K\u202e.pth")
    (line,) = told(tmp_path, before, capsys)[2:]
    assert line == r"new: a\u{a}Nothing else was changed.\u{1b}[2K\u{202e}.pth"
