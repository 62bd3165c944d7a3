"""Texts and results of a server, cleaned, masked and limited for models and users."""

from __future__ import annotations

import base64
import binascii
import json
import math
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ohsandbox.content import DEFAULT_LIMITS, Content, ImageContent, OutputLimits, TextContent, image_type
from ohsandbox.runtime.shell.terminal import without_controls
from ohsandbox.schema import Observation
from ohsandbox.strict_json import load_json
from ohsandbox.text import encodable
from ohsandbox.tool import cut_middle

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from mcp_types import CallToolResult, ContentBlock


MAX_IMAGE_BYTES = 5 * 1024 * 1024
"""Maximum size of an image in bytes, as of the strictest provider."""

MAX_IMAGES = 20
"""Maximum number per result; each image costs a thousand tokens or more."""

MAX_BLOCKS = 200
"""Maximum number per result; each block takes at least one line."""

Mask = Callable[[str], str]
"""Replaces the secrets in a text."""

_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\U000e0000-\U000e007f]")
"""C0 except newline and tab, C1, and the tag characters, which encode invisible ASCII."""

_HIDDEN = re.compile(
    "[\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e\u2060-\u206f"
    "\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb\U0001d173-\U0001d17a\U000e0100-\U000e01ef]"
)
"""Zero-width characters, direction overrides, fillers and variation selectors, which no honest description needs."""


def printable(text: str) -> str:
    r"""Return text without control sequences and control characters; `\r\n` becomes `\n`."""
    return _CONTROLS.sub("", without_controls(encodable(text).encode()))


def visible_excerpt(text: str, *, limit_chars: int) -> str:
    """Return text as `printable` does, without characters that hide or reorder text, and cut with a note."""
    cleaned = _HIDDEN.sub("", printable(text)).strip()
    if len(cleaned) <= limit_chars:
        return cleaned
    return f"{cleaned[:limit_chars]} [... {len(cleaned) - limit_chars} more characters left out]"


def visible_line(text: str, *, limit_chars: int) -> str:
    """Return text as `visible_excerpt` does, on one line."""
    return visible_excerpt(" ".join(printable(text).split()), limit_chars=limit_chars)


def masked_value(value: Any, mask: Mask) -> Any:
    """Return the value with secrets masked in keys, texts and numbers, and without numbers that JSON does not have."""
    if isinstance(value, dict):
        return {mask(key): masked_value(item, mask) for key, item in value.items()}
    if isinstance(value, list):
        return [masked_value(item, mask) for item in value]
    if isinstance(value, str):
        return mask(value)
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, int | float) and not isinstance(value, bool):
        return value if mask(str(value)) == str(value) else mask(str(value))
    return value


class MCPToolObservation(Observation):
    """The result of a call: its contents, in order."""

    server: str
    tool: str
    content: tuple[Content, ...]
    structured: Any = None
    """The structured content as JSON values; `content` has it as text."""
    failed: bool = False
    """The field `isError` of the result."""

    @property
    def is_error(self) -> bool:
        """Whether the server reported an error."""
        return self.failed

    @property
    def to_llm_content(self) -> Sequence[Content]:
        """The content; never empty."""
        return self.content or (TextContent(text=f"[{self.tool} returned nothing.]"),)


def observe(
    server: str, tool: str, result: CallToolResult, *, mask: Mask, limits: OutputLimits = DEFAULT_LIMITS
) -> MCPToolObservation:
    """Return the observation of a result; mask removes secrets from all texts."""
    content: list[Content] = []
    for block in result.content[:MAX_BLOCKS]:
        part = _shown(block)
        if isinstance(part, ImageContent) and sum(isinstance(part, ImageContent) for part in content) >= MAX_IMAGES:
            part = TextContent(text=f"[image left out: at most {MAX_IMAGES} are shown]")
        content.append(part)
    if (more := len(result.content) - MAX_BLOCKS) > 0:
        content.append(TextContent(text=f"[{more} more parts of {len(result.content)} left out]"))
    structured = masked_value(result.structured_content, mask)
    text = json.dumps(structured, ensure_ascii=False)
    if structured is not None and not _is_in_text(result.structured_content, content):
        repeated = {block.data if hasattr(block, "data") else getattr(block, "text", "") for block in result.content}
        unseen = _without_repeated(result.structured_content, repeated)
        content.append(TextContent(text=json.dumps(masked_value(unseen, mask), ensure_ascii=False)))
    return MCPToolObservation(
        server=server, tool=tool, content=tuple(_bounded(content, mask, limits.max_chars)), failed=result.is_error,
        structured=structured if len(text) <= limits.max_chars else None,  # the content holds a longer one, truncated
    )  # fmt: skip


def _shown(block: ContentBlock) -> Content:  # noqa: PLR0911 - one a kind
    if block.type == "text":
        return TextContent(text=block.text)
    if block.type == "image":
        return _image(block.data, stated_type=block.mime_type)
    if block.type == "audio":
        kind = visible_line(block.mime_type, limit_chars=100)
        return TextContent(text=f"[audio, {kind}, {_size(block.data)} bytes: it cannot be shown here]")
    if block.type == "resource_link":
        words = (visible_line(text, limit_chars=2000) for text in (str(block.uri), block.name, block.description or ""))
        return TextContent(text=f"[link to a resource, not read: {' - '.join(filter(None, words))}]")
    resource = block.resource
    kind = visible_line(resource.mime_type or "", limit_chars=100)
    description = f"{visible_line(str(resource.uri), limit_chars=2000)}, {kind}"
    if (text := getattr(resource, "text", None)) is not None:
        return TextContent(text=f"[resource {description}]\n{text}")
    blob: str = getattr(resource, "blob", "")
    if (resource.mime_type or "").startswith("image/"):
        return _image(blob, stated_type=resource.mime_type or "")
    return TextContent(text=f"[resource {description}, {_size(blob)} bytes: binary, not shown]")


def _image(data: str, *, stated_type: str) -> Content:
    """Return the image if the bytes are one, whatever MIME type the server states; else a text about it."""
    stated_type = visible_line(stated_type, limit_chars=100)
    if _size(data) > MAX_IMAGE_BYTES:
        return TextContent(
            text=f"[image, {stated_type}, {_size(data)} bytes: left out, at most {MAX_IMAGE_BYTES} are shown]"
        )
    try:
        raw = base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError):
        return TextContent(text=f"[image, {stated_type}: left out, its base64 is broken]")
    if (kind := image_type(raw)) is None:
        return TextContent(text=f"[image, {stated_type}, {len(raw)} bytes: left out, not a PNG, JPEG, GIF or WebP]")
    return ImageContent(image_urls=(f"data:{kind};base64,{data}",))


def _size(encoded: str) -> int:
    return len(encoded) * 3 // 4


_MIN_REPEATED_CHARS = 100
"""Length of a text from which the structured content refers to the content for it: less costs no more than the note."""


def _is_in_text(structured: Any, content: Sequence[Content]) -> bool:
    """Whether the texts of the content are the structured content, as JSON or as they are.

    The protocol recommends one text of all its JSON. Servers also wrap their text as an object of one field (FastMCP as
    `{"result": text}`, server-filesystem as `{"content": text}`), and send a text for each item of such a list.
    """
    values = [structured]
    if isinstance(structured, dict) and len(structured) == 1:
        values += structured.values()
    readings = [_readings(part.text) for part in content if isinstance(part, TextContent)]
    return any(_as_json(value) in reading for reading in readings for value in values) or any(
        isinstance(value, list)
        and bool(readings)
        and len(value) == len(readings)
        and all(_as_json(item) in reading for item, reading in zip(value, readings, strict=True))
        for value in values
    )


def _readings(text: str) -> list[str]:
    """Return the text, and the JSON value in it if it is one, both in the form of `_as_json`."""
    try:
        return [_as_json(text), _as_json(load_json(text))]
    except ValueError:
        return [_as_json(text)]


def _as_json(value: Any) -> str:
    """Return a text that two values share only if they are equal in JSON, where false is not 0."""
    return json.dumps(value, sort_keys=True)


def _without_repeated(value: Any, repeated: Collection[str]) -> Any:
    """Return the value with a note in place of each long text that the content has as well."""
    if isinstance(value, dict):
        return {key: _without_repeated(item, repeated) for key, item in value.items()}
    if isinstance(value, list):
        return [_without_repeated(item, repeated) for item in value]
    if isinstance(value, str) and len(value) >= _MIN_REPEATED_CHARS and value in repeated:
        return "[see above]"
    return value


def _bounded(content: Sequence[Content], mask: Mask, limit_chars: int) -> list[Content]:
    """Return the content with all texts cleaned and masked; each gets an equal share of limit_chars."""
    texts = [mask(printable(part.text)) for part in content if isinstance(part, TextContent)]
    share = limit_chars // max(1, len(texts)) if sum(map(len, texts)) > limit_chars else limit_chars
    shortened = iter(texts)
    parts: list[Content] = []
    for part in content:
        if isinstance(part, TextContent):
            parts.append(TextContent(text=cut_middle(next(shortened), limit_chars=share)))
        else:
            parts.append(part)
    return parts
