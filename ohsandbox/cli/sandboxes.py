"""`ohsandbox ps` and `ohsandbox gc`: the sandboxes of the engine."""

# ruff: noqa: T201 - a command prints
from __future__ import annotations

import contextlib
import os
import shutil
import time
from typing import TYPE_CHECKING

from ohsandbox.cli.net import old_logs, remove_old_logs
from ohsandbox.cli.rendering.tables import print_json, print_table
from ohsandbox.cli.rendering.text import age, safe_line
from ohsandbox.cli.resume import SANDBOX_NAME
from ohsandbox.devcontainer_features import STAGED
from ohsandbox.errors import SandboxUnavailable, UsageError
from ohsandbox.paths import conversations_dir, subdirectory
from ohsandbox.project_file import COPIES
from ohsandbox.runtime.factory import open_inventory

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from ohsandbox.runtime.inventory import SandboxInfo

COPIES_KEPT_S = 30 * 24 * 3600.0
"""They are made again from the project, in milliseconds."""
_UNUSED_COPY = f"nobody used it for {COPIES_KEPT_S / 86400:.0f} days"


def list_sandboxes(*, labels: Sequence[str] = (), as_json: bool) -> int:
    """Print every sandbox of the engine, or those that have all of the labels, NAME=VALUE each."""
    if wrong := [label for label in labels if "=" not in label[1:]]:
        raise UsageError(f"Invalid --label {wrong[0]!r}: expected NAME=VALUE.")
    with open_inventory() as inventory:
        found = inventory.list_sandboxes(dict(label.split("=", 1) for label in labels))
    if as_json:
        print_json({**info._asdict(), "created_at": info.created_at.isoformat()} for info in found)
    elif not found:
        print("No sandboxes.")
    else:
        rows = [
            (info.name, info.image, info.state, age(info.created_at), _owner(info), info.conversation or "")
            for info in found
        ]
        print_table(("NAME", "IMAGE", "STATE", "AGE", "OWNER", "CONVERSATION"), rows)
    return 0


def collect_garbage(*, dry_run: bool, kept: bool) -> int:
    """Remove sandboxes without an owner, and say which; kept takes those that were to be kept, too."""
    with open_inventory() as inventory:
        if dry_run:
            found = [info for info in inventory.list_sandboxes() if info.ours and not info.owner_alive]
            doomed = [info for info in found if kept or not (info.keep or info.resumable)]
            lines = [
                f"would remove {safe_line(one.name)}: its owner, process {one.owner_pid}, is gone" for one in doomed
            ]
            names = inventory.orphaned_checkpoints()
            lines += [f"would remove {safe_line(name)}: its conversation is gone" for name in names]
            lines += [f"would remove {name}: no sandbox was made from it lately" for name in inventory.unused_images()]
            lines += [f"would remove package cache {name}" for name in inventory.unused_caches()]
            lines += [f"would remove the network log of {name}" for name in old_logs()]
            lines += [f"would remove {path}: {_UNUSED_COPY}" for path in _unused_copies()]
            failed = []
        else:
            removed = inventory.collect_garbage(kept=kept)
            lines = [f"{one.outcome} {safe_line(one.name)}: {safe_line(one.reason)}" for one in removed]
            lines += [f"removed the network log of {name}" for name in remove_old_logs()]
            lines += [f"removed {path}: {_UNUSED_COPY}" for path in _unused_copies(remove=True)]
            failed = [one.name for one in removed if one.outcome == "failed"]
    print("\n".join(lines) or "Nothing to remove.")
    if failed:
        raise SandboxUnavailable(f"Not removed: {', '.join(failed)}. Try again, or run `ohsandbox doctor`.")
    return 0


def _unused_copies(*, remove: bool = False) -> list[Path]:
    """Copies of projects' files, and what their features are built from, that nobody used and no conversation names."""
    before = time.time() - COPIES_KEPT_S
    there = (path for name in (COPIES, STAGED) for path in subdirectory(name).iterdir())
    if not (old := [path for path in there if path.stat().st_mtime < before]):
        return []
    named = b""
    for options in conversations_dir().glob(f"*/{SANDBOX_NAME}"):
        with contextlib.suppress(FileNotFoundError):  # deleted meanwhile
            named += options.read_bytes()
    unused = [path for path in old if os.fsencode(path.name) not in named]
    for path in unused if remove else ():
        shutil.rmtree(path, ignore_errors=True)
    return unused


def _owner(info: SandboxInfo) -> str:
    if not info.ours:
        return "not ours"
    if info.owner_alive:
        return f"process {info.owner_pid}"
    if info.keep:
        return "kept"
    return "to be resumed" if info.resumable else "gone"
