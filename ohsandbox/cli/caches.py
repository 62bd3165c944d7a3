"""`ohsandbox cache`: what package tools keep between sandboxes."""

# ruff: noqa: T201 - a command prints
from __future__ import annotations

from typing import TYPE_CHECKING

from ohsandbox.cli.prompt import ask_yes_no, person_present
from ohsandbox.cli.rendering.tables import print_json, print_table
from ohsandbox.cli.rendering.text import age, safe_line
from ohsandbox.errors import UsageError
from ohsandbox.runtime.factory import open_inventory

if TYPE_CHECKING:
    from collections.abc import Sequence


_MIB = 1024**2


def list_caches(*, as_json: bool) -> int:
    """Print the caches of this user, the largest first."""
    with open_inventory() as inventory:
        found = inventory.list_caches()
    if as_json:
        print_json({**one._asdict(), "used_at": one.used_at.isoformat()} for one in found)
    elif not found:
        print("No package caches.")
    else:
        rows = [
            (one.name, _size(one.size_bytes), age(one.used_at), "yes" if one.in_use else "", one.scope, one.image)
            for one in found
        ]
        print_table(("NAME", "SIZE", "LAST USED", "IN USE", "OF", "IMAGE"), rows)
    return 0


def prune_caches(names: Sequence[str], *, yes: bool) -> int:
    """Remove the caches of these names, or all that no sandbox has, after a person's yes."""
    with open_inventory() as inventory:
        found = {one.name: one for one in (*inventory.list_caches(), *inventory.orphaned_caches())}
        if unknown := [name for name in names if name not in found]:
            raise UsageError(f"{unknown[0]!r} is no cache of yours. Choose one that `ohsandbox cache list` shows.")
        doomed = [found[name] for name in names] or [one for one in found.values() if not one.in_use]
        if not doomed:
            print("Nothing to remove.")
            return 0
        size = _size(sum(one.size_bytes for one in doomed))
        for one in doomed:
            print(f"{one.name}  {_size(one.size_bytes)}  {safe_line(one.scope)}")
        if not yes and not person_present():
            raise UsageError("There is no terminal to ask at. Use --yes.")
        if not yes and not ask_yes_no(f"Remove {len(doomed)} package caches ({size})?"):
            print("Nothing was removed.")
            return 1
        left = [one.name for one in doomed if not inventory.remove_cache(one.name)]
    print(f"Removed {len(doomed) - len(left)}.")
    for name in left:
        print(f"{name} stays: a sandbox has it.")
    return 1 if left else 0


def _size(size_bytes: int) -> str:
    return f"{size_bytes / _MIB:,.1f} MiB"
