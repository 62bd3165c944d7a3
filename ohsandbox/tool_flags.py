"""`ToolFlags`: the default tools of an agent."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Self

from ohsandbox.arguments import ConfigModel
from ohsandbox.errors import UsageError
from ohsandbox.text import did_you_mean
from ohsandbox.tool.registry import origin_of_tool

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

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
    "enable_ask_human": ("ask_human",),
    "enable_think": ("think",),
    "enable_finish": ("finish",),
}
"""The tools of each flag, in the order in which they are offered: the same in every run, so that a provider's cache
stays valid.
"""
_BUILT_IN_TOOLS = "ohsandbox.tools"
"""Registers the built-in tools when it is imported, in 0.03 s. Imported by name, since it stands above this module."""


class ToolFlags(ConfigModel):
    """Switches for families of tools and for single tools. Tools that cost money, time or safety are off by default."""

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
    """`edit_file` in place of `file_editor`: deprecated; each edit asks the model once more."""
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
    enable_ask_human: bool = False
    """`ask_human`: the run stops for an answer, so a user must be present."""
    enable_think: bool = True
    enable_finish: bool = True

    also: tuple[str, ...] = ()
    """More tools, by registered name: those of installed packages, or one of a family that is off."""
    without: tuple[str, ...] = ()
    """Tools to exclude, even if their family is on."""

    def names(self) -> tuple[str, ...]:
        """The tools' registered names, in a fixed order."""
        families = [name for flag, names in _TOOLS_OF.items() if getattr(self, flag) for name in names]
        excluded = {_own_name(name) for name in self.without}
        names = [name for name in dict.fromkeys([*families, *map(_own_name, self.also)]) if name not in excluded]
        return tuple(name for name in names if name != "file_editor" or "edit_file" not in names)

    def switched(self, *, on: Iterable[str] = (), off: Iterable[str] = ()) -> Self:
        """Return a copy with families or single tools switched; `browsing` stands for `enable_browsing`. Off wins.

        Raises:
            UsageError: a name, also in `also` or `without`, is neither family nor tool, or the tool cannot be loaded.
        """
        flags: dict[str, bool] = {}
        tools = dict.fromkeys(map(_own_name, self.also), True) | dict.fromkeys(map(_own_name, self.without), False)
        for name, is_on in [*((name, True) for name in on), *((name, False) for name in off)]:
            flag = _PREFIX + name.strip().lower().replace("-", "_").removeprefix(_PREFIX)
            if flag in _TOOLS_OF:
                flags[flag] = is_on
            else:
                tools[_own_name(name)] = is_on
        if tools:
            import_module(_BUILT_IN_TOOLS)
        for name in tools:
            try:
                origin_of_tool(name)
            except UsageError as error:
                family_names = [field.removeprefix(_PREFIX) for field in _TOOLS_OF]
                raise UsageError(
                    f"No tools {name!r} to switch. There are: {', '.join(family_names)}. As a single tool: {error}"
                    f"{did_you_mean(name, _TOOLS_OF if name.startswith(_PREFIX) else family_names)}"
                ) from None
        also, without = (tuple(name for name, is_on in tools.items() if is_on is state) for state in (True, False))
        return self.model_copy(update={**flags, "also": also, "without": without})


def _own_name(name: str) -> str:
    """Return the tool's own name for an alias: excluding a tool by any of its names must exclude the tool."""
    aliases: Mapping[str, str] = import_module(_BUILT_IN_TOOLS).ALIASES
    return aliases.get(name.strip(), name.strip())
