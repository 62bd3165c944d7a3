"""Objects that ohsandbox made in the engine: `ps` and `gc`, `services`, `images` and `cache`."""

# ruff: noqa: T201 - a command prints
from __future__ import annotations

import os
import shutil
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from ohsandbox.cli.commands.net import old_logs, remove_old_logs
from ohsandbox.cli.prompts.prompt import ask_yes_no, person_present
from ohsandbox.cli.rendering.tables import print_list
from ohsandbox.cli.rendering.text import age, output, progress_text, safe_line, say, size, truncated
from ohsandbox.cli.session.resume import SANDBOX_NAME
from ohsandbox.errors import SandboxUnavailable, UsageError
from ohsandbox.paths import conversations_dir, state_dir, subdirectory
from ohsandbox.private_files import read_regular
from ohsandbox.project.features import STAGED
from ohsandbox.project.project_file import COPIES
from ohsandbox.runtime.factory import open_inventory
from ohsandbox.runtime.inventory import SHIPPED_IMAGES
from ohsandbox.runtime.local import remove_left_directories
from ohsandbox.text import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ohsandbox.runtime.inventory import CacheInfo, Inventory, SandboxInfo, ServiceInfo, StoredImage
    from ohsandbox.runtime.results import PullProgress

_COPIES_KEPT_S = 30 * 24 * 3600.0
"""How long, in seconds, unused copies are kept; making one again from the project takes milliseconds."""
_LEFT = "its process was killed"
_UNUSED_COPY = f"nobody used it for {_COPIES_KEPT_S / 86400:.0f} days"


def print_sandboxes(*, labels: Sequence[str] = (), as_json: bool) -> int:
    """Print every sandbox of the engine, or those that have all of the labels, each NAME=VALUE."""
    if wrong := [label for label in labels if "=" not in label[1:]]:
        raise UsageError(f"Invalid --label {wrong[0]!r}: expected NAME=VALUE.")
    state_dir()  # refused before the engine is asked: without a sandbox nothing else looks at it
    with open_inventory() as inventory:
        found = inventory.list_sandboxes(dict(label.split("=", 1) for label in labels))
    rows = [
        (info.name, info.image, info.state, age(info.created_at), _owner(info), info.conversation or "")
        for info in found
    ]
    headings = ("NAME", "IMAGE", "STATE", "AGE", "OWNER", "CONVERSATION")
    print_list(found, headings, rows, as_json=as_json, nothing="No sandboxes.")
    return 0


def collect_garbage(*, dry_run: bool, kept: bool) -> int:
    """Remove sandboxes without an owner and print their names; kept includes those that were to be kept."""
    from ohsandbox.timetravel.fork import remove_unfinished  # noqa: PLC0415 - `ps` and `images` need no time travel

    unfinished = remove_unfinished(conversations_dir(), dry_run=dry_run)  # first: their checkpoints are removed below
    with open_inventory() as inventory:
        if dry_run:
            found = [info for info in inventory.list_sandboxes() if info.ours and not info.owner_alive]
            doomed = [info for info in found if kept or not (info.keep or info.resumable)]
            lines = [
                f"would remove {safe_line(one.name)}: its owner, process {one.owner_pid}, is gone" for one in doomed
            ]
            names = inventory.orphaned_checkpoints()
            lines += [f"would remove {safe_line(name)}: its conversation, or its setup, was deleted" for name in names]
            lines += [f"would remove {name}: no sandbox was made from it lately" for name in inventory.unused_images()]
            lines += [f"would remove package cache {name}" for name in inventory.unused_caches()]
            lines += [f"would remove the network log of {name}" for name in old_logs()]
            lines += [f"would remove {path}: {_UNUSED_COPY}" for path in _unused_copies()]
            lines += [f"would remove {path}: {_LEFT}" for path in [*unfinished, *remove_left_directories(dry_run=True)]]
            failed = []
        else:
            removed = inventory.collect_garbage(kept=kept)
            lines = [f"{one.outcome} {safe_line(one.name)}: {safe_line(one.reason)}" for one in removed]
            lines += [f"removed the network log of {name}" for name in remove_old_logs()]
            lines += [f"removed {path}: {_UNUSED_COPY}" for path in _unused_copies(remove=True)]
            lines += [f"removed {path}: {_LEFT}" for path in [*unfinished, *remove_left_directories()]]
            failed = [one.name for one in removed if one.outcome == "failed"]
        lost = inventory.lost_checkpoints()
        lines += [_stays(_image_line(one), one.stays, f"images prune {one.name}") for one in lost]
    print("\n".join(lines) or "Nothing to remove.")
    if failed:
        raise SandboxUnavailable(f"Not removed: {', '.join(failed)}. Try again, or run `ohsandbox doctor`.")
    return 0


def _unused_copies(*, remove: bool = False) -> list[Path]:
    """Return copies of project files and feature build directories that are unused and belong to no conversation.

    While a conversation's options cannot be read, nobody knows which it uses, so there are none.
    """
    before = time.time() - _COPIES_KEPT_S
    there = (path for name in (COPIES, STAGED) for path in subdirectory(name).iterdir())
    if not (old := [path for path in there if path.stat().st_mtime < before]):
        return []
    named = b""
    for options in conversations_dir().glob(f"*/{SANDBOX_NAME}"):
        try:
            named += read_regular(options, follow=True)
        except FileNotFoundError:  # deleted meanwhile
            continue
        except OSError:
            return []
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


# --- ohsandbox images -----------------------------------------------------------------------------

MAX_STEP_CHARS = 160
"""Longest text of a build step that is shown; the first commands of a long RUN identify it."""
_KINDS = {
    "shipped": "made by `images build`",
    "built": "of a Dockerfile, for --build",
    "checkpoint": "a conversation's files",
    "network": "owner of an open network",
}


def build_images(names: Sequence[str], *, base: str | None) -> int:
    """Build shipped images on the given base; without one, each on its predecessor, which is built as well."""
    wanted = list(names or SHIPPED_IMAGES)
    if base is None and set(wanted) <= {*SHIPPED_IMAGES}:
        wanted = list(SHIPPED_IMAGES[: max(map(SHIPPED_IMAGES.index, wanted)) + 1])
    with open_inventory() as inventory:
        made = base
        for name in wanted:
            began = time.monotonic()
            made = inventory.build_shipped_image(
                name, base=base if names and base else made, progress=_build_step_printer()
            )
            print(f"{made} is ready after {time.monotonic() - began:.0f} s: ohsandbox run --image {made}", flush=True)
    return 0


def list_images(*, as_json: bool) -> int:
    """Print the images that ohsandbox made."""
    with open_inventory() as inventory:
        found = inventory.list_made_images()
    rows = [
        (one.name, size(one.size_bytes), age(one.created_at), "in use" if one.in_use else "", _KINDS[one.kind])
        for one in found
    ]
    nothing = "No images of ours. `ohsandbox images build` makes those that are shipped."
    if print_list(found, ("NAME", "SIZE", "AGE", "STATE", "WHAT"), rows, as_json=as_json, nothing=nothing):
        print("They share layers, so their sizes do not add up.")
    return 0


def prune_images(names: Sequence[str], *, yes: bool, dry_run: bool) -> int:
    """Remove the named images, or those that this state directory had built and that no container uses."""
    with open_inventory() as inventory:
        found = inventory.list_made_images()
        if unknown := set(names) - {one.name for one in found}:
            raise UsageError(
                f"{min(unknown)!r} is not an image of ohsandbox. Choose one that `ohsandbox images list` shows."
            )
        if needed := next((one for one in found if one.name in names and one.needed), None):
            raise UsageError(
                f"{needed.name!r} stays: {needed.needed}. Delete that with `ohsandbox conversations delete`."
            )
        others = [one for one in found if one.stays and one.kind in {"built", "checkpoint"}]
        unused = [one for one in found if not (one.in_use or one.needed or one.stays)]
        return _prune(
            {one.name: _image_line(one) for one in found if one.name in names} if names
            else {one.name: _image_line(one) for one in unused},
            [] if names else [_stays(_image_line(one), one.stays, f"images prune {one.name}") for one in others],
            inventory.remove_image, of="image", yes=yes, dry_run=dry_run,
        )  # fmt: skip


def _image_line(image: StoredImage) -> str:
    return safe_line(f"{image.name} ({size(image.size_bytes)}, {age(image.created_at)} old)")


def _stays(line: str, reason: str, command: str) -> str:
    return f"stays: {line}: {safe_line(reason)}. `ohsandbox {safe_line(command)}` removes it"


def _prune(
    doomed: Mapping[str, str], stays: Sequence[str], remove: Callable[[str], bool], *, of: str, yes: bool, dry_run: bool
) -> int:
    """List what is removed, and what only a person's word removes; ask at a terminal, and remove it.

    doomed: lines to print, by names for remove, which returns False for what a sandbox uses.
    """
    for line in stays:
        print(line)
    for line in doomed.values():
        print(f"{'would remove' if dry_run else 'to remove'}: {line}")
    if not doomed:
        print("Nothing to remove.")
    if dry_run or not doomed:
        return 0
    if not yes and not person_present():
        raise UsageError("This question needs a terminal. Use --yes.")
    if not yes and not ask_yes_no(f"Remove {counted(len(doomed), of)}?"):
        print("Nothing was removed.")
        return 1
    left = [line for name, line in doomed.items() if not remove(name)]
    print(f"Removed {counted(len(doomed) - len(left), of)}.")
    for line in left:
        print(f"{line} stays: a sandbox has it.")
    return 1 if left else 0


def _build_step_printer() -> Callable[[PullProgress], None]:
    """Return a function that prints each build step once, and other progress when it changes."""
    told: set[str] = set()

    def print_step(progress: PullProgress) -> None:
        key = f"{progress.status} {progress.layers_done}"
        if key not in told and progress.status != "done":
            told.add(key)
            say(truncated(progress_text(progress), MAX_STEP_CHARS))

    return print_step


# --- ohsandbox cache ------------------------------------------------------------------------------

_MIB = 1024**2
_CACHE_ID_CHARS = 8


def list_caches(*, as_json: bool) -> int:
    """Print the caches of this user, largest first."""
    with open_inventory() as inventory:
        found = inventory.list_caches()
    rows = [
        (one.scope, one.image, _mib(one.size_bytes), age(one.used_at), "yes" if one.in_use else "", _cache_id(one))
        for one in found
    ]
    headings = ("OF", "IMAGE", "SIZE", "LAST USED", "IN USE", "ID")
    if print_list(found, headings, rows, as_json=as_json, nothing="No package caches.") and sys.stdout.isatty():
        print("Each holds what pip, uv, npm, apt and cargo downloaded in sandboxes of that directory or name.")
    return 0


def prune_caches(names: Sequence[str], *, yes: bool, dry_run: bool) -> int:
    """Remove the named caches, or all of this state directory that no sandbox uses."""
    with open_inventory() as inventory:
        own, others = inventory.list_caches(), inventory.orphaned_caches()
        named = {name: [one for one in (*own, *others) if _is_cache_meant(name, one)] for name in names}
        if unknown := [name for name in names if not named[name]]:
            raise UsageError(f"{unknown[0]!r} is not a cache of yours. Choose one that `ohsandbox cache list` shows.")
        meant = [one for caches in named.values() for one in caches] or [one for one in own if not one.in_use]
        reason = "it belongs to another state directory, which cannot be found and may come back"
        return _prune(
            {one.name: _cache_line(one) for one in meant},
            [] if names else [_stays(_cache_line(one), reason, f"cache prune {_cache_id(one)}") for one in others],
            inventory.remove_cache, of="package cache", yes=yes, dry_run=dry_run,
        )  # fmt: skip


def _cache_id(cache: CacheInfo) -> str:
    """Return a short id from the cache's volume name."""
    return cache.name.rpartition("-")[2][:_CACHE_ID_CHARS]


def _is_cache_meant(name: str, cache: CacheInfo) -> bool:
    """Return whether name means this cache: its directory or name, its id, or its volume."""
    return name in {cache.scope, _cache_id(cache), cache.name} or str(Path(name).resolve()) == cache.scope


def _cache_line(cache: CacheInfo) -> str:
    facts = ", ".join(filter(None, [cache.image, _mib(cache.size_bytes), _cache_id(cache)]))
    return safe_line(f"{cache.scope} ({facts})", limit_chars=1000)


def _mib(size_bytes: int) -> str:
    return f"{size_bytes / _MIB:,.1f} MiB"


# --- ohsandbox services ---------------------------------------------------------------------------


def list_services(sandbox: str | None, *, as_json: bool) -> int:
    """Print the services of all sandboxes, or of one.

    Raises:
        UsageError: no sandbox with services has this name or belongs to a conversation with this id.
    """
    with open_inventory() as inventory:
        found = _services_of(inventory, sandbox)
    rows = [
        (one.sandbox, one.name, one.image, _service(one), ", ".join(map(str, one.ports)), one.conversation or "")
        for one in found
    ]
    headings = ("SANDBOX", "SERVICE", "IMAGE", "STATE", "PORTS", "CONVERSATION")
    print_list(found, headings, rows, as_json=as_json, nothing="No services.")
    return 0


def print_log(name: str, sandbox: str | None, *, tail: int) -> int:
    """Print a service's output; tail limits it to the last lines, 0 prints all.

    Raises:
        UsageError: there is no such service, or one in several sandboxes.
    """
    with open_inventory() as inventory:
        found = [one for one in _services_of(inventory, sandbox) if one.name == name]
        if len(found) != 1:
            places = ", ".join(safe_line(one.sandbox) for one in found)
            told = f"runs beside several sandboxes: {places}. Name one" if found else "does not exist"
            raise UsageError(f"Service {name!r} {told}. `ohsandbox services` lists them.")
        text = inventory.service_log(found[0].id, lines=tail or None)
    for line in text.splitlines():
        print(output(line))
    return 0


def _services_of(inventory: Inventory, sandbox: str | None) -> list[ServiceInfo]:
    found = inventory.list_services()
    if sandbox is None:
        return found
    chosen = [one for one in found if sandbox in {one.sandbox, one.conversation}] or [
        one for one in found if one.sandbox.startswith(sandbox) or (one.conversation or "").startswith(sandbox)
    ]
    if not chosen:
        raise UsageError(f"No services run beside {sandbox!r}. `ohsandbox services` lists all.")
    return chosen


def _service(one: ServiceInfo) -> str:
    return f"{one.state} ({one.detail})" if one.detail else one.state
