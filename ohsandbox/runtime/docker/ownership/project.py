"""Networks and volumes that several containers of one sandbox share: found by label, and removed."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from ohsandbox.errors import SandboxUnavailable
from ohsandbox.runtime.docker.engine.error_mapping import engine_errors
from ohsandbox.runtime.docker.labels import LEASE_LABEL
from ohsandbox.runtime.inventory import GcResult, removal

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from ohsandbox.runtime.docker.engine.connection import Engine


def remove_shared(engine: Engine, leases: Collection[str]) -> list[GcResult]:
    """Remove the networks and volumes labelled with one of these leases, once their containers are gone.

    Failures are reported in the results, not raised.
    """
    api = engine.api
    if not leases:
        return []
    try:
        with engine_errors("listing networks and volumes of sandboxes"):
            networks = api.networks(filters={"label": LEASE_LABEL})
            volumes = api.volumes(filters={"label": LEASE_LABEL}).get("Volumes") or []
    except SandboxUnavailable as error:
        return [GcResult("networks and volumes", "", "failed", str(error))]
    found = [(api.remove_network, one["Id"], one) for one in networks]
    found += [(api.remove_volume, one["Name"], one) for one in volumes]
    ours = [one for one in found if (one[2].get("Labels") or {}).get(LEASE_LABEL) in leases]
    why = "the owner of its sandbox is gone"
    return [
        done
        for remove, key, one in ours
        for done in removal(one["Name"], key, why, partial(_remove, remove, key, one["Name"]))
    ]


def _remove(remove: Callable[[str], object], key: str, name: str) -> None:
    with engine_errors(f"removing {name!r}"):
        remove(key)
