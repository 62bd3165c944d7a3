"""The commands of `ohsandbox cache`. What one does is imported when it runs."""

from __future__ import annotations

from ohsandbox.cli.options import AsJson, Yes
from ohsandbox.cli.typer_options import argument, command, new_app

cache = new_app("cache", help="Show and remove what package tools keep between sandboxes (--cache).")


@command(cache, "list")
def list_(*, as_json: AsJson = False) -> int:
    """List the package caches with their sizes, the largest first."""
    from ohsandbox.cli.caches import list_caches

    return list_caches(as_json=as_json)


@command(cache)
def prune(
    names: list[str] | None = argument(
        "Directories, names or ids of caches.  [default: all that no sandbox has]", "NAME..."
    ),
    *,
    yes: Yes = False,
) -> int:
    """Remove package caches that no sandbox has."""
    from ohsandbox.cli.caches import prune_caches

    return prune_caches(names or [], yes=yes)
