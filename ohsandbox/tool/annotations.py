"""The effects of a tool (`ToolAnnotations`, as in MCP) and of a call (`CallHint`, `security_risk`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, Self, cast, get_args

from pydantic import BaseModel, ConfigDict, Field

from ohsandbox.arguments import ConfigModel
from ohsandbox.errors import ToolArgumentsError
from ohsandbox.schema.execution import quoted


class ToolAnnotations(ConfigModel):
    """Hints of the Model Context Protocol (revision 2025-06-18), with its defaults, which are the cautious values."""

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
    progressEnabled: bool | None = Field(default=None, exclude=True)  # noqa: N815 - the spelling of older pages
    """Accepted and ignored: the protocol has no such hint. Progress that a server reports is always shown."""

    @classmethod
    def reading(cls, title: str, *, open_world: bool = False) -> Self:
        """Return the annotations of a read-only, idempotent tool."""
        return cls(title=title, readOnlyHint=True, destructiveHint=False, idempotentHint=True, openWorldHint=open_world)


_CallKind = Literal[
    "",
    "command",
    "input",
    "python",
    "browser",
    "url",
    "read",
    "edit",
    "delegation",
    "tasks",
    "thought",
    "question",
    "answer",
]
"""The kind of a call's subject, by which the call is rated, approved and counted; "" is any other kind:

- `command`, `input`, `python`, `browser`, `url`: a shell command, input for a program that runs, code, the address of a
  page. Rules rate what it says.
- `read`, `edit`: the path of the one file that the call reads or changes; it affects no other.
- `delegation`: a task of another agent, whose own calls are rated one by one.
- `tasks`: the agent's list of tasks, in the argument `task_list` where the call changes it. It is kept outside of the
  sandbox; the result has a line for each task.
- `thought`: words without an effect.
- `question`: words for the user; after a successful call the run waits for the answer.
- `answer`: the agent's result for the user; a successful call ends the task.
"""


class CallHint(BaseModel):
    """How a call is shown, and whether it writes; for readers of the log that do not create the tool."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    sign: str = Field(default=".", min_length=1, max_length=1)
    """One character: `$` a command, `>` input, `%` a Python cell, `+` a file written, `~` one changed, `<` one read,
    `?` a search, `@` a web page, `&` a sub-agent, `*` a thought, `.` anything else."""
    kind: _CallKind = ""
    subject: str = ""
    """Name of the argument with the text that is shown as the call's subject; "" shows all arguments."""
    note: str = ""
    """Text to show after the subject; from its first newline on, it is shown on lines of its own."""
    writes: bool = True
    """Whether the call may change files in the sandbox, so that a checkpoint is taken before it."""
    destructive: bool = False
    """Whether the tool declares that it may overwrite or delete."""
    answers: bool = False
    """Whether the subject is the agent's answer to the user."""
    needs_agent: bool = False
    """Whether it is useless for an MCP client, which has its own model and user."""

    @property
    def ends_task(self) -> bool:
        """Whether a successful call ends the task, so that no request follows it."""
        return self.kind == "answer"

    @property
    def asks_user(self) -> bool:
        """Whether the user is next after a successful call."""
        return self.kind == "question"


Hint = CallHint | Callable[[Mapping[str, Any]], CallHint]
"""A hint, or a function that returns one for a call's arguments, whose values may have any type."""


def counted_lines(text: object) -> str:
    """Return the number of lines as `(1 line)` or `(20 lines)`; a value that is not text has none."""
    count = len(text.splitlines()) if isinstance(text, str) else 0
    return "(1 line)" if count == 1 else f"({count} lines)"


_SecurityRisk = Literal["LOW", "MEDIUM", "HIGH", "UNKNOWN"]
"""UNKNOWN is recorded if the model gives no risk; a model may give it, but it is not offered."""

_OFFERED_RISKS: tuple[_SecurityRisk, ...] = ("LOW", "MEDIUM", "HIGH")

SECURITY_RISK = "security_risk"

SECURITY_RISK_SCHEMA: dict[str, Any] = {
    "type": "string",
    "enum": list(_OFFERED_RISKS),
    "description": "How much harm this call could do. LOW: reads, or changes only files of the task. MEDIUM: changes "
    "the sandbox beyond the task (installs, services). HIGH: deletes what cannot be had back, or sends data out.",
}


def with_security_risk(schema: dict[str, Any]) -> dict[str, Any]:
    """Add the optional argument `security_risk` to a schema, unless the tool has its own.

    The argument comes first: a model writes arguments in order, so a truncated call still contains it.
    """
    if SECURITY_RISK in schema["properties"]:
        return schema
    return {**schema, "properties": {SECURITY_RISK: SECURITY_RISK_SCHEMA, **schema["properties"]}}


def take_security_risk(tool: str, arguments: Mapping[str, Any]) -> tuple[dict[str, Any], _SecurityRisk | None]:
    """Return the other arguments, and the value of `security_risk` in any case; None if it is missing or null.

    Raises:
        ToolArgumentsError: the risk is not one of LOW, MEDIUM, HIGH, UNKNOWN.
    """
    rest = dict(arguments)
    stated = rest.pop(SECURITY_RISK, None)
    if stated is None:
        return rest, None
    risk = stated.strip().upper() if isinstance(stated, str) else stated
    if risk not in get_args(_SecurityRisk):
        raise ToolArgumentsError(
            f"Invalid value for argument 'security_risk' in tool call {tool}: {quoted(stated)}. "
            f"Allowed are: {', '.join(_OFFERED_RISKS)}."
        )
    return rest, cast("_SecurityRisk", risk)
