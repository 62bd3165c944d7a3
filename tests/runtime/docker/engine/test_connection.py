from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
import socket
import ssl
import subprocess
import threading
import time
from typing import TYPE_CHECKING

import pytest

from ohsandbox import DockerRuntime
from ohsandbox.errors import EngineUnavailable, UsageError
from ohsandbox.runtime.docker.channel import DockerChannel, ProcessRequest
from ohsandbox.runtime.docker.container import Container
from ohsandbox.runtime.docker.engine.connection import connect, find_address
from tests.runtime.docker.conftest import BASE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from ohsandbox.runtime.docker.engine.connection import Engine

Serve = "Callable[[bytes | None], str]"


@pytest.fixture
def fake_engine(tmp_path: Path) -> Iterator[Callable[[bytes | None], str]]:
    """A socket that answers every request with the same bytes, or never (None)."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(tmp_path / "engine.sock"))
    listener.listen()
    held: list[socket.socket] = []

    def serve(answer: bytes | None) -> str:
        def accept() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                held.append(connection)
                if answer is not None:
                    with contextlib.suppress(OSError):  # the client's first knock hangs up at once
                        connection.recv(65536)
                        connection.sendall(answer)
                    connection.close()

        threading.Thread(target=accept, daemon=True).start()
        return f"unix://{tmp_path}/engine.sock"

    yield serve
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    for connection in held:
        connection.close()


def http(body: bytes) -> bytes:
    head = (
        f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + body


def refusal(host: str) -> str:
    with pytest.raises(EngineUnavailable) as caught:
        connect({"DOCKER_HOST": host})
    text = str(caught.value)
    assert "\n" not in text
    assert any(f". {verb} " in text for verb in ("Start", "Run", "Use", "Correct", "Upgrade"))
    assert host in text
    return text


def test_no_socket_says_where_it_was_looked_for_and_what_to_do() -> None:
    text = refusal("unix:///nonexistent/docker.sock")
    assert "(from DOCKER_HOST)" in text
    assert "Start the engine" in text
    assert "DOCKER_HOST at one" in text
    assert "--runtime" not in text  # a flag that not every command has, and no library


def test_a_socket_that_nobody_serves_is_refused(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(tmp_path / "s"))
    assert "connection refused" in refusal(f"unix://{tmp_path}/s")


def test_a_closed_tcp_port_is_refused() -> None:
    assert "connection refused" in refusal("tcp://127.0.0.1:9")


@pytest.mark.slow
def test_a_socket_that_never_answers_is_given_up_within_ten_seconds(fake_engine: Callable[[bytes | None], str]) -> None:
    host, began = fake_engine(None), time.monotonic()
    assert "does not answer within 8 s" in refusal(host)
    assert time.monotonic() - began < 10


def test_an_engine_that_is_too_old_is_told_so(fake_engine: Callable[[bytes | None], str]) -> None:
    assert "too old" in refusal(fake_engine(http(b'{"ApiVersion": "1.20", "Version": "1.8.3"}')))


@pytest.mark.parametrize("answer", [http(b"<html>proxy</html>"), http(b"{}"), b"SSH-2.0-OpenSSH_9.2\r\n", b""])
def test_something_that_is_no_engine_is_unavailable(fake_engine: Callable[[bytes | None], str], answer: bytes) -> None:
    refusal(fake_engine(answer))


@pytest.mark.parametrize("host", ["ftp://x", "tcp://", "tcp://host", "unix://a?b=c", "fd://"])
def test_a_malformed_address_is_a_usage_error(host: str) -> None:
    with pytest.raises(UsageError, match="DOCKER_HOST"):
        connect({"DOCKER_HOST": host})


@pytest.fixture
def docker_config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A ~/.docker with a context 'other' that is current."""
    directory = tmp_path / "docker"
    meta = directory / "contexts" / "meta" / hashlib.sha256(b"other").hexdigest()
    meta.mkdir(parents=True)
    endpoint = {"Host": "tcp://10.9.8.7:2376", "SkipTLSVerify": False}
    (meta / "meta.json").write_text(json.dumps({"Name": "other", "Metadata": {}, "Endpoints": {"docker": endpoint}}))
    (directory / "config.json").write_text('{"currentContext": "other"}')
    monkeypatch.setenv("DOCKER_CONFIG", str(directory))
    for name in ("DOCKER_HOST", "DOCKER_CONTEXT"):
        monkeypatch.delenv(name, raising=False)
    return directory


@pytest.mark.usefixtures("docker_config")
def test_the_current_context_is_followed() -> None:
    address = find_address({})
    assert (address.url, address.source) == ("tcp://10.9.8.7:2376", "context 'other'")
    assert not address.is_local


@pytest.mark.usefixtures("docker_config")
def test_docker_host_beats_the_context() -> None:
    assert find_address({"DOCKER_HOST": "unix:///x", "DOCKER_CONTEXT": "other"}).url == "unix:///x"


@pytest.mark.usefixtures("docker_config")
def test_a_context_that_is_not_there_is_never_the_default_engine() -> None:
    with pytest.raises(UsageError, match="'gone' is not there"):
        find_address({"DOCKER_CONTEXT": "gone"})


@pytest.fixture
def certificates(tmp_path: Path) -> Path:
    """A self-signed CA that is also server and client."""
    directory = tmp_path / "tls"
    directory.mkdir()
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=localhost",
         "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1", "-keyout", "key.pem", "-out", "cert.pem"],
        cwd=directory, check=True, capture_output=True,
    )  # fmt: skip
    (directory / "ca.pem").write_bytes((directory / "cert.pem").read_bytes())
    return directory


@pytest.fixture
def tls_front(certificates: Path) -> Iterator[int]:
    """A TLS port in front of the engine's socket; close_notify becomes a half-close, as Go's server has it."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates / "cert.pem", certificates / "key.pem")
    context.load_verify_locations(certificates / "ca.pem")
    context.verify_mode = ssl.CERT_REQUIRED
    listener = socket.create_server(("127.0.0.1", 0))
    threading.Thread(target=_accept_tls, args=(listener, context), daemon=True).start()
    yield listener.getsockname()[1]
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()


def _accept_tls(listener: socket.socket, context: ssl.SSLContext) -> None:
    while True:
        try:
            plain, _ = listener.accept()
        except OSError:
            return
        threading.Thread(target=_relay_tls, args=(plain, context), daemon=True).start()


def _relay_tls(  # noqa: C901, PLR0912 - one loop over both directions
    plain: socket.socket, context: ssl.SSLContext
) -> None:
    """Through memory buffers: OpenSSL objects are not used from two threads. It never waits for the engine to read."""
    import select  # noqa: PLC0415

    engine = socket.socket(socket.AF_UNIX)
    engine.connect("/var/run/docker.sock")
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = context.wrap_bio(incoming, outgoing, server_side=True)
    engine.settimeout(0)
    shaken = has_ended = half_closed = False
    waiting = bytearray()
    with plain, engine:
        while True:
            if has_ended and not waiting and not half_closed:
                engine.shutdown(socket.SHUT_WR)
                half_closed = True
            readers = ([plain] if len(waiting) < 1024 * 1024 else []) + ([engine] if shaken else [])
            ready, writable, _ = select.select(readers, [engine] if waiting else [], [])
            if writable:
                del waiting[: engine.send(waiting[:65536])]
            if plain in ready:
                data = plain.recv(65536)
                if not data:
                    return
                incoming.write(data)
                try:
                    if not shaken:
                        tls.do_handshake()
                        shaken = True
                    while True:
                        clear = tls.read(65536)
                        if not clear:
                            raise ssl.SSLZeroReturnError  # noqa: TRY301
                        waiting += clear
                except ssl.SSLWantReadError:
                    pass
                except ssl.SSLZeroReturnError:
                    has_ended = True
            if engine in ready:
                data = engine.recv(65536)
                if not data:
                    with contextlib.suppress(ssl.SSLError):  # close_notify, as Go's server sends it
                        tls.unwrap()
                    plain.sendall(outgoing.read())
                    return
                tls.write(data)
            if outgoing.pending:
                plain.sendall(outgoing.read())


@pytest.mark.docker
@pytest.mark.one_engine
def test_a_channel_over_tls_moves_megabytes_both_ways_and_half_closes(
    tls_front: int, certificates: Path, foreign: Callable[..., str]
) -> None:
    secure = connect(
        {"DOCKER_HOST": f"tcp://127.0.0.1:{tls_front}", "DOCKER_TLS_VERIFY": "1", "DOCKER_CERT_PATH": str(certificates)}
    )
    payload = bytes(range(256)) * 4096 * 4
    with DockerChannel(Container(secure, foreign(), name="c"), ProcessRequest(["cat"])) as channel:
        heard = bytearray()
        writer = threading.Thread(target=channel.write, args=(payload,))
        writer.start()
        while len(heard) < len(payload):
            heard += b"".join(chunk.data for chunk in channel.read(60) or [])
        writer.join()
        channel.close_stdin()
        assert channel.read(60) == []
        assert bytes(heard) == payload
        assert channel.wait(60) == 0
    secure.close()


@pytest.mark.docker
@pytest.mark.one_engine
def test_a_sandbox_over_a_tls_context_has_its_shell_files_and_ports(
    tls_front: int, certificates: Path, docker_config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = docker_config / "contexts"
    digest = hashlib.sha256(b"tls").hexdigest()
    keys = place / "tls" / digest / "docker"
    shutil.copytree(certificates, keys)
    endpoint = {"Host": f"tcp://127.0.0.1:{tls_front}", "SkipTLSVerify": False}
    (place / "meta" / digest).mkdir()
    (place / "meta" / digest / "meta.json").write_text(
        json.dumps({"Name": "tls", "Metadata": {}, "Endpoints": {"docker": endpoint}})
    )
    monkeypatch.setenv("DOCKER_CONTEXT", "tls")
    with DockerRuntime(f"{BASE}:debian", allow=["a.example.org"]) as sandbox:
        assert sandbox.execute("cd /tmp; X=1; echo $PWD").output == "/tmp\n"
        payload = bytes(range(256)) * 4096
        sandbox.write_bytes("f", payload)
        assert sandbox.read_bytes("f") == payload
        assert sandbox.execute("echo $X").output == "1\n"
        serve = "s = socket.create_server(('127.0.0.1', 8000)); print(1, flush=True); c, _ = s.accept()"
        serve = f"import socket; {serve}; c.sendall(c.makefile('rb').read()); c.close()"
        with sandbox.open_channel(["python3", "-c", serve]) as server:
            server.read(30)  # it listens
            with sandbox.forward(8000) as forward, socket.create_connection(("127.0.0.1", forward.port)) as client:
                client.sendall(payload)
                client.shutdown(socket.SHUT_WR)
                assert client.makefile("rb").read() == payload


@pytest.mark.docker
def test_requests_of_every_url_share_a_pool_of_connections(engine: Engine) -> None:
    """docker-py closes the least used of 25 pools, also while a request of another thread comes back to it."""
    adapter = engine.api.get_adapter("http+docker://localhost/a")
    assert adapter.get_connection("http+docker://localhost/a") is adapter.get_connection("http+docker://localhost/b")
