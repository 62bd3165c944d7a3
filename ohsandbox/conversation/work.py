"""`Work`: what a conversation does in a run."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from ohsandbox.conversation.condensation import CondensationTrigger
from ohsandbox.conversation.config import default_runtime
from ohsandbox.conversation.container_note import note_container
from ohsandbox.conversation.loop import Loop
from ohsandbox.conversation.side_question import SideQuestion
from ohsandbox.conversation.subagents.context import SubagentContext
from ohsandbox.conversation.subagents.manager import MAX_DEPTH, SubagentManager
from ohsandbox.persistence.layout import TOOLS_NAME
from ohsandbox.state import ConversationState
from ohsandbox.timetravel.checkpoints import CheckpointRecorder

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable
    from typing import Any

    from ohsandbox.agent.agent import ToolsMap
    from ohsandbox.conversation.approvals import Approvals, Screening
    from ohsandbox.conversation.config import ConversationConfig
    from ohsandbox.conversation.conversation import Conversation
    from ohsandbox.conversation.environment import Environment
    from ohsandbox.conversation.log import ConversationLog
    from ohsandbox.conversation.model_news import StreamRelay
    from ohsandbox.conversation.secrecy import Secrecy
    from ohsandbox.events import ConversationStatus
    from ohsandbox.runtime.base import Runtime


class Work:
    """Makes the hands ready, runs the loop, and keeps the files before and after."""

    def __init__(
        self,
        config: ConversationConfig,
        log: ConversationLog,
        environment: Environment,
        *,
        secrecy: Secrecy,
        screening: Screening,
        approvals: Approvals,
        news: StreamRelay,
        canceled: threading.Event,
        converse: Callable[..., Conversation],
    ) -> None:
        """Nothing is started.

        Args:
            config: who works, and within what limits.
            log: where everything is stored.
            environment: what is worked with; reached and equipped in the first run.
            secrecy: what the sandbox is given, and sub-agents are.
            screening: which calls a person is asked about.
            approvals: answers for sub-agents.
            news: hears what the model's client tells.
            canceled: set by whoever stops a run.
            converse: the class `Conversation`, or what makes one as it does; for sub-agents.
        """
        self._config = config
        self._log = log
        self._environment = environment
        self._secrecy = secrecy
        self._screening = screening
        self._approvals = approvals
        self._news = news
        self._canceled = canceled
        self._converse = converse
        self._sub_agents: SubagentManager | None = None
        self._ask: SideQuestion | None = None

    def run(self, *, before_request: Callable[[], None]) -> ConversationStatus:
        """Work until somebody else has the next word; before_request is called before each request to the model.

        Raises:
            OhsandboxError: the sandbox cannot be had, a limit is reached, the model gave no answer.
        """
        tools, ask = self._ready()
        runtime = self._environment.runtime

        def prepare_request() -> None:
            self._environment.before_request()
            before_request()

        with CheckpointRecorder(self._log, runtime, enabled=self._config.keeps_files) as checkpointing:
            return Loop(
                self._config.agent,
                tools,
                self._log,
                limits=self._config.limits,
                tool_choice=self._config.tool_choice,
                canceled=self._canceled,
                condensing=CondensationTrigger(self._config.agent, self._log, ask),
                checkpointing=checkpointing,
                screen=self._screening.screen(runtime, self._approvals),
                interrupt=self.interrupt,
                before_step=prepare_request,
                on_event=self._news,
            ).run()

    def interrupt(self) -> None:
        """End what is waited for; sub-agents first: they share the model, and must know that they are stopped."""
        if self._sub_agents is not None:
            self._sub_agents.interrupt()
        self._config.llm.cancel()
        self._environment.interrupt(self._log.history.unanswered.values())

    def _ready(self) -> tuple[ToolsMap, SideQuestion]:
        """The tools, and the model beside the conversation; made once."""
        if self._environment.tools is None or self._ask is None:
            runtime = self._environment.runtime
            if runtime is None:
                runtime = default_runtime(self._config.read_settings(), conversation_id=self._log.conversation_id)
            self._environment.reach(runtime, self._secrecy)
            adopted = runtime.resumed is not None and runtime.resumed.how == "same"
            if self._config.depth == 0 and not adopted:  # a sub-agent's is its parent's
                note_container(self._log.directory, runtime.id)
            parent = self._as_parent(runtime)
            self._sub_agents = SubagentManager(parent, converse=partial(self._converse, **self._inherited()))
            self._ask = SideQuestion(parent, hear=self._news)
            self._environment.equip(self._config.agent, self._tool_state(runtime, self._ask), canceled=self._canceled)
        assert self._environment.tools is not None  # noqa: S101 - equip has made them
        return self._environment.tools, self._ask

    def _tool_state(self, runtime: Runtime, ask: SideQuestion) -> ConversationState:
        """The conversation as its tools see it."""
        return ConversationState(
            conversation_id=self._log.conversation_id,
            runtime=runtime,
            user_id=self._config.user_id,
            directory=self._log.directory / TOOLS_NAME,
            ask_model=ask,
            delegate=self._sub_agents if self._config.depth < MAX_DEPTH else None,
        )

    def _as_parent(self, runtime: Runtime) -> SubagentContext:
        return SubagentContext(
            agent=self._config.agent.with_mcp(self._environment.servers),
            runtime=runtime,
            log=self._log,
            user_id=self._config.user_id,
            depth=self._config.depth,
            canceled=self._canceled,
            budget=lambda: self._log.spending.remaining(self._config.limits),
        )

    def _inherited(self) -> dict[str, Any]:
        """What a sub-agent's conversation is given so that it asks, and has secrets, as this one does."""
        return {
            "secrets": self._secrecy.secrets,
            "confirmation": self._screening.policy,
            "security_analyzer": self._screening.analyzer,
            "confirm": self._approvals.ask_for_sub_agent,
        }
