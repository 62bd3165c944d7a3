"""The network of a running sandbox: given, taken away, and as it was after a restart."""

from __future__ import annotations

import asyncio
import socket
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from ohsandbox.errors import SandboxRefused, UsageError
from ohsandbox.runtime.docker.network import container_network, open_network
from ohsandbox.runtime.docker.runtime import DockerRuntime
from tests.runtime.engines import IMAGE, PODMAN, podman

if TYPE_CHECKING:
    from collections.abc import Callable

    from ohsandbox.runtime.docker.engine.connection import Engine


@pytest.fixture(autouse=True)
def _bridge(engine: Engine) -> None:
    if not engine.api.networks(names=["bridge"]):
        pytest.skip("this engine has no default bridge")


def has_network(runtime: DockerRuntime) -> bool:
    return b"eth" in runtime.run(["cat", "/proc/net/dev"]).stdout


def shell_of_processes(runtime: DockerRuntime) -> bytes:
    """Its number inside."""
    return runtime.run(["sh", "-c", "echo $PPID"]).stdout


ASK_THE_ENGINES_RESOLVER = """
import socket
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
    one.settimeout(10)
    try:
        asked = bytes([0, 7, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 7]) + b"sandbox" + bytes([0, 0, 1, 0, 1])
        one.sendto(asked, ("127.0.0.11", 53))
        print("answered" if one.recv(512) else "")
    except OSError as error:
        print(error)
"""


@pytest.mark.docker
@pytest.mark.parametrize("first", ["none", "open"])
def test_a_network_comes_and_goes_with_addresses_and_name_servers(sandbox: Callable[..., Any], first: Any) -> None:
    runtime = sandbox(network=first)
    shells = [shell_of_processes(runtime)]
    for network in ("open", "none", "open", "allowlist"):
        runtime.set_network(network)
        shells.append(shell_of_processes(runtime))
        assert has_network(runtime) is (network == "open")
        # the engine's resolver, which asks on from the engine's namespace, outlives the interface
        resolver = runtime.run(["python3", "-c", ASK_THE_ENGINES_RESOLVER]).stdout.decode()
        assert ("answered" if network == "open" else "unreachable") in resolver
        assert runtime.describe()["network"].startswith("open") is (network == "open")
    assert len({*shells[:-1]}) == 1  # kept, for another is an exec of the engine more
    assert shells[-1] not in shells[:-1]  # which has the variables of the list
    runtime.set_network("open")
    asked = runtime.run(["sh", "-c", "cat /etc/resolv.conf; hostname -i"]).stdout.decode()
    assert "nameserver" in asked
    assert asked.split()[-1] not in {"127.0.0.1", "127.0.1.1"}


@pytest.mark.slow
@pytest.mark.docker
@pytest.mark.parametrize(("first", "then"), [("none", "open"), ("open", "none")])
def test_a_restart_keeps_the_network_that_was_set(
    sandbox: Callable[..., Any], engine: Engine, first: Any, then: Any
) -> None:
    runtime = sandbox(network=first)
    runtime.set_network(then)
    engine.api.restart(runtime.id, timeout=0)
    assert has_network(runtime) is (then == "open")


@pytest.mark.slow
@pytest.mark.docker
@pytest.mark.parametrize(("first", "then"), [("none", "open"), ("open", "none")])
@pytest.mark.usefixtures("engine")
def test_a_resumed_sandbox_has_the_network_that_was_set(first: Any, then: Any) -> None:
    before = DockerRuntime(IMAGE, network=first, conversation="phases").start()
    before.set_network(then)
    before.leave()
    after = DockerRuntime(IMAGE, network=then, conversation="phases")
    try:
        assert after.resume().notes == ()
        assert has_network(after) is (then == "open")
        after.set_network(first)
        assert has_network(after) is (first == "open")
    finally:
        after.close()


@pytest.mark.docker
def test_a_change_that_was_cut_off_is_completed_by_the_next(sandbox: Callable[..., Any], engine: Engine) -> None:
    runtime = sandbox(network="open")
    owner = open_network.owner_name(runtime.name)
    engine.api.disconnect_container_from_network(owner, open_network.NETWORK)
    runtime.set_network("none")
    assert not open_network.is_open(engine, owner)
    runtime.set_network("open")
    assert open_network.is_open(engine, owner)
    assert has_network(runtime)


@pytest.mark.slow
@pytest.mark.docker
def test_changes_of_several_threads_come_one_after_another(sandbox: Callable[..., Any]) -> None:
    runtime = sandbox()
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(runtime.set_network, ["open", "none"] * 3))
    runtime.set_network("none")
    assert not has_network(runtime)
    asyncio.run(runtime.aset_network("open"))
    assert has_network(runtime)


@pytest.mark.docker
def test_an_interface_that_does_not_come_or_go_is_told(sandbox: Callable[..., Any]) -> None:
    container = sandbox()._sandbox.container
    with pytest.raises(SandboxRefused, match="should be 'open', but it has no interface"):
        container_network.change(container, "open", (), lambda: b"lo\ntunl0\n")
    with pytest.raises(SandboxRefused, match="should be 'none', but it still has the interface 'eth0'"):
        container_network.change(container, "none", (), lambda: b"lo\neth0\n")


@pytest.mark.docker
def test_only_a_network_of_ours_is_changed(sandbox: Callable[..., Any], foreign: Callable[..., str]) -> None:
    with pytest.raises(UsageError, match="network"):
        sandbox().set_network("host")
    with DockerRuntime(attach=foreign()) as joined, pytest.raises(UsageError, match="its owner changes its network"):
        joined.set_network("open")


NAMING_ITS_DEVICE = """
import socket, struct, sys
there, to, device = (sys.argv[1], int(sys.argv[2])), sys.argv[3], socket.if_nametoindex("eth0")
try:
    if to == "message":
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
            one.sendmsg([b"x"], [(socket.IPPROTO_IP, 8, struct.pack("=i8x", device))], 0, there)  # IP_PKTINFO
    else:
        with socket.socket() as one:
            one.settimeout(3)
            if to == "bound":
                one.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"eth0")
            one.connect(there)
    print("passed")
except OSError as error:
    print(error)
"""


@pytest.mark.docker
@pytest.mark.one_engine
def test_a_socket_that_names_its_device_reaches_no_service_of_the_host(
    sandbox: Callable[..., Any], engine: Engine
) -> None:
    closed = sandbox(network="open")
    gateway = engine.api.inspect_network(open_network.NETWORK)["IPAM"]["Config"][0]["Gateway"]
    with socket.create_server(("", 0)) as server:
        port = server.getsockname()[1]
        opened = sandbox(network="open", allow=[f"{gateway}:{port}"])

        def said(runtime: DockerRuntime, how: str, address: str = gateway) -> str:
            return runtime.run(["python3", "-c", NAMING_ITS_DEVICE, address, str(port), how]).stdout.decode().strip()

        assert [said(opened, how) for how in ("plain", "bound", "message")] == ["passed"] * 3
        assert "unreachable" in said(closed, "plain")
        for address in (gateway, "172.17.0.1", "169.254.169.254", "224.0.0.251"):
            assert [said(closed, how, address) for how in ("bound", "message")] == [
                "[Errno 1] Operation not permitted"
            ] * 2


@pytest.mark.slow
@pytest.mark.docker
@pytest.mark.one_engine
@pytest.mark.skipif(PODMAN is None, reason="no Podman, or not root")
def test_podman_says_that_it_cannot(monkeypatch: pytest.MonkeyPatch) -> None:
    with podman() as address:
        monkeypatch.setenv("DOCKER_HOST", address)
        with DockerRuntime(f"localhost/{IMAGE}") as runtime:
            with pytest.raises(SandboxRefused, match="not available with Podman") as told:
                runtime.set_network("open")
            assert "open" not in runtime.describe()["network"]
            assert "\n" not in str(told.value)
