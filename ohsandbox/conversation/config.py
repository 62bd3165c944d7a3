"""`ConversationConfig`: the caller's options for a conversation; the settings provide those that are not given."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ohsandbox.agent import Agent
from ohsandbox.arguments import expect, expect_method, wrong
from ohsandbox.content import DEFAULT_LIMITS, OutputLimits
from ohsandbox.conversation.approvals.policy import ConfirmationPolicy, approval_filter_of, policy_given, policy_of
from ohsandbox.conversation.environment.skill_servers import check_policy
from ohsandbox.conversation.run.limits import RunLimits, check_price
from ohsandbox.errors import UsageError
from ohsandbox.llm import open_model
from ohsandbox.secrets import Secrets, host_keys
from ohsandbox.secrets.vault import MIN_HOST_KEY_BYTES
from ohsandbox.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ohsandbox.agent import ActionEvent
    from ohsandbox.agent.held import ApprovalFilter, Verdict
    from ohsandbox.conversation.approvals.analysis import SecurityAnalyzer
    from ohsandbox.conversation.approvals.decisions import Approvals
    from ohsandbox.conversation.environment.skill_servers import SkillServersPolicy
    from ohsandbox.llm import ChatModel
    from ohsandbox.runtime.base import Runtime


_TOOL_CHOICES = ("auto", "required", "none")
"""Accepted words; a mapping that names a function, in OpenAI's form, is accepted as well."""


class ConversationConfig:
    """Agent, limits, confirmation policy and secrets of one conversation.

    The settings file is read only when something is needed that only it has.
    """

    def __init__(
        self,
        agent: Agent | None = None,
        *,
        limits: RunLimits | None = None,
        settings: Settings | None = None,
        user_id: str | None = None,
        tool_choice: str = "auto",
        confirmation: ConfirmationPolicy | str | None = None,
        security_analyzer: SecurityAnalyzer | None = None,
        secrets: Secrets | None = None,
        checkpoints: bool | None = None,
        skill_servers: SkillServersPolicy | None = None,
        depth: int = 0,
    ) -> None:
        """Store the options of a `Conversation`; no file is read.

        Raises:
            UsageError: an argument has a wrong type, or there is no confirmation policy of that name.
        """
        expect("agent", agent, Agent, "Name it: Conversation(settings=...)." if isinstance(agent, Settings) else "")
        expect("settings", settings, Settings, "Make them: Settings(model=...).")
        expect("limits", limits, RunLimits, "Make them: RunLimits(max_iterations=...).")
        check_policy(skill_servers)
        expect("user_id", user_id, str)
        expect("secrets", secrets, Secrets, "Make them: ohsandbox.secrets.Secrets({'NAME': ...}).", secret=True)
        expect("checkpoints", checkpoints, bool)
        expect_method("security_analyzer", security_analyzer, "assess", "a SecurityAnalyzer")
        if not isinstance(tool_choice, Mapping) and tool_choice not in _TOOL_CHOICES:
            raise wrong("tool_choice", tool_choice, f"Use one of {', '.join(map(repr, _TOOL_CHOICES))}.")
        self.agent = agent or Agent()
        self.limits = limits or RunLimits()
        self.settings = settings
        """The settings; None until they are given or read."""
        self.user_id = user_id
        self.tool_choice = tool_choice
        self.depth = depth
        self.confirmation = policy_given(confirmation)
        """None is the policy of the settings, else "never". It may be replaced at any time."""
        self.security_analyzer = security_analyzer
        """The security analyzer; None selects the default."""
        self.given_secrets = secrets
        self.secrets = secrets or Secrets()
        """After `load`, includes those of the settings, and masks the host's keys."""
        self._outside: Mapping[str, str] = {}
        self._agent_is_ours = agent is None
        self._limits_given = limits is not None
        self._checkpoints = checkpoints
        if self.agent.llm is not None:
            self.check_prices(self.limits if settings is None or self._limits_given else run_limits_of(settings))
        self.given_skill_servers = skill_servers

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
        """Whether checkpoints are taken; False for a sub-agent, whose files are its parent's."""
        checkpoints = self.settings is not None and self.settings.checkpoints
        return self.depth == 0 and (checkpoints if self._checkpoints is None else self._checkpoints)

    @property
    def skill_servers(self) -> SkillServersPolicy:
        """Whether MCP servers of the workspace's skills start."""
        if self.given_skill_servers is not None:
            return self.given_skill_servers
        return (None if self.settings is None else self.settings.skill_servers) or "ask"

    @property
    def output(self) -> OutputLimits:
        """How much of a tool's result the model sees."""
        return DEFAULT_LIMITS if self.settings is None else self.settings.output

    @property
    def policy(self) -> ConfirmationPolicy:
        """The confirmation policy in force."""
        named = self.settings.confirm if self.settings is not None else None
        return self.confirmation or policy_of(named or "never")

    def approval_filter(self, runtime: Runtime | None, approvals: Approvals) -> ApprovalFilter:
        """Return the function that decides which calls of a response wait, by the policy that is then in force."""
        workdir = None if runtime is None else runtime.workdir
        keeps_files = (self.depth > 0 or self.keeps_files) and runtime is not None and runtime.keeps_checkpoints

        def verdicts_for(planned: Sequence[ActionEvent]) -> Sequence[Verdict] | None:
            approval_filter = approval_filter_of(
                self.policy,
                self.security_analyzer,
                workdir=workdir,
                keeps_files=keeps_files,
                approval_for=lambda call: approvals.approval_for(call, runtime),
            )
            return None if approval_filter is None else approval_filter(planned)

        return verdicts_for

    def load(self, outside: Mapping[str, str]) -> None:
        """Open the agent's model if it has none, and take limits and secrets from the settings if these are known.

        outside are the values of the runtime's credentials, which never enter the sandbox; they are masked, too.

        Raises:
            UsageError: no model is named, it cannot be opened, its price is unknown and the cost is limited, or a
                secret of the settings has no value or is the model's own key.
        """
        self._outside = outside
        if self.agent.llm is None:
            settings = self.read_settings()
            self.agent = _with_model(self.agent, settings)
            if self._agent_is_ours:
                self.agent = self.agent.with_tools(settings.tools.names(), takes_runtime_tools=True)
                self.agent = self.agent.with_mcp(settings.mcp_config)
        if self.settings is not None and not self._limits_given:
            self.limits = run_limits_of(self.settings)
        self.check_prices(self.limits)
        if self.settings is not None and self.given_secrets is None:
            self.secrets = Secrets.load(self.settings.secrets)
        self._hide_keys()

    def use_model(self, model: ChatModel) -> None:
        """Set another model for the agent; from now on its key is masked, too.

        Raises:
            UsageError: a secret is the model's key, or the cost is limited and its price is unknown.
        """
        before = self.agent
        self.agent = self.agent.with_llm(model)
        try:
            self.check_prices(self.limits)
            self._hide_keys()
        except BaseException:
            self.agent = before
            raise

    def _hide_keys(self) -> None:
        own = keys_of(self.llm)
        self.secrets = self.secrets.hiding({**host_keys(), **self._outside, **own}, never=own.values())

    def check_prices(self, limits: RunLimits) -> None:
        """Check that a cost limit can be enforced, for the agent and for the agents that it has as tools."""
        helpers = [entry.llm for entry in self.agent.tools if isinstance(entry, Agent)]
        for model in (self.agent.llm, *helpers):
            if model is not None:
                check_price(limits, model)

    def read_settings(self) -> Settings:
        """Return the settings that were given, or else those of the file.

        Raises:
            UsageError: the file cannot be read.
        """
        if self.settings is None:
            self.settings = Settings.load()
        return self.settings


def _with_model(agent: Agent, settings: Settings) -> Agent:
    """Return the agent with the model that the settings name.

    Raises:
        UsageError: the settings name none, or it cannot be opened.
    """
    return agent.with_llm(open_model(settings.llm_config()))


def run_limits_of(settings: Settings) -> RunLimits:
    """Return the limits in the settings."""
    return RunLimits(**{name: getattr(settings, name) for name in RunLimits.model_fields})


def keys_of(llm: ChatModel) -> dict[str, str]:
    """Return the model's API key by name; {} if it is unknown or too short for a real key."""
    config: Any = getattr(llm, "config", None)
    if config is None:
        return {}
    if config.api_key is not None:
        keys = {"api_key": config.api_key.get_secret_value()}
    else:  # the client reads its provider's variable
        variable = f"{config.model.partition('/')[0].upper().replace('-', '_')}_API_KEY"
        keys = {variable: os.environ.get(variable, "")}
    return {name: key for name, key in keys.items() if len(key.encode()) >= MIN_HOST_KEY_BYTES}
