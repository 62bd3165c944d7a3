"""A separate program: HTML on stdin, Markdown on stdout. Its arguments: the page's address, the library's directory.

Without the library, the standard library's parser makes readable text: headings, paragraphs, items, links. It runs
separately so that a page that exhausts a parser exhausts a process that can be killed. Exit code 0 is success; with any
other there is no usable Markdown.
"""

from __future__ import annotations

import contextlib
import re
import resource
import sys
from html.parser import HTMLParser
from urllib.parse import urljoin

_MAX_MEMORY_BYTES = 2 * 1024**3
"""5 MiB of the worst tables took 700 MB."""


_HIDDEN = {"script", "style", "template", "noscript", "title"}
_BLOCKS = {"address", "article", "aside", "blockquote", "br", "caption", "dd", "div", "dl", "dt", "figure", "footer",
           "form", "header", "hr", "li", "main", "nav", "ol", "p", "pre", "section", "table", "tr", "ul"}  # fmt: skip
_HEADINGS = {f"h{level}": "#" * level + " " for level in range(1, 7)}


class _Text(HTMLParser):
    """Collects the text of a page, with a line for each block."""

    def __init__(self, url: str) -> None:
        super().__init__()
        self.pieces: list[str] = []
        self._url = url
        self._hidden: str | None = None
        self._in_pre = False
        self._links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if self._hidden is not None:
            return
        if tag in _HIDDEN:
            self._hidden = tag
        elif tag == "a":
            target = dict(attrs).get("href") or ""
            is_shown = bool(target) and not target.lower().startswith(("javascript:", "data:", "#"))
            self._links.append(_joined(self._url, target) if is_shown else "")
            self.pieces.append("[" if self._links[-1] else "")
        elif tag in {"td", "th"}:
            self.pieces.append(" | ")
        elif tag in _BLOCKS or tag in _HEADINGS:
            self.pieces.append("\n" + ("- " if tag == "li" else _HEADINGS.get(tag, "")))
        self._in_pre = self._in_pre or tag == "pre"

    def handle_endtag(self, tag: str) -> None:
        if self._hidden is not None:
            self._hidden = None if tag == self._hidden else self._hidden
            return
        if tag == "a" and self._links and (target := self._links.pop()):
            self.pieces.append(f"]({target})")
        elif tag in _HEADINGS or (tag in _BLOCKS and tag != "li"):
            self.pieces.append("\n")
        self._in_pre = self._in_pre and tag != "pre"

    def handle_data(self, data: str) -> None:
        if self._hidden is None:
            self.pieces.append(data if self._in_pre else re.sub(r"\s+", " ", data))


def readable(html: str, url: str) -> str:
    """The text of a page: headings with `#`, items with `-`, links with their absolute targets."""
    parser = _Text(url)
    parser.feed(html)
    parser.close()
    lines = (line.rstrip() for line in "".join(parser.pieces).split("\n"))
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip()


def _joined(url: str, target: str) -> str:
    try:
        return urljoin(url, target)
    except ValueError:  # for example http://[
        return target


def main() -> None:
    """Convert, or exit with an error."""
    html = sys.stdin.buffer.read().decode("utf-8", "replace")
    if not sys.argv[2:]:
        sys.stdout.buffer.write(readable(html, sys.argv[1]).encode("utf-8", "replace"))
        return
    sys.path += sys.argv[2:]  # of another user's or a --target installation, which isolated mode leaves out
    from html_to_markdown import ConversionOptions, convert  # noqa: PLC0415 - under the limit as well

    options = ConversionOptions(extract_metadata=False, base_url=sys.argv[1], inline_data_media="alt_text_only")
    result = convert(html, options)
    if result.warnings:  # such as that elements nested deeper than 1024 were left out
        sys.exit("; ".join(warning.message for warning in result.warnings)[:500])
    sys.stdout.buffer.write((result.content or "").encode("utf-8", "replace"))


if __name__ == "__main__":
    with contextlib.suppress(ValueError, OSError):  # a lower limit may be set already
        resource.setrlimit(resource.RLIMIT_AS, (_MAX_MEMORY_BYTES, _MAX_MEMORY_BYTES))
    main()
