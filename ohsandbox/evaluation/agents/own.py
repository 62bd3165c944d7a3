"""`OhsandboxAgent`: our agent with any model; `ReplayAgent`: our agent with the answers of a recorded run."""

from __future__ import annotations

import hashlib
import time
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from ohsandbox.agent import Agent
from ohsandbox.conversation import Conversation
from ohsandbox.conversation.config import keys_of, run_limits_of
from ohsandbox.conversation.environment.shared_runtime import SharedRuntime
from ohsandbox.conversation.run.limits import check_price
from ohsandbox.errors import LimitReachedError, LogWriteError, ModelError, SandboxUnavailable, UsageError
from ohsandbox.evaluation.agents.base import AgentReport, Assignment, EvaluatedAgent
from ohsandbox.evaluation.progress import RateLimited
from ohsandbox.evaluation.results import CONVERSATION_NAME, ResultsDirectory, TrialKey, read_record
from ohsandbox.events import ConversationStatus
from ohsandbox.llm import LLM, ContextWindowError, ReplayLLM, ScriptError, open_model
from ohsandbox.llm.back_off import SharedBackOff
from ohsandbox.secrets import Secrets

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from ohsandbox.conversation.run.result import RunResult
    from ohsandbox.evaluation.progress import Tell
    from ohsandbox.llm import ChatModel
    from ohsandbox.llm.back_off import BackOffMember
    from ohsandbox.runtime import Runtime
    from ohsandbox.settings import Settings

_ANSWER_NAME = "answer.md"
_LOOK_EVERY_S = 0.2
"""Interval at which time and cancellation are checked; the end of the work is noticed at once."""
_ALONE = ("ask_human",)
"""Tools that wait for a person, left out since nobody is there to answer."""
_TOLD = (
    "model", "custom_llm_provider", "api_version", "temperature", "reasoning_effort", "max_output_tokens", "top_k",
    "top_p", "context_tokens", "price", "native_tool_calling", "vision",
)  # fmt: skip
"""The settings of the model that a result depends on."""


class OhsandboxAgent(EvaluatedAgent):
    """Our agent. Each step is a conversation of its own; all share one back-off where the provider limits the rate."""

    name = "ohsandbox"

    @property
    def _name(self) -> str:
        """The name of the model."""
        return self._config.model

    def __init__(self, settings: Settings, *, extensions: Sequence[str] = (), tool_choice: str = "auto") -> None:
        """Take settings as `ohsandbox run` does; nobody is asked for confirmation, and no checkpoint is taken.

        Raises:
            UsageError: the model cannot be opened; its cost is limited, and its price unknown; a secret has no value,
                or is the key of the model.
        """
        tools = settings.tools.switched(off=_ALONE)
        self._settings = settings.with_flags(tools=tools, confirm="never", checkpoints=False)
        super().__init__(Secrets.load(settings.secrets))
        self._extensions, self._tool_choice = tuple(extensions), tool_choice
        self._config = self._settings.llm_config()
        self._open_shared()
        check_price(run_limits_of(self._settings), self._model)
        keys = keys_of(self._model)
        self.secrets = self.secrets.hiding(keys, never=keys.values())

    def _open_shared(self) -> None:
        self._model = open_model(self._config)
        """The one of all conversations where it is a script; else it only imports what the others need."""
        self._back_off = SharedBackOff()

    def __getstate__(self) -> dict[str, Any]:
        """Drop the shared back-off when the agent is sent to another process, which makes its own."""
        return {name: value for name, value in self.__dict__.items() if name not in {"_model", "_back_off"}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._open_shared()

    @property
    def settings(self) -> dict[str, Any]:
        """See `EvaluatedAgent.settings`."""
        settings = {name: value for name in _TOLD if (value := getattr(self._config, name)) is not None}
        settings["model"] = self._name
        if self._config.price is not None:
            settings["price"] = list(self._config.price)  # as it is read back
        if self._config.base_url is not None:
            address = urlsplit(self._config.base_url)
            settings["base_url"] = address._replace(netloc=address.netloc.rpartition("@")[2], query="").geturl()
        extensions = {"extensions_digest": hashlib.sha256("\0".join(self._extensions).encode()).hexdigest()}
        servers = {"mcp_servers": sorted(self._settings.mcpServers)}
        return {
            **settings,
            "tools": list(self._settings.tools.names()),
            "limits": run_limits_of(self._settings).model_dump(exclude_none=True),
            **(servers if servers["mcp_servers"] else {}),
            **(extensions if self._extensions else {}),
            **super().settings,
        }

    def begin(self, tell: Tell) -> None:
        """Import the model's client while images are pulled, and have waits for the provider told."""
        self._model.preload()
        self._back_off.tell = lambda wait_s: tell(RateLimited(self._name, wait_s))

    def work(self, runtime: Runtime, assignment: Assignment) -> AgentReport:
        """See `EvaluatedAgent.work`."""
        member = self._back_off.member()
        model = self._open(assignment, member)
        shared = SharedRuntime(runtime, user=assignment.step.agent.user)
        conversation = Conversation(
            Agent(
                model, self._settings.tools.names(), system_prompt_extensions=self._extensions,
                mcp_config=self._settings.mcp_config,
            ),
            shared,
            assignment.directory / CONVERSATION_NAME,
            settings=self._settings,
            secrets=self.secrets,
            tool_choice=self._tool_choice,
        )  # fmt: skip
        try:
            conversation.send_message(assignment.step.instruction)
            fault = _await_end(conversation, assignment, member)
            result = conversation.wait(0)
        finally:
            conversation.close()
            shared.close()
            if isinstance(model, LLM):
                model.close()
        if result.answer:
            (assignment.directory / _ANSWER_NAME).write_text(result.answer, "utf-8", "replace")
        return self._report(result, fault, member.waited_s)

    def _open(self, _assignment: Assignment, member: BackOffMember) -> ChatModel:
        """Open the model of one conversation; `LLM.cancel` ends all requests of its object."""
        return LLM(self._config, back_off=member) if isinstance(self._model, LLM) else self._model

    def _report(self, result: RunResult, fault: AgentReport, waited_s: float) -> AgentReport:
        used = {
            "usage": result.usage.model_dump(), "cost_usd": result.cost_usd, "model": self._name,
            "rate_limit_wait_s": round(waited_s, 3),
        }  # fmt: skip
        if fault.fault is None and result.status is ConversationStatus.ERROR:
            fault = self._fault(result.error)
        return fault.model_copy(update=used)

    def _fault(self, error: BaseException | None) -> AgentReport:
        if isinstance(error, SandboxUnavailable | LogWriteError | UsageError):
            raise error
        kind = error.code if isinstance(error, LimitReachedError) else type(error).__name__
        # that a conversation is too long for its model is the agent's doing
        is_model_fault = isinstance(error, ModelError) and not isinstance(error, ContextWindowError)
        return AgentReport(fault=kind, message=str(error), is_model_fault=is_model_fault)


class ReplayAgent(OhsandboxAgent):
    """Repeats a recorded run: each step with the answers that its model gave there, and tools that run again."""

    name = "replay"

    @property
    def _name(self) -> str:
        return f"replay:{self._recorded.path}"

    def __init__(self, recorded: Path, settings: Settings) -> None:
        """Take the directory of the other run's results.

        Raises:
            UsageError: it holds no run, or one of an agent that is not ours.
        """
        self._recorded = ResultsDirectory(recorded)
        agent = read_record(recorded).agent
        if agent not in {OhsandboxAgent.name, self.name}:
            raise UsageError(
                f"{recorded} is a run of the agent {agent!r}, which leaves no answers of a model. Replay a run "
                f"of the agent {OhsandboxAgent.name!r}."
            )
        super().__init__(settings.with_flags(model="scripted:demo", api_key=None))

    def _open(self, assignment: Assignment, _member: BackOffMember) -> ChatModel:
        """Return the recorded answers of the same step of the same trial.

        Raises:
            UsageError: there are none.
        """
        trial = self._recorded.trial(TrialKey(assignment.task.id, assignment.attempt))
        step_directory = trial / "steps" / assignment.step.name if assignment.step.name else trial
        directory = step_directory / "agent" / CONVERSATION_NAME
        recordings = sorted(directory.glob("*/sdk_events.jsonl"))
        if len(recordings) != 1:
            raise UsageError(
                f"{directory} holds {len(recordings)} conversations: expected the recorded one. Replay a "
                "run of our own agent on the same tasks, with as many attempts."
            )
        return ReplayLLM.load(recordings[0])

    def _fault(self, error: BaseException | None) -> AgentReport:
        """Report the end of the recording: that of an agent that was stopped ends without a last answer."""
        if isinstance(error, ScriptError):
            return AgentReport(fault="ReplayEnded", message=str(error))
        return super()._fault(error)


def _await_end(conversation: Conversation, assignment: Assignment, member: BackOffMember) -> AgentReport:
    """Wait for the end of the conversation; stop it when its time is up or the run is cancelled."""
    began, timeout_s = time.monotonic(), assignment.timeout_s
    while conversation.wait(_LOOK_EVERY_S).status is ConversationStatus.RUNNING:
        if assignment.cancel.is_set():
            conversation.stop()
            return AgentReport(fault="Cancelled", message="it was cancelled")
        if timeout_s is not None and time.monotonic() - began - member.waited_s >= timeout_s:
            conversation.stop()
            return AgentReport(fault="Timeout", message=f"it took longer than {timeout_s:g} s")
    return AgentReport()
