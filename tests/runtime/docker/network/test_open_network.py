"""What an open network leads to, seen from inside, each beside what does answer."""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import shutil
import socket
import subprocess
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from docker.errors import DockerException

from ohsandbox.errors import SandboxRefused, SandboxUnavailable, UsageError
from ohsandbox.runtime.docker.inventory.docker_inventory import DockerInventory
from ohsandbox.runtime.docker.network import network_pool, open_network
from ohsandbox.runtime.docker.network.network_pool import NetworkPool
from ohsandbox.runtime.docker.ownership import lease
from ohsandbox.runtime.docker.runtime import DockerRuntime

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ohsandbox.runtime.docker.engine.connection import Engine

PUBLIC, METADATA, PRIVATE = "93.184.216.34", "169.254.169.254", "10.77.15.1"
IMAGES = ["debian", "busybox", "nonroot", "hostile"]
pytestmark = [pytest.mark.docker, pytest.mark.one_engine]


ASK_THE_ENGINES_NAME_SERVER = ["nslookup", "sandbox", "127.0.0.11"]


@pytest.fixture
def addresses() -> Iterator[Callable[[str], None]]:
    """Gives this machine an address; it is taken away again."""
    program, given = shutil.which("ip"), list[str]()
    if program is None or os.getuid() != 0:
        pytest.skip("addresses cannot be given to this machine")

    def give(address: str) -> None:
        subprocess.run([program, "address", "add", f"{address}/32", "dev", "lo"], check=True)
        given.append(address)

    with Path(tempfile.gettempdir(), "ohsandbox-test-addresses").open("w") as turn:
        fcntl.flock(turn, fcntl.LOCK_EX)  # one test at a time, of all workers
        yield give
        for address in given:
            subprocess.run([program, "address", "del", f"{address}/32", "dev", "lo"], check=True)


@pytest.fixture
def port() -> Iterator[int]:
    """A server at all addresses of this machine, which says hello."""
    with socket.create_server(("0.0.0.0", 0)) as server:

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    with server.accept()[0] as one:
                        one.sendall(b"hello")

        threading.Thread(target=serve, daemon=True).start()
        yield int(server.getsockname()[1])
        server.shutdown(socket.SHUT_RDWR)


def answers(runtime: DockerRuntime, address: str, port: int) -> bool:
    """Whether a server there says hello to a program inside; a way that is not a way says so at once."""
    words = 'exec 3<>"/dev/tcp/$1/$2" && head -c5 <&3'
    has_bash = runtime.run(["sh", "-c", "command -v bash"]).exit_code == 0
    argv = ["bash", "-c", words, "bash"] if has_bash else ["sh", "-c", 'nc -w 5 "$1" "$2" </dev/null', "sh"]
    ended = runtime.run([*argv, address, str(port)], timeout_s=20)
    assert ended.exit_code is not None, f"{address} neither answers nor refuses"
    return ended.stdout == b"hello"


def gateway(engine: Engine) -> str:
    return open_network.prepare(engine).gateway


def own_addresses() -> set[str]:
    """All IPv4 addresses of this machine but for loopback."""
    told = subprocess.run(["hostname", "-I"], capture_output=True, text=True, check=True).stdout.split()
    return {one for one in told if "." in one}


@pytest.mark.parametrize("image", IMAGES)
def test_public_addresses_answer_and_no_others(
    addresses: Callable[[str], None], sandbox: Callable[..., Any], engine: Engine, port: int, image: str
) -> None:
    runtime = sandbox(f"ohsandbox-base:{image}", network="open")
    for one in (PUBLIC, METADATA, PRIVATE):  # now: public addresses that this machine had before are closed
        addresses(one)
    inner = {gateway(engine), METADATA, PRIVATE, *own_addresses()} - {PUBLIC}
    for one in (PUBLIC, *inner):
        with socket.create_connection((one, port), 5) as here:
            assert here.recv(5) == b"hello"
    assert answers(runtime, PUBLIC, port)
    assert [one for one in sorted(inner) if answers(runtime, one, port)] == []


def test_what_is_named_answers_at_its_port(
    addresses: Callable[[str], None], sandbox: Callable[..., Any], engine: Engine, port: int
) -> None:
    addresses(PRIVATE)
    addresses(PUBLIC)
    runtime = sandbox(network="open", allow=["10.0.0.0/8", f"{gateway(engine)}:{port}"])
    assert answers(runtime, PRIVATE, port)
    assert answers(runtime, gateway(engine), port)
    assert not answers(runtime, gateway(engine), port + 1)
    assert not answers(runtime, PUBLIC, port)  # this machine's own
    runtime.set_network("open", allow=[PUBLIC])
    assert answers(runtime, PUBLIC, port)
    assert not answers(runtime, PRIVATE, port)
    with pytest.raises(UsageError, match="is not an address"):
        runtime.set_network("open", allow=["10.0.0.0/33"])


@pytest.mark.parametrize("opened", [PRIVATE, "172.31.15.1", "192.168.215.1"])
def test_an_address_of_each_private_range_is_opened_and_closed(
    addresses: Callable[[str], None], sandbox: Callable[..., Any], port: int, opened: str
) -> None:
    """The bridge has its subnet in one of the ranges; the others have routes that reject."""
    addresses(opened)
    first = sandbox(network="open", allow=[f"{opened}:{port}"])
    assert answers(first, opened, port)
    first.set_network("open", allow=[])
    assert not answers(first, opened, port)
    first.set_network("open", allow=[f"{opened}/32"])
    assert answers(first, opened, port)
    second = sandbox(network="none")
    second.set_network("open", allow=[opened])
    assert answers(second, opened, port)


def test_sandboxes_do_not_reach_each_other_nor_other_containers(
    sandbox: Callable[..., Any], engine: Engine, foreign: Callable[..., str]
) -> None:
    serve = ["sh", "-c", "while :; do printf hello | nc -l -p 99; done"]
    other = foreign(Entrypoint=serve, HostConfig={"NetworkMode": "bridge"})
    one, peer = sandbox(network="open"), sandbox("ohsandbox-base:busybox", network="open")
    peer.run(["sh", "-c", "(while :; do printf hello | nc -l -p 99; done) >/dev/null 2>&1 &"])
    owner = engine.api.inspect_container(open_network.owner_name(peer.name))["NetworkSettings"]["Networks"]
    beside = str(owner[open_network.NETWORK]["IPAddress"])
    listens = 'until [ "$(nc -w 1 127.0.0.1 99 </dev/null)" = hello ]; do :; done'
    assert peer.run(["sh", "-c", listens], timeout_s=20).exit_code == 0
    assert answers(peer, beside, 99)
    assert not answers(one, beside, 99)
    there = str(engine.api.inspect_container(other)["NetworkSettings"]["IPAddress"])
    with socket.create_connection((there, 99), 5) as here:
        assert here.recv(5) == b"hello"
    assert not answers(one, there, 99)


@pytest.mark.slow
@pytest.mark.parametrize("first", ["none", "open"])
def test_restarts_changes_and_the_owners_end_open_nothing(
    addresses: Callable[[str], None], sandbox: Callable[..., Any], engine: Engine, port: int, first: str
) -> None:
    runtime = sandbox(network="open", allow=[PUBLIC]) if first == "open" else sandbox()
    runtime.set_network("open", allow=[PUBLIC])
    addresses(PUBLIC)
    inside = gateway(engine)
    assert (answers(runtime, PUBLIC, port), answers(runtime, inside, port)) == (True, False)
    runtime._sandbox.container.restart()
    assert (answers(runtime, PUBLIC, port), answers(runtime, inside, port)) == (True, False)
    engine.api.restart(runtime.id, timeout=0)
    assert (answers(runtime, PUBLIC, port), answers(runtime, inside, port)) == (True, False)
    engine.api.kill(runtime.id)
    engine.api.start(runtime.id)
    runtime._pool.discard_all()  # as where its workers had ended before the engine knew of it
    assert (answers(runtime, PUBLIC, port), answers(runtime, inside, port)) == (True, False)
    if first == "open":
        engine.api.kill(open_network.owner_name(runtime.name))
        assert (answers(runtime, PUBLIC, port), answers(runtime, inside, port)) == (False, False)
        runtime._sandbox.container.restart()
        assert (answers(runtime, PUBLIC, port), answers(runtime, inside, port)) == (True, False)


@pytest.mark.slow
def test_rules_that_were_narrowed_stay_so_after_the_owners_end(
    addresses: Callable[[str], None], sandbox: Callable[..., Any], engine: Engine, port: int
) -> None:
    runtime = sandbox(network="open", allow=[PUBLIC])
    addresses(PUBLIC)
    assert answers(runtime, PUBLIC, port)
    runtime.set_network("open")
    assert not answers(runtime, PUBLIC, port)
    engine.api.kill(open_network.owner_name(runtime.name))
    runtime._sandbox.container.restart()
    assert open_network.is_open(engine, open_network.owner_name(runtime.name))
    assert not answers(runtime, PUBLIC, port)


@pytest.mark.slow
@pytest.mark.parametrize("who", ["we", "somebody"])
def test_rules_that_were_narrowed_stay_so_when_somebody_restarts_the_owner(
    addresses: Callable[[str], None], sandbox: Callable[..., Any], engine: Engine, port: int, who: str
) -> None:
    runtime = sandbox(network="open", allow=[PRIVATE])
    addresses(PRIVATE)
    assert answers(runtime, PRIVATE, port)
    runtime.set_network("open")
    assert not answers(runtime, PRIVATE, port)
    addresses(PUBLIC)
    engine.api.restart(open_network.owner_name(runtime.name), timeout=0)
    if who == "we":
        runtime._sandbox.container.restart()
    else:
        engine.api.restart(runtime.id, timeout=0)
    assert (answers(runtime, PUBLIC, port), answers(runtime, PRIVATE, port)) == (True, False)


@pytest.mark.slow
@pytest.mark.parametrize("first", ["none", "open"])
def test_a_sandbox_that_is_taken_up_reaches_what_its_new_process_allows(
    addresses: Callable[[str], None], port: int, first: str
) -> None:
    addresses(PRIVATE)
    known: dict[str, Any] = {"image": "ohsandbox-base:busybox", "conversation": "talk"}
    opened: dict[str, Any] = {"network": "open", "allow": [PRIVATE]}
    runtime = DockerRuntime(**known, **(opened if first == "open" else {})).start()
    try:
        runtime.set_network(**opened)
        assert answers(runtime, PRIVATE, port)
        began = runtime._sandbox.container.started if runtime._sandbox else ""
        for allow, is_reached in (((), False), ((PRIVATE,), True)):
            runtime.leave()
            runtime.close()
            runtime = DockerRuntime(**known, network="open", allow=allow)
            assert runtime.resume().how == "same"
            assert runtime._sandbox is not None
            assert runtime._sandbox.container.started == began  # its processes were not restarted
            assert answers(runtime, PRIVATE, port) is is_reached
    finally:
        runtime.close(keep=False)


def test_names_are_found_and_ipv6_leads_nowhere(sandbox: Callable[..., Any]) -> None:
    runtime = sandbox(network="open")
    assert runtime.run(["cat", "/proc/net/if_inet6"]).stdout.decode().split()[-1:] in ([], ["lo"])
    local = runtime.run(["getent", "hosts", "sandbox"])
    assert (local.exit_code, local.stdout.split()[-1]) == (0, b"sandbox")
    resolver = runtime.run(["sh", "-c", "sed -n 's/^nameserver //p' /etc/resolv.conf"]).stdout.decode().split()
    assert resolver


def test_one_lease_for_sandbox_and_owner(engine: Engine) -> None:
    runtime = DockerRuntime("ohsandbox-base:busybox", network="open").start()
    owner = open_network.owner_name(runtime.name)
    assert open_network.is_running(engine, owner)
    assert owner not in {one.name for one in DockerInventory(engine).list_sandboxes()}
    assert runtime._sandbox is not None
    assert runtime._sandbox.lease is not None
    runtime._sandbox.lease.leave()  # as if the process had died
    DockerInventory(engine).collect_garbage(keep_networks=True)
    assert engine.api.networks(names=[open_network.NETWORK])
    DockerInventory(engine).collect_garbage()
    assert not open_network.is_running(engine, owner)
    assert not [one for one in engine.api.containers(all=True) if one["Names"][0].lstrip("/") in {owner, runtime.name}]
    assert lease.all_ids() == []
    runtime.close()


def test_a_namespace_of_a_pool_serves_one_sandbox_after_another(engine: Engine) -> None:
    pool, owners = NetworkPool(), list[str]()
    for _ in range(2):
        runtime = DockerRuntime("ohsandbox-base:busybox")
        runtime.share_networks(pool)
        with runtime:
            assert b"eth" not in runtime.run(["cat", "/proc/net/dev"]).stdout
            # the engine's name server stays in the namespace, and is nothing for who has no network
            assert runtime.run(ASK_THE_ENGINES_NAME_SERVER).exit_code != 0
            runtime.set_network("open")
            assert b"eth" in runtime.run(["cat", "/proc/net/dev"]).stdout
            assert runtime.run(ASK_THE_ENGINES_NAME_SERVER).exit_code == 0
            owners.append(open_network.owner_of(engine.api.inspect_container(runtime.id)))
    assert owners[0] == owners[1]
    assert not open_network.is_open(engine, owners[0])
    pool.close()
    assert not open_network.is_running(engine, owners[0])


def test_a_pool_that_has_begun_waits_for_a_namespace_in_use_rather_than_make_another(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = NetworkPool()
    monkeypatch.setattr(network_pool, "WAIT_S", 60.0)
    pool.begin(1)
    with contextlib.closing(pool), ThreadPoolExecutor(1) as other:
        first = pool.acquire(engine)
        second = other.submit(pool.acquire, engine)
        pool.give_back(engine, first)
        assert second.result() == first
        monkeypatch.setattr(network_pool, "WAIT_S", 0.0)
        third = pool.acquire(engine)
        assert third != first
    assert not open_network.is_running(engine, first)
    assert not open_network.is_running(engine, third)
    assert lease.all_ids() == []


@pytest.fixture
def own_bridge(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The name of a bridge of this test's own, which is removed while no sandbox of another test is on it."""
    name = f"ohsandbox-test-{secrets.token_hex(4)}"
    monkeypatch.setattr(open_network, "NETWORK", name)
    monkeypatch.setattr(engine.api, "info", lambda: {"ID": name})  # of which the name of the device is made
    yield name
    for found in engine.api.networks(names=[name]):
        engine.api.remove_network(found["Id"])


@pytest.mark.slow
def test_a_bridge_that_is_removed_before_a_sandbox_has_joined_is_made_again(
    engine: Engine, own_bridge: str, foreign: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    container, join = foreign(), engine.api.connect_container_to_network
    removed = 0

    def removed_before(*arguments: Any) -> None:
        nonlocal removed
        if removed < 3:
            engine.api.remove_network(own_bridge)
            removed += 1
        join(*arguments)

    monkeypatch.setattr(engine.api, "connect_container_to_network", removed_before)
    open_network.set_rules(engine, container, ())
    open_network.connect(engine, container, ())
    assert removed == 3
    assert open_network.is_open(engine, container)
    open_network.disconnect(engine, container)


def test_the_bridge_stays_while_a_sandbox_may_be_about_to_join(
    engine: Engine, own_bridge: str, sandbox: Callable[..., Any]
) -> None:
    sandbox("ohsandbox-base:busybox", network="none")
    open_network.prepare(engine)
    open_network.collect(engine)
    assert engine.api.networks(names=[own_bridge])


def test_a_network_of_that_name_that_is_not_ours_is_refused(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(open_network, "NETWORK", "bridge")
    with pytest.raises(SandboxRefused, match="was not created by ohsandbox"):
        open_network.prepare(engine)


def test_a_bridge_that_another_process_makes_and_removes_meanwhile_is_made_again() -> None:
    """The engine refuses ours while theirs is there; by the time we look for theirs, `gc` has removed it."""
    made: list[dict[str, Any]] = []
    refusals = [DockerException("network with name ohsandbox already exists")] * 2

    class Api:
        def info(self) -> dict[str, str]:
            return {"ID": "x"}

        def networks(self, names: list[str]) -> list[dict[str, Any]]:
            return [one for one in made if one["Name"] in names]

        def create_network(self, name: str, *, labels: dict[str, str], **_: object) -> None:
            if refusals:
                raise refusals.pop()
            subnet = {"Subnet": "172.30.0.0/16", "Gateway": "172.30.0.1"}
            made.append({"Name": name, "Driver": "bridge", "Labels": labels, "IPAM": {"Config": [subnet]}})

    engine: Any = SimpleNamespace(api=Api())
    assert open_network._addresses(engine)[1] == "172.30.0.1"
    made.clear()
    refusals += [DockerException("no address pool")] * 20
    with pytest.raises(SandboxUnavailable, match="no address pool"):
        open_network._addresses(engine)
