"""The HTTP client for requests to providers. Imports httpx: import this module at first use only."""

from __future__ import annotations

import ipaddress
import json
import os
import socket
import weakref
import zlib
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

import httpx

from ohsandbox.llm import error_mapping
from ohsandbox.llm.provider import Attempt, current_attempt
from ohsandbox.llm.response_parsing import repair_response

if TYPE_CHECKING:
    import ssl
    from collections.abc import Iterator

_LIMIT_BYTES = 32 * 1024 * 1024
"""Limit of a decompressed body; the longest answers of today's models are under 1 MiB."""
_STREAM_LIMIT_BYTES = 4 * _LIMIT_BYTES
"""Limit of a stream: each token travels in some 250 bytes of JSON."""
_HEAD_BYTES = 512
_KEEPALIVE_S = 60.0
"""How long idle connections stay open: httpx's 5 s are less than most tools take; a TLS handshake costs two round
trips."""
_CREDENTIAL_HEADERS = ("authorization", "api-key", "x-api-key", "x-goog-api-key")


class ResponseRefused(httpx.HTTPError):
    """We stopped reading; the Attempt holds the reason."""


class BoundedClient:
    """A client that follows no redirect, limits what it reads, and can be cut off from another thread.

    It follows no redirect because httpx removes `Authorization` for another host but not `x-api-key`, and because a 307
    sends the conversation there. It uses the environment's proxies.
    """

    def __init__(self, verify: ssl.SSLContext | str | bool | None = None) -> None:  # noqa: FBT001 - httpx's own
        """Verify certificates by verify; by default as httpx does, with one TLS context for all clients."""
        if verify is None:
            verify = _tls_context(os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR"))
        self._sockets: weakref.WeakSet[socket.socket] = weakref.WeakSet()
        self.client = httpx.Client(
            verify=verify,
            follow_redirects=False,
            limits=httpx.Limits(keepalive_expiry=_KEEPALIVE_S),
            event_hooks={"request": [self._before], "response": [_after]},
        )

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
        if event == "connection.connect_tcp.started":
            request.update(info)
        if (
            event == "connection.connect_tcp.failed"
            and _is_refused(info["exception"])
            and _is_loopback(request["host"])
        ):
            attempt = current_attempt()
            attempt.refusal, attempt.location = error_mapping.REFUSED, f"{request['host']}:{request['port']}"
        if event in {"connection.connect_tcp.complete", "connection.start_tls.complete"}:
            self._sockets.add(info["return_value"].get_extra_info("socket"))


@lru_cache(maxsize=4)
def _tls_context(*_places: str | None) -> ssl.SSLContext:
    """Return httpx's TLS context for these values of SSL_CERT_FILE and SSL_CERT_DIR; to load one takes 22 ms."""
    return httpx.create_ssl_context()


def _is_refused(error: BaseException) -> bool:
    return any(isinstance(cause, ConnectionRefusedError) for cause in (error, error.__cause__, error.__context__))


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


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
        return httpx.ByteStream(json.dumps(repair_response(json.loads(raw))).encode())
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
