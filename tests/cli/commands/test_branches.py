"""`ohsandbox branches` at a terminal: what a person sees before they agree."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest

from ohsandbox.cli.commands.branches import MAX_SHOWN_LINES
from ohsandbox.runtime.workspace.branches import open_branch

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.cli.conftest import Recorded

COMMIT = """
git init -q -b main && echo a >a && git add a && git -c user.name=x -c user.email=a@b commit -q -m first
"""
ASKED = b"? [y/N, d: diff] "


@pytest.mark.usefixtures("home")
def test_the_question_shows_what_changed_and_the_diff_as_far_as_it_can_be_read(
    at_terminal: Callable[..., Recorded], tmp_path: Path
) -> None:
    project = tmp_path / "project"
    project.mkdir()
    subprocess.run(["/bin/sh", "-c", COMMIT], cwd=project, check=True)
    tree = open_branch(project, "fix").tree
    (tree / "a").write_text("\x1b]0;evil\x07b\n" + "more\n" * MAX_SHOWN_LINES)
    ended = at_terminal("branches", "merge", "fix", answers=[(ASKED, b"d\n"), (ASKED, b"n\n")], cwd=project)
    assert ended.code == 1, ended.raw[-2000:]
    stat, patch, after = ended.raw.split(ASKED)
    assert b"1 file changed" in stat
    assert b"+more" not in stat
    assert b"\x1b]0;" not in ended.raw
    assert patch.count(b"+more") < MAX_SHOWN_LINES
    assert b"... and more: `ohsandbox branches diff fix` has all of it." in patch
    assert b"Nothing was changed." in after
    assert (project / "a").read_text() == "a\n"
