"""`browser` in a sandbox with a list: a real Chromium inside reaches an https server through the proxy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from ohsandbox import DockerRuntime
from ohsandbox.runtime.docker.network.proxy_clients import POLICY_PATHS
from ohsandbox.state import ConversationState
from ohsandbox.tools.browser import BrowserTool
from tests.network.credentials.played_host import played_host
from tests.network.credentials.tls_host import HOST, KEY, Seen, TlsHost, whole

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [pytest.mark.docker, pytest.mark.timeout(600)]


def _page(_: Seen) -> bytes:
    return whole(b"<title>Through the list</title><p>hello", headers="content-type: text/html\r\n")


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[TlsHost, Path]]:
    monkeypatch.setenv("TOKEN", KEY)
    with played_host(monkeypatch, tmp_path, answer=_page) as found:
        yield found


def _browse(runtime: DockerRuntime, url: str) -> Any:
    [tool] = BrowserTool.create(conv_state=ConversationState(conversation_id="c", runtime=runtime))
    try:
        return tool(tool.action_from_arguments({"code": f"goto('{url}')"}))
    finally:
        tool.close()


def test_chromium_reaches_what_is_on_the_list_and_nothing_else(image: str, host: tuple[TlsHost, Path]) -> None:
    there, bundle = host
    with DockerRuntime(image, allow=[HOST], ca_bundle=bundle) as runtime:
        runtime.execute("rm -f " + " ".join(POLICY_PATHS))
        seen = _browse(runtime, f"https://{HOST}/")
        other = _browse(runtime, "https://other.example.org/")
        decided = {(one.host, one.allowed) for one in runtime.network_decisions()}
    assert not seen.is_error, seen.text
    assert "Title: Through the list" in seen.text
    assert there.seen
    assert other.is_error
    assert (HOST, True) in decided
    assert {one for one, allowed in decided if not allowed} >= {"other.example.org"}


@pytest.mark.slow
def test_without_the_policy_the_extension_of_chromium_is_refused(image: str, host: tuple[TlsHost, Path]) -> None:
    there, bundle = host
    with DockerRuntime(image, allow=[HOST], ca_bundle=bundle) as runtime:
        runtime.execute("rm -f " + " ".join(POLICY_PATHS))
        runtime.prepare_browser = lambda: None  # type: ignore[method-assign]
        seen = _browse(runtime, f"https://{HOST}/")
        reasons = [one.reason for one in runtime.network_decisions() if not one.allowed]
    assert seen.is_error
    assert there.seen == []
    assert any("encrypted" in one for one in reasons), reasons


@pytest.mark.slow
def test_a_page_of_a_credentials_host_is_shown(image: str, host: tuple[TlsHost, Path]) -> None:
    there, bundle = host
    with DockerRuntime(image, credentials=[f"{HOST}=env:TOKEN"], ca_bundle=bundle) as runtime:
        seen = _browse(runtime, f"https://{HOST}/")
    assert not seen.is_error, seen.text
    assert [one.all("authorization") for one in there.seen if one.target == "/"] == [[f"Bearer {KEY}"]]


def test_the_image_has_the_setting_from_the_beginning(image: str) -> None:
    with DockerRuntime(image) as runtime:
        found = [runtime.read_bytes(path) for path in POLICY_PATHS]
    assert all(b'"EncryptedClientHelloEnabled": false' in one for one in found)
