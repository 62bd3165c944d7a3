"""Services beside a sandbox: reached, contained, told, and gone with it."""

from __future__ import annotations

import io
import json
import threading
from typing import TYPE_CHECKING, Any

import pytest
from docker.errors import APIError
from docker.types import CancellableStream
from requests import Response

from ohsandbox.errors import ImageUnavailable, SandboxUnavailable, UsageError
from ohsandbox.runtime.docker.checkpoints import checkpoint_images
from ohsandbox.runtime.docker.inventory.docker_inventory import DockerInventory
from ohsandbox.runtime.docker.labels import CHECKPOINT_LABEL, CHECKPOINT_SERVICES_LABEL
from ohsandbox.runtime.docker.monitoring import monitors
from ohsandbox.runtime.docker.runtime import DockerRuntime
from ohsandbox.runtime.docker.services import pods, service_checkpoints, service_images, service_inventory
from ohsandbox.runtime.service_options import Service
from tests.runtime.docker.conftest import BASE

if TYPE_CHECKING:
    from collections.abc import Callable

    from ohsandbox.runtime.docker.engine.connection import Engine

DEBIAN = f"{BASE}:debian"
docker = pytest.mark.docker
IS_UP = "python3 -c 'import socket; socket.create_connection((\"127.0.0.1\", {}))'"


def web(name: str = "web", port: int = 8000, **more: Any) -> Service:
    """An HTTP server that serves its own root directory."""
    command = ("python3", "-m", "http.server", "--bind", "127.0.0.1", str(port))
    return Service(name, image=DEBIAN, command=command, ports=port, workdir="/etc", **more)


def fetch(url: str) -> str:
    return f"python3 -c 'import urllib.request as u; print(u.urlopen(\"{url}\").read().decode())'"


def containers_of(engine: Engine, name: str) -> list[str]:
    listed = engine.api.containers(all=True)
    return sorted(one["Names"][0].lstrip("/") for one in listed if one["Names"][0].lstrip("/").startswith(name))


@docker
def test_a_service_is_ready_reached_by_name_contained_and_gone_with_its_sandbox(
    sandbox: Callable[..., DockerRuntime], engine: Engine
) -> None:
    once = Service("prepare", image=DEBIAN, command="sleep 0.5", run_once=True)
    other = web("later_1", 8001, depends_on="prepare", env={"ODD": "a'\"b\n$HOME é"}, healthcheck="test -r /etc/passwd")
    runtime = sandbox(services=[other, web(), once])
    assert runtime.execute(fetch("http://web:8000/hostname")).output.strip()
    assert runtime.execute(fetch("http://later_1:8001/hostname")).exit_code == 0
    assert "web at web:8000" in runtime.describe()["services"]
    assert runtime.describe()["network"].startswith("none")
    assert runtime.listening_ports() == (), "those of services are not news"
    with pytest.raises(ImageUnavailable, match=r"^Service 'missing': Pulling image 'ohsandbox-nowhere\.invalid/x:1'"):
        sandbox(services=[Service("missing", image="ohsandbox-nowhere.invalid/x:1")])
    names = [f"{runtime.name}-{name}" for name in ("later_1", "network", "prepare", "web")]
    assert containers_of(engine, runtime.name) == [runtime.name, *names]
    found = engine.api.inspect_container(f"{runtime.name}-later_1")
    assert "ODD=a'\"b\n$HOME é" in found["Config"]["Env"]
    host = found["HostConfig"]
    assert not host["Privileged"]
    assert not host["Binds"]
    assert (host["CapDrop"], host["Memory"]) == (["ALL"], 1024**3)
    seen = runtime.execute("cat /proc/[0-9]*/cmdline | tr '\\0' ' '; ls /proc/net/").output
    assert "http.server" not in seen, "a sandbox does not see the processes of its services"
    runtime.close()
    assert containers_of(engine, runtime.name) == []


@pytest.mark.slow
@docker
@pytest.mark.one_engine
def test_a_service_that_fails_is_told_with_its_last_lines_and_nothing_stays(engine: Engine) -> None:
    broken = Service(
        "db",
        image=DEBIAN,
        command=["sh", "-c", "yes flood | head -c 3000000; echo 'no \x1b[31mdata'; exit 3"],
        run_once=True,
    )
    with pytest.raises(
        SandboxUnavailable, match=r"Service 'db' ended with exit code 3\. It printed: .*no \[31mdata"
    ) as told:
        DockerRuntime(DEBIAN, services=[broken], name="ohsandbox-test-p4-fails").start()
    assert "\x1b" not in str(told.value)
    deaf = Service("db", image=DEBIAN, command="sleep 100", ports=5432, start_timeout_s=1)
    with pytest.raises(
        SandboxUnavailable, match=r"is not ready after 1 s: nothing listens on 5432\. It printed nothing"
    ):
        DockerRuntime(DEBIAN, services=[deaf], name="ohsandbox-test-p4-fails").start()
    thief = Service("thief", image=DEBIAN, command="python3 -m http.server 3128", healthcheck=IS_UP.format(3128))
    with pytest.raises(UsageError, match="A service listens on port 3128, which is that of the allowlist's proxy"):
        DockerRuntime(DEBIAN, services=[thief], name="ohsandbox-test-p4-fails", network="allowlist").start()
    assert containers_of(engine, "ohsandbox-test-p4-fails") == []


@docker
@pytest.mark.one_engine
def test_garbage_collection_takes_services_whose_owner_is_dead(
    sandbox: Callable[..., DockerRuntime], engine: Engine
) -> None:
    runtime = sandbox(services=[web()])
    ours = runtime._require_sandbox()
    assert ours.lease is not None
    record = ours.lease.record
    assert [one.name for one in service_inventory.infos(engine, record)] == ["web"]
    with DockerInventory(engine) as inventory:
        inventory.collect_garbage()
        assert len(containers_of(engine, runtime.name)) == 3, "its owner is alive"
        ours.lease.leave()  # as by the end of the process
        inventory.collect_garbage()
    assert containers_of(engine, runtime.name) == []


@pytest.mark.parametrize("name", ["", "localhost", "network", "Db", "a.b", "-a", "a b", "a\n", "é", "x" * 64])
def test_a_name_that_is_no_host_name_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match="not a service name"):
        Service(name, image="busybox")


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({}, "needs an image or a build"),
        ({"image": "busybox", "ports": [0]}, "0 is not a port"),
        ({"image": "busybox", "volumes": "./data"}, "not an absolute path"),
        ({"image": "busybox", "workdir": "data"}, "not an absolute path"),
        ({"image": "busybox", "volumes": "/a/../proc"}, "not an absolute path"),
        ({"image": "busybox", "volumes": "//proc"}, "not an absolute path"),
        ({"image": "busybox", "env": {"A=B": "c"}}, "A=B"),
        ({"image": "busybox", "secrets": {"A": "value"}}, "where its value is"),
        ({"image": "busybox", "privileged": True}, "unknown key 'privileged'"),
        ({"image": "busybox", "memory": "1x"}, "memory"),
        ({"image": "busybox", "command": "echo 'a"}, "a quotation is not closed"),
        ({"image": "busybox", "command": ["a\0b"]}, "holds a NUL"),
        ({"image": "busybox", "volumes": "/proc/x"}, "cannot be a volume"),
        ({"image": "busybox", "volumes": "/"}, "cannot be a volume"),
        ({"image": "busybox", "env": {"A": "b"}, "secrets": {"A": "env:A"}}, "'A' in env and in secrets"),
    ],
)
def test_what_a_service_cannot_be_is_refused(options: dict[str, Any], told: str) -> None:
    with pytest.raises(UsageError, match=told):
        Service("db", **options)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ([web("a"), web("b")], "'b' and service 'a' both use port 8000"),
        ([Service("a", image="../containers/json?all=1")], "is not an image name"),
        ([web("a"), web("a", 1)], "Two services are called 'a'"),
        ([web("a", 3128)], "the proxy of the allowlist both use port 3128"),
        ([web("a", depends_on="z")], "depends on 'z', which is missing"),
        ([web("a", 1, depends_on="b"), web("b", 2, depends_on="a")], "wait for each other"),
        ([web(f"a{number}", number + 1) for number in range(17)], "17 services are too many"),
    ],
)
def test_services_that_cannot_be_together_are_refused(given: list[Service], told: str) -> None:
    with pytest.raises(UsageError, match=told):
        DockerRuntime(DEBIAN, services=given, network="allowlist")


def write(runtime: DockerRuntime, text: str) -> None:
    """Change a file of the service's own layer, one of its volume, and one of the sandbox."""
    pod = runtime._require_sandbox().pod
    assert pod is not None
    script = 'echo "$0" >/srv/layer && echo "$0" >/data/volume'
    assert pods.exit_code(pod.running["web"].container, ["/bin/sh", "-c", script, text], limit_s=10) == 0
    assert runtime.execute(f"echo {text} >/root/own").exit_code == 0


def all_files(runtime: DockerRuntime) -> list[str]:
    script = f"{fetch('http://web:8000/srv/layer')}; {fetch('http://web:8000/data/volume')}; cat /root/own"
    return runtime.execute(script).output.split()


@pytest.mark.slow
@docker
@pytest.mark.one_engine
def test_checkpoints_undo_fork_and_resume_hold_the_files_of_services_and_their_volumes(
    sandbox: Callable[..., DockerRuntime], engine: Engine
) -> None:
    service = web(volumes="/data", secrets={"KEY": "env:HOME"}).model_copy(update={"workdir": "/"})
    runtime = sandbox(services=[service], conversation="of-a-test")
    write(runtime, "one")
    kept = runtime.checkpoint("one")
    write(runtime, "two")
    runtime.restore(kept.id)
    assert all_files(runtime) == ["one"] * 3
    assert len(containers_of(engine, runtime.name)) == 3
    write(runtime, "three")
    with runtime.fork(kept.id, conversation="a-fork") as fork:
        assert all_files(fork) == ["one"] * 3
    runtime.leave(at_once=True)
    engine.api.kill(f"{runtime.name}-web")
    again = DockerRuntime(DEBIAN, conversation="of-a-test", services=[service, web("more", 1)])
    report = again.resume()
    try:
        assert (report.how, report.place) == ("same", runtime.name)
        assert "was created without service more" in report.notes[0]
        assert "Service 'web' was killed (exit code 137) and was started again" in report.notes[1]
        assert all_files(again) == ["three"] * 3
    finally:
        again.close()
    record = next(one for one in checkpoint_images.records(engine) if one.id == kept.id)
    assert record.services == (f"{record.tag}-web", f"{record.tag}-web.0")
    checkpoint_images.drop(engine, kept.id)
    left = {tag for one in engine.api.images() for tag in one.get("RepoTags") or []}
    assert not [tag for tag in left if record.tag in tag]


@docker
def test_the_volumes_of_a_service_that_is_not_paused_are_not_read(
    sandbox: Callable[..., DockerRuntime], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rootless engine may not pause."""
    runtime = sandbox(services=[web(volumes="/data")])
    pod = runtime._require_sandbox().pod
    assert pod is not None

    def refuse(_: str) -> None:
        answer = Response()
        answer.status_code, answer.raw = 500, io.BytesIO()
        raise APIError("cannot pause", response=answer)

    monkeypatch.setattr(pod.engine.api, "pause", refuse)
    with pytest.raises(SandboxUnavailable, match="The volumes of service 'web' are not kept"):
        runtime.checkpoint("one")


class _Events:
    """As much of an engine as a watch asks."""

    def __init__(self) -> None:
        self.api, self.streams = self, 0

    def events(self, **_: Any) -> Any:
        self.streams += 1
        answer = Response()
        answer.raw = io.BytesIO()
        return CancellableStream(iter(()), answer)

    def close(self) -> None:
        pass


@pytest.mark.parametrize(
    ("own", "of_image", "used"),
    [
        (["CMD", "a", "b c"], None, ("a", "b c")),
        (["CMD-SHELL", "a | b"], None, ("/bin/sh", "-c", "a | b")),
        (["NONE"], ["CMD", "a"], ()),
        (None, ["CMD", "a"], ("a",)),
        (None, None, ()),
        (["a", "b"], ["CMD", "c"], ("a", "b")),
    ],
)
def test_the_check_of_a_service_is_its_own_or_that_of_its_image(
    own: list[str] | None, of_image: list[str] | None, used: tuple[str, ...]
) -> None:
    class Images:
        api = property(lambda self: self)

        def inspect_image(self, _: str) -> dict[str, Any]:
            config = {"Healthcheck": {"Test": of_image}, "ExposedPorts": {"80/tcp": {}, "53/udp": {}, "7": {}}}
            return {"Id": "sha256:0", "Config": config}

    found = service_images._image_of(Images(), "i", Service("db", image="i", healthcheck=own))  # type: ignore[arg-type]
    assert (found.healthcheck, found.ports) == (used, (7, 80))


def test_services_are_watched_again_after_an_engine_that_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, looked = _Events(), threading.Semaphore(0)

    class Ended(pods.Pod):
        def ended(self) -> list[str]:
            looked.release()
            if engine.streams == 1:
                raise SandboxUnavailable("The engine failed.")
            return []

    monkeypatch.setattr(monitors, "connect", lambda: engine)
    monkeypatch.setattr(monitors, "AGAIN_S", 0.01)
    pod = Ended(engine, "lease", sandbox="s", owner="")  # type: ignore[arg-type]
    watch = monitors.ServiceWatch(pod, listening=tuple, tell=lambda _: None)
    assert all(looked.acquire(timeout=30) for _ in range(3)), "after one that failed, and one whose stream ended"
    watch.leave()


def test_a_service_that_keeps_dying_is_left_ended_and_that_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    looked, notices, restarts = threading.Semaphore(0), list[str](), list[str]()

    class Dying(pods.Pod):
        def ended(self) -> list[str]:
            looked.release()
            return ["db"]

        def restart_ended(self, **_: Any) -> list[str]:
            restarts.append("db")
            if len(restarts) == 1:
                raise SandboxUnavailable("The engine failed.")
            return ["Service 'db' was started again."]

    monkeypatch.setattr(monitors, "connect", _Events)
    monkeypatch.setattr(monitors, "AGAIN_S", 0.001)
    pod = Dying(_Events(), "lease", sandbox="s", owner="")  # type: ignore[arg-type]
    watch = monitors.ServiceWatch(pod, listening=tuple, tell=notices.append)
    assert all(looked.acquire(timeout=30) for _ in range(monitors.MAX_RESTARTS + 4))
    watch.leave()
    assert len(restarts) == monitors.MAX_RESTARTS
    assert notices[0] == "The engine failed."
    assert [notice for notice in notices if "is not started again" in notice] == notices[-1:]


@pytest.mark.slow
@docker
@pytest.mark.one_engine
def test_a_service_that_dies_is_started_again_and_that_is_told(
    sandbox: Callable[..., DockerRuntime], engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime = sandbox(services=[web()])
    assert runtime.execute(fetch("http://web:8000/hostname")).exit_code == 0
    told = threading.Event()
    notices: list[str] = []

    def hear(notice: str) -> None:
        notices.append(notice)
        told.set()

    monkeypatch.setattr(runtime, "add_notice", hear)
    runtime._monitors.stop()
    runtime._monitors.begin(runtime._require_sandbox(), {}, keep=True)  # with what hears it
    engine.api.kill(f"{runtime.name}-web")
    assert told.wait(60)
    assert notices[0].startswith("Service 'web' was killed (exit code 137) and was started again: its files are kept")
    assert runtime.execute(fetch("http://web:8000/hostname")).exit_code == 0
    engine.api.kill(f"{runtime.name}-network")
    engine.api.kill(runtime.name)
    assert "Service 'web'" in str(runtime.execute("true").notice), "its network is another one now"
    assert runtime.execute(fetch("http://web:8000/hostname")).exit_code == 0


@docker
@pytest.mark.parametrize("named", ["the base image", "../containers/x", "debian", ""])
def test_an_image_that_calls_itself_a_checkpoint_names_no_other_image_as_a_services_files(
    engine: Engine, named: str
) -> None:
    """A service would begin with the files of a private image, and the sandbox read them."""
    image = engine.api.inspect_image(DEBIAN)["Id"] if named == "the base image" else named
    labels = [f"LABEL {CHECKPOINT_LABEL}=1", f'LABEL {CHECKPOINT_SERVICES_LABEL}="db={image}"']
    empty = bytes(10240)  # a tar archive without members
    answer = engine.api.import_image_from_data(empty, repository="ohsandbox-test-hostile", changes=labels)
    hostile = str(json.loads(answer)["status"])
    try:
        with pytest.raises(SandboxUnavailable, match="is no checkpoint's image"):
            service_checkpoints.kept(engine, hostile)
    finally:
        engine.api.remove_image(hostile)
