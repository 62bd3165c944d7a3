"""The command in a hostile clone, with a PATH and a Python that look there first: nothing of the clone runs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.cli.conftest import WriteScript

PROGRAMS = (
    "git", "ssh", "docker", "docker-buildx", "docker-compose", "docker-credential-planted", "bwrap", "shfmt", "less",
    "nano", "vi", "xdg-open", "firefox", "sh", "env", "ps", "npm", "uv", "cargo", "go", "pip", "python3",
)  # fmt: skip
MODULES = ("docker", "httpx", "click", "typer", "pydantic", "git", "webbrowser", "sitecustomize")


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A repository with a program of every name that we start, each of which leaves its name in `../ran`."""
    clone = tmp_path / "clone"
    (clone / "bin").mkdir(parents=True)
    (tmp_path / "ran").mkdir()
    for name in PROGRAMS:
        program = clone / "bin" / name
        program.write_text(f"#!/bin/sh\n: >{tmp_path}/ran/{name}\nexit 1\n")
        program.chmod(0o755)
    (clone / "file").write_text("text\n")
    subprocess.run(["git", "init", "-q"], cwd=clone, check=True)
    return clone


def ohsandbox(clone: Path, *words: str, entry: str = "./bin", **variables: str) -> subprocess.CompletedProcess[str]:
    path = f"{entry}:{os.environ['PATH']}"
    return subprocess.run(
        [sys.executable, "-P", "-m", "ohsandbox", *words], cwd=clone, env={**os.environ, "PATH": path, **variables},
        capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL,
    )  # fmt: skip


def ran(clone: Path) -> list[str]:
    return sorted(path.name for path in (clone.parent / "ran").iterdir())


@pytest.mark.parametrize("entry", ["./bin", "bin", "{clone}/bin"])
def test_no_program_of_a_clone_runs_without_an_engine(clone: Path, entry: str) -> None:
    entry = entry.format(clone=clone)
    ohsandbox(clone, "--version", entry=entry)
    ohsandbox(clone, "doctor", entry=entry, DOCKER_HOST="ssh://nobody@127.0.0.1:1")
    ohsandbox(clone, "config", "edit", entry=entry, EDITOR="nano", VISUAL="")
    ohsandbox(clone, "exec", "--runtime", "cli", "--", "/bin/true", entry=entry)
    assert ran(clone) == []


@pytest.mark.docker
def test_no_program_of_a_clone_runs_for_a_copy(clone: Path, image: str, write_script: WriteScript) -> None:
    model = write_script(("go", "echo new > file"), ("done", None))
    where = ("--image", image, "--workspace", ".", "--copy")
    ended = ohsandbox(clone, "run", "go", "--model", model, "--no-tui", "--confirm", "risky", *where)
    assert ended.returncode == 0, ended.stderr
    assert ohsandbox(clone, "diff").returncode == 0
    assert ohsandbox(clone, "apply", "--yes").returncode == 0
    assert (clone / "file").read_text() == "new\n"
    assert ran(clone) == []


@pytest.mark.docker
def test_no_program_of_a_clone_runs_for_an_image(clone: Path, image: str, tmp_path: Path) -> None:
    (clone / "Dockerfile").write_text(f"FROM {image}\n")
    (tmp_path / "docker").mkdir()
    (tmp_path / "docker/config.json").write_text(json.dumps({"credsStore": "planted"}))
    ohsandbox(clone, "exec", "--build", ".", "--", "true", DOCKER_CONFIG=str(tmp_path / "docker"))
    ohsandbox(clone, "exec", "--image", "localhost:1/none", "--", "true", DOCKER_CONFIG=str(tmp_path / "docker"))
    assert ran(clone) == []


def test_no_module_of_a_clone_is_imported(clone: Path) -> None:
    for name in MODULES:
        (clone / f"{name}.py").write_text(f"open('../ran/{name}.py', 'w').close()\n")
    for words in (["-m", "ohsandbox"], ["-P", "-m", "ohsandbox"], [str(Path(sys.executable).parent / "ohsandbox")]):
        subprocess.run([sys.executable, *words, "doctor"], cwd=clone, capture_output=True, check=False)
    assert ran(clone) == []


@pytest.mark.parametrize("words", [["-P", "-m", "ohsandbox"], [str(Path(sys.executable).parent / "ohsandbox")]])
def test_a_module_that_is_called_as_we_are_is_not_imported(words: list[str], clone: Path) -> None:
    """`python -m ohsandbox` without `-P` would run it, before anything of ours."""
    for name in ("ohsandbox", "runpy"):
        (clone / f"{name}.py").write_text(f"open('../ran/{name}.py', 'w').close()\n")
    subprocess.run([sys.executable, *words, "--version"], cwd=clone, capture_output=True, check=False)
    assert ran(clone) == []
