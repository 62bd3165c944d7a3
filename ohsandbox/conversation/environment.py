"""`Environment`: the runtime of a conversation, the MCP servers in it, and the tools that work there."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from ohsandbox.conversation.config import default_runtime
from ohsandbox.conversation.mcp_servers import ConversationServers
from ohsandbox.conversation.projections.resume import ResumeState, report_losses, resume_runtime
from ohsandbox.conversation.storage.deletion import note_container
from ohsandbox.errors import OhsandboxError

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Iterable

    from ohsandbox.agent.agent import ToolsMap
    from ohsandbox.conversation.config import ConversationConfig
    from ohsandbox.conversation.listeners import Listeners
    from ohsandbox.conversation.log import ConversationLog
    from ohsandbox.mcp import MCPServers
    from ohsandbox.runtime.base import Runtime
    from ohsandbox.state import ConversationState


class Environment:
    """Made ready once, by the first run that calls `prepare`; then the tools are there until `close`."""

    def __init__(
        self, runtime: Runtime | None, config: ConversationConfig, log: ConversationLog, *, statuses: Listeners[str]
    ) -> None:
        """Start nothing. statuses gets a line for each thing that a person waits for meanwhile."""
        self.runtime = runtime
        """None until there is one; may be replaced until `prepare`."""
        self.resume_state = ResumeState()
        """What the log says of the sandbox so far."""
        self._config = config
        self._log = log
        self._statuses = statuses
        self._tools: ToolsMap | None = None
        self._mcp: ConversationServers | None = None
        self._started_here = False

    @property
    def servers(self) -> MCPServers | None:
        """The MCP servers, once they are starting."""
        return None if self._mcp is None else self._mcp.servers

    def read_servers(self) -> ConversationServers:
        """Read the agent's MCP configuration, once; no server is started.

        Raises:
            MCPConfigError: it is wrong.
        """
        if self._mcp is None:
            self._mcp = ConversationServers(self._config.agent.mcp_config, self._log, self._statuses)
        return self._mcp

    def start_servers(self) -> None:
        """Begin to start the MCP servers where the sandbox runs already, so that they are up sooner. Twice is fine.

        Raises:
            MCPConfigError: the configuration is wrong, or a variable is not set.
        """
        servers = self.read_servers()
        if servers.to_begin and self.runtime is not None and self.runtime.is_alive():
            servers.begin(self.runtime)

    def prepare(self, state_of: Callable[[Runtime], ConversationState], *, canceled: threading.Event) -> ToolsMap:
        """Start the sandbox and its MCP servers, make the agent's tools, and store the system message where it changed.

        Args:
            state_of: the conversation as its tools see it, once the sandbox runs and its servers are starting.
            canceled: cuts the wait for the servers.

        Returns: the tools by name; from the second call on those of the first.

        Raises:
            SandboxUnavailable: the sandbox cannot be started.
            UsageError: a tool cannot be made.
        """
        if self._tools is None:
            runtime, servers = self._connect(), self.read_servers()
            servers.begin(runtime)
            state = state_of(runtime)
            tools = self._config.agent.initialize(state)
            servers.offer(tools, canceled=canceled)
            system_message = self._config.agent.system_message(state, tools, note=servers.missing())
            if self._log.history.system_prompt != system_message.data:
                self._log.emit(system_message)
            self._tools = tools
        return self._tools

    def _connect(self) -> Runtime:
        """The runtime, with the secrets, started where it does not run; the log says what is lost since."""
        runtime = self.runtime
        if runtime is None:
            runtime = default_runtime(self._config.read_settings(), conversation_id=self._log.conversation_id)
        if self._config.secrets:
            runtime.give_secrets(self._config.secrets)
        if not runtime.is_alive():
            self._started_here = True
            resume_runtime(runtime, self.resume_state)
        self.runtime = runtime
        for body in report_losses(runtime, self.resume_state, self._log.history):
            self._log.emit(body)
        adopted = runtime.resumed is not None and runtime.resumed.how == "same"
        if self._config.depth == 0 and not adopted:  # a sub-agent's is its parent's
            note_container(self._log.directory, runtime.id)
        return runtime

    def before_request(self) -> None:
        """Keep the sandbox from being stopped as idle, and offer the model the tools that the servers have now."""
        if self.runtime is not None:
            self.runtime.hold()
        if self._tools is not None:
            self.read_servers().refresh(self._tools)

    def interrupt(self, names: Iterable[str]) -> None:
        """End what these tools do; from any thread."""
        for name in set(names):
            tool = (self._tools or {}).get(name)
            if tool is not None and tool.executor is not None:
                with contextlib.suppress(OhsandboxError):  # a sandbox that is gone needs no interrupt
                    tool.executor.interrupt()

    def close(self) -> None:
        """Close the tools, the servers, and the runtime where it was started here. Twice is fine."""
        for tool in (self._tools or {}).values():
            tool.close()
        if self._mcp is not None:
            self._mcp.close()
        if self._started_here and self.runtime is not None:
            self.runtime.close()
            self._started_here = False
