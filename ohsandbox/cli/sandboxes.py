"""`ohsandbox ps` and `ohsandbox gc`: the sandboxes that are out there."""

# ruff: noqa: T201 - a command prints
from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from ohsandbox.cli.rendering.tables import print_table
from ohsandbox.cli.rendering.text import safe_line
from ohsandbox.errors import SandboxUnavailable
from ohsandbox.runtime.factory import open_inventory

if TYPE_CHECKING:
    from ohsandbox.runtime.inventory import SandboxInfo


def list_them(*, as_json: bool) -> int:
    """Print every sandbox of the engine.

    Raises:
        EngineUnavailable: no engine answers.
    """
    with open_inventory() as inventory:
        found = inventory.list_sandboxes()
    if as_json:
        print(json.dumps([_fields(info) for info in found], indent=2))
    elif not found:
        print("No sandboxes.")
    else:
        _print(found)
    return 0


def collect(*, dry_run: bool, kept: bool) -> int:
    """Remove sandboxes without an owner, and say which; kept takes those that were to be kept, too.

    Raises:
        EngineUnavailable: no engine answers.
        SandboxUnavailable: some could not be removed.
    """
    if dry_run:
        return _foretell(kept=kept)
    with open_inventory() as inventory:
        reaped = inventory.collect_garbage(kept=kept)
    for one in reaped:
        print(f"{one.outcome} {safe_line(one.name)}: {safe_line(one.reason)}")
    if not reaped:
        print("Nothing to remove.")
    failed = [one.name for one in reaped if one.outcome == "failed"]
    if failed:
        raise SandboxUnavailable(f"Not removed: {', '.join(failed)}. Try again, or run `ohsandbox doctor`.")
    return 0


def _foretell(*, kept: bool) -> int:
    with open_inventory() as inventory:
        listed, unneeded = inventory.list_sandboxes(), inventory.orphaned_checkpoints()
    orphans = [info for info in listed if info.ours and not info.owner_alive]
    doomed = [info for info in orphans if kept or not (info.keep or info.resumable)]
    for info in doomed:
        print(f"would remove {safe_line(info.name)}: its owner, process {info.owner_pid}, is gone")
    for name in unneeded:
        print(f"would remove {safe_line(name)}: its conversation is gone")
    if not doomed and not unneeded:
        print("Nothing to remove.")
    return 0


def _fields(info: SandboxInfo) -> dict[str, object]:
    return info._asdict() | {"created_at": info.created_at.isoformat()}


def _print(found: list[SandboxInfo]) -> None:
    rows = [
        (info.name, info.image, info.state, _age(info.created_at), _owner(info), info.conversation or "")
        for info in found
    ]
    print_table(("NAME", "IMAGE", "STATE", "AGE", "OWNER", "CONVERSATION"), rows)


def _owner(info: SandboxInfo) -> str:
    if not info.ours:
        return "not ours"
    if info.owner_alive:
        return f"process {info.owner_pid}"
    if info.keep:
        return "kept"
    return "to be resumed" if info.resumable else "gone"


def _age(created_at: datetime) -> str:
    seconds = max(0, int((datetime.now(UTC) - created_at).total_seconds()))
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds // length} {unit}"
    return f"{seconds} s"
