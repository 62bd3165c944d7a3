"""`ConversationConfig`: what the caller of a conversation asked for; where nothing, what the settings say."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ohsandbox.agent import Agent
from ohsandbox.conversation.limits import Limits
from ohsandbox.errors import UsageError
from ohsandbox.runtime.factory import RuntimeSettings, runtime_from
from ohsandbox.settings import Settings

if TYPE_CHECKING:
    from ohsandbox.llm import ChatModel
    from ohsandbox.runtime.base import Runtime


class ConversationConfig:
    """Who works, within what limits, and how. The settings file is read when something is needed that it alone says."""

    def __init__(
        self,
        agent: Agent | None = None,
        *,
        limits: Limits | None = None,
        settings: Settings | None = None,
        user_id: str | None = None,
        tool_choice: str = "auto",
        checkpoints: bool | None = None,
        depth: int = 0,
    ) -> None:
        """As for a `Conversation`; nothing is read yet."""
        self.agent = agent or Agent()
        self.limits = limits or Limits()
        self.settings = settings
        """None until they are given or read."""
        self.user_id = user_id
        self.tool_choice = tool_choice
        self.depth = depth
        self._agent_is_ours = agent is None
        self._limits_given = limits is not None
        self._checkpoints = checkpoints

    @property
    def llm(self) -> ChatModel:
        """The agent's model.

        Raises:
            UsageError: it has none.
        """
        if self.agent.llm is None:
            raise UsageError("The agent has no model. Give it one, or name one in the settings.")
        return self.agent.llm

    @property
    def keeps_files(self) -> bool:
        """Whether checkpoints are taken; never for a sub-agent, whose files are its parent's."""
        asked = self.settings is not None and self.settings.checkpoints
        return self.depth == 0 and (asked if self._checkpoints is None else self._checkpoints)

    def settle(self) -> None:
        """Give the agent a model where it has none, and take the limits of settings that are known.

        Raises:
            UsageError: no model is named, or it cannot be opened.
        """
        if self.agent.llm is None:
            settings = self.read_settings()
            self.agent = with_model(self.agent, settings)
            if self._agent_is_ours:
                self.agent = self.agent.with_tools(settings.tools.names()).with_mcp(settings.mcp_config)
        if self.settings is not None and not self._limits_given:
            self.limits = limits_of(self.settings)

    def read_settings(self) -> Settings:
        """Those that were given, or those of the file.

        Raises:
            UsageError: the file cannot be read.
        """
        if self.settings is None:
            self.settings = Settings.load()
        return self.settings


def with_model(agent: Agent, settings: Settings) -> Agent:
    """The agent on the model that the settings name.

    Raises:
        UsageError: they name none, or it cannot be opened.
    """
    from ohsandbox.llm import open_model  # noqa: PLC0415 - only a run needs the model's client

    return agent.with_llm(open_model(settings.llm_config()))


def default_runtime(settings: Settings, *, conversation_id: str) -> Runtime:
    """The runtime that the settings describe, not started."""
    asked = RuntimeSettings(
        image=settings.image, network=settings.network, ca_bundle=settings.ca_bundle, conversation=conversation_id
    )
    return runtime_from(asked)


def limits_of(settings: Settings) -> Limits:
    """The limits that the settings name."""
    return Limits(**{name: getattr(settings, name) for name in Limits.model_fields})
