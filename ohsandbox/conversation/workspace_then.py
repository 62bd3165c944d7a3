"""The workspace of a stored conversation at two moments, and what changed between them."""

from __future__ import annotations

import ast
import contextlib
import re
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ohsandbox.conversation.checkpointing import SNAPSHOTS_NAME
from ohsandbox.conversation.files_then import FilesThen
from ohsandbox.conversation.fork import find_files
from ohsandbox.conversation.snapshots import Change, Snapshots, Tree, changes_between, look
from ohsandbox.errors import UsageError
from ohsandbox.persistence import stream_events

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


_LEFT_OUT = re.compile(r"""('(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"): (.*)""", re.DOTALL)


class Work(NamedTuple):
    """What was changed."""

    changes: list[Change]
    store: Snapshots
    """Has every content, while the block lasts."""
    left_out: dict[str, str]
    """What could not be compared, and why."""
    is_whole: bool
    """False: something may have been changed after the last files that were kept."""


@contextlib.contextmanager
def work_between(directory: Path, a: int | None = None, b: int | None = None) -> Iterator[Work]:
    """What changed in the workspace from event a to event b; None is the beginning, and now.

    A bound workspace is looked at as it is now; of a container, now is the last checkpoint.

    Raises:
        UsageError: the files of then were not kept.
        SandboxUnavailable: the engine that has them does not serve.
    """
    files = FilesThen()
    stream_events(directory, files.add)
    if not files.kept:
        raise UsageError(f"Conversation {directory.name!r} has no checkpoints: nothing was changed, or they are off.")
    first = files.kept[0] if a is None else find_files(directory, a)
    last = None if b is None else find_files(directory, b)
    with tempfile.TemporaryDirectory(prefix="ohsandbox-work-") as name:
        trees = _Trees(directory, Path(name))
        old = trees.of(first.data)
        new = trees.of(last.data) if last is not None else trees.now(files.kept[-1].data)
        left_out = old.left_out | new.left_out
        is_whole = b is not None or files.is_known or _path(first.data) is not None
        yield Work(changes_between(old, new), trees.store, left_out, is_whole)


def bound_workspace(directory: Path) -> Path | None:
    """The directory of this machine that the conversation last worked in; None where its files are its sandbox's."""
    files = FilesThen()
    stream_events(directory, files.add)
    return _path(files.kept[-1].data) if files.kept else None


def look_there(target: Path, changes: Sequence[Change], store: Snapshots) -> Tree:
    """What a directory has of the names that were changed.

    Raises:
        UsageError: it cannot be read.
    """
    return look(target, store.keep, only=[change.path for change in changes])


class _Trees:
    """Trees of a conversation, their contents in one store."""

    def __init__(self, directory: Path, temporary: Path) -> None:
        self._kept = Snapshots(directory / SNAPSHOTS_NAME)
        self._temporary = temporary
        self.store = Snapshots(temporary / "store", beside=self._kept)

    def of(self, data: dict[str, Any]) -> Tree:
        """Of a checkpoint."""
        if data.get("workspace"):
            return self._kept.load(str(data["workspace"]["snapshot"]))
        return self._fetched(data)

    def now(self, data: dict[str, Any]) -> Tree:
        """The workspace of the last checkpoint as it is now, as far as that can be known."""
        path = _path(data)
        return self.of(data) if path is None else look(path, self.store.keep, before=self.of(data))

    def _fetched(self, data: dict[str, Any]) -> Tree:
        """Out of a sandbox made from the checkpoint, through the filter of every download."""
        from ohsandbox.runtime.docker import DockerRuntime  # noqa: PLC0415 - only where files lie in a container

        with (
            tempfile.TemporaryDirectory(dir=self._temporary) as place,
            DockerRuntime(str(data.get("image") or "python:3.12"), checkpoint=str(data["id"])) as sandbox,
        ):
            left_out = sandbox.download(sandbox.workdir, place, user="0")
            tree = look(Path(place), self.store.keep)
        tree.left_out.update(map(_named, left_out))
        return tree


def _named(line: str) -> tuple[str, str]:
    """Path and reason of a line of `Runtime.download`: a Python literal, a colon, and why."""
    found = _LEFT_OUT.fullmatch(line)
    if found is None:
        return line, "not taken out of the sandbox"
    return str(ast.literal_eval(found[1])).removeprefix("./"), found[2]


def _path(data: dict[str, Any]) -> Path | None:
    return Path(data["workspace"]["path"]) if data.get("workspace") else None
