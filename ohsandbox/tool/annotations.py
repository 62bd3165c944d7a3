"""What a tool says of its effects (`ToolAnnotations`, in the words of MCP) and of a call (`CallHint`, in the log)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field


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


class CallHint(BaseModel):
    """What a reader of the log is told of a call without making its tool: how to show it, and whether it writes."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    sign: str = Field(default=".", min_length=1, max_length=1)
    """One character: `$` a command, `>` input, `%` a Python cell, `+` a file written, `~` one changed, `<` one read,
    `?` a search, `@` a web page, `&` a sub-agent, `*` a thought, `.` anything else."""
    subject: str = ""
    """The argument, a text, that tells what the call is about; empty shows all arguments."""
    note: str = ""
    """Shown after the subject; from a newline on, on lines of its own."""
    writes: bool = True
    """The call may change files of the sandbox, so they are kept before it."""
    destructive: bool = False
    """The tool says outright that it may overwrite or delete."""
    answers: bool = False
    """The subject is the agent's answer to the person."""
    needs_agent: bool = False
    """Of no use to an MCP client, which has a model and a person of its own."""


Hint = CallHint | Callable[[Mapping[str, Any]], CallHint]
"""Of every call, or by its arguments, which may be anything where they come from a log."""


def counted_lines(text: object) -> str:
    """`(1 line)`, `(20 lines)`; of anything but a text, of none."""
    count = len(text.splitlines()) if isinstance(text, str) else 0
    return "(1 line)" if count == 1 else f"({count} lines)"
