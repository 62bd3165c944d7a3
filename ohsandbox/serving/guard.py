"""Who may talk to the HTTP server."""

from __future__ import annotations

import hmac
import ipaddress
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from starlette.responses import Response

if TYPE_CHECKING:
    from starlette.datastructures import Headers

BEARER = "bearer "


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches it."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


@dataclass(frozen=True)
class Guard:
    """Refuses web pages of others, and whoever does not know the token where there is one."""

    token: str = ""

    def refusal(self, headers: Headers) -> Response | None:
        """What to answer instead; None lets the request pass.

        Without a token the Host must be this machine's own: a page whose name was rebound to 127.0.0.1 sends its own
        (DNS rebinding). A page may only call from this machine or from the very host that it calls.
        """
        host = _hostname(f"//{headers.get('host', '')}")
        if not self.token and not is_loopback(host):
            return Response("Invalid Host header.\n", status_code=421)
        origin = headers.get("origin")
        if origin is not None and not (is_loopback(_hostname(origin)) or (host and _hostname(origin) == host)):
            return Response("Invalid Origin header.\n", status_code=403)
        if self.token and not self._knows(headers.get("authorization", "")):
            return Response("The bearer token is missing or wrong.\n", 401, {"WWW-Authenticate": "Bearer"})
        return None

    def _knows(self, authorization: str) -> bool:
        given = authorization[len(BEARER) :] if authorization.lower().startswith(BEARER) else ""
        return hmac.compare_digest(given.strip().encode("utf-8", "replace"), self.token.encode())


def _hostname(url: str) -> str:
    try:
        return (urlsplit(url).hostname or "").lower()
    except ValueError:
        return ""
