"""`ohsandbox cache`: what package tools keep between sandboxes."""

# ruff: noqa: T201 - a command prints
from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from ohsandbox.cli.prompt import ask_yes_no, person_present
from ohsandbox.cli.rendering.tables import print_json, print_table
from ohsandbox.cli.rendering.text import age, safe_line
from ohsandbox.errors import UsageError
from ohsandbox.runtime.factory import open_inventory

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ohsandbox.runtime.inventory import CacheInfo

_MIB = 1024**2
_ID_CHARS = 8


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
            (one.scope, one.image, _size(one.size_bytes), age(one.used_at), "yes" if one.in_use else "", _id(one))
            for one in found
        ]
        print_table(("OF", "IMAGE", "SIZE", "LAST USED", "IN USE", "ID"), rows)
        if sys.stdout.isatty():
            print("Each holds what pip, uv, npm, apt and cargo downloaded in sandboxes of that directory or name.")
    return 0


def prune_caches(names: Sequence[str], *, yes: bool) -> int:
    """Remove the caches of these names, or all that no sandbox has, after a person's yes."""
    with open_inventory() as inventory:
        found = [*inventory.list_caches(), *inventory.orphaned_caches()]
        named = {name: [one for one in found if _is_meant(name, one)] for name in names}
        if unknown := [name for name in names if not named[name]]:
            raise UsageError(f"{unknown[0]!r} is no cache of yours. Choose one that `ohsandbox cache list` shows.")
        meant = {one.name: one for caches in named.values() for one in caches}
        doomed = [*meant.values()] if names else [one for one in found if not one.in_use]
        if not doomed:
            print("Nothing to remove.")
            return 0
        size = _size(sum(one.size_bytes for one in doomed))
        for one in doomed:
            print(_told(one))
        if not yes and not person_present():
            raise UsageError("There is no terminal to ask at. Use --yes.")
        if not yes and not ask_yes_no(f"Remove {len(doomed)} package caches ({size})?"):
            print("Nothing was removed.")
            return 1
        left = [one for one in doomed if not inventory.remove_cache(one.name)]
    print(f"Removed {len(doomed) - len(left)}.")
    for one in left:
        print(f"{_told(one)} stays: a sandbox has it.")
    return 1 if left else 0


def _id(cache: CacheInfo) -> str:
    """The beginning of the word in its volume's name."""
    return cache.name.rpartition("-")[2][:_ID_CHARS]


def _is_meant(name: str, cache: CacheInfo) -> bool:
    """Whether a person means the cache: by its directory or name, its id, or its volume."""
    return name in {cache.scope, _id(cache), cache.name} or str(Path(name).resolve()) == cache.scope


def _told(cache: CacheInfo) -> str:
    facts = ", ".join(filter(None, [cache.image, _size(cache.size_bytes), _id(cache)]))
    return safe_line(f"{cache.scope} ({facts})", limit_chars=1000)


def _size(size_bytes: int) -> str:
    return f"{size_bytes / _MIB:,.1f} MiB"
