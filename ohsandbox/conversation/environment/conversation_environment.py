"""`Environment`: the runtime of a conversation, with the MCP servers and tools, and how it is resumed."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ohsandbox import events
from ohsandbox.arguments import expect
from ohsandbox.conversation.environment.skill_servers import SkillServersGate
from ohsandbox.conversation.storage import note_container
from ohsandbox.errors import OhsandboxError
from ohsandbox.paths import check_apart
from ohsandbox.runtime.base import Runtime
from ohsandbox.runtime.factory import runtime_from
from ohsandbox.runtime.runtime_settings import ContainerOptions, RuntimeSettings
from ohsandbox.timetravel import FORKED, REDONE
from ohsandbox.tool import list_registered_tools
from ohsandbox.tools import hint_of

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from ohsandbox.agent import History
    from ohsandbox.agent.agent import ToolsMap
    from ohsandbox.conversation.approvals.decisions import Approvals
    from ohsandbox.conversation.config import ConversationConfig
    from ohsandbox.conversation.environment.mcp_servers import ConversationServers
    from ohsandbox.conversation.environment.skill_servers import ProposedServers
    from ohsandbox.conversation.log import CallbackQueue, ConversationLog
    from ohsandbox.events import EventBody, SDKEvent
    from ohsandbox.mcp import MCPServers
    from ohsandbox.runtime.results import ResumeReport
    from ohsandbox.settings import Settings
    from ohsandbox.state import ConversationState
    from ohsandbox.tool import ToolDefinition


_RESUMED = "Resumed"
"""Code of notices about the sandbox of a resumed conversation."""
INTERRUPTED = "Interrupted"
"""Code of the notice about a call that was running when its process ended."""

_MAX_CHECKPOINTS = 20
"""Number of the newest checkpoints that are tried if the sandbox is gone."""


class ResumeState:
    """The state of the sandbox according to the events of the log."""

    def __init__(self) -> None:
        self.workdirs: dict[str, str] = {}
        """Working directories of the shell sessions, by session name."""
        self.checkpoints: list[str] = []
        """Ids of the checkpoints, newest first."""
        self.has_worked = False
        """Whether a tool was called, so that losing the sandbox may lose work."""
        self.is_finished = False
        """Whether the last call ended the task, even if no status was stored after it."""
        self._ends_task: set[str] = set()
        """Ids of the calls whose success ends the task."""
        self.was_moved = False
        """Whether a fork, undo or redo came after the last tool call; then a new sandbox is made."""

    def add(self, event: SDKEvent) -> None:
        """Update the state with the next event of the log."""
        if event.type in {"user_message", "tool_call"}:
            self.is_finished = False
        if event.type == "tool_result":
            self.is_finished = event.data["tool_call_id"] in self._ends_task and event.data["result"]["status"] == "ok"
            details = event.data.get("details") or {}
            session, cwd = details.get("session"), details.get("cwd")
            if isinstance(session, str) and isinstance(cwd, str) and cwd.startswith("/"):
                self.workdirs[session] = cwd
        elif event.type == "tool_call":
            self.has_worked, self.was_moved = True, False
            if hint_of(event.data["name"], event.data).ends_task:
                self._ends_task.add(event.data["tool_call_id"])
        elif event.type == "notice" and event.data.get("code") in {FORKED, REDONE}:
            self.was_moved = True
        elif event.type == "checkpoint" and isinstance(event.data.get("id"), str):
            self.checkpoints = [event.data["id"], *self.checkpoints[: _MAX_CHECKPOINTS - 1]]


class Environment:
    """The first run's `prepare` makes the environment ready; the tools then exist until `close`."""

    def __init__(
        self,
        runtime: Runtime | None,
        config: ConversationConfig,
        log: ConversationLog,
        approvals: Approvals,
        *,
        statuses: CallbackQueue[str],
    ) -> None:
        """Create it without starting anything. statuses gets a line about each thing that a person waits for.

        Raises:
            UsageError: runtime is not a Runtime.
        """
        expect("runtime", runtime, Runtime, "Make one: DockerRuntime(image=...).")
        self.runtime = runtime
        """The runtime; None before there is one. It may be replaced until `prepare`."""
        self.resume_state = ResumeState()
        """The state of the sandbox according to the log so far."""
        self._config = config
        self._log = log
        self._statuses = statuses
        self._tools: ToolsMap | None = None
        self._mcp: ConversationServers | None = None
        self._skill_servers = SkillServersGate(log, approvals)
        self._started_here = self._has_looked = False

    @property
    def servers(self) -> MCPServers | None:
        """The MCP servers, once they are starting."""
        return None if self._mcp is None else self._mcp.servers

    @property
    def tools(self) -> ToolsMap:
        """The model's tools by name; empty before `prepare`."""
        return dict(self._tools or {})

    def read_servers(self) -> ConversationServers | None:
        """Read the agent's MCP configuration, once; no server is started.

        Returns: the servers; None if the agent has no configuration and no server of a skill may start.

        Raises:
            MCPConfigError: the configuration is invalid.
        """
        if self._mcp is None and (self._config.agent.mcp_config is not None or self._skill_servers.approved):
            from ohsandbox.conversation.environment.mcp_servers import ConversationServers  # noqa: PLC0415 - most conversations have none

            self._mcp = ConversationServers(
                self._config.agent.mcp_config, self._log, self._statuses, self._config.output
            )
        return self._mcp

    def start_servers(self) -> None:
        """Start the MCP servers in the background if the sandbox is running already, to save time later; idempotent.

        Raises:
            MCPConfigError: the configuration is invalid, or a variable is not set.
        """
        if self._tools is not None:
            return
        servers = self.read_servers()
        if self._has_looked and not ((servers is not None and servers.to_begin) or self._skill_servers.approved):
            return
        if self.runtime is not None and self.runtime.is_alive():
            self._look_at_skills(self.runtime)
            to_begin = self._skill_servers.approved or (servers is not None and servers.to_begin)
            if self._skill_servers.waiting is None and to_begin:
                self._begin_servers(self.runtime)

    @property
    def pending_servers(self) -> ProposedServers | None:
        """The MCP servers of the workspace's skills that wait for a person's approval."""
        return self._skill_servers.waiting if self._config.skill_servers == "ask" else None

    def _look_at_skills(self, runtime: Runtime) -> None:
        """Find the MCP servers of the workspace's skills; a sub-agent uses those of its parent instead."""
        if self._config.depth == 0 and self._config.skill_servers != "never":
            configured = () if (servers := self.read_servers()) is None else servers.configured
            self._skill_servers.look(runtime, taken=[*configured, *list_registered_tools()])
        self._has_looked = True

    def _begin_servers(self, runtime: Runtime) -> ConversationServers | None:
        """Begin to start the configured servers and those of skills that a person has allowed."""
        if (servers := self.read_servers()) is not None:
            servers.begin(runtime, self._skill_servers.approved)
        return servers

    def _stop_revoked(self) -> None:
        if self.servers is not None and (revoked := self._skill_servers.revoked):
            self.servers.stop(revoked)

    def prepare(self, state_of: Callable[[Runtime], ConversationState], *, canceled: threading.Event) -> ToolsMap:
        """Start the sandbox and its MCP servers, make the agent's tools, and log the system message if it has changed.

        Args:
            state_of: returns the conversation's state for its tools, once the sandbox is running.
            canceled: ends the wait for the servers.

        Returns the tools by name; later calls return those of the first.

        Raises:
            SandboxUnavailable: the sandbox cannot be started.
            UsageError: a tool cannot be made.
            Exception: any error of a callback about servers of skills; the next call asks it again.
        """
        if self._tools is None:
            runtime = self._connect()
            self._look_at_skills(runtime)
            if (servers := self.read_servers()) is not None and servers.is_lent:
                self._skill_servers.refuse("the agent's servers run already and are their owner's. Configure them.")
            self._skill_servers.decide(self._config.skill_servers)
            servers = self._begin_servers(runtime)
            self._stop_revoked()
            state = state_of(runtime)
            tools = self._config.agent.initialize(state)
            if servers is not None:
                servers.offer(tools, canceled=canceled)
            note = "" if servers is None else servers.missing()
            system_message = self._config.agent.system_message(state, tools, note=note)
            if self._log.history.system_prompt != system_message.data:
                self._log.emit(system_message)
            self._tools = tools
        return self._tools

    def _connect(self) -> Runtime:
        """Return the runtime with the secrets, started if necessary; the log gets notices of what was lost."""
        runtime = self.runtime
        if runtime is None:
            runtime = default_runtime(self._config.read_settings(), conversation_id=self._log.conversation_id)
        if self._config.secrets:
            runtime.give_secrets(self._config.secrets)
        if not runtime.is_alive():
            self._started_here = True
            resume_runtime(runtime, self.resume_state)
        self.runtime = runtime
        for body in _report_losses(runtime, self.resume_state, self._log.history):
            self._log.emit(body)
        adopted = runtime.resumed is not None and runtime.resumed.how == "same"
        if self._config.depth == 0 and not adopted:  # a sub-agent's is its parent's
            note_container(self._log.directory, runtime.id)
        return runtime

    def before_request(self) -> None:
        """Keep the sandbox from being stopped as idle, and update the tools of the servers."""
        if self.runtime is not None:
            self.runtime.hold()
        if self._tools is not None:
            self._stop_revoked()
            if self._mcp is not None:
                self._mcp.refresh(self._tools)

    def tool(self, name: str) -> ToolDefinition[Any, Any] | None:
        """Return the tool of this name, or None, also before `prepare`. Thread-safe."""
        return (self._tools or {}).get(name)

    def interrupt(self, names: Iterable[str]) -> None:
        """Interrupt the named tools. Thread-safe."""
        for name in set(names):
            tool = self.tool(name)
            if tool is not None and tool.executor is not None:
                with contextlib.suppress(OhsandboxError):  # a sandbox that is gone needs no interrupt
                    tool.executor.interrupt()

    def close(self) -> None:
        """Close the tools, the servers, and the runtime if it was started here; idempotent."""
        for tool in (self._tools or {}).values():
            tool.close()
        if self._mcp is not None:
            self._mcp.close()
        if self._started_here and self.runtime is not None:
            self.runtime.close()
            self._started_here = False


def check_place(directory: Path, runtime: Runtime) -> None:
    """Check that the agent cannot write to its conversation's directory.

    Raises:
        UsageError: a workspace contains the directory, or is in it.
    """
    expect("runtime", runtime, Runtime, "Make one: DockerRuntime(image=...).", optional=False)
    for workspace in runtime.host_workspaces.values():
        check_apart(directory, workspace)


def resume_runtime(runtime: Runtime, past: ResumeState) -> None:
    """Start the runtime; if the conversation has worked before, resume its sandbox or a checkpoint of it.

    Raises:
        SandboxUnavailable: the sandbox cannot be started.
    """
    if past.has_worked or past.checkpoints:
        runtime.resume(past.checkpoints)
    else:
        runtime.start()


def _report_losses(runtime: Runtime, past: ResumeState, history: History) -> Iterator[EventBody]:
    """Reopen the shells in their working directories; yield notices about what was lost since the last process."""
    if not past.has_worked:
        return
    held_ids = {call.tool_call_id for call in history.held.all}
    for tool_call_id, name in history.unanswered.items():
        if tool_call_id not in held_ids:
            message = f"A call of {name} was cut off. Its outcome is unknown; it is not run again by itself."
            yield events.notice(code=INTERRUPTED, message=message, tool_call_id=tool_call_id)
    if runtime.resumed is None or runtime.resumed.how != "new":
        for session, workdir in past.workdirs.items():
            runtime.reopen_session(session, workdir=workdir)
    if runtime.resumed is not None:
        yield from _resume_notices(runtime.resumed, was_moved=past.was_moved)


def _resume_notices(resumed: ResumeReport, *, was_moved: bool) -> Iterator[EventBody]:
    for note in resumed.notes:
        yield events.notice(code=_RESUMED, message=note)
    if resumed.how == "same":
        return
    if was_moved and resumed.how == "checkpoint":
        message = (
            "The user went to this point of the conversation. The sandbox is a new one, with the files as they were "
        )
        message += "here; shells and running programs of before are not in it."
        yield events.notice(code=_RESUMED, message=message, to_model=True, for_person=False)
        return
    if resumed.how == "new":
        lost = "its files are lost, but for those in a mounted workspace"
    else:
        lost = "its files are those of the last checkpoint, and what changed after it is lost"
    path = f" {resumed.place!r}" if resumed.place else ""
    yield events.notice(
        code=_RESUMED,
        message=f"The sandbox of before is gone. In the new one{path} {lost}; installed packages, shells and running "
        "programs as well. Look at what is there before you go on.",
        to_model=True,
    )


def default_runtime(settings: Settings, *, conversation_id: str) -> Runtime:
    """Return a runtime by the settings, not started, without a workspace, and without the settings' ports.

    Raises:
        UsageError: a setting is invalid, or two exclude each other.
    """
    container = ContainerOptions.of(settings)
    if container.cache == "project":  # of a workspace
        container = replace(container, cache=None)
    asked = RuntimeSettings(
        image=settings.image, git=settings.git, mount=settings.mounts, env=settings.env, user=settings.user,
        network=settings.network or ("none" if settings.allow is None else "allowlist"), allow=settings.allow or (),
        ca_bundle=settings.ca_bundle, container=container, conversation=conversation_id,
    )  # fmt: skip
    return runtime_from(asked)
