"""Events as Markdown, for an exported file that a person reads."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ohsandbox.cli.rendering.events import (
    Block,
    CallBlock,
    Form,
    ImagesBlock,
    MessageBlock,
    NoteBlock,
    ResultBlock,
    ThoughtBlock,
    TurnBlock,
    blocks_of,
)
from ohsandbox.cli.rendering.text import safe

if TYPE_CHECKING:
    from ohsandbox.events import SDKEvent

_LONG_FENCE = re.compile(r"`{3,}")
_IMAGE = re.compile(r"data:image/[a-z0-9.+-]+;base64,[A-Za-z0-9+/=]+")


def markdown(event: SDKEvent) -> list[str]:
    """The event's paragraphs; none for what a reader does not miss."""
    return [part for block in blocks_of(event, Form.EXPORTED) for part in _paragraphs(block, event)]


def fenced(text: str) -> str:
    """A code block that text cannot end."""
    longest = max(map(len, _LONG_FENCE.findall(text)), default=2)
    fence = "`" * (longest + 1)
    return f"{fence}\n{text.rstrip(chr(10))}\n{fence}"


def _paragraphs(block: Block, event: SDKEvent) -> list[str]:
    parts: list[str] = []
    match block:
        case TurnBlock(speaker):
            parts = [f"## {speaker}, {event.ts.astimezone():%H:%M:%S}"]
        case MessageBlock(raw) | ThoughtBlock(raw):
            parts = [safe(raw)]
        case CallBlock(text=text, is_answer=True):
            parts = [text]
        case CallBlock(text=text, name=name):
            parts = [f"**{name}**\n\n{fenced(text)}"]
        case ResultBlock(text, ending):
            parts = [", ".join(filter(None, ["Result", ending])) + ":", fenced(text)]
        case ImagesBlock(urls):
            parts = [_image(url) for url in urls]
        case NoteBlock(kind, text, details):
            parts = [f"> {kind}: {text}" if block.is_warning else f"> {text}", *([fenced(details)] if details else [])]
    return parts


def _image(url: str) -> str:
    return f"![An image that the tool returned]({url})" if _IMAGE.fullmatch(url) else "(an image)"
