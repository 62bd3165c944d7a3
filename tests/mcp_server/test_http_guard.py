"""Who may talk to the HTTP server."""

from __future__ import annotations

import pytest
from starlette.datastructures import Headers

from ohsandbox.errors import UsageError
from ohsandbox.mcp_server.http import HttpGuard, ListenAddress

TOKEN = "0123456789abcdef"
OPEN, CLOSED = HttpGuard(), HttpGuard(TOKEN)
BEARER = {"authorization": f"Bearer {TOKEN}"}


@pytest.mark.parametrize(
    ("guard", "headers", "status"),
    [
        (OPEN, {"host": "127.0.0.1:80"}, None),
        (OPEN, {"host": "[::1]:80"}, None),
        (OPEN, {"host": "LocalHost"}, None),
        (OPEN, {"host": "127.0.0.1", "origin": "http://localhost:6274"}, None),
        (OPEN, {"host": "rebound.example:80"}, 421),
        (OPEN, {"host": "127.0.0.1.example"}, 421),
        (OPEN, {"host": "127.0.0.1@evil.example"}, 421),
        (OPEN, {"host": "[::1"}, 421),
        (OPEN, {}, 421),
        (OPEN, {"host": "127.0.0.1", "origin": "http://evil.example"}, 403),
        (OPEN, {"host": "127.0.0.1", "origin": "null"}, 403),
        (OPEN, {"host": "127.0.0.1", "origin": "http://localhost.evil.example"}, 403),
        (CLOSED, {"host": "box.example", **BEARER}, None),
        (CLOSED, {"host": "box.example", "origin": "https://box.example", **BEARER}, None),
        (CLOSED, {"host": "box.example", "authorization": f"bearer {TOKEN}"}, None),
        (CLOSED, {"host": "box.example", "origin": "https://evil.example", **BEARER}, 403),
        (CLOSED, {"host": "127.0.0.1"}, 401),
        (CLOSED, {"host": "127.0.0.1", "authorization": "Bearer "}, 401),
        (CLOSED, {"host": "127.0.0.1", "authorization": f"Basic {TOKEN}"}, 401),
        (CLOSED, {"host": "127.0.0.1", "authorization": f"Bearer {TOKEN}\xff"}, 401),
    ],
)
def test_refusals(guard: HttpGuard, headers: dict[str, str], status: int | None) -> None:
    refusal = guard.refusal(Headers(headers))
    assert (refusal.status_code if refusal else None) == status


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("8000", ("127.0.0.1", 8000)),
        ("0.0.0.0:1", ("0.0.0.0", 1)),
        ("[::1]:2", ("::1", 2)),
        ("box:0", ("box", 0)),
    ],
)
def test_addresses(text: str, address: tuple[str, int]) -> None:
    assert ListenAddress.parse(text) == address


@pytest.mark.parametrize("text", ["", "host", "host:", "1:x", "65536", "-1", "٣"])
def test_what_is_no_address(text: str) -> None:
    with pytest.raises(UsageError, match="PORT"):
        ListenAddress.parse(text)
