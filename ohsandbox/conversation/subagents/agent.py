"""`make_subagent`: an agent like its parent, with other tools and a note in its prompt."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

from ohsandbox.errors import ToolError
from ohsandbox.schema import Action, Observation
from ohsandbox.tool import Tool, ToolDefinition, ToolExecutor
from ohsandbox.tools.delegate_to_browsing_agent import BROWSING_TOOLS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ohsandbox.agent import Agent

Entry = str | Tool | ToolDefinition[Any, Any]

DELEGATING: dict[str, tuple[str, ...]] = {"delegate": (), "delegate_to_browsing_agent": BROWSING_TOOLS}
"""The tools that delegate, and the tools that each may give beyond the parent's by default."""

_FOR_USERS = ("ask_human",)
"""Tools that need a person; a sub-agent has none."""

ALWAYS = ("think", "finish")
"""Tools that every sub-agent has."""

PLACE = """\
You work for another agent, on the one task that its message tells you, in the same sandbox and on the same files.
Nobody answers questions: decide by yourself what is left open, and say so. When the task is done, or cannot be done,
call finish: of all that you do and write only its message reaches the other agent, so put everything in it that was
asked for. Programs that you leave running end with you."""


class _Lent(ToolExecutor[Action, Observation]):
    """An executor that is the parent's to close."""

    def __init__(self, executor: ToolExecutor[Any, Any]) -> None:
        self._executor = executor

    def __call__(self, action: Action) -> Observation:
        """Run it."""
        observation: Observation = self._executor(action)
        return observation

    def interrupt(self) -> None:
        """Pass it on."""
        self._executor.interrupt()


def make_subagent(parent: Agent, names: Iterable[str] | None, *, may_delegate: bool) -> Agent:
    """The parent's model, prompt and settings, with the tools of these names; None is its own without delegation.

    What can be named is what the parent has, what its delegating tools were given in `tools`, think and finish: a
    model cannot give away what nobody gave to it. The parent's MCP servers go with its own tools only.

    Raises:
        ToolError: a name is none of them.
    """
    offered = {_name(entry): entry for entry in parent.tools}
    names_given = names is not None
    if names is None:
        names = [name for name in offered if name not in {*DELEGATING, *_FOR_USERS}]
    known: dict[str, Entry] = {**dict.fromkeys(ALWAYS, ""), **dict.fromkeys(_given(parent.tools), ""), **offered}
    barred = _FOR_USERS if may_delegate else (*_FOR_USERS, *DELEGATING)
    known = {name: entry for name, entry in known.items() if name not in barred}
    chosen = dict.fromkeys([*names, *ALWAYS])
    if unknown := [name for name in chosen if name not in known]:
        raise ToolError(
            f"A sub-agent cannot be given {', '.join(map(repr, unknown[:5]))}. "
            f"You can give: {', '.join(sorted(known))}. Nothing was done."
        )
    agent = copy.copy(parent)
    agent.tools = tuple(_lent(known[name] or name) for name in chosen)
    if names_given:
        agent.mcp_config = None  # servers have names of their own; what is named here is all that it has
    agent.system_prompt_extensions = (*parent.system_prompt_extensions, PLACE)
    return agent


def _name(entry: Entry) -> str:
    return entry if isinstance(entry, str) else entry.name


def _given(entries: Iterable[Entry]) -> list[str]:
    """The tools that the configuration of the delegating tools allows beyond the parent's own."""
    names: list[str] = []
    for entry in entries:
        if not isinstance(entry, ToolDefinition) and _name(entry) in DELEGATING:
            params = entry.params if isinstance(entry, Tool) else {}
            names += params.get("tools", DELEGATING[_name(entry)])
    return names


def _lent(entry: Entry) -> Entry:
    if isinstance(entry, ToolDefinition) and entry.executor is not None:
        return entry.with_executor(_Lent(entry.executor))
    return entry
