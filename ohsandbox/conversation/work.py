"""`Work`: what a conversation does in a run."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from ohsandbox.conversation.checkpointing import Checkpointing
from ohsandbox.conversation.condensing import Condensing
from ohsandbox.conversation.container_note import note_container
from ohsandbox.conversation.delegation import MAX_DEPTH, SubAgents
from ohsandbox.conversation.loop import Loop
from ohsandbox.conversation.parent import Parent
from ohsandbox.conversation.side_question import SideQuestion
from ohsandbox.conversation.store import TOOLS_NAME
from ohsandbox.conversation.terms import default_runtime
from ohsandbox.state import ConversationState

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable
    from typing import Any

    from ohsandbox.agent.agent import ToolsMap
    from ohsandbox.conversation.confirmation import Approvals, Screening
    from ohsandbox.conversation.conversation import Conversation
    from ohsandbox.conversation.hands import Hands
    from ohsandbox.conversation.model_news import ModelNews
    from ohsandbox.conversation.secrecy import Secrecy
    from ohsandbox.conversation.terms import Terms
    from ohsandbox.conversation.trail import Trail
    from ohsandbox.events import ConversationStatus
    from ohsandbox.runtime.base import Runtime


class Work:
    """Makes the hands ready, runs the loop, and keeps the files before and after."""

    def __init__(
        self,
        terms: Terms,
        trail: Trail,
        hands: Hands,
        *,
        secrecy: Secrecy,
        screening: Screening,
        approvals: Approvals,
        news: ModelNews,
        canceled: threading.Event,
        converse: Callable[..., Conversation],
    ) -> None:
        """Nothing is started.

        Args:
            terms: who works, and within what limits.
            trail: where everything is stored.
            hands: what is worked with; reached and equipped in the first run.
            secrecy: what the sandbox is given, and sub-agents are.
            screening: which calls a person is asked about.
            approvals: answers for sub-agents.
            news: hears what the model's client tells.
            canceled: set by whoever stops a run.
            converse: the class `Conversation`, or what makes one as it does; for sub-agents.
        """
        self._terms = terms
        self._trail = trail
        self._hands = hands
        self._secrecy = secrecy
        self._screening = screening
        self._approvals = approvals
        self._news = news
        self._canceled = canceled
        self._converse = converse
        self._sub_agents: SubAgents | None = None
        self._ask: SideQuestion | None = None

    def run(self, *, before_request: Callable[[], None]) -> ConversationStatus:
        """Work until somebody else has the next word; before_request is called before each request to the model.

        Raises:
            OhsandboxError: the sandbox cannot be had, a limit is reached, the model gave no answer.
        """
        tools, ask = self._ready()
        runtime = self._hands.runtime

        def prepare_request() -> None:
            self._hands.before_request()
            before_request()

        with Checkpointing(self._trail, runtime, enabled=self._terms.keeps_files) as checkpointing:
            return Loop(
                self._terms.agent,
                tools,
                self._trail,
                limits=self._terms.limits,
                tool_choice=self._terms.tool_choice,
                canceled=self._canceled,
                condensing=Condensing(self._terms.agent, self._trail, ask),
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
        self._terms.llm.cancel()
        self._hands.interrupt(self._trail.history.unanswered.values())

    def _ready(self) -> tuple[ToolsMap, SideQuestion]:
        """The tools, and the model beside the conversation; made once."""
        if self._hands.tools is None or self._ask is None:
            runtime = self._hands.runtime
            if runtime is None:
                runtime = default_runtime(self._terms.read_settings(), conversation_id=self._trail.conversation_id)
            self._hands.reach(runtime, self._secrecy)
            adopted = runtime.resumed is not None and runtime.resumed.how == "same"
            if self._terms.depth == 0 and not adopted:  # a sub-agent's is its parent's
                note_container(self._trail.directory, runtime.id)
            parent = self._as_parent(runtime)
            self._sub_agents = SubAgents(parent, converse=partial(self._converse, **self._inherited()))
            self._ask = SideQuestion(parent, hear=self._news)
            self._hands.equip(self._terms.agent, self._tool_state(runtime, self._ask), canceled=self._canceled)
        assert self._hands.tools is not None  # noqa: S101 - equip has made them
        return self._hands.tools, self._ask

    def _tool_state(self, runtime: Runtime, ask: SideQuestion) -> ConversationState:
        """The conversation as its tools see it."""
        return ConversationState(
            conversation_id=self._trail.conversation_id,
            runtime=runtime,
            user_id=self._terms.user_id,
            directory=self._trail.directory / TOOLS_NAME,
            ask_model=ask,
            delegate=self._sub_agents if self._terms.depth < MAX_DEPTH else None,
        )

    def _as_parent(self, runtime: Runtime) -> Parent:
        return Parent(
            agent=self._terms.agent.with_mcp(self._hands.servers),
            runtime=runtime,
            trail=self._trail,
            user_id=self._terms.user_id,
            depth=self._terms.depth,
            canceled=self._canceled,
            budget=lambda: self._trail.spending.remaining(self._terms.limits),
        )

    def _inherited(self) -> dict[str, Any]:
        """What a sub-agent's conversation is given so that it asks, and has secrets, as this one does."""
        return {
            "secrets": self._secrecy.secrets,
            "confirmation": self._screening.policy,
            "security_analyzer": self._screening.analyzer,
            "confirm": self._approvals.ask_for_sub_agent,
        }
