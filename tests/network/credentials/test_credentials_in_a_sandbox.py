"""Credentials of a real sandbox: a request from inside is answered, and the value is nowhere in it."""

from __future__ import annotations

import contextlib
import json
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ohsandbox import DockerRuntime, Secrets
from ohsandbox.errors import UsageError
from ohsandbox.runtime.docker.config.options import CA_PATH
from ohsandbox.runtime.docker.engine.connection import connect
from ohsandbox.runtime.docker.network.trust import JAVA_TRUST_PATH
from tests.network.credentials.played_host import played_host
from tests.network.credentials.tls_host import HOST, KEY, Seen, TlsHost, whole
from tests.runtime.engines import IMAGE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ohsandbox.runtime.base import Runtime

pytestmark = pytest.mark.docker

CONTROL = "control-0123456789-planted"
"""A secret that is given to the sandbox's commands, so every search that would find a value finds this one."""
ASK = f"""
import os, sys, urllib.request
request = urllib.request.Request("https://{HOST}/v1/echo", headers={{"Authorization": "Bearer " + os.environ["TOKEN"]}})
print(urllib.request.urlopen(request, timeout=30).read().decode())
"""


def _echo(seen: Seen) -> bytes:
    return whole(json.dumps(seen.headers).encode(), headers="content-type: application/json\r\n")


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[TlsHost, Path]]:
    monkeypatch.setenv("TOKEN", KEY)
    with played_host(monkeypatch, tmp_path, answer=_echo) as found:
        yield found


def _ask(runtime: Runtime, program: str = ASK) -> str:
    ended = runtime.run(["python3", "-c", program], timeout_s=60)
    assert ended.exit_code == 0, ended.stderr
    return ended.stdout.decode()


@pytest.mark.parametrize("image", ["debian", "nonroot", "hostile"])
def test_a_request_from_inside_arrives_with_the_key(image: str, host: tuple[TlsHost, Path]) -> None:
    there, bundle = host
    with DockerRuntime(f"ohsandbox-base:{image}", credentials=[f"{HOST}=env:TOKEN"], ca_bundle=bundle) as runtime:
        answer = _ask(runtime)
        allowed = [one.host for one in runtime.network_decisions() if one.allowed]
    assert [one.all("authorization") for one in there.seen] == [[f"Bearer {KEY}"]]
    assert KEY not in answer
    assert "Bearer " + "*" * len(KEY) in answer
    assert allowed == [HOST]


@pytest.mark.slow
def test_a_bound_workspace_has_it_too(host: tuple[TlsHost, Path], tmp_path: Path) -> None:
    there, bundle = host
    place = tmp_path / "work"
    place.mkdir()
    with DockerRuntime(IMAGE, workspace=place, credentials=[f"{HOST}=env:TOKEN"], ca_bundle=bundle) as runtime:
        _ask(runtime)
    assert [one.all("authorization") for one in there.seen] == [[f"Bearer {KEY}"]]
    assert [one for one in place.rglob("*") if one.is_file() and KEY.encode() in one.read_bytes()] == []


UNTIL_THE_CONNECTOR_LISTENS = """
import socket, time
while socket.socket().connect_ex(("127.0.0.1", 3128)): time.sleep(0.05)
"""
FIND = """
value=$(cat)
grep -laF "$value" /proc/[0-9]*/environ /proc/[0-9]*/cmdline 2>/dev/null
grep -rlaF "$value" / --exclude-dir=proc --exclude-dir=sys --exclude-dir=dev 2>/dev/null
:
"""


def test_the_value_is_nowhere_inside_nor_in_what_is_kept_of_the_sandbox(
    host: tuple[TlsHost, Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    _, bundle = host
    state = tmp_path / "state"
    monkeypatch.setenv("OHSANDBOX_HOME", str(state))
    with DockerRuntime(IMAGE, credentials=[f"{HOST}=env:TOKEN"], ca_bundle=bundle, conversation="c-1") as runtime:
        runtime.give_secrets(Secrets({"PLANTED": CONTROL}))
        assert runtime.execute(f"echo {CONTROL} >/root/planted; sleep 300 & python3 -c '{ASK}'").exit_code == 0
        places = {
            value: runtime.run(["sh", "-c", FIND], stdin=value.encode(), timeout_s=100) for value in (KEY, CONTROL)
        }
        checkpoint = runtime.checkpoint()
        engine = connect()
        try:
            container = json.dumps(engine.api.inspect_container(runtime.name))
            layers = json.dumps(engine.api.inspect_image(checkpoint.id))
        finally:
            engine.close()
        saved = subprocess.run(["docker", "save", checkpoint.id], capture_output=True, check=True)
        processes = b"".join(_command_lines())
        shown = repr(runtime) + repr(vars(runtime)) + json.dumps(runtime.describe())
    found = {value: ended.stdout.decode().split() for value, ended in places.items()}
    assert found[KEY] == []
    assert "/root/planted" in found[CONTROL]
    assert [place for place in found[CONTROL] if place.endswith("/environ")]
    assert CONTROL.encode() in saved.stdout
    for what in (container, layers, shown):
        assert KEY not in what
        assert len(what) > 500
    assert KEY.encode() not in saved.stdout
    assert KEY.encode() not in processes
    assert b"pytest" in processes
    kept = {path: path.read_bytes() for path in state.rglob("*") if path.is_file()}
    assert [path for path, data in kept.items() if KEY.encode() in data] == []
    assert [path for path, data in kept.items() if HOST.encode() in data]


def _command_lines() -> Iterator[bytes]:
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            yield path.read_bytes()


@pytest.mark.slow
def test_a_sandbox_that_was_set_back_is_answered_as_before(host: tuple[TlsHost, Path]) -> None:
    there, bundle = host
    with DockerRuntime(IMAGE, credentials=[f"{HOST}=env:TOKEN"], ca_bundle=bundle) as runtime:
        checkpoint = runtime.checkpoint()
        runtime.run(["rm", CA_PATH])
        runtime.restore(checkpoint)
        runtime.run(["python3", "-c", UNTIL_THE_CONNECTOR_LISTENS], timeout_s=60)
        _ask(runtime)
        forked = runtime.fork(checkpoint.id, conversation="c-2")
        with forked:
            _ask(forked)
    assert len(there.seen) == 2


def test_programs_that_read_no_variable_trust_the_authority_as_well(host: tuple[TlsHost, Path]) -> None:
    there, bundle = host
    store = "/etc/ssl/certs/ca-certificates.crt"
    program = ASK.replace("timeout=30", f"timeout=30, context=ssl.create_default_context(cafile='{store}')")
    with DockerRuntime(IMAGE, credentials=[f"{HOST}=env:TOKEN"], ca_bundle=bundle) as runtime:
        _ask(runtime, "import ssl\n" + program)
        assert runtime.run(["test", "-s", JAVA_TRUST_PATH]).exit_code == 0
    assert len(there.seen) == 1


def test_the_host_is_not_reached_without_tls(host: tuple[TlsHost, Path]) -> None:
    there, bundle = host
    with DockerRuntime(IMAGE, credentials=[f"{HOST}=env:TOKEN"], ca_bundle=bundle) as runtime:
        ended = runtime.run(["python3", "-c", ASK.replace("https:", "http:")], timeout_s=60)
    assert b"HTTP Error 403" in ended.stderr
    assert there.seen == []
    assert there.connections == 0


def test_without_the_list_there_are_no_placeholders_and_with_it_again_there_are(host: tuple[TlsHost, Path]) -> None:
    there, bundle = host
    with DockerRuntime(IMAGE, credentials=[f"{HOST}=env:TOKEN"], ca_bundle=bundle) as runtime:
        runtime.set_network("none")
        assert runtime.run(["sh", "-c", "echo $TOKEN"]).stdout.strip() == b""
        runtime.set_network("allowlist", allow=["other.example.org"])  # the credential's host stays on it
        assert runtime.run(["sh", "-c", "echo $TOKEN"]).stdout.strip() == b"ohsandbox-placeholder"
        _ask(runtime)
    assert len(there.seen) == 1


def test_a_value_that_a_variable_or_secret_of_the_sandbox_has_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKEN", KEY)
    with pytest.raises(UsageError, match="never enters a sandbox") as caught:
        DockerRuntime(credentials=[f"{HOST}=env:TOKEN"], env={"MINE": f"Bearer {KEY}"})
    assert KEY not in str(caught.value)
    runtime = DockerRuntime(credentials=[f"{HOST}=env:TOKEN"])
    with pytest.raises(UsageError, match="never enters a sandbox"):
        runtime.give_secrets(Secrets({"MINE": KEY}))
    assert runtime.secrets.masker.mask(f"a {KEY} b") == "a <secret:TOKEN> b"


@pytest.mark.parametrize("network", ["none", "open"])
def test_a_credential_needs_the_list(network: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKEN", KEY)
    with pytest.raises(UsageError, match="network='allowlist'"):
        DockerRuntime(credentials=[f"{HOST}=env:TOKEN"], network=network)
