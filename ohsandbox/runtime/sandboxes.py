"""Listing, finding and removing of the engine's sandboxes, of any process."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ohsandbox.arguments import expect, expect_texts_by_name, suggests_names
from ohsandbox.errors import UsageError
from ohsandbox.runtime.aio import awaited
from ohsandbox.runtime.factory import open_inventory
from ohsandbox.runtime.inventory import SandboxInfo

if TYPE_CHECKING:
    from collections.abc import Mapping

_MIN_ID_CHARS = 4
"""Minimum length of the beginning of an id; a shorter one could match by accident."""


@suggests_names
def list_sandboxes(*, labels: Mapping[str, str] | None = None) -> list[SandboxInfo]:
    """Return the sandboxes that ohsandbox created on the engine, running or not, oldest first, also of other users.

    Args:
        labels: return only those that were created with all of these labels, `DockerRuntime(labels=...)`.

    Raises:
        UsageError: labels are not a dict of strings.
        EngineUnavailable: no engine answers.
    """
    expect_texts_by_name("labels", labels)
    with open_inventory() as inventory:
        return inventory.list_sandboxes(labels)


@suggests_names
def find_sandbox(wanted: str | None = None, *, labels: Mapping[str, str] | None = None) -> SandboxInfo | None:
    """Return the sandbox of that name or id, or with these labels; None if there is none.

    Join it with `DockerRuntime(attach=info.name)`.

    Args:
        wanted: its name, its id, or the first 4 or more characters of its id.
        labels: labels that it must have, in addition to wanted or alone.

    Raises:
        UsageError: several match, neither argument is given, or one has a wrong type.
        EngineUnavailable: no engine answers.
    """
    expect("wanted", wanted, str, "Give a name or an id.")
    if not wanted and not labels:
        raise UsageError("No sandbox is named. Give a name, an id or labels={...}; list_sandboxes() returns all.")
    matches = list_sandboxes(labels=labels)
    if wanted:
        by_id = [info for info in matches if len(wanted) >= _MIN_ID_CHARS and info.id.startswith(wanted)]
        matches = [info for info in matches if info.name == wanted] or by_id
    if len(matches) > 1:
        names = ", ".join(info.name for info in matches[:5])
        raise UsageError(
            f"{len(matches)} sandboxes match {wanted or dict(labels or {})!r}: {names}. Give one of these names."
        )
    return matches[0] if matches else None


def remove_sandbox(sandbox: str | SandboxInfo) -> None:
    """Remove a sandbox and its files, even if it was to be kept or resumed.

    Args:
        sandbox: a result of `list_sandboxes` or `find_sandbox`, which may be gone by now; or a name or id, as for
            `find_sandbox`.

    Raises:
        UsageError: a process works in it, it was created by somebody else, or the name or id is unknown.
        SandboxUnavailable: the engine failed.
    """
    expect("sandbox", sandbox, (str, SandboxInfo), "Give a name or an id.", optional=False)
    info = find_sandbox(sandbox) if isinstance(sandbox, str) else sandbox
    if info is None:
        raise UsageError(f"Unknown sandbox {sandbox!r}. Use a name or id of list_sandboxes().")
    with open_inventory() as inventory:
        removal = inventory.remove_sandbox(info.id, conversation=None)
        if removal.left:
            raise UsageError(f"{' '.join(removal.left)} End that process, or call its close(keep=False).")
        if not removal.removed and any(sandbox.id == info.id for sandbox in inventory.list_sandboxes()):
            raise UsageError(
                f"Sandbox {info.name!r} was not created from this state directory. Remove it with `docker rm`."
            )


alist_sandboxes = awaited(list_sandboxes)
afind_sandbox = awaited(find_sandbox)
aremove_sandbox = awaited(remove_sandbox)
