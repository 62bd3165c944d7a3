"""The network `open`: one bridge per engine, and rules in each namespace that allow only public addresses.

A sandbox that is created with this network joins the network namespace of another container, the owner. The owner
sets the rules before the sandbox exists, and then drops its capabilities. So the rules outlive every restart of the
sandbox, and without its owner the sandbox has no network. A running sandbox that was created without this network gets
its rules from a short-lived container that joins the sandbox's namespace before an interface is added.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import ipaddress
import platform
import tarfile
import threading
import time
from importlib.resources import files
from typing import TYPE_CHECKING, Any, NamedTuple

from ohsandbox.errors import ImageUnavailable, OhsandboxError, SandboxGone, SandboxRefused, SandboxUnavailable
from ohsandbox.runtime.docker.config.seccomp import profile_json
from ohsandbox.runtime.docker.engine.error_mapping import engine_errors, foreign_errors, printable_line
from ohsandbox.runtime.docker.engine.wire import Demultiplexer, wrap
from ohsandbox.runtime.docker.labels import LABEL, OWNER_LABEL, complete

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from ohsandbox.runtime.docker.engine.connection import Engine
    from ohsandbox.runtime.docker.engine.wire import Wire

NETWORK = "ohsandbox-open"
"""Name of the bridge; all sandboxes of an engine share it."""
REPOSITORY = "ohsandbox-network"
"""Repository of the image that contains only the gateway, 5 KB; its tag is the digest of the program."""
ANSWER_S = 30.0
"""Time limit for an answer of the gateway in seconds; it takes 5 ms."""
_NO_TIME_WAIT = {"net.ipv4.tcp_max_tw_buckets": "0"}
"""Frees the port of a server in an earlier sandbox at once; by default that takes a minute."""
_MEMORY_BYTES = 32 * 1024**2
_PROCESSES = 64
"""Process limit of an owner; the threads of the OCI runtime that starts it count, too."""
_PROGRAMS = {"x86_64": "amd64", "amd64": "amd64", "aarch64": "arm64", "arm64": "arm64"}
_FILES = {"amd64": "gateway-x86_64", "arm64": "gateway-aarch64"}
_JOIN_TRIES = 5
"""Number of attempts to join the bridge: each `gc` that looked before the sandbox was there may remove it once."""
_preparing = threading.Lock()


class _OpenBridge(NamedTuple):
    """The image, and the addresses of the bridge."""

    image: str
    subnet: ipaddress.IPv4Network
    gateway: str


def owner_name(sandbox: str) -> str:
    """Return the name of the container that owns a sandbox's network."""
    return f"{sandbox}-network"


def owner_of(found: dict[str, Any]) -> str:
    """Return the owner's id from the engine's description of a sandbox; "" if its namespace is its own."""
    mode = str((found.get("HostConfig") or {}).get("NetworkMode") or "")
    return mode.removeprefix("container:") if mode.startswith("container:") else ""


def make_owner(engine: Engine, *, name: str, lease_id: str, hosts: Iterable[str] = ()) -> str:
    """Create and start the owner of a network, not yet connected to the bridge; return its id.

    Each start of it, from outside too, sets the rules without exceptions; `set_rules` makes these. In the namespace,
    hosts are names of the loopback address.

    Raises:
        SandboxRefused: the rules cannot be set on this engine.
        SandboxUnavailable: the engine fails.
        UsageError: the name is taken.
    """
    config = _owner_config(engine, "hold", lease_id)
    config["HostConfig"]["ExtraHosts"] = [f"{one}:127.0.0.1" for one in hosts]
    owner, wire = _started_owner(engine, name, config)
    wire.close()
    return owner


def lend_owner(engine: Engine, *, name: str, lease_id: str, labels: Mapping[str, str]) -> LentNetwork:
    """Create and start the owner of a network that sandboxes use one after another, not yet connected to the bridge.

    Raises:
        SandboxRefused, SandboxUnavailable: as for `make_owner`.
    """
    config = _owner_config(engine, "lend", lease_id) | {"OpenStdin": True}
    config["Labels"] |= labels
    config["HostConfig"]["Sysctls"] = _NO_TIME_WAIT
    return LentNetwork(*_started_owner(engine, name, config))


class LentNetwork:
    """The owner of a network, and a connection to it that makes the engine's name server reachable or not.

    The name server stays in the namespace once the bridge was connected (see `close`), and the next sandbox must not
    reach it before it has its network.
    """

    def __init__(self, owner: str, wire: Wire) -> None:
        self.owner = owner
        self._wire = wire

    def set_name_server(self, *, reachable: bool) -> None:
        """Make the engine's name server reachable or not; at first it is not.

        Raises:
            SandboxUnavailable: the owner does not answer, for example after a restart of the engine.
        """
        try:
            self._wire.sendall(memoryview(b"o" if reachable else b"c"))
            answer = _read_first_line(self._wire)
        except OSError as error:
            raise SandboxUnavailable(f"The container that holds the sandbox's network is gone: {error}.") from error
        if answer.split()[:1] != [b"ready"]:
            raise SandboxUnavailable("The container that holds the sandbox's network does not answer any more.")

    def close(self) -> None:
        """Close the connection; the container stays."""
        self._wire.close()


def _owner_config(engine: Engine, mode: str, lease_id: str) -> dict[str, Any]:
    bridge = prepare(engine)
    config = _payload(bridge.image, [mode, *_rules(engine, bridge, ())], "none")
    return config | {"Hostname": "sandbox", "Labels": complete({LABEL: "1", OWNER_LABEL: lease_id})}


def _started_owner(engine: Engine, name: str, config: dict[str, Any]) -> tuple[str, Wire]:
    """Create and start an owner; return its id, and the connection on which it reported that it is ready."""
    with engine_errors(f"creating the network of {name!r}"):
        owner = str(engine.api.create_container_from_config(config, name)["Id"])
    try:
        return owner, _begin(engine, owner)[0]
    except BaseException:
        with contextlib.suppress(OhsandboxError):
            _remove(engine, owner)
        raise


def connect(engine: Engine, container: str, allow: Iterable[str]) -> None:
    """Connect a namespace to the bridge, unless it is connected; its rules are set already."""
    for _ in range(_JOIN_TRIES - 1):
        with contextlib.suppress(SandboxUnavailable):
            return _join(engine, container)
        # the bridge may have been removed and created again: the rules lack the gateway of the new one
        set_rules(engine, container, allow)
    return _join(engine, container)


def _join(engine: Engine, container: str) -> None:
    with engine_errors("connecting a sandbox to the open network"):
        joined = _networks(engine, container)
        for name in joined - {NETWORK}:
            _leave(engine, container, name)
        if NETWORK not in joined:
            engine.api.connect_container_to_network(container, NETWORK)


def disconnect(engine: Engine, container: str) -> None:
    """Disconnect a container from all networks."""
    with engine_errors("taking the network of a sandbox away"):
        for name in _networks(engine, container) - {"none"}:
            _leave(engine, container, name)


def _leave(engine: Engine, container: str, network: str) -> None:
    try:
        engine.api.disconnect_container_from_network(container, network)
    except foreign_errors() as error:
        if "is not connected to" not in str(error):  # the engine still lists a container that is just ending
            raise


def close(engine: Engine, container: str) -> None:
    """Disconnect a running container from all networks, and stop the engine's name server in its namespace.

    The engine leaves the name server running. Before 25.0.5 it forwards queries from the engine's own namespace if the
    machine's name server is on loopback (CVE-2024-29018): names, and data encoded in them, would leave it without
    an interface.

    Raises:
        SandboxRefused: the name server cannot be stopped; nothing has changed.
        SandboxUnavailable: the engine fails.
    """
    _once(engine, _payload(_image(engine), ["close"], f"container:{container}"))
    disconnect(engine, container)


def set_rules(engine: Engine, container: str, allow: Iterable[str]) -> None:
    """Disconnect a running container, and set the rules in its namespace.

    Raises:
        SandboxRefused: the rules cannot be set there.
        SandboxUnavailable: the engine fails.
    """
    bridge = prepare(engine)
    # the sandbox's own /etc/resolv.conf is not trusted
    _, *resolvers = _once(engine, _payload(bridge.image, ["resolvers"], "none"))
    rules = _rules(engine, bridge, allow, resolvers or ["127.0.0.11"])
    disconnect(engine, container)
    _once(engine, _payload(bridge.image, ["once", *rules], f"container:{container}"))


def revive_owner(engine: Engine, owner: str, allow: Iterable[str]) -> None:
    """Restart the owner of a network if it has ended; its rules are set before it is connected.

    By itself it sets rules without the exceptions in allow.

    Raises:
        SandboxGone: the owner has been removed.
    """
    try:
        with engine_errors("looking at the network of a sandbox"):
            found = engine.api.inspect_container(owner)
    except SandboxGone as error:
        raise SandboxGone(
            "The container that held the sandbox's network was removed, and the sandbox cannot start without it. "
            "Go back to a checkpoint, or create a new sandbox."
        ) from error
    if found["State"].get("Running"):
        return
    was_connected = NETWORK in (found["NetworkSettings"].get("Networks") or {})
    disconnect(engine, owner)
    _run(engine, owner)
    if was_connected:
        set_rules(engine, owner, allow)
        connect(engine, owner, allow)


def is_open(engine: Engine, container: str) -> bool:
    """Whether the container that owns a namespace is connected to the bridge; False if it is gone."""
    with contextlib.suppress(SandboxGone), engine_errors("looking at the network of a sandbox"):
        return bool(_networks(engine, container) - {"none"})
    return False


def is_running(engine: Engine, owner: str) -> bool:
    """Whether the owner of a network exists and is running."""
    with contextlib.suppress(SandboxGone), engine_errors("looking at the network of a sandbox"):
        return bool(engine.api.inspect_container(owner)["State"].get("Running"))
    return False


def remove_owner(engine: Engine, name: str, lease_id: str) -> None:
    """Remove the owner of that name if it has that lease; a missing one is not an error."""
    try:
        with engine_errors(f"removing the network {name!r}"):
            found = engine.api.inspect_container(name)
            if ((found.get("Config") or {}).get("Labels") or {}).get(OWNER_LABEL) != lease_id:
                return
    except SandboxGone:
        return
    _remove(engine, str(found["Id"]))


def collect(engine: Engine) -> None:
    """Remove the bridge unless a container uses it or is ours; it is created again when needed.

    Any container of ours, running or stopped, may be about to join.
    """
    with contextlib.suppress(SandboxUnavailable), engine_errors(f"removing the network {NETWORK!r}"):
        found = _found_bridge(engine)
        if found is None or not _LABELS.items() <= (found.get("Labels") or {}).items():
            return
        if not any(engine.api.containers(all=True, filters=one) for one in ({"label": LABEL}, {"network": NETWORK})):
            engine.api.remove_network(found["Id"])  # the engine refuses if a container has joined meanwhile


# --- the bridge and the image ---

_LABELS = {"ohsandbox": "1"}
_OPTIONS = {"com.docker.network.bridge.enable_icc": "false"}
"""Containers on the bridge cannot reach each other; the rules forbid that as well."""


def prepare(engine: Engine) -> _OpenBridge:
    """Return the image and the bridge, which are created if missing; this takes 3 ms if they exist.

    Raises:
        SandboxRefused: the engine is Podman, there is no gateway for its processor, or the bridge's name is taken.
        SandboxUnavailable: the engine fails.
    """
    if engine.is_podman:
        raise SandboxRefused(
            "The network 'open' is not available with Podman, which cannot connect a running container. "
            "Use network='allowlist', or a Docker engine."
        )
    return _OpenBridge(_image(engine), *_addresses(engine))


def _addresses(engine: Engine) -> tuple[ipaddress.IPv4Network, str]:
    with _preparing, engine_errors(f"making the network {NETWORK!r}"):
        tries = (_found_bridge(engine) or _made_bridge(engine, left=left) for left in reversed(range(_JOIN_TRIES)))
        if (found := next(filter(None, tries), None)) is None:
            raise SandboxUnavailable(f"The network {NETWORK!r} is removed each time it is created. Try again later.")
    told = ((found.get("IPAM") or {}).get("Config") or [{}])[0]
    is_ours = found.get("Driver") == "bridge" and _LABELS.items() <= (found.get("Labels") or {}).items()
    if not is_ours or not told.get("Subnet") or not told.get("Gateway"):
        raise SandboxRefused(
            f"The engine's network {NETWORK!r} was not created by ohsandbox. Run `docker network rm {NETWORK}`."
        )
    return ipaddress.IPv4Network(str(told["Subnet"])), str(told["Gateway"]).partition("/")[0]


def _found_bridge(engine: Engine) -> dict[str, Any] | None:
    return next((one for one in engine.api.networks(names=[NETWORK]) if one["Name"] == NETWORK), None)


def _made_bridge(engine: Engine, *, left: int) -> dict[str, Any] | None:
    """Create the bridge; return None if it was removed meanwhile, or could not be created and tries are left.

    The kernel refuses a second device of its name; engines before 25 allow two such networks.
    """
    device = f"ohs{hashlib.sha256(str(engine.api.info().get('ID')).encode()).hexdigest()[:10]}"
    options = _OPTIONS | {"com.docker.network.bridge.name": device}
    try:
        with engine_errors(f"making the network {NETWORK!r}"):
            engine.api.create_network(NETWORK, driver="bridge", options=options, labels=_LABELS, check_duplicate=True)
    except OhsandboxError:
        if (made := _found_bridge(engine)) is not None:  # another process has created it at the same time
            return made
        if not left:  # it may have been another process's, which is removed by now
            raise
        return None
    return _found_bridge(engine)


def _image(engine: Engine) -> str:
    architecture = _PROGRAMS.get(platform.machine().lower(), "")
    if not engine.address.is_local:
        with engine_errors("asking the engine for its processor"):
            architecture = _PROGRAMS.get(str(engine.api.info().get("Architecture")), "")
    if architecture not in _FILES:
        raise SandboxRefused(
            "The network 'open' is not available: ohsandbox has no gateway program for the engine's processor. "
            "Use network='allowlist'."
        )
    program = (files("ohsandbox.network") / "programs" / _FILES[architecture]).read_bytes()
    name = f"{REPOSITORY}:{hashlib.sha256(program).hexdigest()[:16]}"
    with contextlib.suppress(ImageUnavailable), engine_errors(f"looking for image {name!r}"):
        return str(engine.api.inspect_image(name)["Id"])
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        entry = tarfile.TarInfo("gateway")
        entry.size, entry.mode = len(program), 0o755
        archive.addfile(entry, io.BytesIO(program))
    repository, _, tag = name.partition(":")
    with engine_errors(f"loading image {name!r}"):
        engine.api.import_image_from_data(
            packed.getvalue(), repository=repository, tag=tag, changes=['ENTRYPOINT ["/gateway"]', "LABEL ohsandbox=1"]
        )
        return str(engine.api.inspect_image(name)["Id"])


# --- owners and other containers of this module ---


def _rules(engine: Engine, bridge: _OpenBridge, allow: Iterable[str], resolvers: Sequence[str] = ()) -> list[str]:
    from ohsandbox.network.open_addresses import (  # noqa: PLC0415 - most sandboxes have no network
        gateway_rules,
        own_addresses,
        parse_exception,
    )

    exceptions = [parse_exception(one) for one in allow]
    own = own_addresses() if engine.address.is_local else []
    return gateway_rules(exceptions, bridge.subnet, bridge.gateway, own=own, resolvers=resolvers)


def _payload(image: str, words: list[str], network: str) -> dict[str, Any]:
    return {
        "Image": image,
        "Entrypoint": ["/gateway"],
        "Cmd": words,
        "User": "0:0",
        "StopSignal": "SIGKILL",
        "Labels": complete({LABEL: "1"}),
        "HostConfig": {
            "NetworkMode": network,
            "CapDrop": ["ALL"],
            "CapAdd": ["NET_ADMIN"],
            "SecurityOpt": ["no-new-privileges", f"seccomp={profile_json()}"],
            "ReadonlyRootfs": True,
            "PidsLimit": _PROCESSES,
            "Memory": _MEMORY_BYTES,
            "MemorySwap": _MEMORY_BYTES,
            "LogConfig": {"Type": "none"},
            "IpcMode": "none",
            "RestartPolicy": {"Name": "no"},
        },
    }


def _run(engine: Engine, container: str) -> list[str]:
    """Start a container and return the words of its answer; raise SandboxRefused if it reports a failure."""
    wire, words = _begin(engine, container)
    wire.close()
    return words


def _begin(engine: Engine, container: str) -> tuple[Wire, list[str]]:
    """Start a container as `_run` does; return also the connection on which it answered."""
    with engine_errors("setting the rules of an open network"):
        wire = wrap(engine.api.attach_socket(container, params={"stdin": 1, "stdout": 1, "stderr": 1, "stream": 1}))
        try:
            engine.api.start(container)
            words = _read_first_line(wire).decode(errors="replace").split()
        except BaseException:
            wire.close()
            raise
    if words[:1] != ["ready"]:
        wire.close()
        raise SandboxRefused(
            "The network 'open' is not available: the engine's kernel rejects the rules that it needs "
            f"({printable_line(' '.join(words)) or 'no answer'}). Use network='allowlist', or another engine."
        )
    return wire, words


def _read_first_line(wire: Wire) -> bytes:
    """Return the first line that a container prints, or less if it ends or prints nothing for ANSWER_S seconds."""
    frames, said, buffer, deadline = Demultiplexer(), b"", memoryview(bytearray(4096)), time.monotonic() + ANSWER_S
    while b"\n" not in said and wire.readable(deadline) and (count := wire.recv_into(buffer)):
        said += b"".join(chunk.data for chunk in frames.feed(buffer[:count]))
    return said


def _once(engine: Engine, config: dict[str, Any]) -> list[str]:
    with engine_errors("creating a container for the rules of an open network"):
        container = str(engine.api.create_container_from_config(config)["Id"])
    try:
        return _run(engine, container)
    finally:
        _remove(engine, container)


def _remove(engine: Engine, container: str) -> None:
    with contextlib.suppress(SandboxGone), engine_errors("removing a container of the open network"):
        engine.api.remove_container(container, force=True, v=True)


def _networks(engine: Engine, container: str) -> set[str]:
    return {*(engine.api.inspect_container(container)["NetworkSettings"].get("Networks") or {})}
