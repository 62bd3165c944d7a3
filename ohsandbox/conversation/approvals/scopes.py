"""Standing approvals: what a user has allowed from now on. Their text names everything that they allow.

Approvals and revocations are events of the log, so they survive a restart. No approval covers a call that hides
characters. Only an approval of an exact call covers a call with risk HIGH. An approved command does not cover longer
commands that begin with it, since a program's arguments can make it do anything (`git -c`, `find -exec`).
"""

from __future__ import annotations

import json
import posixpath
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from ohsandbox.agent import ActionSecurityRisk
from ohsandbox.agent.agent import ALWAYS_ASKS
from ohsandbox.arguments import expect
from ohsandbox.conversation.approvals.analysis import conceals
from ohsandbox.errors import OhsandboxError, UsageError
from ohsandbox.tool import CallHint

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ohsandbox.events import SDKEvent
    from ohsandbox.runtime.base import Runtime

_NO_LINK = """
f=$1 p=$1
while [ -n "$p" ]; do [ ! -L "$p" ] || exit 1; p=${p%/*}; done
[ -e "$f" ] || exit 0
set -f; set -- $(ls -ld -- "$f"); [ "$2" = 1 ]
"""
"""Exit code 0: no part of the path is a symlink, and its file has no other name (POSIX sh; 2 is the link count)."""


_LOOK_TIMEOUT_S = 10.0
"""Time limit for a few system calls in a busy sandbox, in seconds."""


class _Scope(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class ExactCall(_Scope):
    """The same tool with the same arguments, including the model's rating of the risk; also if its risk is HIGH."""

    kind: Literal["call"] = "call"
    tool: str
    arguments: dict[str, Any]

    def __str__(self) -> str:
        conditions = "wherever its shell stands and whatever the files that it uses hold by then"
        return f"{self.tool} with exactly these arguments again, {conditions}"


class AnyCall(_Scope):
    """Every call of a tool, unless its risk is HIGH."""

    kind: Literal["tool"] = "tool"
    tool: str

    def __str__(self) -> str:
        return f"every call of {self.tool}, with any arguments, unless its risk is HIGH"


_BUILT_IN_EDITORS = ("edit_file", "file_editor", "file_write")
"""Tools that an approval of edits covers if it names none.

Older logs have such approvals, so these names stay; every other tool is known by the kind in its hint.
"""


class EditsUnder(_Scope):
    """Calls that only change one file below a directory, unless their risk is HIGH or the path has links."""

    kind: Literal["edits"] = "edits"
    directory: str
    """The directory as an absolute path without `.` and `..`."""
    tools: tuple[str, ...] = _BUILT_IN_EDITORS
    """Names of the tools; a call is covered only if the tool says that it edits (`CallHint.kind`)."""

    def __str__(self) -> str:
        return f"edits with {', '.join(self.tools)} of every file below {self.directory}, unless their risk is HIGH"


class StartServers(_Scope):
    """The start of the MCP servers of a repository's skills, as long as their definitions stay the same."""

    kind: Literal["servers"] = "servers"
    directory: str
    """The directory of the repository: its path on this machine if it is mounted, else in the sandbox."""
    names: tuple[str, ...]
    sha256: str
    """SHA-256 in hex of the definitions, the directory and the place where the servers run."""

    def __str__(self) -> str:
        names = ", ".join(self.names)
        return f"MCP servers of the skills in {self.directory} start, as they are defined now: {names}"


CallScope = ExactCall | AnyCall | EditsUnder
AnyScope = CallScope | StartServers
Scope = Annotated[AnyScope, Field(discriminator="kind")]
_SCOPES: TypeAdapter[AnyScope] = TypeAdapter(Scope)


class Approval(NamedTuple):
    """A scope that a user allowed."""

    number: int
    """The number of the approval, from 1 in each conversation; never reused."""
    scope: AnyScope
    by: str


class PendingCall(NamedTuple):
    """A call as rules and a person judge it: its arguments parsed, its risk and why. `HeldCall` is the stored call."""

    tool_call_id: str
    name: str
    """The name of the tool."""
    arguments: dict[str, Any]
    risk: ActionSecurityRisk
    why: tuple[str, ...]
    """The reasons for the risk, each a sentence."""
    hint: CallHint = CallHint()
    """The tool's description of this call."""


class StandingApprovals:
    """The approvals in force, according to the events of the log."""

    def __init__(self) -> None:
        self._in_force: dict[int, Approval] = {}
        self.last_number = 0

    @property
    def in_force(self) -> list[Approval]:
        """The approvals in force, in the order they were granted."""
        return list(self._in_force.values())

    def add(self, event: SDKEvent) -> None:
        """Apply the next event. A malformed approval allows nothing; a malformed revocation revokes all."""
        if event.type == "approval" and (approval := _approval_from(event.data)) is not None:
            self._in_force[approval.number] = approval
            self.last_number = max(self.last_number, approval.number)
        elif event.type == "approval_revoked":
            number = event.data.get("number")
            if isinstance(number, int):
                self._in_force.pop(number, None)
            else:
                self._in_force.clear()

    def number_of(self, scope: AnyScope) -> int | None:
        """Return the number of the approval of exactly this scope; None if none is in force."""
        return next((approval.number for approval in self._in_force.values() if approval.scope == scope), None)

    def covering(self, call: PendingCall) -> list[Approval]:
        """Return the approvals that cover a call by its name and arguments."""
        return [approval for approval in self._in_force.values() if covers(approval.scope, call)]


def _scope_from(data: Mapping[str, Any]) -> AnyScope:
    """Rebuild the scope from data made by `model_dump`."""
    return _SCOPES.validate_python(dict(data))


def _approval_from(data: Mapping[str, Any]) -> Approval | None:
    """Read an approval from an event's data; None if `Approvals.grant` could not have stored it."""
    number, by = data.get("number"), data.get("by")
    if not (isinstance(number, int) and number > 0 and isinstance(by, str)):
        return None
    try:
        scope = _scope_from(data["scope"])
        check_scope(scope)
    except (LookupError, TypeError, ValueError, RecursionError, UsageError):
        return None
    return Approval(number, scope, by)


def covers(scope: AnyScope, call: PendingCall) -> bool:
    """Whether the scope covers the call."""
    if isinstance(scope, StartServers) or conceals(call.name, call.arguments):
        return False
    if isinstance(scope, ExactCall):
        same = json.dumps(scope.arguments, sort_keys=True) == json.dumps(call.arguments, sort_keys=True)
        # the effect of keys for a running program depends on what it asks
        return same and call.name == scope.tool and call.hint.kind != "input"
    if call.risk is ActionSecurityRisk.HIGH:
        return False
    if isinstance(scope, AnyCall):
        return call.name == scope.tool
    path = edited_path(call) if call.name in scope.tools else None
    return path is not None and path.startswith(f"{scope.directory.rstrip('/')}/")


def offers(call: PendingCall) -> list[CallScope]:
    """Return scopes that would cover a waiting call from now on, narrowest first; none for tools that always ask."""
    if ALWAYS_ASKS in call.why:
        return []
    path = edited_path(call)
    wider: AnyCall | EditsUnder = AnyCall(tool=call.name)
    if path is not None:
        tools = _BUILT_IN_EDITORS if call.name in _BUILT_IN_EDITORS else (call.name,)
        wider = EditsUnder(directory=posixpath.dirname(path), tools=tools)
    return [scope for scope in (ExactCall(tool=call.name, arguments=call.arguments), wider) if covers(scope, call)]


def check_scope(scope: AnyScope) -> None:
    """Check that a scope may be granted.

    Raises:
        UsageError: scope is not a scope, names no directory, or names a call that hides characters.
    """
    expect("scope", scope, (ExactCall, AnyCall, EditsUnder, StartServers), optional=False)
    if isinstance(scope, StartServers):
        return  # definitions with hidden characters were refused before; the directory is the user's
    if isinstance(scope, EditsUnder):
        directory = scope.directory
        if not directory.startswith("/") or _normal(directory) != directory or conceals("", directory):
            raise UsageError(
                f"Invalid directory {directory!r} of an approval. Use an absolute path without '.' and '..'."
            )
    elif conceals(scope.tool, scope.arguments if isinstance(scope, ExactCall) else {}):
        raise UsageError("A call with characters that cannot be seen is asked about each time. Allow it once.")


def edited_path(call: PendingCall) -> str | None:
    """Return the absolute path of the file that a call edits; None if it edits none, or the path has `..`."""
    path = call.arguments.get(call.hint.subject)
    if call.hint.kind != "edit" or not isinstance(path, str) or not path.startswith("/") or ".." in path.split("/"):
        return None
    return _normal(path)


def goes_through_link(runtime: Runtime, path: str) -> bool:
    """Whether an edit of the path would reach a file of another name, by a symlink or hard link; True if unknown."""
    try:
        return runtime.run(["sh", "-c", _NO_LINK, "sh", path], timeout_s=_LOOK_TIMEOUT_S).exit_code != 0
    except OhsandboxError:
        return True


def _normal(path: str) -> str:
    """Normalize a path; two leading slashes become one, since Linux gives them no meaning."""
    return posixpath.normpath(f"/{path.lstrip('/')}")
