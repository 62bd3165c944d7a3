"""The HTTP client for requests to providers. Imports httpx: import this module at first use only."""

from __future__ import annotations

import contextlib
import json
import socket
import ssl
import weakref
import zlib
from functools import partial
from typing import TYPE_CHECKING, Any

import httpx

from ohsandbox.errors import UsageError
from ohsandbox.llm import error_mapping
from ohsandbox.llm.provider import Attempt, current_attempt
from ohsandbox.llm.response_parsing import repair_response
from ohsandbox.network.http_transport import UserTransport
from ohsandbox.network.user_proxies import is_loopback
from ohsandbox.strict_json import load_json

if TYPE_CHECKING:
    from collections.abc import Iterator

_LIMIT_BYTES = 32 * 1024 * 1024
"""Limit of a decompressed body; the longest answers of today's models are under 1 MiB."""
_STREAM_LIMIT_BYTES = 4 * _LIMIT_BYTES
"""Limit of a stream: each token travels in some 250 bytes of JSON."""
_HEAD_BYTES = 512
_KEEPALIVE_S = 60.0
"""How long idle connections stay open: httpx's 5 s are less than most tools take; a TLS handshake costs two round
trips."""
LITELLM_TLS = ("SSL_VERIFY", "SSL_SECURITY_LEVEL", "SSL_ECDH_CURVE")
"""Variables of TLS that litellm obeys and httpx does not."""
_CREDENTIAL_HEADERS = ("authorization", "api-key", "x-api-key", "x-goog-api-key")


class ResponseRefused(httpx.HTTPError):
    """We stopped reading; the Attempt holds the reason."""


class BoundedClient:
    """A client that follows no redirect, limits what it reads, and can be cut off from another thread.

    It follows no redirect because httpx removes `Authorization` for another host but not `x-api-key`, and because a 307
    sends the conversation there. It uses the environment's proxies.
    """

    def __init__(self, verify: ssl.SSLContext | str | bool | None = None) -> None:  # noqa: FBT001 - httpx's own
        """Verify certificates by verify; by default by `client_context`."""
        self._sockets: weakref.WeakSet[socket.socket] = weakref.WeakSet()
        self._transport = _Transport(verify, limits=httpx.Limits(keepalive_expiry=_KEEPALIVE_S))
        self.client = httpx.Client(
            transport=self._transport,
            follow_redirects=False,
            event_hooks={"request": [self._before], "response": [_after]},
        )

    def prepare(self, url: str) -> None:
        """Load what a connection to url needs; errors are told by the request itself."""
        with contextlib.suppress(UsageError, httpx.InvalidURL):
            self._transport.prepare(httpx.URL(url))

    def abort(self) -> None:
        """Break every connection; readers get an error. The client can be used again."""
        for each in list(self._sockets):
            try:
                socket.socket.shutdown(each, socket.SHUT_RDWR)
            except OSError:
                continue  # closed already

    def _before(self, request: httpx.Request) -> None:
        request.headers["accept-encoding"] = "identity"
        request.extensions["trace"] = partial(self._trace, {})
        values = (request.headers.get(name, "") for name in _CREDENTIAL_HEADERS)
        attempt = current_attempt()
        attempt.asked = True
        attempt.secrets.update(value.removeprefix("Bearer ") for value in values if value)

    def _trace(self, request: dict[str, Any], event: str, info: dict[str, Any]) -> None:
        """Store each connection that is opened: before the answer comes, httpcore shows its socket nowhere else.

        asked holds the address of a request's connection, for the message if it fails.
        """
        if event.endswith("connect_tcp.started"):
            request.update(info)
        if event.endswith(("connect_tcp.failed", "start_tls.failed")):
            record_failure(info["exception"], host=str(request.get("host")), port=request.get("port"))
        if event.endswith(("connect_tcp.complete", "start_tls.complete")):
            self._sockets.add(info["return_value"].get_extra_info("socket"))


class _Transport(UserTransport):
    """Records why a request was not sent: the clients of litellm keep no cause."""

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        attempt = current_attempt()
        try:
            return super().handle_request(request)
        except UsageError as error:
            attempt.refusal, attempt.location = error_mapping.NETWORK_SETTING, str(error).rstrip(".")
            raise httpx.ConnectError(str(error)) from None
        except httpx.ProxyError as error:
            if "407" in str(error):
                attempt.refusal, attempt.location = error_mapping.PROXY_LOGIN, str(error)
            raise


def record_failure(error: BaseException | None, *, host: str = "", port: int | None = None) -> None:
    """Record why no connection came about in the attempt, by the system's error behind error, if it says what to do.

    An attempt that has an answer, or a reason, keeps it. For a client that is not ours host is that of httpx's error.
    """
    attempt, seen = current_attempt(), set[int]()
    while error is not None and id(error) not in seen and attempt.status is None and attempt.refusal is None:
        seen.add(id(error))
        if not host and isinstance(error, httpx.RequestError):
            with contextlib.suppress(RuntimeError):  # it has no request
                host, port = error.request.url.host, error.request.url.port
        address = host if port is None else f"{host}:{port}"
        if isinstance(error, ssl.SSLCertVerificationError):
            attempt.refusal = error_mapping.CERTIFICATE
            attempt.location = f"{address}: {error.verify_message or error}"
        elif isinstance(error, socket.gaierror):
            attempt.refusal, attempt.location = error_mapping.UNRESOLVED, host
        elif isinstance(error, ConnectionRefusedError) and is_loopback(host):
            attempt.refusal, attempt.location = error_mapping.REFUSED, address
        error = error.__cause__ or error.__context__


_MAX_VALUES = 300_000
"""Limit of objects, lists and strings of an answer: 32 MiB of empty objects would take 700 MB; an answer has
hundreds."""


def _after(response: httpx.Response) -> None:
    """Record the response in the attempt, and put our limited reader between the connection and the parser."""
    attempt = current_attempt()
    attempt.status = response.status_code
    attempt.retry_after = response.headers.get("retry-after")
    attempt.location = response.headers.get("location", "")
    attempt.content_type = response.headers.get("content-type", "")
    encoding = response.headers.pop("content-encoding", "identity")
    if encoding not in {"identity", "gzip", "deflate"}:
        attempt.refusal = error_mapping.COMPRESSED
        raise ResponseRefused(encoding)
    assert isinstance(response.stream, httpx.SyncByteStream)  # noqa: S101 - the client is synchronous
    limit = _STREAM_LIMIT_BYTES if "event-stream" in attempt.content_type else _LIMIT_BYTES
    body = _Body(response.stream, attempt, limit_bytes=limit, compressed=encoding != "identity")
    response.stream = _mended(body, attempt) if is_json(response) else body


def is_json(response: httpx.Response) -> bool:
    """Whether the response is one JSON document; JSON Lines and similar types are streams."""
    media_type = response.headers.get("content-type", "").partition(";")[0].strip().lower()
    return response.is_success and (media_type == "application/json" or media_type.endswith("+json"))


def _mended(body: _Body, attempt: Attempt) -> httpx.SyncByteStream:
    """Return the whole body, repaired; unchanged if it is not JSON."""
    raw = b"".join(body)
    body.close()
    if raw.count(b"{") + raw.count(b"[") + raw.count(b'"') // 2 > _MAX_VALUES:
        attempt.refusal = error_mapping.TOO_LARGE
        raise ResponseRefused("values")
    try:
        return httpx.ByteStream(json.dumps(repair_response(load_json(raw))).encode())
    except (ValueError, RecursionError):
        return httpx.ByteStream(raw)


class _Body(httpx.SyncByteStream):
    """A body of which at most limit_bytes are read, counted after decompression: 32 KiB of gzip can hold 32 MiB."""

    def __init__(self, source: httpx.SyncByteStream, attempt: Attempt, *, limit_bytes: int, compressed: bool) -> None:
        self._source = source
        self._attempt = attempt
        self._limit_bytes = limit_bytes
        self._decoder = zlib.decompressobj(wbits=47) if compressed else None  # 47: gzip or zlib, by its header

    def __iter__(self) -> Iterator[bytes]:
        left_bytes = self._limit_bytes
        for raw in self._received():
            data = self._decoder.decompress(raw, left_bytes + 1) if self._decoder else raw
            left_bytes -= max(len(raw), len(data))  # what follows the compressed data is not data
            if left_bytes < 0:
                self._attempt.refusal = error_mapping.TOO_LARGE
                raise ResponseRefused("body")
            self._attempt.head += data[: _HEAD_BYTES - len(self._attempt.head)]
            yield data
            if self._decoder and self._decoder.eof:
                return  # the decoder would keep all that follows

    def _received(self) -> Iterator[bytes]:
        try:
            yield from self._source
        except httpx.TimeoutException:
            raise
        except httpx.TransportError:
            self._attempt.refusal = error_mapping.CUT
            raise

    def close(self) -> None:
        self._source.close()
