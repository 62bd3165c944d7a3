"""The tools `checkpoint` and `undo`: save and restore a session's files."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import Field

from ohsandbox.errors import OhsandboxError, ToolError
from ohsandbox.runtime.factory import open_inventory
from ohsandbox.runtime.owners import note_deletion
from ohsandbox.schema import Action, TextObservation
from ohsandbox.tool import FunctionExecutor, ToolAnnotations, ToolDefinition

if TYPE_CHECKING:
    from collections.abc import Callable

    from ohsandbox.runtime.base import Runtime
    from ohsandbox.runtime.results import Checkpoint

_CHECKPOINT = """\
Keep all files of the sandbox as they are now, and return the checkpoint's number for `undo`.

`label` is one line that says what the state is. Processes, variables of shells and what lies in memory (/tmp, /dev/shm)
are not kept. It takes about a second; some ten checkpoints are kept, the first and the newest ones."""

_UNDO = """\
Put all files of the sandbox back as they were at a checkpoint, and return which one that was.

`checkpoint` is a number that `checkpoint` returned; left out, it is the newest. All processes end, shells and Python
kernels included: they begin anew with the next call. What was written since the checkpoint is lost."""


class CheckpointAction(Action):
    """The files are to be kept."""

    label: str = Field(default="", max_length=200, description="One line that says what the state is.")


class UndoAction(Action):
    """The files are to be put back."""

    checkpoint: int | None = Field(default=None, ge=1, description="The checkpoint's number; left out, the newest.")


class CheckpointTools:
    """The checkpoints of one sandbox."""

    def __init__(self, runtime: Runtime) -> None:
        """Create the object without checkpoints."""
        self._runtime = runtime
        self._kept: list[Checkpoint] = []
        self._owner: Path | None = None

    def tools(self) -> list[ToolDefinition[Any, Any]]:
        """Return both tools, or none if some files cannot be saved: files in a host directory belong to its user."""
        if not self._runtime.keeps_checkpoints or self._runtime.host_workspace is not None:
            return []
        keep = ToolAnnotations(title="Keep files", destructiveHint=False, openWorldHint=False)
        undo = ToolAnnotations(title="Put files back", openWorldHint=False)
        parts: list[tuple[str, str, type[Action], ToolAnnotations, Callable[[Any], TextObservation]]] = [
            ("checkpoint", _CHECKPOINT, CheckpointAction, keep, self._keep),
            ("undo", _UNDO, UndoAction, undo, self._undo),
        ]
        return [
            ToolDefinition(
                name=name, description=description, action_type=action, observation_type=TextObservation,
                annotations=annotations, executor=FunctionExecutor(work),
            )
            for name, description, action, annotations, work in parts
        ]  # fmt: skip

    def close(self) -> None:
        """Delete the checkpoints; `gc` deletes those that cannot be deleted now."""
        kept, self._kept = self._kept, []
        if self._owner is None:
            return
        shutil.rmtree(self._owner, ignore_errors=True)
        with contextlib.suppress(OSError):
            note_deletion(self._owner)
        with contextlib.suppress(OhsandboxError), open_inventory() as inventory:
            for checkpoint in kept:
                inventory.drop_checkpoint(checkpoint.id)

    def _keep(self, action: CheckpointAction) -> TextObservation:
        if self._owner is None:
            self._owner = Path(tempfile.mkdtemp(prefix="ohsandbox-mcp-"))
        # a path that vanishes with this process, even if killed: `gc` then deletes the checkpoints
        through_us = Path(f"/proc/{os.getpid()}/root{self._owner}")
        owner = through_us if through_us.is_dir() else self._owner
        self._kept.append(self._runtime.checkpoint(action.label, owner=owner))
        return TextObservation(text=f"Checkpoint {len(self._kept)}{_label(action.label)} is kept.")

    def _undo(self, action: UndoAction) -> TextObservation:
        number = action.checkpoint or len(self._kept)
        if not self._kept:
            raise ToolError("No checkpoint exists. Make one with `checkpoint` before a risky change.")
        if number > len(self._kept):
            raise ToolError(f"Unknown checkpoint {number}. The newest is {len(self._kept)}.")
        wanted = self._kept[number - 1]
        self._runtime.restore(wanted)
        return TextObservation(
            text=f"The files are as at checkpoint {number}{_label(wanted.label)}. Shells and kernels begin anew."
        )


def _label(label: str) -> str:
    return f" ({label})" if label else ""
