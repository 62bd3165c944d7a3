"""`ohsandbox ps` and `ohsandbox gc`: the sandboxes of the engine."""

# ruff: noqa: T201 - a command prints
from __future__ import annotations

from typing import TYPE_CHECKING

from ohsandbox.cli.net import old_logs, remove_old_logs
from ohsandbox.cli.rendering.tables import print_json, print_table
from ohsandbox.cli.rendering.text import age, safe_line
from ohsandbox.errors import SandboxUnavailable, UsageError
from ohsandbox.runtime.factory import open_inventory

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ohsandbox.runtime.inventory import SandboxInfo


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
            failed = []
        else:
            removed = inventory.collect_garbage(kept=kept)
            lines = [f"{one.outcome} {safe_line(one.name)}: {safe_line(one.reason)}" for one in removed]
            lines += [f"removed the network log of {name}" for name in remove_old_logs()]
            failed = [one.name for one in removed if one.outcome == "failed"]
    print("\n".join(lines) or "Nothing to remove.")
    if failed:
        raise SandboxUnavailable(f"Not removed: {', '.join(failed)}. Try again, or run `ohsandbox doctor`.")
    return 0


def _owner(info: SandboxInfo) -> str:
    if not info.ours:
        return "not ours"
    if info.owner_alive:
        return f"process {info.owner_pid}"
    if info.keep:
        return "kept"
    return "to be resumed" if info.resumable else "gone"
