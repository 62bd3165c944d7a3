"""`ToolFlags`: which of the tools that ship an agent has."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from pydantic import BaseModel, ConfigDict

from ohsandbox.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable

_PREFIX = "enable_"

_TOOLS_OF = {
    "enable_cmd": ("execute_bash",),
    "enable_editor": ("file_editor",),
    "enable_file_tools": ("file_read", "file_write"),
    "enable_search": ("glob", "grep"),
    "enable_jupyter": ("execute_ipython_cell",),
    "enable_llm_editor": ("edit_file",),
    "enable_web_read": ("web_read",),
    "enable_browsing": ("browser", "delegate_to_browsing_agent"),
    "enable_delegation": ("delegate",),
    "enable_plan_mode": ("task_tracker",),
    "enable_condensation_request": ("request_condensation",),
    "enable_think": ("think",),
    "enable_finish": ("finish",),
}
"""In the order in which a model is offered them: the same from run to run, so that a provider's cache holds."""


class ToolFlags(BaseModel):
    """A switch a family of tools. What costs money, time or safety that nobody asked for is off."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    enable_cmd: bool = True
    """`execute_bash`."""
    enable_editor: bool = True
    """`file_editor`: view, create, replace, insert, undo."""
    enable_file_tools: bool = True
    """`file_read` and `file_write`."""
    enable_search: bool = True
    """`glob` and `grep`."""
    enable_jupyter: bool = True
    """`execute_ipython_cell`."""
    enable_llm_editor: bool = False
    """`edit_file`: deprecated; each edit asks the model once more."""
    enable_web_read: bool = False
    """`web_read`: needs a sandbox with a network."""
    enable_browsing: bool = False
    """`browser` and `delegate_to_browsing_agent`: need a sandbox with a browser and a network."""
    enable_delegation: bool = False
    """`delegate`: agents that an agent starts, each of which asks the model."""
    enable_plan_mode: bool = True
    """`task_tracker`."""
    enable_condensation_request: bool = False
    """`request_condensation`: the model itself may ask for its history to be shortened."""
    enable_think: bool = True
    enable_finish: bool = True

    def names(self) -> tuple[str, ...]:
        """The tools' registered names, in a fixed order."""
        return tuple(name for flag, names in _TOOLS_OF.items() if getattr(self, flag) for name in names)

    def switched(self, *, on: Iterable[str] = (), off: Iterable[str] = ()) -> Self:
        """A copy with the named flags switched; `browsing` stands for `enable_browsing`. Off wins.

        Raises:
            UsageError: there is no such flag.
        """
        wanted = {_flag(name): True for name in on} | {_flag(name): False for name in off}
        return self.model_copy(update=wanted)


def _flag(name: str) -> str:
    flag = _PREFIX + name.strip().lower().replace("-", "_").removeprefix(_PREFIX)
    if flag not in _TOOLS_OF:
        known = ", ".join(known.removeprefix(_PREFIX) for known in _TOOLS_OF)
        raise UsageError(f"There are no tools {name!r} to switch. There are: {known}.")
    return flag
