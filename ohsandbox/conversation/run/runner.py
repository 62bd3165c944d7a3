"""`Runner`: what happens in a run of a conversation. `RunThread`: starts and stops runs, each in its own thread."""

from __future__ import annotations

import contextlib
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ohsandbox import events
from ohsandbox.agent.history import PLAN_MODE
from ohsandbox.conversation.approvals.policy import PLAN_BEGINS, PLAN_IS_OVER, PlanMode
from ohsandbox.conversation.run.condensation import CondensationTrigger
from ohsandbox.conversation.run.loop import Loop
from ohsandbox.conversation.subagents import MAX_DEPTH, AuxiliaryCompletion, SubagentManager
from ohsandbox.events import ConversationStatus
from ohsandbox.persistence.layout import TOOLS_NAME
from ohsandbox.state import ConversationState
from ohsandbox.timetravel.checkpoints import CheckpointRecorder

if TYPE_CHECKING:
    from collections.abc import Callable

    from ohsandbox.conversation.approvals.decisions import Approvals
    from ohsandbox.conversation.config import ConversationConfig
    from ohsandbox.conversation.environment.conversation_environment import Environment
    from ohsandbox.conversation.log import ConversationLog, StreamRelay
    from ohsandbox.conversation.subagents import Converse
    from ohsandbox.runtime.base import Runtime
    from ohsandbox.state import Delegation


class Runner:
    """Prepares the environment, runs the loop, and takes checkpoints before and after it."""

    def __init__(
        self,
        config: ConversationConfig,
        log: ConversationLog,
        environment: Environment,
        *,
        approvals: Approvals,
        stream: StreamRelay,
        converse: Converse,
    ) -> None:
        """Store the arguments.

        Args:
            config: the agent and its limits, read when a run begins.
            log: stores all events.
            environment: is prepared by the first run.
            approvals: allow calls that would otherwise wait for a person.
            stream: receives the reports of the model's client.
            converse: makes the conversation of a sub-agent.
        """
        self.canceled = threading.Event()
        """Set to stop a run."""
        self._config = config
        self._log = log
        self._environment = environment
        self._approvals = approvals
        self._stream = stream
        self._subagents = SubagentManager(config, log, canceled=self.canceled, converse=converse)
        self._ask = AuxiliaryCompletion(config, log, canceled=self.canceled, hear=stream)

    def run(self, *, before_request: Callable[[], None]) -> ConversationStatus:
        """Work until the user's next turn; before_request is called before each request to the model.

        Raises:
            OhsandboxError: the sandbox is unavailable, a limit is reached, or the model gave no answer.
        """
        tools = self._environment.prepare(self._state, canceled=self.canceled)
        runtime = self._environment.runtime

        def prepare_request() -> None:
            self._environment.before_request()
            self._notify_mode()
            before_request()

        with CheckpointRecorder(self._log, runtime, enabled=self._config.keeps_files) as checkpoints:
            return Loop(
                config=self._config,
                tools=tools,
                log=self._log,
                canceled=self.canceled,
                condensation=CondensationTrigger(self._config.agent, self._log, self._ask),
                checkpoints=checkpoints,
                approval_filter=self._config.approval_filter(runtime, self._approvals),
                interrupt=self.interrupt,
                before_step=prepare_request,
                on_event=self._stream,
            ).run()

    def _notify_mode(self) -> None:
        """Tell the model when plan mode begins or ends, once for each change."""
        is_on = isinstance(self._config.policy, PlanMode)
        if is_on != self._log.history.is_planning:
            message = PLAN_BEGINS if is_on else PLAN_IS_OVER
            fields = {"is_on": is_on, "to_model": True, "for_person": False}
            self._log.emit(events.notice(code=PLAN_MODE, message=message, **fields))

    def compact(self) -> ConversationStatus:
        """Condense the model's input.

        Raises:
            ModelError: the model gave no summary.
        """
        if not CondensationTrigger(self._config.agent, self._log, self._ask).now():
            message = "The conversation is too short to be condensed: nothing was left out."
            self._log.emit(events.notice(code="NothingToCondense", message=message))
        return ConversationStatus.IDLE

    def place(self) -> dict[str, Any]:
        """Return the fields about the place of the run for `events.status_update`."""
        runtime = self._environment.runtime
        workspace = None if runtime is None else runtime.host_workspace or runtime.copied_workspace
        location: dict[str, Any] = {"workspace": None if workspace is None else str(workspace)}
        with contextlib.suppress(OSError):  # somebody has removed it
            location["directory"] = str(Path.cwd())
        return location | {"secrets": self._config.secrets.names}

    def interrupt(self) -> None:
        """End what the run waits for: sub-agents, a request to the model, calls."""
        self._subagents.interrupt()
        self._environment.interrupt(self._log.history.unanswered.values())

    def _state(self, runtime: Runtime) -> ConversationState:
        """Return the conversation's state for its tools."""
        agent = self._config.agent.with_mcp(self._environment.servers)

        def delegate(delegation: Delegation) -> str:
            parent = agent if agent.llm is self._config.llm else agent.with_llm(self._config.llm)
            return self._subagents.run(delegation, parent=parent, lender=runtime)

        return ConversationState(
            conversation_id=self._log.conversation_id,
            runtime=runtime,
            user_id=self._config.user_id,
            directory=self._log.directory / TOOLS_NAME,
            ask_model=self._ask,
            delegate=delegate if self._config.depth < MAX_DEPTH else None,
            output=self._config.output,
            mask=lambda text: self._log.masker.mask(text),  # noqa: PLW0108 - another model has another masker
        )
