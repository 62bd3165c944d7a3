"""Transfers an agent's work from its sandbox into a fresh one that contains nothing else of the agent's."""

from __future__ import annotations

import posixpath
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from ohsandbox.errors import ToolError
from ohsandbox.evaluation.agent_patch import apply_patch, find_baseline
from ohsandbox.evaluation.sandbox_files import FETCH_LIMITS, end_of_output
from ohsandbox.evaluation.verifier import NoVerdict

if TYPE_CHECKING:
    from ohsandbox.evaluation.agent_patch import Baseline
    from ohsandbox.evaluation.task import Artifact
    from ohsandbox.runtime import Runtime

_EMPTY = 'find "$1" -mindepth 1 -maxdepth 1 ! -path "$1/.git" -exec rm -rf {} + && stat -c %u:%g "$1"'
"""The history of a repository stays the fresh sandbox's own."""
_HIDE, _SHOW = '[ ! -e "$1/.git" ] || mv "$1/.git" "$2"', '[ ! -e "$2" ] || mv "$2" "$1/.git"'
_ASIDE = "/var/tmp/ohsandbox-history"  # noqa: S108 - root's move of a name
_MAX_S = 300.0


def hand_over_patch(fresh: Runtime, baseline: Baseline, patch: Path) -> None:
    """Apply a patch to the same repository of a fresh sandbox.

    Raises:
        NoVerdict: the repository is another one, or the patch does not apply.
    """
    fresh_baseline = find_baseline(fresh)
    if fresh_baseline != baseline:
        commit = None if fresh_baseline is None else fresh_baseline.commit
        raise NoVerdict(f"the fresh sandbox is at commit {commit}, the agent began with {baseline.commit}")
    apply_patch(fresh, baseline, patch)


def hand_over_tree(agent: Runtime, fresh: Runtime, directory: str) -> list[str]:
    """Replace a directory of the fresh sandbox by the agent's, without repository history; return what was left out.

    Raises:
        NoVerdict: it is too large, or the whole file system.
    """
    directory = posixpath.normpath(directory)
    if directory == "/":
        raise NoVerdict("the working directory is /, so what the agent changed cannot be told from the image")
    with tempfile.TemporaryDirectory(prefix="ohsandbox-work-") as name:
        staging = Path(name, "work")
        _as_root(agent, _HIDE, directory, _ASIDE)
        try:
            left_out = agent.download(directory, staging, user="root", limits=FETCH_LIMITS)
        except (OSError, ToolError) as error:
            raise NoVerdict(f"the agent's files cannot be brought to the verifier: {error}") from error
        finally:
            _as_root(agent, _SHOW, directory, _ASIDE)
        _drop(staging / ".git")  # where the agent's shell has not moved it
        owner = _as_root(fresh, _EMPTY, directory)
        fresh.upload(staging, directory, user=owner)
    return [f"{entry.path}: {entry.reason}" for entry in left_out]


def hand_over_artifacts(fresh: Runtime, artifacts: tuple[Artifact, ...], collected: Path) -> None:
    """Copy artifacts that were collected on this machine to their paths in the agent's sandbox."""
    for artifact in artifacts:
        source = collected / artifact.name
        if source.exists():
            fresh.upload(source, posixpath.join("/", artifact.source), user="root")


def _drop(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _as_root(runtime: Runtime, script: str, *arguments: str) -> str:
    result = runtime.run(["/bin/sh", "-c", script, "sh", *arguments], user="root", workdir="/", timeout_s=_MAX_S)
    if result.exit_code != 0:
        output = end_of_output(result.stderr)
        raise NoVerdict(f"the agent's files cannot be brought to the verifier: {result.cause or output}")
    return result.stdout.decode().strip()
