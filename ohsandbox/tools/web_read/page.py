"""Converts a fetched body to text: media type, encoding, and HTML to Markdown."""

from __future__ import annotations

import codecs
import html
import importlib.util
import re
import subprocess
import sys
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from ohsandbox import host_programs
from ohsandbox.errors import ToolError
from ohsandbox.tools.web_read.definition import CONVERTER, MAX_PAGE_BYTES

if TYPE_CHECKING:
    from collections.abc import Mapping

CONVERT_TIMEOUT_S = 10.0
"""5 MiB of the worst HTML we know takes 3 s."""
_MAX_KIND_CHARS = 100
"""Limit of a media type; a longer one is invalid."""
HEAD_BYTES = 4096
"""The part that may declare a page's encoding and type (HTML standard: the first 1024)."""
_PROGRAM = Path(__file__).with_name("convert.py")

_TEXT = re.compile(
    r"text/.*|application/(?:.*\+)?(?:json|xml|yaml|toml)|application/(?:json5?|ndjson|jsonl|x-ndjson|(?:x-)?javascript"
    r"|ecmascript|x-yaml|x-sh|sql|graphql|x-www-form-urlencoded|x-tex|rtf)|message/.*"
)
_UNTOLD = {"", "application/octet-stream", "binary/octet-stream", "application/unknown", "unknown/unknown"}
_LOOKS_LIKE_HTML = re.compile(rb"<(?:!doctype\s+html|html|head|body)[\s>]", re.IGNORECASE)
_META_CHARSET = re.compile(rb"<meta[^<>]{0,300}?charset\s*=\s*[\"']?([\w:.-]{1,40})", re.IGNORECASE)
_CHARSET = re.compile(r"charset\s*=\s*[\"']?([\w:.-]{1,40})", re.IGNORECASE)
_MARKS = ((codecs.BOM_UTF8, "utf-8-sig"), (codecs.BOM_UTF32_LE, "utf-32"), (codecs.BOM_UTF32_BE, "utf-32"),
          (codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16"))  # fmt: skip
_NO_CHARSETS = {"idna", "punycode", "unicode_escape", "raw_unicode_escape", "undefined", "utf-7", "mbcs", "oem"}
"""Python codecs that no page uses; some take quadratic time."""
_TITLE = re.compile(r"<title[^<>]{0,200}>([^<]{0,2000})", re.IGNORECASE)
_SCRIPTS = re.compile(r"<(script|style|template|noscript)\b[^<>]*>.*?(?:</\1\s*>|\Z)", re.IGNORECASE | re.DOTALL)
_TAGS = re.compile(r"<[^<>]*>")


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


class Page(NamedTuple):
    """The text for the model."""

    url: str
    kind: str
    """The media type, as found."""
    title: str
    text: str
    notes: tuple[str, ...]


def page_of(fetched: Fetched) -> Page:
    """Convert the page to text.

    Raises:
        ToolError: the server refused, or the body is not text.
    """
    hop = fetched.hop
    if not 200 <= hop.status < 300:  # noqa: PLR2004 - of HTTP
        reason = ". Check the address." if hop.status >= 400 else ", and no page."  # noqa: PLR2004
        raise ToolError(f"{fetched.url} answered {hop.status} {hop.reason[:200]}".rstrip() + reason)
    body, notes = _unpacked(fetched.body, hop.headers), list(fetched.notes)
    kind = _kind(body, hop.headers, url=fetched.url)
    text = _decoded(body, hop.headers.get("content-type", ""), is_html=kind == "text/html")
    if kind != "text/html":
        return Page(fetched.url, kind, "", text, tuple(notes))
    markdown = _markdown(text, fetched.url)
    if importlib.util.find_spec(CONVERTER) is None:
        notes.append("plain text with its links; for tables as Markdown, the host needs `pip install 'ohsandbox[web]'`")
    if markdown is None:
        notes.append("the page could not be converted; this is its bare text, without links")
    title = _TITLE.search(text[: 64 * HEAD_BYTES])
    shown_title = " ".join(_plain(title[1]).split())[:300] if title else ""
    return Page(fetched.url, kind, shown_title, bare_text(text) if markdown is None else markdown, tuple(notes))


def _unpacked(body: bytes, headers: Mapping[str, str]) -> bytes:
    """Decompress a body compressed without request, at most MAX_PAGE_BYTES of it."""
    encoding = headers.get("content-encoding", "identity").lower()
    if encoding in {"identity", ""}:
        return body
    if encoding not in {"gzip", "x-gzip", "deflate"}:
        raise ToolError(f"The server sent the page compressed as {encoding[:50]!r}, which cannot be read here.")
    try:
        wbits = zlib.MAX_WBITS | 32 if encoding != "deflate" or body[:1] == b"\x78" else -zlib.MAX_WBITS
        return zlib.decompressobj(wbits).decompress(body, MAX_PAGE_BYTES)
    except zlib.error as error:
        raise ToolError(f"The server sent a damaged page: {error}.") from None


def _kind(body: bytes, headers: Mapping[str, str], *, url: str) -> str:
    """The media type, if it is a text type.

    Raises:
        ToolError: it is not a text type.
    """
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()[:_MAX_KIND_CHARS]
    head = body[:HEAD_BYTES]
    if kind in {"text/html", "application/xhtml+xml"} or (kind in _UNTOLD and _LOOKS_LIKE_HTML.search(head)):
        return "text/html"
    is_pdf = head.startswith(b"%PDF-")
    is_binary = b"\0" in head and not head.startswith(tuple(mark for mark, _ in _MARKS))
    if not is_binary and not is_pdf and (_TEXT.fullmatch(kind) or kind in _UNTOLD):
        return kind or "text/plain"
    description = "a PDF" if is_pdf or kind == "application/pdf" else f"{kind or 'binary'} data"
    raise ToolError(
        f"{url} is {description}, {len(body)} bytes, and no text. Download it with execute_bash (curl -o) and open it "
        "with a program for it."
    )


def _decoded(body: bytes, content_type: str, *, is_html: bool) -> str:
    for mark, name in _MARKS:
        if body.startswith(mark):
            return body.decode(name, "replace")
    match = _CHARSET.search(content_type)
    meta = _META_CHARSET.search(body[:HEAD_BYTES]) if is_html else None
    name = match[1] if match else meta[1].decode() if meta else ""
    try:
        codec = codecs.lookup(name).name if name else ""
        if codec and codec not in _NO_CHARSETS:
            # HTML standard, "Names and labels": pages that say Latin-1 or ASCII are windows-1252
            return body.decode("cp1252" if codec in {"iso8859-1", "ascii"} else codec, "replace")
    except LookupError:  # also for codecs that are not text encodings
        pass
    try:
        return body.decode()
    except UnicodeDecodeError as error:
        is_truncated = (
            len(body) >= MAX_PAGE_BYTES and error.start > len(body) - 4
        )  # the text ends in the middle of a character
        return body.decode("utf-8" if is_truncated else "cp1252", "replace")


def _markdown(text: str, url: str) -> str | None:
    """The page as Markdown; None if the converter failed, took too long or found nothing in a page with text."""
    library = importlib.util.find_spec(CONVERTER)
    places = [] if library is None or library.origin is None else [str(Path(library.origin).parents[1])]
    try:
        result = host_programs.run(
            [sys.executable, "-I", str(_PROGRAM), url, *places],
            input=text.encode("utf-8", "replace"),
            capture_output=True,
            timeout=CONVERT_TIMEOUT_S,
            check=False,
            cwd="/",
            env={},  # the parser of a hostile page gets no key to leak, and no variable that loads code
        )
    except subprocess.TimeoutExpired:
        return None
    markdown: str = result.stdout.decode("utf-8", "replace").strip()
    if result.returncode or (not markdown and bare_text(text)):
        return None
    return markdown


def bare_text(text: str) -> str:
    """Remove the tags of HTML; linear time for any input."""
    lines = (line.strip() for line in _plain(_TAGS.sub(" ", _SCRIPTS.sub(" ", text))).split("\n"))
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip()


def _plain(text: str) -> str:
    """Replace the text's character references."""
    try:
        return html.unescape(text)
    except ValueError:  # a number of more than 4300 digits, which Python rejects
        return text
