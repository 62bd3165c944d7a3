"""`ohsandbox images`: the images that ohsandbox ships, builds and keeps."""

# ruff: noqa: T201 - a command prints
from __future__ import annotations

import time
from typing import TYPE_CHECKING

from ohsandbox.cli.rendering.tables import print_json, print_table
from ohsandbox.cli.rendering.text import age, counted, cut, progress_text, safe_line, say, size
from ohsandbox.errors import SandboxUnavailable
from ohsandbox.runtime.factory import open_inventory
from ohsandbox.runtime.inventory import SHIPPED_IMAGES

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ohsandbox.runtime.results import PullProgress

MAX_STEP_CHARS = 160
"""Of a step: a RUN of twenty commands is known by its first."""
_MEANINGS = {
    "shipped": "made by `images build`",
    "built": "of a Dockerfile, for --build",
    "checkpoint": "a conversation's files",
    "network": "owner of an open network",
}


def build_images(names: Sequence[str], *, base: str | None) -> int:
    """Build shipped images, on the base where one is named; else each on the one before, which is built as well."""
    wanted = list(names or SHIPPED_IMAGES)
    if base is None and set(wanted) <= {*SHIPPED_IMAGES}:
        wanted = list(SHIPPED_IMAGES[: max(map(SHIPPED_IMAGES.index, wanted)) + 1])
    with open_inventory() as inventory:
        made = base
        for name in wanted:
            began = time.monotonic()
            made = inventory.build_shipped_image(name, base=base if names and base else made, progress=_tell_steps())
            print(f"{made} is ready after {time.monotonic() - began:.0f} s: ohsandbox run --image {made}", flush=True)
    return 0


def list_images(*, as_json: bool) -> int:
    """Print what ohsandbox made in the engine."""
    with open_inventory() as inventory:
        found = inventory.list_made_images()
    if as_json:
        print_json({**one._asdict(), "created_at": one.created_at.isoformat()} for one in found)
    elif found:
        rows = [
            (one.name, size(one.size_bytes), age(one.created_at), "in use" if one.in_use else "", _MEANINGS[one.kind])
            for one in found
        ]
        print_table(("NAME", "SIZE", "AGE", "STATE", "WHAT"), rows)
        print("They share layers, so their sizes do not add up.")
    else:
        print("No images of ours. `ohsandbox images build` makes those that are shipped.")
    return 0


def prune_images() -> int:
    """Remove what was built and is not used."""
    removed, failed = 0, []
    with open_inventory() as inventory:
        for one in inventory.prune_images():
            print(f"{one.outcome} {safe_line(one.name)}: {safe_line(one.reason)}", flush=True)
            removed += one.outcome == "removed"
            failed += [one.name] if one.outcome == "failed" else []
    print(f"Removed {counted(removed, 'image')}. Checkpoints go with their conversations.")
    if failed:
        raise SandboxUnavailable(f"Not removed: {', '.join(failed)}. Try again, or run `ohsandbox doctor`.")
    return 0


def _tell_steps() -> Callable[[PullProgress], None]:
    """Say each step once, and what else is new."""
    told: set[str] = set()

    def tell(progress: PullProgress) -> None:
        key = f"{progress.status} {progress.layers_done}"
        if key not in told and progress.status != "done":
            told.add(key)
            say(cut(progress_text(progress), MAX_STEP_CHARS))

    return tell
