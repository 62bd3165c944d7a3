"""The allowlist from inside: what is on it answers, nothing else does, by no way; and what a person changes of it."""

from __future__ import annotations

import asyncio
import functools
import re
import signal
import subprocess
import sys
import textwrap
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import pytest

from ohsandbox.errors import SandboxPaused, UsageError
from ohsandbox.network.audit import read_decisions
from ohsandbox.network.proxy.proxy import Proxy
from ohsandbox.network.proxy.upstream import Dialer, connected
from ohsandbox.runtime.docker import container
from ohsandbox.runtime.docker.engine.unix_transport import OnePoolAdapter
from ohsandbox.runtime.docker.network import allowlist, container_network
from ohsandbox.runtime.docker.runtime import DockerRuntime
from tests.runtime.engines import IMAGE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ohsandbox.network.audit import NetworkDecision
    from ohsandbox.runtime.docker.engine.connection import Engine

pytestmark = pytest.mark.docker
IMAGES = [f"ohsandbox-base:{name}" for name in ("debian", "busybox", "nonroot", "hostile")]
GOOD, BAD = "good.example.org", "bad.example.org"
PUBLIC = "93.184.215.14"
"""No packet goes there: the dialer leads it to the server of these tests."""
OPEN_TCP = """
talk() { if command -v nc >/dev/null; then nc -w 3 "$1" "$2"; else timeout 3 bash -c 'exec 3<>"/dev/tcp/$0/$1"
cat >&3; cat <&3' "$1" "$2"; fi; }
"""
HEAD = "GET http://%s/ HTTP/1.1\\r\\nHost: %s\\r\\nConnection: close\\r\\n\\r\\n"
ASK = f"{OPEN_TCP} printf '{HEAD}' $1 $1 | talk 127.0.0.1 3128"


class Answers(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        body = f"this is {self.headers['Host']}".encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(autouse=True)
def _outside(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An outside in which every name leads to one server."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()

    async def resolve(_host: str, _port: int) -> list[str]:
        return [PUBLIC]

    async def connect(address: str, port: int) -> Any:
        assert (address, port) == (PUBLIC, 80)
        return await connected("127.0.0.1", server.server_port)

    dialer = Dialer(resolve=resolve, connect=connect, proxies={})
    monkeypatch.setattr(allowlist, "Proxy", functools.partial(Proxy, dialer=dialer))
    yield
    server.shutdown()
    thread.join()
    server.server_close()


def ask(runtime: DockerRuntime, host: str) -> str:
    """What comes of a request inside, by the proxy."""
    return runtime.run(["sh", "-c", ASK, "sh", host]).stdout.decode()


def reaches(runtime: DockerRuntime, host: str = GOOD) -> bool:
    return f"this is {host}" in ask(runtime, host)


def reaches_soon(runtime: DockerRuntime) -> bool:
    """The same, asked inside again and again until it does."""
    script = "until ask_once | grep -q 'this is'; do :; done\n"
    again = ["sh", "-c", f"ask_once() {{ {ASK}\n}}; {script}".replace("$1 $1", f"{GOOD} {GOOD}")]
    return runtime.run(again, timeout_s=30).exit_code == 0


# --- what is reached ---------------------------------------------------------------------------------


@pytest.mark.parametrize("image", IMAGES)
def test_only_what_is_on_the_list_is_reached_and_by_no_other_way(sandbox: Callable[..., Any], image: str) -> None:
    runtime = sandbox(image, allow=[GOOD, "*.deep.example.org"])
    assert reaches(runtime)
    assert reaches(runtime, "a.deep.example.org")
    refused = ask(runtime, BAD)
    assert "HTTP/1.1 403" in refused
    assert f"/net allow {BAD}" in refused
    assert [(one.host, one.allowed) for one in runtime.network_decisions()] == [
        (GOOD, True), ("a.deep.example.org", True), (BAD, False),
    ]  # fmt: skip
    interfaces = runtime.run(["cat", "/proc/net/dev"]).stdout.decode()
    assert [line.split(":")[0].strip() for line in interfaces.splitlines()[2:]] == ["lo"]
    for address in (PUBLIC, "169.254.169.254", "172.17.0.1", "10.0.0.1"):
        told = runtime.run(["sh", "-c", f"{OPEN_TCP}echo x | talk {address} 80"])
        assert (told.exit_code != 0, told.stdout) == (True, b""), address


@pytest.mark.parametrize("image", IMAGES)
def test_names_are_resolved_by_nobody_inside(sandbox: Callable[..., Any], image: str) -> None:
    runtime = sandbox(image, allow=[GOOD])
    assert reaches(runtime)
    told = runtime.run(["sh", "-c", f"{OPEN_TCP}echo x | talk {GOOD} 80"])
    assert (told.exit_code != 0, told.stdout) == (True, b"")


def test_addresses_in_the_place_of_names_are_refused(sandbox: Callable[..., Any]) -> None:
    runtime = sandbox(allow=[GOOD])
    assert reaches(runtime)
    for address in (PUBLIC, "127.0.0.1", "2130706433", "0x7f.1", "[::1]", "169.254.169.254"):
        assert "HTTP/1.1 403" in ask(runtime, address), address


def test_programs_are_led_to_the_proxy_in_every_kind_of_process(sandbox: Callable[..., Any]) -> None:
    runtime = sandbox(allow=[GOOD], env={"NO_PROXY": "mine"})
    told = "echo $https_proxy $HTTP_PROXY $NO_PROXY $NODE_USE_ENV_PROXY"
    wanted = "http://127.0.0.1:3128 http://127.0.0.1:3128 mine 1"
    assert runtime.execute(told).output.strip() == wanted
    assert runtime.run(["sh", "-c", told]).stdout.decode().strip() == wanted
    with runtime.open_channel(["sh", "-c", told]) as channel:
        assert b"".join(chunk.data for chunk in channel.read(60) or ()).decode().strip() == wanted
    fetch = f"import urllib.request as u; print(u.urlopen('http://{GOOD}/').read().decode())"
    assert runtime.execute(f'python3 -c "{fetch}"').output.strip() == f"this is {GOOD}"


def test_a_callers_own_options_of_java_follow_ours_and_stay_without_the_list() -> None:
    shown = 'echo "<$JAVA_TOOL_OPTIONS>"'
    with DockerRuntime(IMAGE, allow=[GOOD], env={"JAVA_TOOL_OPTIONS": "-Xmx1g"}) as runtime:
        listed = [runtime.execute(shown).output, runtime.run(["sh", "-c", shown]).stdout.decode()]
        runtime.set_network("none")
        unlisted = [runtime.execute(shown).output, runtime.run(["sh", "-c", shown]).stdout.decode()]
    assert [one.strip().startswith("<-Dhttp.proxyHost=") and "[::1] -Xmx1g>" in one for one in listed] == [True, True]
    assert [one.strip() for one in unlisted] == ["<-Xmx1g>"] * 2
    with DockerRuntime(IMAGE, allow=[GOOD], env={"JAVA_TOOL_OPTIONS": ""}) as runtime:
        assert runtime.execute(shown).output.strip() == "<>"


def test_the_model_is_told_the_list_and_what_a_refusal_means(sandbox: Callable[..., Any]) -> None:
    runtime = sandbox(allow=[GOOD])
    assert runtime.describe()["network"].startswith(f"an allowlist: {GOOD}.")
    runtime.allow(BAD)
    assert f"{GOOD}, {BAD}." in runtime.describe()["network"]
    assert "403" in runtime.describe()["network"]


# --- what a person changes -----------------------------------------------------------------------------


def test_a_host_comes_on_the_list_and_off_it_at_once(sandbox: Callable[..., Any]) -> None:
    runtime = sandbox(allow=[GOOD])
    assert (reaches(runtime), reaches(runtime, BAD)) == (True, False)
    runtime.allow(BAD)
    assert reaches(runtime, BAD)
    assert runtime.allowed == (GOOD, BAD)
    runtime.disallow(GOOD)
    assert (reaches(runtime), reaches(runtime, BAD)) == (False, True)
    with pytest.raises(UsageError, match=GOOD):
        runtime.disallow(GOOD)
    with pytest.raises(UsageError, match="Invalid network rule"):
        runtime.allow("https://x")


@pytest.mark.parametrize("image", IMAGES[:2])
def test_the_network_changes_while_it_runs_in_open_sessions_too(sandbox: Callable[..., Any], image: str) -> None:
    runtime = sandbox(image)
    assert runtime.execute("echo [$https_proxy]").output.strip() == "[]"
    with pytest.raises(UsageError, match="has network 'none'"):
        runtime.allow(GOOD)
    runtime.set_network("allowlist", allow=[GOOD])
    assert reaches(runtime)
    assert runtime.execute("echo $https_proxy").output.strip() == "http://127.0.0.1:3128"
    asyncio.run(runtime.aset_network("allowlist", allow=[BAD]))
    assert (reaches(runtime), reaches(runtime, BAD)) == (False, True)
    runtime.set_network("none")
    assert runtime.execute("echo [$https_proxy]").output.strip() == "[]"
    assert ask(runtime, BAD) == ""
    asked = [(one.host, one.allowed) for one in runtime.network_decisions()]
    assert asked == [(GOOD, True), (GOOD, False), (BAD, True)]
    runtime.set_network("allowlist", allow=[GOOD])
    assert reaches(runtime)
    assert [(one.host, one.allowed) for one in runtime.network_decisions()] == [*asked, (GOOD, True)]


@pytest.mark.usefixtures("engine")
def test_who_listens_hears_each_decision_also_from_before_the_start() -> None:
    heard: list[NetworkDecision] = []
    runtime = DockerRuntime(IMAGE, allow=[GOOD])
    stop = runtime.on_network_decision(heard.append)
    with runtime:
        assert reaches(runtime)
        assert not reaches(runtime, BAD)
        assert [(one.host, one.allowed) for one in heard] == [(GOOD, True), (BAD, False)]
        stop()
        assert not reaches(runtime, BAD)
        name = runtime.name
    assert len(heard) == 2
    assert [one.host for one in read_decisions(name)] == [GOOD, BAD, BAD]


def test_options_that_do_not_fit_are_refused() -> None:
    with pytest.raises(UsageError, match="network='none' has none"):
        DockerRuntime(IMAGE, network="none", allow=[GOOD])
    with pytest.raises(UsageError, match="allow= is for a new container"):
        DockerRuntime(attach="some", allow=[GOOD])
    with pytest.raises(UsageError, match="Invalid network rule"):
        DockerRuntime(IMAGE, allow=["10.0.0.1"])


# --- what ends, and comes back ---------------------------------------------------------------------------


def test_a_connector_that_is_killed_comes_back(sandbox: Callable[..., Any]) -> None:
    runtime = sandbox(allow=[GOOD])
    assert reaches(runtime)
    find = "for p in /proc/[0-9]*; do grep -q '^Name:.connector' $p/status 2>/dev/null && "
    killed = runtime.run(["sh", "-c", f"{find} kill -9 ${{p#/proc/}} && echo killed; done"])
    assert b"killed" in killed.stdout
    assert reaches_soon(runtime)


def test_a_sandbox_that_is_started_again_or_restored_keeps_its_list(
    sandbox: Callable[..., Any], engine: Engine
) -> None:
    runtime = sandbox(allow=[GOOD])
    assert reaches(runtime)
    engine.api.kill(runtime.id)
    runtime.run(["true"])
    assert reaches_soon(runtime)
    runtime.restore(runtime.checkpoint())
    assert reaches_soon(runtime)
    assert not reaches(runtime, BAD)


@pytest.mark.usefixtures("engine")
def test_a_resumed_sandbox_has_the_list_that_is_asked_for_now() -> None:
    before = DockerRuntime(IMAGE, allow=[GOOD], conversation="listed").start()
    assert reaches(before)
    before.leave()
    after = DockerRuntime(IMAGE, allow=[BAD], conversation="listed")
    try:
        assert after.resume().notes == ()
        assert (reaches(after), reaches(after, BAD)) == (False, True)
        after.leave()
        assert [one.host for one in read_decisions("listed")] == [GOOD, GOOD, BAD]
        after = DockerRuntime(IMAGE, conversation="listed")
        assert after.resume().notes == ()
        assert ask(after, GOOD) == ""
    finally:
        after.close()


def test_a_fork_has_the_list_as_it_is_now(sandbox: Callable[..., Any]) -> None:
    runtime = sandbox(allow=[GOOD])
    runtime.allow(BAD)
    with runtime.fork(runtime.checkpoint().id, conversation="fork") as fork:
        assert fork.allowed == (GOOD, BAD)
        assert reaches(fork, BAD)
        fork.disallow(BAD)
        assert (reaches(fork, BAD), reaches(runtime, BAD)) == (False, True)


def test_without_its_host_process_a_sandbox_reaches_nothing(engine: Engine) -> None:
    program = f"""
        import sys
        from ohsandbox import DockerRuntime
        runtime = DockerRuntime({IMAGE!r}, allow=[{GOOD!r}], keep=True).start()
        told = runtime.run(["sh", "-c", sys.argv[1], "sh", {BAD!r}]).stdout.decode()
        print(runtime.name, "403" in told, flush=True)
        sys.stdin.read()
    """
    owner = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program), ASK], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )  # fmt: skip
    assert owner.stdout is not None
    assert owner.stdin is not None
    name, answered = owner.stdout.readline().split()
    try:
        assert answered == "True"
        owner.send_signal(signal.SIGKILL)
        owner.wait()
        with DockerRuntime(attach=name) as joined:
            gone = ["sh", "-c", f"while {ASK} | grep -q HTTP; do :; done"]
            assert joined.run(gone, timeout_s=30).exit_code == 0
            assert ask(joined, GOOD) == ""
    finally:
        engine.api.remove_container(name, force=True)
        owner.stdin.close()
        owner.stdout.close()


def test_files_are_there_before_the_connector_and_a_program_waits_for_it_also_after_a_pause(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begun, may_begin = DockerRuntime._open_connector, threading.Event()
    failures: list[Exception] = [SandboxPaused("The sandbox is paused, as for a checkpoint.")]

    def open_connector(self: DockerRuntime) -> Any:
        may_begin.wait()
        if failures:
            raise failures.pop()
        return begun(self)

    monkeypatch.setattr(DockerRuntime, "_open_connector", open_connector)
    with DockerRuntime(IMAGE, network="allowlist", allow=[GOOD]) as runtime:
        runtime.write_bytes("file", b"text")
        assert runtime.read_bytes("file") == b"text"
        may_begin.set()
        assert f"this is {GOOD}" in ask(runtime, GOOD)
        assert failures == []


def test_a_start_with_a_list_makes_thirteen_calls_of_the_engine(
    sandbox: Callable[..., DockerRuntime], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each takes a first request its time; the last two are of the connector, beside what is done in the sandbox."""
    calls: list[str] = []
    send = OnePoolAdapter.send

    def counted(self: OnePoolAdapter, request: Any, *arguments: Any, **options: Any) -> Any:
        path = re.sub("[0-9a-f]{64}", "ID", request.path_url.partition("?")[0])
        calls.append(f"{request.method} {re.sub('^/v[0-9.]+', '', path)}")
        return send(self, request, *arguments, **options)

    monkeypatch.setattr(OnePoolAdapter, "send", counted)
    monkeypatch.setattr(container_network, "WORKER_WAIT_S", 30.0)  # on a busy machine, too
    monkeypatch.setattr(container, "_images_looked_at", set())
    runtime = sandbox(allow=[GOOD])
    assert runtime.list_dir(".") == [], "files are there before the list is"
    assert runtime.run(["true"]).exit_code == 0
    worker = connector = ["POST /containers/ID/exec", "POST /exec/ID/start"]
    start = ["POST /containers/create", *["HEAD /containers/ID/archive"] * 3]
    start += ["POST /containers/ID/start", "GET /containers/ID/json"]
    asked = ["GET /_ping", f"GET /images/{IMAGE}/json", *start, *worker, "GET /containers/ID/json", *connector]
    assert calls == asked
