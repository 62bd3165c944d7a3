"""`ToolAnnotations`: what a tool says of its own effects, in the words of MCP."""

from __future__ import annotations

from typing import Self

from pydantic import BaseModel, ConfigDict


class ToolAnnotations(BaseModel):
    """Hints of the Model Context Protocol (revision 2025-06-18); the defaults are the protocol's, the cautious ones."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    title: str | None = None
    """The name for a person's eyes."""
    readOnlyHint: bool = False  # noqa: N815 - the protocol's spelling
    """The tool changes nothing."""
    destructiveHint: bool = True  # noqa: N815 - the protocol's spelling
    """It may overwrite or delete; only meaningful where it is not read-only."""
    idempotentHint: bool = False  # noqa: N815 - the protocol's spelling
    """A second call with the same arguments changes nothing more."""
    openWorldHint: bool = True  # noqa: N815 - the protocol's spelling
    """It reaches beyond a closed set of things: networks, other programs."""

    @classmethod
    def reading(cls, title: str, *, open_world: bool = False) -> Self:
        """Of a tool that only looks, and finds the same when asked again."""
        return cls(title=title, readOnlyHint=True, destructiveHint=False, idempotentHint=True, openWorldHint=open_world)
