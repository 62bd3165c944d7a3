"""What a model can be shown: text and images."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict


class TextContent(BaseModel):
    """A piece of text."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    type: Literal["text"] = "text"
    text: str

    def to_llm_dict(self) -> dict[str, Any]:
        """The OpenAI-shaped content part."""
        return {"type": "text", "text": self.text}


class ImageContent(BaseModel):
    """One or more images, each a `data:` or `https:` URL."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    type: Literal["image"] = "image"
    image_urls: tuple[str, ...]

    def to_llm_dict(self) -> list[dict[str, Any]]:
        """The OpenAI-shaped content parts, one an image."""
        return [{"type": "image_url", "image_url": {"url": url}} for url in self.image_urls]


Content = TextContent | ImageContent
