"""A tool's description of its effects (`ToolAnnotations`, as in MCP) and of a call (`CallHint`, in the log)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field


class ToolAnnotations(BaseModel):
    """Hints of the Model Context Protocol (revision 2025-06-18); the defaults are the protocol's, the cautious ones."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    title: str | None = None
    """The display name."""
    readOnlyHint: bool = False  # noqa: N815 - the protocol's spelling
    """The tool changes nothing."""
    destructiveHint: bool = True  # noqa: N815 - the protocol's spelling
    """It may overwrite or delete; only meaningful if it is not read-only."""
    idempotentHint: bool = False  # noqa: N815 - the protocol's spelling
    """A second call with the same arguments changes nothing more."""
    openWorldHint: bool = True  # noqa: N815 - the protocol's spelling
    """It interacts with external entities: networks, other programs."""

    @classmethod
    def reading(cls, title: str, *, open_world: bool = False) -> Self:
        """Annotations of a read-only, idempotent tool."""
        return cls(title=title, readOnlyHint=True, destructiveHint=False, idempotentHint=True, openWorldHint=open_world)


class CallHint(BaseModel):
    """A call's display form and whether it writes, for readers of the log that do not create the tool."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    sign: str = Field(default=".", min_length=1, max_length=1)
    """One character: `$` a command, `>` input, `%` a Python cell, `+` a file written, `~` one changed, `<` one read,
    `?` a search, `@` a web page, `&` a sub-agent, `*` a thought, `.` anything else."""
    subject: str = ""
    """The text argument that identifies the call's subject; empty shows all arguments."""
    note: str = ""
    """Shown after the subject; text from a newline on is shown on separate lines."""
    writes: bool = True
    """The call may change files of the sandbox, so they are saved before it."""
    destructive: bool = False
    """The tool declares that it may overwrite or delete."""
    answers: bool = False
    """The subject is the agent's answer to the user."""
    needs_agent: bool = False
    """Useless for an MCP client, which has its own model and user."""


Hint = CallHint | Callable[[Mapping[str, Any]], CallHint]
"""A fixed hint, or a function of the call's arguments, which may be of any type if they come from a log."""


def counted_lines(text: object) -> str:
    """`(1 line)`, `(20 lines)`; a value that is no text counts as empty."""
    count = len(text.splitlines()) if isinstance(text, str) else 0
    return "(1 line)" if count == 1 else f"({count} lines)"
