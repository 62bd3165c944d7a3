from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING

import pytest

from ohsandbox.errors import UsageError
from ohsandbox.runtime.workspace.copy_selection import looks_secret, select_files

if TYPE_CHECKING:
    from pathlib import Path


def _git(directory: Path, *arguments: str) -> None:
    command = ["git", "-c", "user.name=n", "-c", "user.email=e", "-c", "protocol.file.allow=always", *arguments]
    subprocess.run(command, cwd=directory, check=True, capture_output=True)


def _write(root: Path, *paths: str) -> None:
    for path in paths:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text("x")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "w").mkdir()
    return tmp_path / "w"


@pytest.mark.parametrize("repository", [True, False])
def test_what_git_ignores_stays_behind_and_is_named_and_what_it_tracks_does_not(
    root: Path, *, repository: bool
) -> None:
    _write(root, "a.py", "sub/b.py", "node_modules/m/i.js", "sub/x.log", "sub/keep.log", "tracked.log", "deep/x.log")
    (root / ".gitignore").write_text("node_modules/\n*.log\n")
    (root / "sub" / ".gitignore").write_text("!keep.log\n")
    (root / "empty").mkdir()
    if repository:
        _git(root, "init", "-q")
        _git(root, "add", "-f", "tracked.log", "a.py")
        _write(root, "excluded")
        (root / ".git" / "info" / "exclude").write_text("excluded\n")
    found = select_files(root)
    work = {path for path in found.paths if not path.startswith(".git/")} - {".git"}
    assert work == {".gitignore", "a.py", "sub", "sub/.gitignore", "sub/b.py", "sub/keep.log", "empty"} | (
        {"tracked.log"} if repository else set()
    )
    ignored = {"node_modules/", "sub/x.log", "deep/"} | ({"excluded"} if repository else {"tracked.log"})
    assert found.left_out == dict.fromkeys(ignored, "ignored by git")
    everything = select_files(root, everything=True)
    assert {"node_modules/m/i.js", "tracked.log", "deep/x.log"} <= everything.paths
    assert everything.left_out == {}


def test_secrets_stay_behind_wherever_they_are_and_even_if_they_are_tracked(root: Path) -> None:
    secrets = [".env", "a/.ENV.local", "a/id_rsa", "certs/server.pem", "credentials.json", "gcp/client_secret_1.json"]
    _write(root, *secrets, ".aws/config", ".env.example", "credentials.py", "id_rsa.pub", "environment.md")
    _git(root, "init", "-q")
    _git(root, "add", ".")
    found = select_files(root)
    assert {*found.left_out} == {*secrets, ".aws/"}
    assert {".env.example", "credentials.py", "id_rsa.pub", "environment.md"} <= found.paths
    assert {*secrets, ".aws/config"} <= select_files(root, everything=True).paths


@pytest.mark.parametrize(
    "name",
    ["secrets.yml", "x.PEM", "id_ed25519_work", "prod.tfstate", ".npmrc", "a.key", ".netrc",
     "secret.json", "app-secrets.yml", ".bash_history", ".gitconfig", "a.keytab", ".claude.json"],
)  # fmt: skip
def test_names_of_secrets(name: str) -> None:
    assert looks_secret(name)


def test_of_a_repository_the_history_is_copied_and_nothing_that_git_runs_or_that_holds_a_token(root: Path) -> None:
    _write(root, "f")
    _git(root, "init", "-q")
    _git(root, "add", "f")
    _git(root, "commit", "-qm", "one")
    _git(root, "remote", "add", "origin", "https://token@example.invalid/x")
    found = select_files(root)
    assert found.has_git
    parts = {path.split("/")[1] for path in found.paths if path.startswith(".git/")}
    assert parts == {"HEAD", "index", "logs", "objects", "refs"}
    assert any(path.startswith(".git/objects/") and path.count("/") == 3 for path in found.paths)


def test_a_hostile_repository_runs_nothing_and_leads_nowhere(root: Path, tmp_path: Path) -> None:
    _git(root, "init", "-q")
    _write(root, "f")
    outside = tmp_path / "outside"
    _write(outside, "secret")
    run = f"touch {tmp_path}/ran; false"
    (root / ".git" / "hooks").mkdir(exist_ok=True)
    for hook in ("post-index-change", "fsmonitor-watchman"):
        (root / ".git" / "hooks" / hook).write_text(f"#!/bin/sh\n{run}\n")
        (root / ".git" / "hooks" / hook).chmod(0o755)
    (root / ".git" / "config").write_text(
        f'[core]\nfsmonitor = "{run}"\nworktree = {outside}\nhooksPath = .git/hooks\nexcludesFile = /dev/zero\n'
        f'[filter "x"]\nclean = "{run}"\n[include]\npath = {tmp_path}/fifo\n'
    )
    os.mkfifo(tmp_path / "fifo")
    (root / ".gitattributes").write_text("* filter=x\n")
    (root / "out").symlink_to(outside)
    found = select_files(root)
    assert {path for path in found.paths if not path.startswith(".git/")} == {".git", ".gitattributes", "f", "out"}
    assert not (tmp_path / "ran").exists()


def test_repositories_within_and_above_count(root: Path, tmp_path: Path) -> None:
    _write(tmp_path, "other/s", "other/x.log")
    for place in (tmp_path / "other", root):
        _git(place, "init", "-q")
    (tmp_path / "other" / ".gitignore").write_text("*.log\n")
    _git(tmp_path / "other", "add", ".")
    _git(tmp_path / "other", "commit", "-qm", "one")
    _git(root, "submodule", "--quiet", "add", str(tmp_path / "other"), "module")
    _git(root, "clone", "-q", str(tmp_path / "other"), "nested")
    _write(root, "below/f", "below/g.tmp", "nested/y.log", "module/y.log")
    (root / ".gitignore").write_text("*.tmp\n")
    found = select_files(root)
    assert {"module/s", "nested/s", "below/f"} <= found.paths
    assert {"module/y.log", "nested/y.log", "below/g.tmp"} == {*found.left_out}
    assert not any(".git" in path.split("/")[1:] for path in found.paths)
    assert select_files(root / "below").left_out == {"g.tmp": "ignored by git"}


def test_a_repository_that_cannot_stand_alone_is_left_out_and_named(root: Path) -> None:
    _git(root, "init", "-q")
    _write(root, "f", ".git/objects/info/alternates")
    found = select_files(root)
    assert not found.has_git
    assert found.left_out == {".git/": "its objects lie elsewhere"}


def test_without_git_on_this_machine_one_line_says_so(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _write(root, "f")
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(UsageError, match="Install git"):
        select_files(root)
    assert select_files(root, everything=True).paths == {"f"}


def test_a_damaged_index_is_one_line(root: Path) -> None:
    _write(root, "f", ".git/index", ".git/HEAD")
    with pytest.raises(UsageError, match="could not list the files"):
        select_files(root)
