"""Setup checkpoints: the files of a sandbox right after its setup, reused by later sandboxes with the same inputs.

The result of a setup depends on the image, on the options of the sandbox and on the caller's `setup_key` (the commands,
and a hash of the files that they read). A hash of all of these names a directory below the state directory. This
directory owns the checkpoint, which is removed with it. Another image, directory, user or option gives another name.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from pydantic import BaseModel, ConfigDict, ValidationError

from ohsandbox.errors import SandboxUnavailable
from ohsandbox.paths import subdirectory
from ohsandbox.private_files import read_regular, write_atomically
from ohsandbox.runtime.docker.checkpoints import checkpoint_images
from ohsandbox.runtime.owners import note_deletion
from ohsandbox.runtime.workspace import traces
from ohsandbox.runtime.workspace.copy_selection import select_files
from ohsandbox.runtime.workspace.traces import Stamp  # noqa: TC001 - pydantic reads annotations at run time

if TYPE_CHECKING:
    from collections.abc import Callable

    from ohsandbox.runtime.docker.config.options import DockerOptions
    from ohsandbox.runtime.docker.engine.connection import Engine
    from ohsandbox.runtime.docker.images.engine_images import ImageFacts
    from ohsandbox.runtime.docker.sandbox import Sandbox
    from ohsandbox.runtime.results import Checkpoint

MAX_AGE_S = 14 * 24 * 3600.0
"""Maximum age of a setup checkpoint: older packages lack the security fixes released since."""
_NOT_OF_FILES = {"name", "conversation", "keep", "limits", "labels", "checkpoint", "attach", "image", "build"}
"""Options that change no file of the sandbox, or that are covered by the id of its image."""
_RECORD = "setup.json"
_LEFT_RUNNING = """
for p in /proc/[0-9]*; do
    n= s= q=
    while read -r k v x; do
        case $k in Name:) n=$v ;; State:) s=$v ;; PPid:) q=$v; break ;; esac
    done <"$p/status" 2>/dev/null
    [ "$q" = 1 ] && [ "$s" != Z ] && [ "$n" != sleep ] && printf '%s\\n' "$n"
done 2>/dev/null
:
"""
"""Prints the names of processes whose parent is PID 1, except its own `sleep`; the parent of a process started by an
exec is not PID 1."""


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    checkpoint: str
    """Id of the checkpoint."""
    engine: str
    made_at: float
    """Seconds since the epoch."""
    workspace: str | None
    """The bound workspace. If it is gone, so is everything that the setup left in it."""
    traces: dict[str, Stamp]
    """Files that the setup left in the workspace."""


class Setup(NamedTuple):
    """The setup of a sandbox: the directory of its record, and the checkpoint that holds its files, if any."""

    place: Path
    workspace: str | None
    checkpoint: str | None
    """The id of the checkpoint that holds the setup; None if there is none."""
    before: dict[str, Stamp] | None = None
    """State of the workspace before the setup."""

    def begun(self) -> Setup:
        """Return a copy that records the workspace as it is now, right before the setup commands run."""
        has_workspace = self.workspace is not None and self.checkpoint is None
        return self._replace(before=traces.scan(str(self.workspace)) if has_workspace else {})

    def why_not(self, running: str) -> tuple[dict[str, Stamp], str]:
        """Return what the setup left in the workspace, and the reason why its files are not kept, or ""."""
        if names := sorted({*running.split()}):
            return {}, f"it left {', '.join(names[:5])} running, which no checkpoint holds"
        if self.workspace is None:
            return {}, ""
        after = traces.scan(self.workspace)
        changed = None if after is None or self.before is None else traces.traces(self.before, after)
        return (
            (changed, "")
            if changed is not None
            else ({}, "it changed too many files of the workspace, or they are many")
        )

    def keep(self, engine: Engine, made: Checkpoint, found: dict[str, Stamp]) -> None:
        """Register the checkpoint so that `find` returns it, and release the one registered before."""
        record = _Record(
            checkpoint=made.id, engine=engine.address.url, made_at=time.time(), workspace=self.workspace, traces=found
        )
        write_atomically(self.place / _RECORD, record.model_dump_json().encode(), durable=False)
        for one in checkpoint_images.records(engine):
            if one.belongs_to(self.place) and one.id not in {"", made.id}:
                with contextlib.suppress(SandboxUnavailable):
                    checkpoint_images.release(engine, one)


def find(engine: Engine, options: DockerOptions, facts: ImageFacts) -> Setup:
    """Return the setup of a sandbox with these options and this image.

    Raises:
        UsageError: the directory to copy cannot be read, or the state directory not written.
    """
    directory = subdirectory("setups").absolute() / _digest(engine, options, facts)
    return Setup(directory, options.workspace, _found(engine, directory))


def keep(sandbox: Sandbox, setup_key: str | None, checkpoint: Callable[[Path], Checkpoint]) -> str:
    """Keep the setup as `DockerRuntime.keep_setup` does; return the reason why it is not kept, or "".

    checkpoint(owner) takes a checkpoint of the sandbox.
    """
    setup = sandbox.setup
    if setup is None and sandbox.options.setup_key is not None:
        return "it has services, or can write other directories of this machine than its workspace"
    if setup is None or setup.checkpoint is not None:
        return "it did not begin with a setup to keep"
    if setup_key != sandbox.options.setup_key:
        return "a file that it reads changed meanwhile"
    changed, why_not = setup.why_not(sandbox.script(_LEFT_RUNNING))
    if not why_not:
        setup.place.mkdir(mode=0o700, exist_ok=True)
        setup.keep(sandbox.container.engine, checkpoint(setup.place), changed)
    return why_not


def _found(engine: Engine, directory: Path) -> str | None:
    try:
        record = _Record.model_validate_json(read_regular(directory / _RECORD))
    except (OSError, ValidationError):
        return None
    workspace = record.workspace
    is_changed = workspace is not None and not (Path(workspace).is_dir() and traces.are_there(workspace, record.traces))
    if _is_old(record) or is_changed:
        return None
    with contextlib.suppress(SandboxUnavailable):  # the checkpoint was pruned, or removed by hand
        return checkpoint_images.require(engine, record.checkpoint)
    return None


def _is_old(record: _Record) -> bool:
    return not 0 <= time.time() - record.made_at <= MAX_AGE_S


def _digest(engine: Engine, options: DockerOptions, facts: ImageFacts) -> str:
    """Return a digest of all inputs on which the files of the setup depend."""
    option_values = options.model_dump(mode="json", exclude=_NOT_OF_FILES)
    source = options.workspace or options.copy_of
    owner = None if source is None else Path(source).stat()[4:6]
    of_copy = None if options.copy_of is None else _stamps(options.copy_of, everything=options.copies_all)
    whole = [engine.address.url, facts.id, facts.platform, os.getuid(), option_values, owner, of_copy]
    return hashlib.sha256(json.dumps(whole, sort_keys=True, default=str).encode("utf-8", "surrogateescape")).hexdigest()


def _stamps(source: str, *, everything: bool) -> str:
    """Return a hash of path, mode, size, inode and change time of each copied file: the checkpoint holds the copy."""
    digest = hashlib.sha256()
    for path in sorted(select_files(Path(source), everything=everything).paths or ()):
        with contextlib.suppress(FileNotFoundError):
            stats = os.lstat(f"{source}/{path}")
            stamp = repr((path, stats.st_mode, stats.st_size, stats.st_ino, stats.st_ctime_ns))
            digest.update(stamp.encode("utf-8", "surrogateescape"))
    return digest.hexdigest()


def expire() -> None:
    """Remove the directories of setups that are too old; what they own may then be removed."""
    for directory in subdirectory("setups").iterdir():
        try:
            record = _Record.model_validate_json(read_regular(directory / _RECORD))
            is_over = _is_old(record)
        except (OSError, ValidationError):  # its setup is still running, or was killed
            with contextlib.suppress(OSError):
                is_over = time.time() - directory.stat().st_mtime > checkpoint_images.UNFINISHED_S
        if is_over:
            shutil.rmtree(directory, ignore_errors=True)
            note_deletion(directory)
