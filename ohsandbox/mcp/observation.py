"""`MCPToolObservation`: what a server's tool returned, bounded and in the shapes that a model takes."""

from __future__ import annotations

import base64
import binascii
import json
from typing import TYPE_CHECKING, Any

from ohsandbox.content import Content, ImageContent, TextContent
from ohsandbox.mcp.text import Mask, masked, one_line, printable
from ohsandbox.schema import Observation
from ohsandbox.tool import cut_middle

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mcp_types import CallToolResult, ContentBlock

MAX_RESULT_CHARS = 30_000
"""As much as a command's output."""

MAX_IMAGE_BYTES = 5 * 1024 * 1024
"""What the strictest provider takes."""

MAX_IMAGES = 20
"""In one result; each is a thousand tokens or more."""

MAX_BLOCKS = 200
"""Of one result; each bears a line of its own."""

_SIGNATURES = {
    b"\x89PNG\r\n\x1a\n": "image/png", b"\xff\xd8\xff": "image/jpeg", b"GIF87a": "image/gif", b"GIF89a": "image/gif",
}  # fmt: skip
"""First bytes of the formats that models read; WebP has its mark at the ninth."""


class MCPToolObservation(Observation):
    """The content of a result, in its order."""

    server: str
    tool: str
    content: tuple[Content, ...]
    structured: Any = None
    """The structured content as JSON has it; its text is in `content` already."""
    failed: bool = False
    """The server's `isError`."""

    @property
    def is_error(self) -> bool:
        """What the server says."""
        return self.failed

    @property
    def to_llm_content(self) -> Sequence[Content]:
        """The content; never empty."""
        return self.content or (TextContent(text=f"[{self.tool} returned nothing.]"),)


def observe(server: str, tool: str, result: CallToolResult, *, mask: Mask) -> MCPToolObservation:
    """The observation of a result; mask takes secrets out of every text."""
    content: list[Content] = []
    for block in result.content[:MAX_BLOCKS]:
        shown = _shown(block)
        if isinstance(shown, ImageContent) and sum(isinstance(part, ImageContent) for part in content) >= MAX_IMAGES:
            shown = TextContent(text=f"[image left out: at most {MAX_IMAGES} are shown]")
        content.append(shown)
    if (more := len(result.content) - MAX_BLOCKS) > 0:
        content.append(TextContent(text=f"[{more} more parts of {len(result.content)} left out]"))
    structured = masked(result.structured_content, mask)
    text = json.dumps(structured, ensure_ascii=False)
    if structured is not None and not _is_said(result.structured_content, content):
        content.append(TextContent(text=text))
    return MCPToolObservation(
        server=server, tool=tool, content=tuple(_bounded(content, mask)), failed=result.is_error,
        structured=structured if len(text) <= MAX_RESULT_CHARS else None,  # a longer one is in the content, cut
    )  # fmt: skip


def _shown(block: ContentBlock) -> Content:  # noqa: PLR0911 - one a kind
    if block.type == "text":
        return TextContent(text=block.text)
    if block.type == "image":
        return _image(block.data, said=block.mime_type)
    if block.type == "audio":
        kind = one_line(block.mime_type, limit_chars=100)
        return TextContent(text=f"[audio, {kind}, {_size(block.data)} bytes: it cannot be shown here]")
    if block.type == "resource_link":
        words = (one_line(text, limit_chars=2000) for text in (str(block.uri), block.name, block.description or ""))
        return TextContent(text=f"[link to a resource, not read: {' - '.join(filter(None, words))}]")
    resource = block.resource
    where = f"{one_line(str(resource.uri), limit_chars=2000)}, {one_line(resource.mime_type or '', limit_chars=100)}"
    if (text := getattr(resource, "text", None)) is not None:
        return TextContent(text=f"[resource {where}]\n{text}")
    blob: str = getattr(resource, "blob", "")
    if (resource.mime_type or "").startswith("image/"):
        return _image(blob, said=resource.mime_type or "")
    return TextContent(text=f"[resource {where}, {_size(blob)} bytes: binary, not shown]")


def _image(data: str, *, said: str) -> Content:
    """The image where its bytes are one, whatever the server calls it."""
    said = one_line(said, limit_chars=100)
    if _size(data) > MAX_IMAGE_BYTES:
        return TextContent(text=f"[image, {said}, {_size(data)} bytes: left out, at most {MAX_IMAGE_BYTES} are shown]")
    try:
        raw = base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError):
        return TextContent(text=f"[image, {said}: left out, its base64 is broken]")
    kind = next((kind for mark, kind in _SIGNATURES.items() if raw.startswith(mark)), None)
    if raw[:4] == b"RIFF" and raw[8:12] == b"WEBP":
        kind = "image/webp"
    if kind is None:
        return TextContent(text=f"[image, {said}, {len(raw)} bytes: left out, it is no PNG, JPEG, GIF or WebP]")
    return ImageContent(image_urls=(f"data:{kind};base64,{data}",))


def _size(encoded: str) -> int:
    return len(encoded) * 3 // 4


def _is_said(structured: Any, content: Sequence[Content]) -> bool:
    """Whether a text of the content is the structured content as JSON, as the protocol recommends.

    FastMCP's servers wrap a plain value as `{"result": value}` and say the value alone.
    """
    plain = structured["result"] if isinstance(structured, dict) and set(structured) == {"result"} else structured
    for part in content:
        if isinstance(part, TextContent):
            if part.text == plain:
                return True
            try:
                said = json.loads(part.text)
            except (ValueError, RecursionError):
                continue
            if said in (structured, plain):
                return True
    return False


def _bounded(content: Sequence[Content], mask: Mask) -> list[Content]:
    """Every text printable and masked; together at most MAX_RESULT_CHARS, each its fair share."""
    texts = [mask(printable(part.text)) for part in content if isinstance(part, TextContent)]
    share = MAX_RESULT_CHARS // max(1, len(texts)) if sum(map(len, texts)) > MAX_RESULT_CHARS else MAX_RESULT_CHARS
    left = iter(texts)
    made: list[Content] = []
    for part in content:
        if isinstance(part, TextContent):
            made.append(TextContent(text=cut_middle(next(left), limit_chars=share)))
        else:
            made.append(part)
    return made
