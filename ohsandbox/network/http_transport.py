"""HTTP from this process: each request through the user's proxy and by the user's certificates. Imports httpx."""

from __future__ import annotations

import ssl
import threading
from typing import Any

import httpx

from ohsandbox.network.tls import client_context
from ohsandbox.network.user_proxies import proxy_fault, proxy_url


class UserTransport(httpx.BaseTransport):
    """Sends requests as `client_context` and `proxy_url` say. Thread-safe.

    Certificates are loaded at the first request that needs them: not for plain http.
    """

    def __init__(self, verify: ssl.SSLContext | str | bool | None = None, **options: Any) -> None:  # noqa: FBT001 - httpx's own
        """Create it without connections; verify None is `client_context`, options go to `httpx.HTTPTransport`."""
        self._verify, self._options = verify, options
        self._lock = threading.Lock()
        self._transports: dict[tuple[bool, str | None], httpx.HTTPTransport] = {}

    def prepare(self, url: httpx.URL) -> httpx.HTTPTransport:
        """Return the transport for a URL; this does not connect.

        Raises:
            UsageError: a proxy's URL cannot be used, or certificates that a variable names cannot be read.
        """
        proxy, is_tls = proxy_url(url.scheme, url.host), url.scheme == "https"
        with self._lock:
            if (is_tls, proxy) not in self._transports:
                self._transports[is_tls, proxy] = self._created(proxy, is_tls=is_tls)
            return self._transports[is_tls, proxy]

    def _created(self, proxy: str | None, *, is_tls: bool) -> httpx.HTTPTransport:
        verify = self._verify
        if verify is None:  # an empty context trusts nobody
            needed = is_tls or (proxy or "").startswith("https:")
            verify = client_context() if needed else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        if proxy is None:
            return httpx.HTTPTransport(verify=verify, **self._options)
        try:
            context = verify if isinstance(verify, ssl.SSLContext) and proxy.startswith("https:") else None
            through = httpx.Proxy(proxy, ssl_context=context)
            return httpx.HTTPTransport(verify=verify, proxy=through, **self._options)
        except (ValueError, httpx.InvalidURL, ImportError) as error:
            raise proxy_fault(proxy, error) from None

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Send one request."""
        return self.prepare(request.url).handle_request(request)

    def close(self) -> None:
        """Close all connections."""
        for transport in self._transports.values():
            transport.close()
