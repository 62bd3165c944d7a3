"""A model behind a company's certificate and proxies."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
from typing import TYPE_CHECKING

import pytest
from pydantic import SecretStr

from ohsandbox.errors import ModelError
from ohsandbox.llm import LLM, ChatResponse, LLMConfig, RetryEvent
from ohsandbox.network.credentials.certificate_authority import CertificateAuthority
from ohsandbox.testing.provider import FakeClock, FakeProvider, text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

pytestmark = pytest.mark.usefixtures("each_client")

ELSEWHERE = "http://model.example.org/v1"


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    for name in ("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"):
        monkeypatch.delenv(name, raising=False)


@contextlib.contextmanager
def company_model(bundle: Path) -> Iterator[LLMConfig]:
    """A model over HTTPS, whose authority's certificate is written to bundle."""
    authority = CertificateAuthority(["localhost"])
    bundle.write_bytes(authority.certificate)
    with FakeProvider(text("fine")) as provider:
        context = authority.server_context("localhost")
        provider._server.socket = context.wrap_socket(
            provider._server.socket, server_side=True, do_handshake_on_connect=False
        )
        port = provider._server.server_address[1]
        yield provider.config(base_url=f"https://localhost:{port}/v1")


@contextlib.contextmanager
def served(answer: Callable[[socket.socket], None]) -> Iterator[int]:
    """A server of this machine that answers each connection in a thread; yields its port."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    threading.Thread(target=answer, args=(server.accept()[0],), daemon=True).start()

        threading.Thread(target=serve, daemon=True).start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)


def ask(config: LLMConfig, retries: list[RetryEvent] | None = None) -> ChatResponse:
    def note(event: object) -> None:
        if retries is not None and isinstance(event, RetryEvent):
            retries.append(event)

    return LLM(config, clock=FakeClock()).send([{"role": "user", "content": "hi"}], on_event=note)


@pytest.mark.parametrize("variable", ["SSL_CERT_FILE", "REQUESTS_CA_BUNDLE"])
def test_a_model_with_a_certificate_of_the_company_answers(
    variable: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with company_model(tmp_path / "company.pem") as config:
        monkeypatch.setenv(variable, str(tmp_path / "company.pem"))
        assert ask(config).message.content == "fine"


def test_a_model_with_a_certificate_in_the_systems_store_answers(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def load(context: ssl.SSLContext) -> None:
        context.load_verify_locations(tmp_path / "company.pem")

    monkeypatch.setattr(ssl.SSLContext, "set_default_verify_paths", load)
    monkeypatch.setenv("CURL_CA_BUNDLE", str(tmp_path / "company.pem"))  # a context that no other test has made
    with company_model(tmp_path / "company.pem") as config:
        assert ask(config).message.content == "fine"


def test_a_certificate_of_nobody_is_refused_at_once_and_named(tmp_path: Path) -> None:
    retries: list[RetryEvent] = []
    with (
        company_model(tmp_path / "company.pem") as config,
        pytest.raises(ModelError, match=r"certificate is not trusted \(localhost:.*REQUESTS_CA_BUNDLE"),
    ):
        ask(config, retries)
    assert retries == []


@pytest.mark.parametrize("variable", ["SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE"])
def test_certificates_that_do_not_exist_are_named(
    variable: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with company_model(tmp_path / "company.pem") as config:
        monkeypatch.setenv(variable, "/nowhere/company.pem")
        with pytest.raises(ModelError, match=rf"{variable} names '/nowhere/company.pem', which does not exist"):
            ask(config)


def test_a_model_behind_a_socks_proxy_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    with FakeProvider(text("fine")) as provider:

        def carry(near: socket.socket) -> None:
            near.recv(100)
            near.sendall(b"\x05\x00")
            assert b"model.example.org" in near.recv(100)
            near.sendall(b"\x05\x00\x00\x01\x7f\x00\x00\x01\x00\x50")
            with socket.create_connection(("127.0.0.1", provider._server.server_address[1])) as far, near:
                far.sendall(near.recv(1 << 20))
                far.settimeout(5)
                with contextlib.suppress(TimeoutError, OSError):
                    threading.Thread(target=pump, args=(near, far), daemon=True).start()
                    pump(far, near)

        with served(carry) as port:
            monkeypatch.setenv("ALL_PROXY", f"socks5://127.0.0.1:{port}")
            assert ask(provider.config(base_url=ELSEWHERE)).message.content == "fine"


def pump(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(1 << 16):
            target.sendall(data)


@pytest.mark.parametrize("proxy", ["socks5://proxy.corp:1080", "socks4://proxy.corp:1080", "http://proxy.corp:1"])
def test_a_model_on_loopback_needs_no_proxy(proxy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALL_PROXY", proxy)
    monkeypatch.setenv("NO_PROXY", "[::1],fe80::/10")
    with FakeProvider(text("fine")) as provider:
        assert ask(provider.config()).message.content == "fine"


def test_a_proxy_that_cannot_be_used_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALL_PROXY", "socks4://me:secret@proxy.corp:1080")
    retries: list[RetryEvent] = []
    with FakeProvider() as provider, pytest.raises(ModelError, match=r"socks4://proxy.corp:1080") as refused:
        ask(provider.config(base_url=ELSEWHERE), retries)
    assert "secret" not in str(refused.value)
    assert retries == []


@pytest.mark.parametrize("base_url", [ELSEWHERE, "https://model.example.org/v1"])
def test_a_proxy_that_wants_a_password_is_asked_once_and_named(base_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(near: socket.socket) -> None:
        with near:
            near.recv(1 << 16)
            near.sendall(b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n")

    retries: list[RetryEvent] = []
    with served(refuse) as port, FakeProvider() as provider:
        for name in ("HTTP_PROXY", "HTTPS_PROXY"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{port}")
        with pytest.raises(ModelError, match=r"proxy wants a password.*HTTPS_PROXY"):
            ask(provider.config(base_url=base_url), retries)
    assert retries == []


def test_a_host_without_an_address_is_tried_three_times(monkeypatch: pytest.MonkeyPatch) -> None:
    def resolve(*_: object, **__: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    retries: list[RetryEvent] = []
    with FakeProvider() as provider, pytest.raises(ModelError, match=r"has no address \(model.example.org\)"):
        ask(provider.config(base_url=ELSEWHERE), retries)
    assert len(retries) == 2


@pytest.mark.parametrize(
    "model", ["azure/some-model", "bedrock/meta.llama3-70b-instruct-v1:0", "databricks/some-model"]
)
def test_so_it_is_by_a_client_that_litellm_makes(monkeypatch: pytest.MonkeyPatch, model: str) -> None:
    def resolve(*_: object, **__: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "a-key-that-opens-nothing")
    monkeypatch.setenv("AWS_REGION_NAME", "us-east-1")
    retries: list[RetryEvent] = []
    with pytest.raises(ModelError, match=r"has no address \(model.example.org\)"):
        ask(LLMConfig(model=model, api_key=SecretStr("sk-test"), base_url=ELSEWHERE), retries)
    assert len(retries) == 2
