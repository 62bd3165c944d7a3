"""Names for tools of several servers that providers take and no two share."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

MAX_NAME_CHARS = 64
"""The rule of every provider: `[a-zA-Z0-9_-]{1,64}`."""

_REFUSED = re.compile(r"[^a-zA-Z0-9_-]")


class ServerTool(NamedTuple):
    """A tool's name at its server."""

    server: str
    tool: str


def model_names(tools: Sequence[ServerTool], reserved: Collection[str]) -> dict[ServerTool, str]:
    """What a model calls each tool by: its own name, or `server__tool` where that is taken or reserved.

    Names are compared without regard to case: two that differ in it alone are one to many a reader.
    """
    wanted = Counter(_safe(tool.tool).lower() for tool in tools)
    taken = {name.lower() for name in reserved}
    free = {tool for tool in tools if wanted[_safe(tool.tool).lower()] == 1 and _safe(tool.tool).lower() not in taken}
    names = {tool: _safe(tool.tool) for tool in tools if tool in free}
    taken |= {name.lower() for name in names.values()}
    for tool in tools:
        if tool not in free:
            names[tool] = _unused(prefixed(tool), taken)
            taken.add(names[tool].lower())
    return {tool: names[tool] for tool in tools}


def prefixed(tool: ServerTool) -> str:
    """`server__tool`, fit for providers."""
    return _safe(f"{_REFUSED.sub('_', tool.server)}__{tool.tool}")


def _safe(name: str) -> str:
    """The name with `_` for what is refused; what is too long keeps its beginning, and a hash of all of it."""
    safe = _REFUSED.sub("_", name) or "_"
    if len(safe) <= MAX_NAME_CHARS:
        return safe
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:8]
    return f"{safe[: MAX_NAME_CHARS - 9]}_{digest}"


def _unused(name: str, taken: Collection[str]) -> str:
    number, candidate = 1, name
    while candidate.lower() in taken:
        number += 1
        candidate = f"{name[: MAX_NAME_CHARS - 4]}_{number}"
    return candidate
