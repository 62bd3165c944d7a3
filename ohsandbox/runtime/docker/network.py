"""Giving a running sandbox the engine's network, or taking it away."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ohsandbox.errors import SandboxRefused
from ohsandbox.runtime.docker.error_mapping import engine_errors
from ohsandbox.runtime.docker.selfcheck import outside_interfaces

if TYPE_CHECKING:
    from collections.abc import Callable

    from ohsandbox.runtime.docker.container import Container
    from ohsandbox.runtime.docker.container_config import Network

LIST_INTERFACES = b'while read -r ohs_k ohs_v;do case $ohs_k in *:*)echo "${ohs_k%%:*}";;esac;done </proc/net/dev'
"""Worker shell: the interfaces of the sandbox, a line each."""


def change(container: Container, network: Network, interfaces: Callable[[], bytes]) -> None:
    """Leave every network but the one that is wanted, and join that. A call that was cut off can be repeated.

    interfaces runs `LIST_INTERFACES` in the sandbox.

    Raises:
        SandboxRefused: the engine says that it is done, and the interfaces do not show it; or no rules can be set.
        SandboxUnavailable: the engine refuses.
    """
    with engine_errors(f"changing the network of sandbox {container.name!r} to {network!r}"):
        if network == "open":
            container.join_open_network()
        else:
            container.leave_open_network()
    found = outside_interfaces(interfaces().decode(errors="replace").split())
    if bool(found) != (network == "open"):
        has = f"still the interface {min(found)!r}" if found else "no interface"
        raise SandboxRefused(
            f"The network of sandbox {container.name!r} is to be {network!r}, and it has {has}: its engine or OCI "
            "runtime cannot change it while it runs. Remedy: make a new one with that network."
        )
