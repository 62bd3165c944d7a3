"""Features of a registry: asked for after a person's trust alone, checked by their digests, kept as they were first."""

from __future__ import annotations

import hashlib
import io
import json
import ssl
import subprocess
import tarfile
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import pytest

from ohsandbox.cli.options.shared import SandboxOptions
from ohsandbox.cli.settings.project import use_project
from ohsandbox.errors import UsageError
from ohsandbox.project.project_file import find_project
from ohsandbox.project.registry import MAX_LAYER_BYTES, fetch_feature, parse_reference
from ohsandbox.project.trust import trust
from ohsandbox.runtime.build_options import Build

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

LAYER = "application/vnd.devcontainers.layer.v1+tar"
MANIFEST_JSON = b'{"id": "hello", "version": "1.2.3", "options": {"who": {"type": "string"}}}'


def digest(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def tar(*members: tuple[str, bytes | None], **more: Any) -> bytes:
    """Members with their contents; None: a link, or what more says."""
    written = io.BytesIO()
    with tarfile.open(fileobj=written, mode="w") as archive:
        for name, content in members:
            member = tarfile.TarInfo(name)
            member.mode = 0o755
            if content is None:
                member.type, member.linkname = more.get("type", tarfile.SYMTYPE), "/etc/passwd"
            member.size = len(content or b"")
            archive.addfile(member, io.BytesIO(content or b""))
    return written.getvalue()


FEATURE = tar(("./devcontainer-feature.json", MANIFEST_JSON), ("./install.sh", b"#!/bin/sh\n"))


class Registry:
    """What a server answers by path: a status, headers and a body; and what it was asked for."""

    def __init__(self, host: str) -> None:
        self.host = host
        self.answers: dict[str, tuple[int, dict[str, str], bytes]] = {}
        self.asked: list[tuple[str, str]] = []
        self.wants_token = ""

    def push(self, name: str, layer: bytes, *, tag: str = "1", said: str = "") -> None:
        """Put a feature there; said: another digest than the layer's."""
        manifest = json.dumps({"layers": [{"mediaType": LAYER, "digest": said or digest(layer)}]}).encode()
        self.answers[f"/v2/{name}/manifests/{tag}"] = 200, {}, manifest
        self.answers[f"/v2/{name}/manifests/{digest(manifest)}"] = 200, {}, manifest
        self.answers[f"/v2/{name}/blobs/{said or digest(layer)}"] = 200, {}, layer

    def reference(self, name: str, tag: str = "1") -> str:
        return f"{self.host}/{name}:{tag}"


@pytest.fixture
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Registry]:
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=localhost",
         "-addext", "subjectAltName=DNS:localhost", "-keyout", "key.pem", "-out", "cert.pem"],
        cwd=tmp_path, check=True, capture_output=True,
    )  # fmt: skip
    monkeypatch.setenv("OHSANDBOX_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "cert.pem"))
    monkeypatch.setenv("NO_PROXY", "localhost")

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path, told = self.path.partition("?")[0], self.headers.get("authorization", "")
            served.asked.append((self.path, told))
            status, headers, body = served.answers.get(path, (404, {}, b""))
            if served.wants_token and path.startswith("/v2/") and told != "Bearer anonymous":
                status, headers, body = 401, {"WWW-Authenticate": served.wants_token}, b""
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "cert.pem", tmp_path / "key.pem")
    server.socket = context.wrap_socket(server.socket, server_side=True)
    served = Registry(f"localhost:{server.server_port}")
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield served
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_feature_is_what_the_registry_had_first_and_is_not_asked_for_again(
    registry: Registry, tmp_path: Path
) -> None:
    registry.push("me/hello", FEATURE)
    files = fetch_feature(tmp_path, registry.reference("me/hello"))
    assert [(one.path, one.is_program) for one in files] == [("devcontainer-feature.json", True), ("install.sh", True)]
    asked = len(registry.asked)
    registry.push("me/hello", tar(("install.sh", b"evil")))
    assert fetch_feature(tmp_path, registry.reference("me/hello")) == files
    assert len(registry.asked) == asked
    assert fetch_feature(tmp_path / "other", registry.reference("me/hello"))[0].content == b"evil"
    [kept] = [path for path in (tmp_path / "home/registry-features").iterdir() if path.name == digest(FEATURE)[7:]]
    kept.write_bytes(tar(("install.sh", b"changed")))
    assert fetch_feature(tmp_path, registry.reference("me/hello"))[0].content == b"evil", "what was kept is compared"


def test_a_token_for_everybody_is_sent_to_the_registry_alone(registry: Registry, tmp_path: Path) -> None:
    registry.push("me/hello", FEATURE)
    registry.wants_token = f'Bearer realm="https://{registry.host}/token",service="x"'
    registry.answers["/token"] = 200, {}, b'{"token": "anonymous"}'
    place = f"https://localhost.:{registry.host.partition(':')[2]}/elsewhere"
    registry.answers[f"/v2/me/hello/blobs/{digest(FEATURE)}"] = 307, {"Location": place}, b""
    with pytest.raises(UsageError, match="does not answer"):  # its certificate has another name
        fetch_feature(tmp_path, registry.reference("me/hello"))
    assert registry.asked[1] == ("/token?service=x&scope=repository%3Ame%2Fhello%3Apull", "")
    registry.answers[f"/v2/me/hello/blobs/{digest(FEATURE)}"] = 307, {"Location": "/there"}, b""
    registry.answers["/there"] = 200, {}, FEATURE
    assert len(fetch_feature(tmp_path, registry.reference("me/hello"))) == 2
    registry.wants_token = 'Bearer realm="https://elsewhere.example/token"'
    with pytest.raises(UsageError, match="wants a password, and none is sent"):
        fetch_feature(tmp_path / "other", registry.reference("me/hello"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("layer", "told"),
    [
        (tar(("../x", b"")), "'../x' is not a plain file"),
        (tar(("/x", b"")), "'/x' is not a plain file"),
        (tar(("x", None)), "'x' is not a plain file"),
        (tar(("x", None), type=tarfile.CHRTYPE), "'x' is not a plain file"),
        (tar(*((str(number), b"") for number in range(201))), "over 200 files"),
        (b"\x1f\x8b" + b"x" * 2000, "is not a tar"),
        (b"x" * (MAX_LAYER_BYTES + 1), "sends over"),
    ],
    ids=["above", "absolute", "link", "device", "many", "compressed", "large"],
)
def test_what_is_no_plain_feature_is_refused(registry: Registry, tmp_path: Path, layer: bytes, told: str) -> None:
    registry.push("me/hello", layer)
    with pytest.raises(UsageError, match=r"feature 'localhost:[0-9]+/me/hello:1'") as caught:
        fetch_feature(tmp_path, registry.reference("me/hello"))
    assert told in str(caught.value)


def test_digests_ways_and_answers_are_checked(registry: Registry, tmp_path: Path) -> None:
    registry.push("me/hello", FEATURE, said=digest(b"other"))
    path = f"/v2/me/hello/blobs/{digest(b'other')}"
    faults = {
        "has another digest than its manifest says": registry.answers[path],
        "leads to an address without https": (302, {"Location": "http://localhost/x"}, b""),
        "redirects over 3 times": (302, {"Location": path}, b""),
        "localhost answers 500": (500, {}, b""),
    }
    for told, answer in faults.items():
        registry.answers[path] = answer
        with pytest.raises(UsageError, match=told):
            fetch_feature(tmp_path, registry.reference("me/hello"))
    wrong = f"{registry.host}/me/hello@{digest(b'wrong')}"
    registry.answers[f"/v2/me/hello/manifests/{digest(b'wrong')}"] = 200, {}, b"{}"
    with pytest.raises(UsageError, match=r"has another digest\. Correct"):
        fetch_feature(tmp_path, wrong)
    for manifest in (b"[]", b"{", b'{"layers": [{"mediaType": "x"}]}', b'{"layers": 7}'):
        registry.answers["/v2/me/hello/manifests/1"] = 200, {}, manifest
        with pytest.raises(UsageError, match=r"not a JSON object|is not a feature"):
            fetch_feature(tmp_path, registry.reference("me/hello"))


NO_REFERENCES = ["", "a", "./a", "a/b", "http://a.b/c", "a.b/../c", "a.b//c", "a.b/c:", "a.b/c@sha256:1", "a.b/C"]


@pytest.mark.parametrize("text", NO_REFERENCES)
def test_what_is_no_reference_is_none(text: str) -> None:
    assert parse_reference(text) is None


def test_nothing_is_asked_before_trust_and_what_cannot_be_had_is_told(
    registry: Registry, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    registry.push("me/hello", FEATURE)
    project = tmp_path / "project"
    (project / ".devcontainer").mkdir(parents=True)
    features = {registry.reference("me/hello"): {"who": "you"}, registry.reference("me/gone"): {}}
    said: dict[str, Any] = {"image": "a:1", "features": features}
    (project / ".devcontainer/devcontainer.json").write_text(json.dumps(said))
    where = SandboxOptions(workspace=project)
    untrusted = use_project(where, None, person=False)
    assert untrusted is not None
    assert untrusted.applied_to(where).build is None
    found = find_project(project)
    assert found is not None
    assert registry.asked == []
    shown = found.needing_trust(untrusted.settings)["features"][0]
    assert shown == (
        f'{registry.reference("me/hello")} {{"who": "you"}} (fetched from {registry.host} after your yes, and kept as '
        "it is then)"
    )
    trust(project, found.digest())
    used = use_project(where, None, person=False)
    assert used is not None
    placed = used.applied_to(where)
    assert placed.build is not None
    assert placed.from_project.build == Build(placed.build, base="a:1")
    assert "WHO=you" in (placed.build / "0/run").read_text()
    assert "me/gone:1 (localhost answers 404. Correct its name or version.)" in capfd.readouterr().err
    assert used.applied_to(SandboxOptions(workspace=project, image="b:1")).build is None
    (project / ".devcontainer/devcontainer.json").write_text(
        json.dumps(said | {"features": {registry.reference("no"): {}}})
    )
    found = find_project(project)
    assert found is not None
    trust(project, found.digest())
    used = use_project(where, None, person=False)
    assert used is not None
    assert (used.applied_to(where).image, used.applied_to(where).build) == ("a:1", None)
