"""Serves the live page of a conversation on the loopback address to those who have its token.

Every user and every web page of this machine can reach the port. Everything but the empty page needs a token, which
is in the fragment of the address that is printed: no browser sends that anywhere. The page sends it in a header, which
no other page can do without our consent (CORS), and a name of another machine that leads here (DNS rebinding) is
refused by the Host header. A cookie would be sent to servers on other ports as well.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import ipaddress
import json
import secrets
import threading
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import urlsplit

import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.responses import HTMLResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from ohsandbox.cli.rendering.text import safe_line
from ohsandbox.cli.viewer.changes_entry import changes_block
from ohsandbox.cli.viewer.connections import BATCH, PageListener
from ohsandbox.cli.viewer.control import PageAnswer
from ohsandbox.cli.viewer.entries import NetworkEntries, note_block
from ohsandbox.cli.viewer.page import LogFeed, content_policy, page
from ohsandbox.errors import OhsandboxError, UsageError
from ohsandbox.strict_json import load_json

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from starlette.requests import Request
    from starlette.types import ASGIApp, Receive, Scope, Send

    from ohsandbox.cli.viewer.control import PageControl

HOST = "127.0.0.1"
POLL_S = 0.25
"""Interval, in seconds, at which another process's log and the state of our own are checked."""
MAX_BODY_BYTES = 1024 * 1024
"""Largest message; a longer prompt should be a file."""
JOIN_S = 5.0
"""How long, in seconds, the end waits for open connections; a request that stops the agent may take longer."""
_MAX_ERROR_CHARS = 1000
_HEADERS = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}


class PageServer:
    """A `with` block during which a thread serves the page; `address` contains the token."""

    def __init__(
        self, directory: Path, control: PageControl, *, title: str, facts: str, port: int = 0, token: str = ""
    ) -> None:
        """Listen, without serving yet.

        Args:
            directory: the conversation's; its log need not exist yet.
            control: the page's actions.
            title: printable; "" if the conversation has none yet.
            facts: a printable line about it.
            port: 0 chooses a free port.
            token: the previous page's; "" makes a new one.

        Raises:
            UsageError: the port is taken or not permitted.
        """
        self._directory, self._control, self._title, self._facts = directory, control, title, facts
        self.token = token or secrets.token_urlsafe(32)
        self.is_followed = False
        """True if another page will follow at the same address, so that open pages wait for it."""
        try:
            self._listener = PageListener(HOST, port)
        except (OSError, OverflowError) as error:
            why = error.strerror if isinstance(error, OSError) else "it is not a port"
            raise UsageError(f"Nothing can listen on {HOST}:{port}: {why}. Name another --port.") from None
        self.port: int = self._listener.getsockname()[1]
        routes = [
            Route("/", self._page, methods=["GET"]),
            Route("/events", self._events, methods=["GET"]),
            *(Route(f"/{name}", self._summary, methods=["GET"]) for name in ("changes", "network")),
            *(Route(f"/{name}", self._act, methods=["POST"]) for name in ("answer", "say", "stop")),
        ]
        config = uvicorn.Config(
            _Guard(Starlette(routes=routes), self.token, self._listener), log_config=None, access_log=False,
            lifespan="off", server_header=False, proxy_headers=False, ws="none", http="h11", loop="asyncio",
            log_level="critical", backlog=BATCH, timeout_graceful_shutdown=1,
        )  # fmt: skip
        self._uvicorn = uvicorn.Server(config)
        self._changed = _Bell()
        self._now = ""
        self._one_at_a_time = asyncio.Lock()
        self._is_closing = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="ohsandbox-view", daemon=True)

    @property
    def address(self) -> str:
        """The address to open in a browser."""
        return f"http://{HOST}:{self.port}/#token={self.token}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_closing.set()
        self._changed.ring()
        self._uvicorn.should_exit = True
        self._thread.join(JOIN_S)
        self._listener.close()

    def notify(self, _event: object = None) -> None:
        """Notify pages at once that something happened; callable from any thread."""
        self._changed.ring()

    def show_now(self, text: str) -> None:
        """Show the printable text that is being written or printed now; callable from any thread."""
        self._now = text
        self._changed.ring()

    def _serve(self) -> None:
        self._uvicorn.run(sockets=[self._listener])

    # --- requests ---------------------------------------------------------------------------------

    async def _page(self, _: Request) -> Response:
        text = "".join(page("ohsandbox", "", (), live=True))  # it needs no token, so it says nothing
        policy = f"{content_policy(live=True)}; frame-ancestors 'none'"
        return HTMLResponse(text, headers={"Content-Security-Policy": policy})

    async def _events(self, _: Request) -> Response:
        return StreamingResponse(self._stream(), media_type="text/event-stream")

    async def _stream(self) -> AsyncIterator[str]:
        feed = LogFeed(self._directory)
        told = {"state": "", "now": _message("now", {"text": ""})}
        try:
            yield _message("about", {"title": self._title, "facts": self._facts})
            with self._changed.registered() as changed:
                while not self._is_closing.is_set():
                    changed.clear()
                    batches = iter(feed.new())
                    while (batch := await run_in_threadpool(next, batches, None)) is not None:
                        yield _message("entries", batch._asdict())
                    state = await run_in_threadpool(self._control.state)
                    for kind, value in (("state", state), ("now", {"text": self._now})):
                        if (message := _message(kind, value)) != told[kind]:
                            told[kind] = message
                            yield message
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(changed.wait(), POLL_S)
            if not self.is_followed:
                yield _message("end", {})
        finally:
            feed.close()

    async def _summary(self, request: Request) -> Response:
        """Return all changes or all network decisions, when somebody unfolds them."""
        async with self._one_at_a_time:
            return JSONResponse({"blocks": [await run_in_threadpool(self._block_of, request.url.path.strip("/"))]})

    def _block_of(self, which: str) -> dict[str, Any]:
        if which == "changes":
            return changes_block(self._directory) or note_block("changes", "Nothing was changed so far.")
        table = NetworkEntries(self._directory).table(0, 0)
        return note_block("network", "Nothing was asked for so far.") if table is None else table["blocks"][0]

    async def _act(self, request: Request) -> Response:
        try:
            body = load_json(await _body(request) or b"{}")
            await run_in_threadpool(self._do, request.url.path.strip("/"), body)
        except OhsandboxError as error:
            return JSONResponse({"error": safe_line(error, limit_chars=_MAX_ERROR_CHARS)}, 409)
        except (ValueError, KeyError, TypeError):  # a ValidationError is a ValueError
            return JSONResponse({"error": "The request cannot be read."}, 400)
        self._changed.ring()
        return JSONResponse({})

    def _do(self, act: str, body: dict[str, Any]) -> None:
        match act:
            case "answer":
                self._control.answer(PageAnswer.model_validate(body))
            case "say":
                text = body["text"]
                if not isinstance(text, str):
                    raise TypeError
                self._control.send_message(text)
            case _:
                self._control.stop()


def _message(kind: str, value: object) -> str:
    """Format an event for HTML's server-sent events."""
    return f"event: {kind}\ndata: {json.dumps(value)}\n\n"


async def _body(request: Request) -> bytes:
    body = bytearray()
    async for piece in request.stream():
        body += piece
        if len(body) > MAX_BODY_BYTES:
            raise ValueError
    return bytes(body)


class _Bell:
    """Wakes waiters in the server's loop from any thread."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._waiting: dict[asyncio.Event, asyncio.AbstractEventLoop] = {}

    @contextlib.contextmanager
    def registered(self) -> Iterator[asyncio.Event]:
        event = asyncio.Event()
        with self._guard:
            self._waiting[event] = asyncio.get_running_loop()
        try:
            yield event
        finally:
            with self._guard:
                del self._waiting[event]

    def ring(self) -> None:
        with self._guard:
            for event, loop in self._waiting.items():
                with contextlib.suppress(RuntimeError):  # the loop is closed
                    loop.call_soon_threadsafe(event.set)


# --- access ---------------------------------------------------------------------------------------


class _Guard:
    """Rejects requests that do not come from our own page, and adds the headers of every response."""

    def __init__(self, app: ASGIApp, token: str, listener: PageListener) -> None:
        self._app, self._token, self._listener = app, token, listener

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}

        async def add_headers(message: Any) -> None:
            if message["type"] == "http.response.start":
                more = [(name.lower().encode(), value.encode()) for name, value in _HEADERS.items()]
                message = {**message, "headers": [*message.get("headers", []), *more]}
            await send(message)

        refusal = self._refusal(scope["path"], headers)
        if refusal is None and scope["path"] != "/":
            self._listener.keep(scope["client"])
        answer: ASGIApp = refusal or self._app
        await answer(scope, receive, add_headers)

    def _refusal(self, path: str, headers: dict[str, str]) -> Response | None:
        host = headers.get("host", "")
        if not _is_loopback(host):
            return Response("Invalid Host header.\n", 421)
        if headers.get("origin", f"http://{host}") != f"http://{host}":
            return Response("Invalid Origin header.\n", 403)
        is_navigation = path == "/" and headers.get("sec-fetch-mode") == "navigate"  # from a file of ours, or any
        if not is_navigation and headers.get("sec-fetch-site", "none") not in {"none", "same-origin"}:
            return Response("Another page may not ask this.\n", 403)
        if path == "/":
            return None  # it is empty
        given = headers.get("authorization", "").removeprefix("Bearer ").encode("utf-8", "replace")
        if not hmac.compare_digest(given, self._token.encode()):
            return Response("The token is missing or wrong.\n", 401, {"WWW-Authenticate": "Bearer"})
        return None


def _is_loopback(host: str) -> bool:
    """Return whether a Host header names this machine's loopback interface."""
    with contextlib.suppress(ValueError):
        read = urlsplit(f"//{host}")
        name = read.hostname or ""
        is_plain = read.netloc == host and "@" not in host and (read.port is None or read.port >= 0)
        return is_plain and (name == "localhost" or ipaddress.ip_address(name).is_loopback)
    return False
