"""`Environment`: what a conversation acts with."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from ohsandbox.conversation.mcp_servers import ConversationServers
from ohsandbox.conversation.projections.resume import ResumeState, report_losses, resume_runtime
from ohsandbox.errors import OhsandboxError

if TYPE_CHECKING:
    import threading
    from collections.abc import Iterable

    from ohsandbox.agent import Agent
    from ohsandbox.agent.agent import MCPSource, ToolsMap
    from ohsandbox.conversation.listeners import Listeners
    from ohsandbox.conversation.log import ConversationLog
    from ohsandbox.conversation.secrecy import Secrecy
    from ohsandbox.mcp import MCPServers
    from ohsandbox.runtime.base import Runtime
    from ohsandbox.state import ConversationState


class Environment:
    """The sandbox of one conversation, the MCP servers in it, and the tools that work there.

    In this order: `expect_servers`, `reach`, `equip`; then the tools are there until `close`.
    """

    def __init__(self, runtime: Runtime | None, log: ConversationLog, *, statuses: Listeners[str]) -> None:
        """Nothing is started. statuses hears, a line at a time, what a person waits for meanwhile."""
        self.runtime = runtime
        """None until there is one; may be replaced until it is reached."""
        self.past = ResumeState()
        """What the log says of the sandbox so far."""
        self.tools: ToolsMap | None = None
        """By name, once they are made."""
        self._log = log
        self._statuses = statuses
        self._mcp = ConversationServers(None, log, statuses)
        self._started_here = False

    @property
    def servers(self) -> MCPServers | None:
        """The MCP servers, once they are begun."""
        return self._mcp.servers

    def expect_servers(self, source: MCPSource | None) -> None:
        """Read the configuration of the MCP servers; none is started.

        Raises:
            MCPConfigError: it is wrong.
        """
        self._mcp = ConversationServers(source, self._log, self._statuses)

    def begin_servers(self) -> None:
        """Begin to start the servers where the sandbox runs already, so that they are up sooner. Twice is fine.

        Raises:
            MCPConfigError: a variable is not set.
        """
        if self._mcp.to_begin and self.runtime is not None and self.runtime.is_alive():
            self._mcp.begin(self.runtime)

    def reach(self, runtime: Runtime, secrecy: Secrecy) -> None:
        """Take hold of a runtime: give it the secrets, start it where it does not run, say what is lost since.

        Raises:
            SandboxUnavailable: it cannot be started.
        """
        secrecy.give_to(runtime)
        if not runtime.is_alive():
            self._started_here = True
            resume_runtime(runtime, self.past)
        self.runtime = runtime
        for body in report_losses(runtime, self.past, self._log.history):
            self._log.emit(body)
        self._mcp.begin(runtime)

    def equip(self, agent: Agent, state: ConversationState, *, canceled: threading.Event) -> None:
        """Make the agent's tools and store the system message where it changed; canceled cuts the wait for servers.

        Raises:
            UsageError: a tool cannot be made.
        """
        tools = agent.initialize(state)
        self._mcp.offer(tools, canceled=canceled)
        system_message = agent.system_message(state, tools, note=self._mcp.missing())
        if self._log.history.system_prompt != system_message.data:
            self._log.emit(system_message)
        self.tools = tools

    def before_request(self) -> None:
        """The sandbox is worked in, and the model is offered the tools that the servers have now."""
        if self.runtime is not None:
            self.runtime.hold()
        if self.tools is not None:
            self._mcp.refresh(self.tools)

    def interrupt(self, names: Iterable[str]) -> None:
        """End what these tools do; from any thread."""
        for name in set(names):
            tool = (self.tools or {}).get(name)
            if tool is not None and tool.executor is not None:
                with contextlib.suppress(OhsandboxError):  # a sandbox that is gone needs no interrupt
                    tool.executor.interrupt()

    def close(self) -> None:
        """Close the tools, the servers, and the runtime where it was started here. Twice is fine."""
        for tool in (self.tools or {}).values():
            tool.close()
        self._mcp.close()
        if self._started_here and self.runtime is not None:
            self.runtime.close()
            self._started_here = False
