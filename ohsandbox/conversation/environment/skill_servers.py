"""MCP servers of the workspace's skills: a person must approve them before they start."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Literal, NamedTuple

from ohsandbox import events
from ohsandbox.conversation.approvals.scopes import StartServers
from ohsandbox.errors import UsageError
from ohsandbox.mcp.skill_files import find_skill_files

if TYPE_CHECKING:
    from collections.abc import Collection

    from ohsandbox.conversation.approvals.decisions import Approvals
    from ohsandbox.conversation.log import ConversationLog
    from ohsandbox.mcp import ServerConfig
    from ohsandbox.mcp.skills import SkillServer, SkillServers
    from ohsandbox.runtime.base import Runtime

CODE = "SkillServers"
"""Code of notice events about the servers of skills."""
POLICIES = ("ask", "allow", "never")
_HOW_TO_ALLOW = (
    "Look at the definitions, then answer yes at a terminal, or allow them: --skill-servers allow, the setting "
    '"skill_servers": "allow", or Conversation(skill_servers="allow").'
)


class ProposedServers(NamedTuple):
    """MCP servers of the workspace's skills that a person is asked to allow."""

    servers: tuple[SkillServer, ...]
    """The proposed servers, at least one."""
    directory: str
    """The directory of the repository: its path on this machine if it is mounted, else in the sandbox."""
    is_isolated: bool
    """False if they would run on this machine, with the user's rights."""
    network: str
    """The sandbox's description of its network."""
    scope: StartServers
    """The scope that lets them start: `conversation.approve(proposed.scope)`."""


SkillServersPolicy = Literal["ask", "allow", "never"] | Callable[[ProposedServers], bool]
"""A callback is called in the run's thread; True starts the servers, now and whenever the conversation is resumed."""


def check_policy(policy: object) -> None:
    """Check a policy; None is valid.

    Raises:
        UsageError: it is not a policy.
    """
    if policy is not None and policy not in POLICIES and not callable(policy):
        message = f"skill_servers={policy!r:.200} is not a policy. Use {', '.join(POLICIES)} or a callback."
        raise UsageError(message)


class SkillServersGate:
    """Finds the servers of skills once, asks about them once, and knows whether they may run."""

    def __init__(self, log: ConversationLog, approvals: Approvals) -> None:
        self._log, self._approvals = log, approvals
        self._found: SkillServers | None = None
        self._has_looked = False
        self._proposed: ProposedServers | None = None
        self._is_decided = False

    @property
    def waiting(self) -> ProposedServers | None:
        """The servers that wait for a person's decision; None if none do."""
        return None if self._is_decided or self._number is not None else self._proposed

    @property
    def approved(self) -> dict[str, ServerConfig]:
        """The servers that an approval allows to start, by name."""
        if self._proposed is None or self._number is None:
            return {}
        return {server.name: server.config for server in self._proposed.servers}

    @property
    def revoked(self) -> Collection[str]:
        """Names of the servers that no approval allows to run."""
        servers = () if self._proposed is None or self._number is not None else self._proposed.servers
        return [server.name for server in servers]

    @property
    def _number(self) -> int | None:
        with self._log.lock:
            proposed = self._proposed
            return None if proposed is None else self._approvals.standing.number_of(proposed.scope)

    def look(self, runtime: Runtime, *, taken: Collection[str]) -> None:
        """Find the servers of the skills, once; servers whose names are taken are refused.

        Raises:
            SandboxUnavailable: the sandbox is unavailable.
        """
        if self._has_looked:
            return
        files = find_skill_files(runtime)
        self._has_looked = True
        if not (files.definitions or files.refused):
            return
        from ohsandbox.mcp.skills import read_skill_servers  # noqa: PLC0415 - few repositories define any

        self._found = read_skill_servers(files, runtime).without(taken)
        if self._found.servers:
            self._proposed = _proposed(self._found, runtime)

    def decide(self, policy: SkillServersPolicy) -> None:
        """Decide once whether the servers start, by policy; log which ones start, which do not, and why.

        Raises:
            LogWriteError: the approval could not be stored; nothing starts.
            Exception: any error of the callback; nothing starts.
        """
        if self._is_decided or self._found is None:
            return
        proposed = self.waiting
        is_allowed = proposed is not None and (policy == "allow" or (callable(policy) and policy(proposed) is True))
        if proposed is not None and is_allowed and self._number is None:
            self._approvals.grant(proposed.scope, by="skill_servers=allow" if policy == "allow" else "callback")
        self._is_decided = True
        for sentence in self._found.refused:
            self._emit_notice(f"A skill's MCP server is not started. {sentence}")
        if self._proposed is not None:
            listed = ", ".join(f"{server.name!r} ({server.file}:{server.line})" for server in self._proposed.servers)
            if self._number is None:
                self._emit_notice(f"MCP servers of this repository's skills are not started: {listed}. {_HOW_TO_ALLOW}")
            else:
                self._emit_notice(
                    f"MCP servers of this repository's skills start by approval {self._number}: {listed}."
                )

    def refuse(self, reason: str) -> None:
        """Start no server; log the reason if there are servers to start."""
        if not self._is_decided and self._proposed is not None:
            self._emit_notice(f"MCP servers of this repository's skills are not started: {reason}")
        self._is_decided, self._proposed = True, None

    def _emit_notice(self, message: str) -> None:
        self._log.emit(events.notice(code=CODE, message=message))


def _proposed(skill_servers: SkillServers, runtime: Runtime) -> ProposedServers:
    directory = str(runtime.host_workspace or runtime.workdir)
    network = runtime.describe().get("network", "").partition(". ")[0]
    digest = skill_servers.digest([directory, runtime.workdir, str(runtime.isolated), network])
    scope = StartServers(
        directory=directory, names=tuple(server.name for server in skill_servers.servers), sha256=digest
    )
    return ProposedServers(skill_servers.servers, directory, runtime.isolated, network, scope)
