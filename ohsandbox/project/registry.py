"""Features of a devcontainer in a registry: downloaded by this machine over HTTPS, and stored by their digests.

A registry holds a feature as an OCI artifact: a manifest that names one layer, a tar of the feature's directory
(https://containers.dev/implementors/features-distribution). All downloads are limited in size and compared with their
digests, nothing is unpacked to a disk, and no credential of the user is sent. In each project a reference keeps its
first meaning: a tag that moves changes nothing.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import tarfile
import time
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, NamedTuple

from ohsandbox.errors import UsageError
from ohsandbox.paths import subdirectory
from ohsandbox.private_files import read_regular, write_atomically
from ohsandbox.project.features import MAX_BYTES, MAX_FILES, FeatureFile
from ohsandbox.strict_json import load_json

if TYPE_CHECKING:
    from pathlib import Path

    import httpx

KEPT = "registry-features"
"""Directory below the state directory with layers by digest, and the digest of each reference of a project."""
MAX_LAYER_BYTES = MAX_BYTES + MAX_FILES * 1024
"""Maximum size of a layer: a tar adds a header of 512 bytes to each file, and fills its last block."""
_MAX_MANIFEST_BYTES = 64 * 1024
MAX_REDIRECTS = 3
"""Maximum number of redirects; a registry sends one to the location of its layers."""
TIMEOUT_S = 30.0
_TOTAL_S = 90.0
"""Time limit in seconds for one feature."""
_WANTS_LOGIN = "its registry wants a password, and none is sent. Copy the feature's directory here, as ./NAME."
_LAYER = "application/vnd.devcontainers.layer.v1+tar"
_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
_REFERENCE = re.compile(
    r"([a-z0-9][a-z0-9.-]{0,251}\.[a-z0-9]{1,63}(?::[0-9]{1,5})?|localhost:[0-9]{1,5})"
    r"/([a-z0-9][a-z0-9._/-]{0,254})(?::([A-Za-z0-9_][A-Za-z0-9_.-]{0,127})|@(sha256:[0-9a-f]{64}))?"
)
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_PARAMETER = re.compile(r'\b(realm|service)="([^"]{0,1000})"')


class _Reference(NamedTuple):
    """`HOST/PATH[:TAG]` or `HOST/PATH@sha256:...`."""

    host: str
    path: str
    version: str
    """A tag or a digest."""


def parse_reference(text: str) -> _Reference | None:
    """Parse a reference of a devcontainer.json; return None if it is not a feature of a registry."""
    found = _REFERENCE.fullmatch(text)
    if found is None or "//" in found[2] or ".." in found[2]:
        return None
    return _Reference(found[1], found[2], found[3] or found[4] or "latest")


def fetch_feature(project: Path, text: str) -> tuple[FeatureFile, ...]:
    """Return the files of a feature: as the project had them first, else from the registry.

    Raises:
        UsageError: text is not a reference, the registry does not answer or needs a password, or its answer is not a
            feature, is too large, or does not match its digest.
    """
    if (reference := parse_reference(text)) is None:
        raise UsageError(f"feature {text!r} is not a HOST/PATH:TAG of a registry. Correct it.")
    try:
        kept = subdirectory(KEPT)
        pin = kept / f"{hashlib.sha256(os.fsencode(project) + b'//' + text.encode()).hexdigest()}.json"
        if (layer := _kept_layer(kept, pin)) is None:
            digest, layer = _download(reference, text)
            write_atomically(kept / digest.partition(":")[2], layer)
            write_atomically(pin, json.dumps({"reference": text, "project": str(project), "layer": digest}).encode())
    except OSError as error:
        raise UsageError(
            f"feature {text!r} cannot be kept: {error.strerror}. Make the state directory writable."
        ) from None
    return _files_in(layer, text)


def _kept_layer(kept: Path, pin: Path) -> bytes | None:
    try:
        digest = str(load_json(read_regular(pin))["layer"])
        if not _DIGEST.fullmatch(digest):
            return None
        layer = read_regular(kept / digest.partition(":")[2], limit_bytes=MAX_LAYER_BYTES)
    except (OSError, ValueError, LookupError, TypeError):
        return None
    return layer if _digest(layer) == digest else None


def _digest(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def _download(reference: _Reference, text: str) -> tuple[str, bytes]:
    """Download a feature's layer; return its digest and content."""
    import httpx  # noqa: PLC0415 - slow, and few projects have a feature of a registry

    from ohsandbox.network.http_transport import UserTransport  # noqa: PLC0415 - slow: loads httpx

    registry = _Registry(reference, text)
    try:
        with httpx.Client(transport=UserTransport(), timeout=TIMEOUT_S, follow_redirects=False) as client:
            manifest = registry.get(client, f"manifests/{reference.version}", _MAX_MANIFEST_BYTES)
            if ":" in reference.version and _digest(manifest) != reference.version:
                raise registry.fault("what its registry sends has another digest. Correct the reference.")
            digest = registry.layer_of(manifest)
            layer = registry.get(client, f"blobs/{digest}", MAX_LAYER_BYTES)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise registry.fault(
            f"{reference.host} does not answer ({type(error).__name__}: {str(error)[:200]}). Try again."
        ) from None
    if _digest(layer) != digest:
        raise registry.fault("what its registry sends has another digest than its manifest says. Try again.")
    return digest, layer


class _Registry:
    """The registry of one feature, queried without the user's credentials."""

    def __init__(self, reference: _Reference, text: str) -> None:
        self._reference, self._text = reference, text
        self._token = ""
        self._until = time.monotonic() + _TOTAL_S

    def fault(self, told: str) -> UsageError:
        return UsageError(f"feature {self._text!r}: {told}")

    def get(self, client: httpx.Client, what: str, limit_bytes: int) -> bytes:
        """Return a manifest or a blob of the feature, with an anonymous token if the registry requires one."""
        url = f"https://{self._reference.host}/v2/{self._reference.path}/{what}"
        for number in range(MAX_REDIRECTS + 2):
            is_own = number == 0 or url.startswith(f"https://{self._reference.host}/")
            headers = {"accept": f"{_MANIFEST}, application/octet-stream", "accept-encoding": "identity"}
            if is_own and self._token:
                headers["authorization"] = f"Bearer {self._token}"
            with client.stream("GET", url, headers=headers) as answer:
                if answer.is_redirect:
                    url = str(answer.url.join(answer.headers.get("location", "")))
                    if not url.startswith("https://"):
                        raise self.fault("its registry leads to an address without https. Leave it out.")
                elif answer.status_code == HTTPStatus.UNAUTHORIZED and is_own and not self._token:
                    self._token = self._ask_token(client, answer.headers.get("www-authenticate", ""))
                elif answer.status_code != HTTPStatus.OK:
                    raise self.fault(f"{answer.url.host} answers {answer.status_code}. Correct its name or version.")
                else:
                    return self._body(answer, limit_bytes)
        raise self.fault(f"its registry redirects over {MAX_REDIRECTS} times. Leave it out.")

    def _ask_token(self, client: httpx.Client, challenge: str) -> str:
        """Return a token that the registry issues to everybody; only the host that the project names is asked."""
        asked = dict(_PARAMETER.findall(challenge))
        if not asked.get("realm", "").startswith(f"https://{self._reference.host}/"):
            raise self.fault(_WANTS_LOGIN)
        query = {"service": asked.get("service", ""), "scope": f"repository:{self._reference.path}:pull"}
        with client.stream("GET", asked["realm"], params=query, headers={"accept-encoding": "identity"}) as answer:
            if answer.status_code != HTTPStatus.OK:
                raise self.fault(
                    "its registry wants a password, which none is sent here. Copy its directory as ./NAME."
                )
            said = self._json(self._body(answer, _MAX_MANIFEST_BYTES))
        token = said.get("token", said.get("access_token"))
        if not isinstance(token, str) or not token.isascii() or not token.isprintable() or not token:
            raise self.fault("its registry gives no token. Try again.")
        return token

    def layer_of(self, manifest: bytes) -> str:
        """Return the digest of the manifest's only layer, which holds the feature."""
        layers = self._json(manifest).get("layers")
        found = [one for one in layers if isinstance(one, dict)] if isinstance(layers, list) else []
        digests = [one.get("digest") for one in found if one.get("mediaType") == _LAYER]
        if len(digests) != 1 or not isinstance(digests[0], str) or not _DIGEST.fullmatch(digests[0]):
            raise self.fault("what its registry has is not a feature. Correct its name.")
        return digests[0]

    def _json(self, data: bytes) -> dict[str, Any]:
        try:
            said = load_json(data)
        except ValueError:
            said = None
        if not isinstance(said, dict):
            raise self.fault("its registry sends what is not a JSON object. Try again.")
        return said

    def _body(self, answer: httpx.Response, limit_bytes: int) -> bytes:
        data = bytearray()
        for chunk in answer.iter_raw():
            data += chunk
            if len(data) > limit_bytes:
                raise self.fault(f"its registry sends over {limit_bytes:,} bytes. Leave it out.")
            if time.monotonic() > self._until:
                raise self.fault(f"its registry took over {_TOTAL_S:g} s. Try again.")
        return bytes(data)


def _files_in(layer: bytes, text: str) -> tuple[FeatureFile, ...]:
    """Return the files in a tar, in memory; refuse members other than plain files and directories below the top."""
    found: dict[str, FeatureFile] = {}
    left = MAX_BYTES
    try:
        with tarfile.open(fileobj=io.BytesIO(layer), mode="r:") as archive:
            for member in archive:
                path = os.path.normpath(member.name)
                left -= member.size
                if (why := _refused(member, path, left_bytes=left, files=len(found))) is not None:
                    break
                if member.isreg() and (file := archive.extractfile(member)) is not None:
                    found[path] = FeatureFile(path, bool(member.mode & 0o100), file.read())
            else:
                why = None
    except (tarfile.TarError, ValueError, OverflowError, EOFError, RecursionError):
        why = "what its registry sends is not a tar"
    if why is not None:
        raise UsageError(f"feature {text!r}: {why}. Leave it out.")
    return tuple(sorted(found.values()))


def _refused(member: tarfile.TarInfo, path: str, *, left_bytes: int, files: int) -> str | None:
    if path.startswith(("/", "..")) or "\0" in path or not (member.isreg() or member.isdir()) or member.issparse():
        return f"{member.name[:200]!r} is not a plain file of its own"
    if left_bytes < 0 or files >= MAX_FILES:
        return f"it has over {MAX_FILES} files or {MAX_BYTES} bytes"
    return None
