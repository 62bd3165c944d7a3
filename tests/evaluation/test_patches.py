"""Patches as they come: applied whole or not at all, and no program of the repository's configuration runs."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest

from ohsandbox.evaluation.patches import NOT_APPLIED, apply_script, changed_paths, with_final_newline

if TYPE_CHECKING:
    from pathlib import Path

IDENTITY = ("-c", "user.name=x", "-c", "user.email=x@y")


def git(repository: Path, *words: str) -> str:
    ended = subprocess.run(["git", *IDENTITY, *words], cwd=repository, capture_output=True, check=True)
    return ended.stdout.decode("utf-8", "surrogateescape")


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    root = tmp_path / "repo"
    root.mkdir()
    git(root, "init", "-q")
    (root / "a.txt").write_text("".join(f"{n}\n" for n in range(20)))
    (root / "crlf.txt").write_bytes(b"one\r\ntwo\r\n")
    (root / "last.txt").write_bytes(b"no newline")
    (root / "data.bin").write_bytes(bytes(range(256)))
    git(root, "add", ".")
    git(root, "commit", "-qm", "first")
    return root


def patch_of(repository: Path) -> str:
    """The patch of what stands in the work tree, which is put back."""
    git(repository, "add", "-A")
    patch = git(repository, "diff", "--cached", "--binary", "-M")
    git(repository, "reset", "-q", "--hard")
    return patch


def apply(repository: Path, patch: str) -> int:
    file = repository.parent / "model.patch"
    file.write_bytes(patch.encode("utf-8", "surrogateescape"))
    ended = subprocess.run(["sh", "-c", apply_script(str(file))], cwd=repository, capture_output=True, check=False)
    return ended.returncode


def files(repository: Path) -> dict[str, bytes]:
    paths = [one for one in repository.rglob("*") if ".git" not in one.parts and one.is_file()]
    return {str(one.relative_to(repository)): one.read_bytes() for one in paths}


def test_binary_renamed_crlf_and_odd_names_arrive_byte_for_byte(repository: Path) -> None:
    (repository / "data.bin").write_bytes(bytes(reversed(range(256))))
    (repository / "a.txt").rename(repository / "b.txt")
    (repository / "crlf.txt").write_bytes(b"one\r\n2\r\n")
    (repository / "last.txt").write_bytes(b"still none")
    (repository / "-").write_text("dash\n")
    (repository / "ü \t.txt").write_text("odd\n")
    (repository / "script.sh").write_text("#!/bin/sh\n")
    (repository / "script.sh").chmod(0o755)
    wanted = files(repository)
    patch = patch_of(repository)
    assert apply(repository, patch) == 0
    assert files(repository) == wanted
    assert (repository / "script.sh").stat().st_mode & 0o111
    assert set(changed_paths(patch)) >= {"a.txt", "b.txt", "crlf.txt", "last.txt", "ü \t.txt", "script.sh", "-"}


def test_a_patch_without_a_newline_at_its_end_is_completed(repository: Path) -> None:
    (repository / "a.txt").write_text("changed\n")
    patch = patch_of(repository).rstrip("\n")
    assert with_final_newline(patch) == patch + "\n"
    assert apply(repository, with_final_newline(patch)) == 0


@pytest.mark.parametrize("patch", ["no patch\n", "diff --git a/no b/no\n--- a/no\n+++ b/no\n@@ -1 +1 @@\n-1\n+2\n"])
def test_a_patch_that_does_not_apply_changes_nothing(repository: Path, patch: str) -> None:
    before = files(repository)
    assert apply(repository, patch) == NOT_APPLIED
    assert files(repository) == before


def test_a_patch_leads_to_nothing_outside_of_the_repository(repository: Path) -> None:
    patch = "diff --git a/../out b/../out\nnew file mode 100644\n--- /dev/null\n+++ b/../out\n@@ -0,0 +1 @@\n+x\n"
    assert apply(repository, patch) == NOT_APPLIED
    assert not (repository.parent / "out").exists()


def test_hooks_and_monitors_of_the_repository_do_not_run(repository: Path) -> None:
    ran = repository.parent / "ran"
    program = repository / ".git" / "hooks" / "post-index-change"
    program.write_text(f"#!/bin/sh\ntouch {ran}\n")
    program.chmod(0o755)
    git(repository, "config", "core.fsmonitor", str(program))
    (repository / "crlf.txt").write_bytes(b"changed\n")
    patch = "diff --git a/last.txt b/last.txt\n--- a/last.txt\n+++ b/last.txt\n@@ -1 +1 @@\n-x\n+y\n"
    ran.unlink(missing_ok=True)
    apply(repository, patch)
    assert not ran.exists()


def test_lines_of_a_file_are_not_taken_for_names() -> None:
    patch = "diff --git a/x b/x\n--- a/x\n+++ b/x\n@@ -1 +1 @@\n--- a/victim\n+++ b/victim\n"
    assert changed_paths(patch) == ["x"]
