"""Fetches a page from inside the sandbox: runs a script there and reads its two streams here."""

from __future__ import annotations

import re
import threading
import time
from dataclasses import dataclass, field
from importlib.resources import files
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import quote, urljoin, urlsplit, urlunsplit

from ohsandbox.errors import ToolError
from ohsandbox.runtime.channel import Stream
from ohsandbox.tools.web_read.definition import FETCH_TIMEOUT_S, MAX_PAGE_BYTES, MAX_REDIRECTS, MAX_URL_CHARS

if TYPE_CHECKING:
    from ohsandbox.runtime.base import Runtime
    from ohsandbox.runtime.channel import Channel

CONNECT_TIMEOUT_S = 15
"""A reachable server answers within a second; a network that drops packets never does."""

USER_AGENT = "Mozilla/5.0 (compatible; ohsandbox)"
"""Some servers refuse agents without this prefix."""

MAX_HEADER_BYTES = 256 * 1024
"""Limit for all hops; curl itself accepts no more from one."""

SCRIPT = files("ohsandbox.tools.web_read").joinpath("fetch.sh").read_text("utf-8")

_STATUS = re.compile(r"HTTP/[0-9.]+ +([0-9]{3})(?: +(.*))?")
_TOLD = re.compile(r"fetched with: (\w+)")
_UNCHECKED = "TLS certificate validation not implemented"
"""busybox wget's message for https."""


class Hop(NamedTuple):
    """The head of one response."""

    status: int
    reason: str
    headers: dict[str, str]
    """Names in lower case; the last value of a name."""


class Fetched(NamedTuple):
    """The fetched page."""

    url: str
    """The URL after all redirects."""
    hop: Hop
    body: bytes
    notes: tuple[str, ...]
    """Notes for the reader."""


@dataclass
class _Streams:
    out: bytearray = field(default_factory=bytearray)
    err: bytearray = field(default_factory=bytearray)
    ended: str = "whole"
    """'whole', 'late', 'long' or 'stopped'."""
    exit_code: int = 0


class Fetcher:
    """Fetches pages through a runtime; thread-safe."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._guard = threading.Lock()
        self._stops: set[threading.Event] = set()

    def interrupt(self) -> None:
        """End every running fetch."""
        with self._guard:
            for stop in self._stops:
                stop.set()

    def fetch(self, url: str) -> Fetched:
        """Fetch the page at a url that `checked` accepted.

        Raises:
            ToolError: no response: no program to fetch with, no network, no such server, no answer in time, stopped.
            SandboxUnavailable: the sandbox is gone.
        """
        streams = self._streams(url)
        said = streams.err.decode("utf-8", "replace")
        program = told[1] if (told := _TOLD.match(said)) else "nothing"
        if program in {"curl", "python3"}:
            hops, body = _split(bytes(streams.out))
        else:
            hops, body = _hops(said), bytes(streams.out)
        if streams.ended == "stopped":
            raise ToolError("The page was not read: the run was stopped.")
        if not hops or (not body and streams.exit_code and hops[-1].status < 400):  # noqa: PLR2004 - of HTTP
            raise ToolError(self._failure(url, program, said, streams))
        for hop in hops[:-1]:
            url = _joined(url, hop.headers.get("location", ""))
        return Fetched(url, hops[-1], body[:MAX_PAGE_BYTES], tuple(_notes(streams, said, len(body))))

    def _streams(self, url: str) -> _Streams:
        stop = threading.Event()
        with self._guard:
            self._stops.add(stop)
        argv = ["sh", "-c", SCRIPT, "sh", url, str(CONNECT_TIMEOUT_S), str(MAX_REDIRECTS), USER_AGENT]
        try:
            with self._runtime.channel(argv) as channel:
                return _read(channel, stop)
        finally:
            with self._guard:
                self._stops.discard(stop)

    def _failure(self, url: str, program: str, said: str, streams: _Streams) -> str:
        if program == "nothing":
            return (
                "The sandbox has nothing to fetch a page with. Install curl, wget or python3 in it, or use an image "
                "that has one."
            )
        if streams.ended == "late":
            return f"{url} did not answer within {FETCH_TIMEOUT_S:.0f} s. Try again later, or another address."
        lines = [line.strip() for line in said.splitlines()[1:] if line.strip()]
        reason = (lines[-1] if lines else f"exit code {streams.exit_code}")[:500]
        message = f"{url} could not be fetched ({program}: {reason})."
        if self._runtime.describe().get("network", "").startswith("none"):
            return (
                f"{message} The sandbox has no network: only servers inside it can be reached. Whoever runs it can "
                "give it one: `--network open`, or DockerRuntime(network='open')."
            )
        return f"{message} Check the address; the sandbox reaches only what its network lets through."


def checked(url: str) -> str:
    """Return the address as it is sent: a plain host, and non-ASCII characters percent-encoded.

    Raises:
        ToolError: it is no http or https address.
    """
    text = url.strip()
    try:
        parts = urlsplit(text)
        port = parts.port
        host = (
            (parts.hostname or "").encode("idna").decode() if not (parts.hostname or "").isascii() else parts.hostname
        )
    except (ValueError, UnicodeError) as error:
        raise ToolError(f"{url!r} is no address: {error}. Give one like https://example.org/page.") from None
    if parts.scheme not in {"http", "https"} or not host or re.search(r"[\s\x00-\x20\x7f]", text):
        raise ToolError(f"{url[:500]!r} is not an http or https address. Give one like https://example.org/page.")
    user, at, _ = parts.netloc.rpartition("@")
    shown = f"[{host}]" if ":" in host else host
    place = f"{quote(user, safe=':%')}{at}{shown}" + (f":{port}" if port is not None else "")
    safe = "/:;=@!$&'()*+,~%?-._[]"
    return urlunsplit((parts.scheme, place, quote(parts.path, safe=safe), quote(parts.query, safe=safe), ""))


def _read(channel: Channel, stop: threading.Event) -> _Streams:
    """Read both streams to their end, or to the limit of size or time."""
    streams = _Streams()
    channel.close_stdin()
    deadline = time.monotonic() + FETCH_TIMEOUT_S
    while True:
        chunks = channel.read(0.25)
        if chunks == []:
            streams.exit_code = channel.wait(5)
            return streams
        for chunk in chunks or ():
            (streams.out if chunk.stream is Stream.STDOUT else streams.err).extend(chunk.data)
        if stop.is_set():
            streams.ended = "stopped"
        elif len(streams.out) > MAX_PAGE_BYTES + MAX_HEADER_BYTES or len(streams.err) > MAX_HEADER_BYTES:
            streams.ended = "long"
        elif time.monotonic() > deadline:
            streams.ended = "late"
        else:
            continue
        channel.kill()
        return streams


def _split(data: bytes) -> tuple[list[Hop], bytes]:
    """Split into the heads of all hops and the body of the last: a redirect's own body is dropped."""
    hops: list[Hop] = []
    while data.startswith(b"HTTP/") and (not hops or hops[-1].status < 200 or _redirects(hops[-1])):  # noqa: PLR2004
        head, end, rest = data.partition(b"\r\n\r\n")
        found = _hops(head[:MAX_HEADER_BYTES].decode("iso-8859-1"))
        if not end or not found:
            break
        hops.append(found[0])
        data = rest
    return [hop for hop in hops if hop.status >= 200], data  # noqa: PLR2004 - 1xx only announce a response


def _hops(text: str) -> list[Hop]:
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


def _joined(base: str, target: str) -> str:
    """Resolve a redirect's target; base if it is invalid."""
    try:
        url = checked(urljoin(base, target))
    except (ValueError, ToolError):
        return base
    return url if len(url) <= MAX_URL_CHARS else base


def _notes(streams: _Streams, said: str, body_bytes: int) -> list[str]:
    notes = []
    if streams.ended == "long" or body_bytes > MAX_PAGE_BYTES:
        notes.append(f"the page is longer than {MAX_PAGE_BYTES // 1024 // 1024} MiB and was cut there")
    elif streams.ended == "late":
        notes.append(f"the page was not complete after {FETCH_TIMEOUT_S:.0f} s; this is its beginning")
    elif streams.exit_code:
        notes.append("the connection broke; this is the beginning of the page")
    if _UNCHECKED in said:
        notes.append("the server's certificate could not be checked: busybox wget cannot")
    return notes
