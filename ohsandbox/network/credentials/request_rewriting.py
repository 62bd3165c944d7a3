"""Rewriting of requests to a credential's host and of the answers: status lines and headers."""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import h11

from ohsandbox.network.credentials.echo_mask import masked

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ohsandbox.network.credentials.credentials import Credential
    from ohsandbox.secrets import Masker

Headers: TypeAlias = list[tuple[bytes, bytes]]

_HOP = frozenset(
    b"connection keep-alive proxy-connection proxy-authorization proxy-authenticate te upgrade alt-svc".split()
)
"""Headers of one connection (RFC 9110, 7.6.1), and `Alt-Svc`, which offers QUIC: the proxy cannot carry that."""
_FRAMING = frozenset((b"host", b"content-length", b"transfer-encoding", b"trailer", b"expect"))
"""Headers that determine how a message is parsed; they stay even if `Connection` names them."""
_CREDENTIALS = frozenset(
    (
        b"authorization x-api-key api-key x-goog-api-key private-token job-token deploy-token x-auth-token x-auth-key "
        b"x-access-token x-api-token x-vault-token"
    ).split()
)
"""Headers that could hold another key, with which a sandbox could send data to another account of the host."""
_REFUSED_METHODS = frozenset((b"TRACE", b"TRACK", b"CONNECT"))
"""The answer to TRACE and TRACK is the request itself, with the credential."""


class CredentialRefusal(NamedTuple):
    """An answer of the proxy itself."""

    status: HTTPStatus
    text: str


def outgoing(
    request: h11.Request, host: str, port: int, credential: Credential | None
) -> h11.Request | CredentialRefusal:
    """Return the request to send to the host, or the refusal to send to the sandbox."""
    names = [name for name, _ in request.headers]
    if request.method.upper() in _REFUSED_METHODS:
        reason = f"{request.method.decode()} is refused: its answer would show the credential"
        return CredentialRefusal(HTTPStatus.METHOD_NOT_ALLOWED, reason)
    if not request.target.startswith(b"/") and (request.method, request.target) != (b"OPTIONS", b"*"):
        return CredentialRefusal(HTTPStatus.BAD_REQUEST, "the target of a request must be a path")
    hosts = [value.decode("latin-1").lower() for name, value in request.headers if name == b"host"]
    if hosts not in ([host], [f"{host}:{port}"]):
        reason = f"this connection is for {host} alone, and the request's Host is another; open another connection"
        return CredentialRefusal(HTTPStatus.MISDIRECTED_REQUEST, reason)
    if b"content-length" in names and b"transfer-encoding" in names:
        return CredentialRefusal(HTTPStatus.BAD_REQUEST, "a request has Content-Length or Transfer-Encoding, not both")
    own_header = credential.header.encode() if credential is not None else b""
    dropped = {b"host", b"accept-encoding"} | ({b"sec-websocket-extensions"} if _is_websocket(request) else set())
    kept_headers = [
        pair for pair in _passed(request.headers) if pair[0] not in dropped and not _is_credential(pair[0], own_header)
    ]
    # compressed answers cannot be searched for an echo of the credential
    headers = [(b"host", hosts[0].encode()), *kept_headers, (b"accept-encoding", b"identity")]
    if _is_websocket(request):
        headers += [(b"connection", b"Upgrade"), (b"upgrade", b"websocket")]
    if credential is not None:
        headers.append((own_header, credential.header_value))
    return h11.Request(method=request.method, target=request.target, headers=headers)


def request_trailers(trailers: Iterable[tuple[bytes, bytes]]) -> Headers:
    """Return the trailers that may pass: no credentials, and no headers that determine how a message is parsed."""
    return [pair for pair in trailers if pair[0] not in _HOP | _FRAMING and not _is_credential(pair[0])]


def answered(
    answer: h11.Response | h11.InformationalResponse, masker: Masker
) -> h11.Response | h11.InformationalResponse:
    """Return the head of an answer for the sandbox."""
    headers = _passed(answer.headers)
    if any(name == b"transfer-encoding" for name, _ in headers):
        headers = [pair for pair in headers if pair[0] != b"content-length"]
    if answer.status_code == HTTPStatus.SWITCHING_PROTOCOLS:
        headers += [(b"connection", b"Upgrade"), (b"upgrade", b"websocket")]
    kind = type(answer)
    return kind(
        status_code=answer.status_code, headers=masked_headers(headers, masker), reason=masked(masker, answer.reason)
    )


def masked_headers(headers: Iterable[tuple[bytes, bytes]], masker: Masker) -> Headers:
    """Return the headers of an answer with masked values."""
    return [(name, masked(masker, value)) for name, value in headers]


def _passed(headers: Iterable[tuple[bytes, bytes]]) -> Headers:
    """Return the headers without those of one connection and those that `Connection` names."""
    pairs = list(headers)
    connection_headers = {
        token.strip().lower() for name, value in pairs if name == b"connection" for token in value.split(b",")
    }
    return [
        (name, value)
        for name, value in pairs
        if name not in _HOP and (name in _FRAMING or name not in connection_headers)
    ]


def _is_credential(name: bytes, own_header: bytes = b"") -> bool:
    """Whether a header may contain a key; some servers read `X_Api_Key` as `X-Api-Key`."""
    plain = name.replace(b"_", b"-")
    return plain in _CREDENTIALS or plain == own_header.replace(b"_", b"-")


def _is_websocket(request: h11.Request) -> bool:
    upgrade_headers = {name: value.lower() for name, value in request.headers if name in {b"connection", b"upgrade"}}
    return b"upgrade" in upgrade_headers.get(b"connection", b"") and upgrade_headers.get(b"upgrade") == b"websocket"
