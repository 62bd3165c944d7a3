"""Content that a model can be shown (text and images), and the limits on its size."""

from __future__ import annotations

import base64
import re
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from ohsandbox.arguments import ConfigModel, expect_texts
from ohsandbox.errors import UsageError
from ohsandbox.text import cut_middle

if TYPE_CHECKING:
    from collections.abc import Sequence


class TextContent(BaseModel):
    """A piece of text."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    type: Literal["text"] = "text"
    text: str

    def to_llm_dict(self) -> dict[str, Any]:
        """The content part in OpenAI's form."""
        return {"type": "text", "text": self.text}


class ImageContent(BaseModel):
    """One or more images, each given as a `data:` or `https:` URL."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    type: Literal["image"] = "image"
    image_urls: tuple[str, ...]

    def to_llm_dict(self) -> list[dict[str, Any]]:
        """The content parts in OpenAI's form, one for each image."""
        return [{"type": "image_url", "image_url": {"url": url}} for url in self.image_urls]


Content = TextContent | ImageContent


class OutputLimits(ConfigModel):
    """Limits on how much of a tool's result is shown: one policy for built-in tools and MCP servers, ours included."""

    max_chars: int = Field(default=30_000, ge=1_000, le=1_000_000)
    """Largest text of a result of a built-in tool or an MCP server: about 8,000 tokens, enough for a long test report,
    but not for a log file. Longer text is cut, and the cut states how much is left out."""
    max_result_chars: int = Field(default=100_000, ge=1_000, le=10_000_000)
    """Largest text of any result: a plug-in's tool need not cut its own."""
    max_images: int = Field(default=8, ge=0, le=100)
    """Most images of one result; each costs a model some 1,500 tokens."""
    max_image_chars: int = Field(default=5 * 1024 * 1024, gt=0)
    """Largest size of one image as a data URL; the default is the limit of Anthropic's API (docs, "Vision", 2025)."""

    def fill(self, description: str) -> str:
        """Return the description of a tool with each `{max_chars}` replaced by the limit."""
        return description.replace("{max_chars}", str(self.max_chars))

    def fit(self, content: Sequence[Content]) -> tuple[str, list[str]]:
        """Return a result's text, cut in the middle and with a line for images left out.

        And the URLs of those shown.
        """
        urls = [url for part in content if isinstance(part, ImageContent) for url in part.image_urls]
        fitting = [url for url in urls if len(url) <= self.max_image_chars]
        texts = [part.text for part in content if isinstance(part, TextContent)]
        if len(fitting) < len(urls):
            too_large = f"over {self.max_image_chars / 1024 / 1024:g} MiB"
            texts.append(f"[{len(urls) - len(fitting)} image(s) {too_large} left out]")
        if len(fitting) > self.max_images:
            excess = len(fitting) - self.max_images
            texts.append(f"[{excess} more image(s) left out; at most {self.max_images} are shown]")
        return cut_middle("\n".join(texts), limit_chars=self.max_result_chars), fitting[: self.max_images]

    def check_images(self, urls: Sequence[str]) -> None:
        """Check the images of a user's message.

        Raises:
            UsageError: one is not a data URL of an image that models read, or they are too many, or one is too large.
        """
        expect_texts("images", urls)
        if len(urls) > self.max_images:
            raise UsageError(f"{len(urls)} images, more than {self.max_images}. Send fewer in one message.")
        for url in urls:
            if not _IMAGE_URL.match(url):
                raise UsageError(f"images: {url[:40]!r} is not a data URL of a picture. Use PNG, JPEG, GIF or WebP.")
            if len(url) > self.max_image_chars:
                size = f"{len(url) / 1024 / 1024:.1f} MiB as text, more than {self.max_image_chars / 1024 / 1024:g}"
                raise UsageError(f"An image has {size} MiB. Make it smaller.")


DEFAULT_LIMITS = OutputLimits()
_IMAGE_URL = re.compile(r"data:image/(?:png|jpeg|gif|webp);base64,[A-Za-z0-9+/]")


def image_url(data: bytes) -> str | None:
    """Return the data URL of an image in a format that models read; None for other data."""
    kind = image_type(data)
    return kind and f"data:{kind};base64,{base64.b64encode(data).decode()}"


_IMAGE_SIGNATURES = {
    b"\x89PNG\r\n\x1a\n": "image/png", b"\xff\xd8\xff": "image/jpeg", b"GIF87a": "image/gif", b"GIF89a": "image/gif",
}  # fmt: skip


def image_type(data: bytes) -> str | None:
    """The MIME type of an image that models read (PNG, JPEG, GIF, WebP), by its first bytes; None for other data."""
    if data.startswith(b"RIFF") and data[8:12] == b"WEBP":
        return "image/webp"
    return next((kind for signature, kind in _IMAGE_SIGNATURES.items() if data.startswith(signature)), None)
