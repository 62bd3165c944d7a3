"""`ohsandbox services`: what runs beside the sandboxes of this state directory."""

# ruff: noqa: T201 - a command prints
from __future__ import annotations

from typing import TYPE_CHECKING

from ohsandbox.cli.rendering.tables import print_json, print_table
from ohsandbox.cli.rendering.text import output, safe_line
from ohsandbox.errors import UsageError
from ohsandbox.runtime.factory import open_inventory

if TYPE_CHECKING:
    from ohsandbox.runtime.inventory import Inventory, ServiceInfo


def list_services(sandbox: str | None, *, as_json: bool) -> int:
    """Print the services of all sandboxes, or of one.

    Raises:
        UsageError: no sandbox with services is called so, or belongs to a conversation of that id.
    """
    with open_inventory() as inventory:
        found = _of(inventory, sandbox)
    if as_json:
        print_json(info._asdict() for info in found)
    elif not found:
        print("No services.")
    else:
        rows = [
            (one.sandbox, one.name, one.image, _state(one), ", ".join(map(str, one.ports)), one.conversation or "")
            for one in found
        ]
        print_table(("SANDBOX", "SERVICE", "IMAGE", "STATE", "PORTS", "CONVERSATION"), rows)
    return 0


def print_log(name: str, sandbox: str | None, *, tail: int) -> int:
    """Print what a service has printed; tail: only so many lines, 0 for all.

    Raises:
        UsageError: there is no such service, or one in several sandboxes.
    """
    with open_inventory() as inventory:
        found = [one for one in _of(inventory, sandbox) if one.name == name]
        if len(found) != 1:
            places = ", ".join(safe_line(one.sandbox) for one in found)
            told = f"runs beside several sandboxes: {places}. Name one" if found else "does not exist"
            raise UsageError(f"Service {name!r} {told}. `ohsandbox services` lists them.")
        text = inventory.service_log(found[0].id, lines=tail or None)
    for line in text.splitlines():
        print(output(line))
    return 0


def _of(inventory: Inventory, sandbox: str | None) -> list[ServiceInfo]:
    found = inventory.list_services()
    if sandbox is None:
        return found
    chosen = [one for one in found if sandbox in {one.sandbox, one.conversation}] or [
        one for one in found if one.sandbox.startswith(sandbox) or (one.conversation or "").startswith(sandbox)
    ]
    if not chosen:
        raise UsageError(f"No services run beside {sandbox!r}. `ohsandbox services` lists all.")
    return chosen


def _state(one: ServiceInfo) -> str:
    return f"{one.state} ({one.detail})" if one.detail else one.state
