"""Implementation of `web_read`: a script fetches the page in the sandbox; it is converted here, and cached."""

from __future__ import annotations

import re
import threading
import time
from importlib.resources import files
from typing import TYPE_CHECKING, Literal, NamedTuple
from urllib.parse import quote, urljoin, urlsplit, urlunsplit

from ohsandbox.content import DEFAULT_LIMITS, OutputLimits
from ohsandbox.errors import ToolError
from ohsandbox.runtime.channel import Stream
from ohsandbox.schema import TextObservation
from ohsandbox.tool import ToolExecutor
from ohsandbox.tools.web_read.definition import (
    FETCH_TIMEOUT_S,
    MAX_PAGE_BYTES,
    MAX_REDIRECTS,
    MAX_URL_CHARS,
    WebReadAction,
)
from ohsandbox.tools.web_read.page import Fetched, Hop, Page, page_of

if TYPE_CHECKING:
    from ohsandbox.runtime.base import Runtime

_CACHED_PAGES = 4
"""Number of pages whose rest can be read without another fetch."""
CONNECT_TIMEOUT_S = 15
"""A reachable server answers within a second; a network that drops packets never does."""
_USER_AGENT = "Mozilla/5.0 (compatible; ohsandbox)"
"""The User-Agent header; some servers refuse clients whose header lacks this prefix."""
_MAX_HEADER_BYTES = 256 * 1024
"""Limit for all hops; curl itself accepts no more from one."""
SCRIPT = files("ohsandbox.tools.web_read").joinpath("fetch.sh").read_text("utf-8")

_STATUS = re.compile(r"HTTP/[0-9.]+ +([0-9]{3})(?: +(.*))?")
_PROGRAM = re.compile(r"fetched with: (\w+)")
_UNCHECKED = "TLS certificate validation not implemented"
"""busybox wget's message for https."""
_URL_CHARS = "/:;=@!$&'()*+,~%?-._[]"
_OK, _BAD_REQUEST = 200, 400


class WebReadExecutor(ToolExecutor[WebReadAction, TextObservation]):
    """Reads pages through a runtime; calls may run concurrently."""

    def __init__(self, runtime: Runtime, *, limits: OutputLimits = DEFAULT_LIMITS) -> None:
        self._runtime, self._limits = runtime, limits
        self._guard = threading.Lock()
        self._stops: set[threading.Event] = set()
        self._pages: dict[str, Page] = {}

    def __call__(self, action: WebReadAction) -> TextObservation:
        """Fetch the page, or read on in a cached one.

        Raises:
            ToolError: it cannot be fetched, is not text, or ends before offset.
            SandboxUnavailable: the sandbox is gone.
        """
        url, offset = checked_url(action.url), action.offset
        with self._guard:
            page = self._pages.get(url) if offset else None
            stop = threading.Event()
            self._stops.add(stop)
        try:
            page = page or page_of(fetch(self._runtime, url, stop))
        finally:
            with self._guard:
                self._stops.discard(stop)
        with self._guard:
            self._pages.pop(url, None)
            self._pages[url] = page
            while len(self._pages) > _CACHED_PAGES:
                del self._pages[next(iter(self._pages))]
        if offset and offset >= len(page.text):
            raise ToolError(f"{url} has {len(page.text)} characters; offset {offset} is behind its end.")
        properties = [f"Page {page.url}", f"title {page.title!r}" if page.title else "", page.kind]
        properties += [f"{len(page.text)} characters", *page.notes]
        part = page.text[offset : offset + self._limits.max_chars]
        remaining = len(page.text) - offset - len(part)
        remainder_note = (
            f"\n[... {remaining} characters left out here; read on with offset {offset + len(part)} ...]"
            if remaining
            else ""
        )
        return TextObservation(text=f"[{'; '.join(filter(None, properties))}]\n{part or '(no text)'}{remainder_note}")

    def interrupt(self) -> None:
        """End the running fetches."""
        with self._guard:
            for stop in self._stops:
                stop.set()


def checked_url(url: str) -> str:
    """Return the address as it is sent: a plain host, and non-ASCII characters percent-encoded.

    Raises:
        ToolError: it is not an http or https address.
    """
    text, reason = url.strip(), "expected http://HOST/ or https://HOST/ without blanks"
    try:
        parts = urlsplit(text)
        port, host = parts.port, parts.hostname or ""
        host = host if host.isascii() else host.encode("idna").decode()
    except (ValueError, UnicodeError) as error:
        parts, port, host, reason = urlsplit(""), None, "", str(error)
    if parts.scheme not in {"http", "https"} or not host or re.search(r"[\s\x00-\x20\x7f]", text):
        raise ToolError(f"Invalid address {url[:500]!r}: {reason}. Give one like https://example.org/page.")
    user, separator, _ = parts.netloc.rpartition("@")
    host_text = f"[{host}]" if ":" in host else host
    netloc = f"{quote(user, safe=':%')}{separator}{host_text}" + (f":{port}" if port is not None else "")
    path, query = quote(parts.path, safe=_URL_CHARS), quote(parts.query, safe=_URL_CHARS)
    return urlunsplit((parts.scheme, netloc, path, query, ""))


class Streams(NamedTuple):
    """The output of the script."""

    out: bytes
    err: str
    ended: Literal["whole", "late", "long", "stopped"]
    exit_code: int = 0


def fetch(runtime: Runtime, url: str, stop: threading.Event) -> Fetched:
    """Fetch the page at a url that `checked_url` accepted; stop ends it.

    Raises:
        ToolError: no response: no program to fetch with, no network, no such server, no answer in time, stopped.
        SandboxUnavailable: the sandbox is gone.
    """
    streams = _run_script(runtime, url, stop)
    program = match[1] if (match := _PROGRAM.match(streams.err)) else "nothing"
    if program in {"curl", "python3"}:
        hops, body = split_heads(streams.out)
    else:
        hops, body = parse_heads(streams.err), streams.out
    if streams.ended == "stopped":
        raise ToolError("The page was not read: the run was stopped.")
    if not hops or (not body and streams.exit_code and hops[-1].status < _BAD_REQUEST):
        raise ToolError(_failure(runtime, url, program, streams))
    for hop in hops[:-1]:
        url = joined(url, hop.headers.get("location", ""))
    return Fetched(url, hops[-1], body[:MAX_PAGE_BYTES], tuple(notes_of(streams, len(body))))


def _run_script(runtime: Runtime, url: str, stop: threading.Event) -> Streams:
    """Run the script to the end of both streams, or to the limit of size or time."""
    out, err = bytearray(), bytearray()
    deadline = time.monotonic() + FETCH_TIMEOUT_S
    argv = ["sh", "-c", SCRIPT, "sh", url, str(CONNECT_TIMEOUT_S), str(MAX_REDIRECTS), _USER_AGENT]
    with runtime.channel(argv) as channel:
        channel.close_stdin()
        while (chunks := channel.read(0.25)) != []:
            for chunk in chunks or ():
                (out if chunk.stream is Stream.STDOUT else err).extend(chunk.data)
            is_long = len(out) > MAX_PAGE_BYTES + _MAX_HEADER_BYTES or len(err) > _MAX_HEADER_BYTES
            if stop.is_set() or is_long or time.monotonic() > deadline:
                channel.kill()
                ended: Literal["stopped", "long", "late"] = (
                    "stopped" if stop.is_set() else "long" if is_long else "late"
                )
                return Streams(bytes(out), err.decode("utf-8", "replace"), ended)
        return Streams(bytes(out), err.decode("utf-8", "replace"), "whole", channel.wait(5))


def _failure(runtime: Runtime, url: str, program: str, streams: Streams) -> str:
    if program == "nothing":
        return (
            "The sandbox has nothing to fetch a page with. Install curl, wget or python3 in it, or use an image "
            "that has one."
        )
    if streams.ended == "late":
        return f"{url} did not answer within {FETCH_TIMEOUT_S:.0f} s. Try again later, or another address."
    lines = [line.strip() for line in streams.err.splitlines()[1:] if line.strip()]
    reason = (lines[-1] if lines else f"exit code {streams.exit_code}")[:500]
    message = f"{url} could not be fetched ({program}: {reason})."
    if runtime.describe().get("network", "").startswith("none"):
        return (
            f"{message} The sandbox has no network: only servers inside it can be reached. Whoever runs it can "
            "give it one: `--allow HOST`, or DockerRuntime(allow=['HOST'])."
        )
    return f"{message} Check the address; the sandbox reaches only what its network lets through."


def split_heads(data: bytes) -> tuple[list[Hop], bytes]:
    """Split into the heads of all hops and the body of the last: a redirect's own body is dropped."""
    hops: list[Hop] = []
    while data.startswith(b"HTTP/") and (not hops or hops[-1].status < _OK or _redirects(hops[-1])):
        head, end, tail = data.partition(b"\r\n\r\n")
        heads = parse_heads(head[:_MAX_HEADER_BYTES].decode("iso-8859-1"))
        if not end or not heads:
            break
        hops.append(heads[0])
        data = tail
    return [hop for hop in hops if hop.status >= _OK], data  # 1xx only announce a response


def parse_heads(text: str) -> list[Hop]:
    """Parse the heads in lines of text; other lines are skipped."""
    hops: list[Hop] = []
    for raw in text.split("\n"):
        line = raw.strip()
        if status := _STATUS.match(line):
            hops.append(Hop(int(status[1]), (status[2] or "").strip(), {}))
        elif hops and ":" in line:
            name, _, value = line.partition(":")
            hops[-1].headers[name.strip().lower()] = value.strip()
    return hops


def _redirects(hop: Hop) -> bool:
    return hop.status in {301, 302, 303, 307, 308} and "location" in hop.headers


def joined(base: str, target: str) -> str:
    """Resolve a redirect's target; base if it is invalid."""
    try:
        url = checked_url(urljoin(base, target))
    except (ValueError, ToolError):
        return base
    return url if len(url) <= MAX_URL_CHARS else base


def notes_of(streams: Streams, body_bytes: int) -> list[str]:
    """Return what the reader must know about an incomplete or unchecked page."""
    notes = []
    if streams.ended == "long" or body_bytes > MAX_PAGE_BYTES:
        notes.append(f"the page is longer than {MAX_PAGE_BYTES // 1024 // 1024} MiB and was cut there")
    elif streams.ended == "late":
        notes.append(f"the page was not complete after {FETCH_TIMEOUT_S:.0f} s; this is its beginning")
    elif streams.exit_code:
        notes.append("the connection broke; this is the beginning of the page")
    if _UNCHECKED in streams.err:
        notes.append("the server's certificate could not be checked: busybox wget cannot")
    return notes
