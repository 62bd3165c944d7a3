"""`SubagentManager`: runs sub-agents, agents that work for another one, each in a conversation of its own."""

from __future__ import annotations

import threading
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from ohsandbox import events
from ohsandbox.agent import Agent
from ohsandbox.conversation.environment.shared_runtime import SharedRuntime
from ohsandbox.errors import LimitReachedError, SandboxUnavailable, ToolError
from ohsandbox.events import ConversationStatus, EventBody, SDKEvent
from ohsandbox.llm import ModelCanceledError
from ohsandbox.persistence import LOG_NAME
from ohsandbox.persistence.layout import AGENTS_NAME
from ohsandbox.private_files import make_private_dir
from ohsandbox.schema import Action, Observation
from ohsandbox.text import counted
from ohsandbox.tool import Tool, ToolDefinition, ToolExecutor, cut_middle, is_pattern, matching_tools
from ohsandbox.tools import arguments_of, hint_of
from ohsandbox.tools.delegate_to_browsing_agent import BROWSING_TOOLS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from ohsandbox.agent.agent import Entry
    from ohsandbox.conversation.config import ConversationConfig
    from ohsandbox.conversation.conversation import Conversation
    from ohsandbox.conversation.log import ConversationLog
    from ohsandbox.conversation.run.limits import RunLimits
    from ohsandbox.llm.chat import LLMEvent, OnEvent
    from ohsandbox.runtime.base import Runtime
    from ohsandbox.state import Delegation

MAX_DEPTH = 2
"""Maximum depth of sub-agents below the user's agent; a person cannot follow deeper trees."""

MAX_SUB_AGENTS = 50
"""Maximum number in one conversation; a model that wants more delegates instead of working."""

_MAX_LAST_WORDS_CHARS = 2_000

MAX_STEP_CHARS = 200
"""Maximum length of the line that describes a call."""

_LOOK_EVERY_S = 0.5
"""Seconds between the checks of a waiting parent whether it was stopped; `interrupt` ends the wait sooner."""

_ALWAYS = ("think", "finish")
"""Tools that every sub-agent has."""

PLACE = """\
You work for another agent, on the one task that its message tells you, in the same sandbox and on the same files.
Nobody answers questions: decide by yourself what is left open, and say so. When the task is done, or cannot be done,
call finish: of all that you do and write only its message reaches the other agent, so put everything in it that was
asked for. Programs that you leave running end with you."""


class Converse(Protocol):
    """Makes the conversation of a sub-agent, below its parent's directory, with its parent's secrets and policy."""

    def __call__(self, agent: Agent, runtime: Runtime, *, conversation_id: str, limits: RunLimits) -> Conversation:
        """Return the conversation, not started."""


class SubagentManager:
    """The sub-agents of one conversation.

    Each works in the parent's sandbox with shells of its own, within the rest of the parent's limits. A notice event
    reports its usage, which counts for the parent. Its log is in `agents/` of the parent's directory.
    """

    def __init__(
        self, config: ConversationConfig, log: ConversationLog, *, canceled: threading.Event, converse: Converse
    ) -> None:
        """Create a manager without sub-agents.

        Args:
            config: the parent's, whose limits are shared.
            log: the parent's.
            canceled: set while the parent is being stopped.
            converse: makes the conversation of each sub-agent.
        """
        self._config = config
        self._log = log
        self._canceled = canceled
        self._converse = converse
        self._lock = threading.Lock()
        self._working: set[Conversation] = set()

    def run(self, delegation: Delegation, *, parent: Agent, lender: Runtime) -> str:
        """Run a sub-agent of parent on a task in the sandbox of lender; return its answer.

        Raises:
            ToolError: there is no answer: a limit is reached, it failed or was stopped, or it cannot have a tool.
            SandboxUnavailable: the sandbox is gone.
        """
        if not delegation.task.strip():
            raise ToolError("The task is blank. Say what the agent should do, with all that it needs to know.")
        may_delegate = self._config.depth + 1 < MAX_DEPTH
        if isinstance(delegation.agent, Agent):
            agent = _as_subagent(delegation.agent, parent, may_delegate=may_delegate)
        else:
            agent = _make_subagent(parent, delegation.tools, may_delegate=may_delegate)
        limits = remaining(self._log, self._config)
        if delegation.max_iterations is not None:
            fewest = min(delegation.max_iterations, limits.max_iterations or delegation.max_iterations)
            limits = limits.model_copy(update={"max_iterations": fewest})
        runtime = SharedRuntime(lender)
        child = self._converse(agent, runtime, conversation_id=self._new_id(delegation.name), limits=limits)
        account = _Account(str(child.directory / LOG_NAME))
        child.register_callback(account.add)
        if delegation.on_step is not None:
            child.register_callback(partial(_report_step, delegation.on_step))
        self._log.emit(
            events.notice(code=events.AGENT_STARTED, message=f"Sub-agent {child.id!r} began.", trail=account.log_path)
        )
        with self._lock:
            self._working.add(child)
        try:
            child.send_message(delegation.task)
            while (status := child.wait(_LOOK_EVERY_S).status) is ConversationStatus.RUNNING:
                if self._canceled.is_set():
                    child.stop(timeout_s=0)
            child.wait()
        finally:
            with self._lock:
                self._working.discard(child)
            child.close()
            runtime.close()
            self._log.emit(account.ended(child.id))
        return account.answer_of(child, status, limit_chars=self._config.output.max_chars)

    def interrupt(self) -> None:
        """Cancel the sub-agents and the request to the model, without waiting. Thread-safe.

        The sub-agents come first: they share the model, and must know that they are stopped when its request ends.
        """
        with self._lock:
            working = list(self._working)
        for child in working:
            child.stop(timeout_s=0)
        self._config.llm.cancel()

    def _new_id(self, name: str) -> str:
        """Create the directory of the next sub-agent; return its id, which was never used in this conversation."""
        directory = self._log.directory / AGENTS_NAME
        with self._lock:
            make_private_dir(directory)
            names = [path.name for path in directory.iterdir()]
            if len(names) >= MAX_SUB_AGENTS:
                raise ToolError(
                    f"This conversation has had {len(names)} sub-agents, and more than {MAX_SUB_AGENTS} are not made. "
                    "Do the rest yourself."
                )
            numbers = [int(last) for last in (name.rpartition("-")[2] for name in names) if last.isdecimal()]
            new = f"{name}-{max(numbers, default=0) + 1}"
            make_private_dir(directory / new)
        return new


class _Account:
    """The answer and usage of a sub-agent, collected from its events."""

    def __init__(self, log_path: str) -> None:
        self.log_path = log_path
        self._answer: str | None = None
        self._ends_task: set[str] = set()
        self._last_words = ""
        self._requests = 0
        self._usage: dict[str, int] = {}
        self._cost_usd: float | None = 0.0

    def add(self, event: SDKEvent) -> None:
        """Handle the next event."""
        data = event.data
        usage = data.get("usage") or {}
        self._requests += data.get("requests", 1 if usage else 0)
        for name, value in usage.items():
            self._usage[name] = self._usage.get(name, 0) + value
        if "usage" in data:
            cost = data.get("cost_usd")
            self._cost_usd = None if cost is None or self._cost_usd is None else self._cost_usd + cost
        self._last_words = data.get("thought") or self._last_words
        if event.type == "assistant_message":
            self._answer = self._last_words = data["content"]
        elif event.type == "tool_call" and hint_of(data["name"], data).ends_task:
            self._ends_task.add(data["tool_call_id"])
        elif (
            event.type == "tool_result" and data["tool_call_id"] in self._ends_task and data["result"]["status"] == "ok"
        ):
            self._answer = str(data["result"]["output"])

    def ended(self, name: str) -> EventBody:
        """Return the notice with the usage, for the parent's log."""
        return events.notice(
            code="AgentEnded",
            message=f"Sub-agent {name!r} ended after {counted(self._requests, 'request')} to the model.",
            trail=self.log_path,
            requests=self._requests,
            usage=self._usage,
            cost_usd=self._cost_usd,
        )

    def answer_of(self, child: Conversation, status: ConversationStatus, *, limit_chars: int) -> str:
        """Return the answer, cut in its middle to the limit, with the path of the log, which has all of it.

        Raises:
            ToolError: there is no answer.
            SandboxUnavailable: the sub-agent ended because of this error.
        """
        if isinstance(child.error, SandboxUnavailable):
            raise child.error
        done = status in {ConversationStatus.FINISHED, ConversationStatus.IDLE}
        if done and self._answer is not None and self._answer.strip():
            answer = cut_middle(self._answer, limit_chars=limit_chars)
            return f"{answer}\n[Sub-agent {child.id!r}, {counted(self._requests, 'request')}; its log: {self.log_path}]"
        if child.error is not None:
            reason = " ".join(str(child.error).split()) or type(child.error).__name__
        elif status is ConversationStatus.CANCELED:
            reason = "It was stopped."
        else:
            reason = "It ended without a word."
        words = cut_middle(self._last_words.strip(), limit_chars=_MAX_LAST_WORDS_CHARS)
        last_words = f" It had said last: {words!r}." if words else ""
        raise ToolError(f"Sub-agent {child.id!r} came to no answer. {reason}{last_words} Its log: {self.log_path}")


def _report_step(on_step: Callable[[str], object], event: SDKEvent) -> None:
    """Report a call of a sub-agent, on one line."""
    if event.type == "tool_call":
        hint = hint_of(event.data["name"], event.data)
        subject = arguments_of(event.data).get(hint.subject)
        words = " ".join(subject.split()) if isinstance(subject, str) else ""
        on_step(f"{hint.sign} {words[:MAX_STEP_CHARS] or event.data['name']}")


class _Lent(ToolExecutor[Action, Observation]):
    """Wraps an executor of the parent, so that closing it here has no effect."""

    def __init__(self, executor: ToolExecutor[Any, Any]) -> None:
        self._executor = executor

    def __call__(self, action: Action) -> Observation:
        """Run the parent's executor."""
        observation: Observation = self._executor(action)
        return observation

    def interrupt(self) -> None:
        """Interrupt the parent's executor."""
        self._executor.interrupt()

    def last_output(self) -> bytes:
        """Return the last output of the parent's executor."""
        return self._executor.last_output()


def _make_subagent(parent: Agent, names: Iterable[str] | None, *, may_delegate: bool) -> Agent:
    """Return an agent with the parent's model, prompt and settings, and the named tools; None is its own, undelegating.

    Names may be the parent's tools, those in the `tools` parameter of its delegating tools, think and finish: a model
    cannot give tools that it does not have. The parent's MCP servers come only with None.

    Raises:
        ToolError: a name is none of these.
    """
    offered = dict(_named(parent.tools))
    kinds = {name: _kind(name, entry) for name, entry in offered.items()}
    tool_names = [
        tool for name, entry in offered.items() if kinds[name] == "delegation" for tool in _given(name, entry)
    ]
    available: dict[str, Entry] = {**{name: name for name in (*_ALWAYS, *tool_names)}, **offered}
    barred = {"question"} if may_delegate else {"question", "delegation"}  # a sub-agent cannot ask a person
    available = {name: entry for name, entry in available.items() if _kind(name, entry) not in barred}
    own = [name for name in offered if kinds[name] not in {"question", "delegation"}]
    chosen = dict.fromkeys([*(own if names is None else names), *_ALWAYS])
    if unknown := [name for name in chosen if name not in available]:
        raise ToolError(
            f"A sub-agent cannot be given {', '.join(map(repr, unknown[:5]))}. "
            f"You can give: {', '.join(sorted(available))}. Nothing was done."
        )
    named_only: dict[str, Any] = {"takes_runtime_tools": False, "mcp_config": None}
    return parent.copied(
        tools=tuple(_lent(available[name]) for name in chosen),
        system_prompt_extensions=(*parent.system_prompt_extensions, PLACE),
        **({} if names is None else named_only),
    )


def _as_subagent(agent: Agent, parent: Agent, *, may_delegate: bool) -> Agent:
    """Return that agent without tools that ask a person and, unless it may delegate, without those that delegate."""
    barred = {"question"} if may_delegate else {"question", "delegation"}
    own = {name: entry for name, entry in _named(agent.tools) if _kind(name, entry) not in barred}
    return agent.copied(
        tools=tuple({**own, **{name: name for name in _ALWAYS if name not in own}}.values()),
        llm=agent.llm or parent.llm,
        system_prompt_extensions=(*agent.system_prompt_extensions, PLACE),
    )


def _named(entries: Iterable[Entry]) -> Iterator[tuple[str, Entry]]:
    """Yield each entry with its name; a pattern becomes an entry for each registered tool that matches."""
    for entry in entries:
        name = entry if isinstance(entry, str) else entry.name
        if isinstance(entry, str | Tool) and is_pattern(name):
            for tool_name in matching_tools(name):
                yield tool_name, tool_name if isinstance(entry, str) else entry.model_copy(update={"name": tool_name})
        else:
            yield name, entry


def _kind(name: str, entry: Entry) -> str:
    if isinstance(entry, Agent):
        return "delegation"
    return entry.call_hint({}).kind if isinstance(entry, ToolDefinition) else hint_of(name, {}).kind


def _given(name: str, entry: Entry) -> Iterable[str]:
    """Return the names of tools that a delegating tool may give, beyond the parent's own."""
    if isinstance(entry, ToolDefinition | Agent):
        return ()
    default = BROWSING_TOOLS if name == "delegate_to_browsing_agent" else ()
    names: Iterable[str] = entry.params.get("tools", default) if isinstance(entry, Tool) else default
    return names


def _lent(entry: Entry) -> Entry:
    if isinstance(entry, ToolDefinition) and entry.executor is not None:
        return entry.with_executor(_Lent(entry.executor))
    return entry


class AuxiliaryCompletion:
    """A request to the conversation's model outside of its history (an `AskModel`). A notice event reports its cost."""

    def __init__(
        self, config: ConversationConfig, log: ConversationLog, *, canceled: threading.Event, hear: OnEvent
    ) -> None:
        """Store the arguments.

        Args:
            config: has the agent and its limits, as they are at each request.
            log: gets a notice for each request; its masker masks secrets in the prompt.
            canceled: set while the conversation is being stopped.
            hear: gets retries and warnings, but not the text, which is not the agent's.
        """
        self._config = config
        self._log = log
        self._canceled = canceled
        self._hear = hear

    def __call__(self, prompt: str, *, system: str = "") -> str:
        """Return the text of the answer; "" if it has none.

        Raises:
            ModelError: the model gave no answer, or the conversation was stopped.
            ToolError: no more requests may be made.
            UsageError: the agent has no model.
        """
        llm = self._config.llm
        remaining(self._log, self._config)
        if self._canceled.is_set():
            raise ModelCanceledError(f"Model {llm.name!r} was not asked: the conversation was stopped.")
        messages = [{"role": "system", "content": system}] if system else []
        messages.append({"role": "user", "content": self._log.masker.mask_cut(prompt)})
        response = llm.send(messages, on_event=self._pass_on)
        message = "A tool asked the model a question of its own."
        fields = {"requests": 1, "usage": response.usage.model_dump(), "cost_usd": response.cost_usd}
        self._log.emit(events.notice(code="SideQuestion", message=message, for_person=False, **fields))
        return response.message.content

    def _pass_on(self, event: LLMEvent) -> None:
        if event.type != "delta":
            self._hear(event)


def remaining(log: ConversationLog, config: ConversationConfig) -> RunLimits:
    """Return what is left of the conversation's limits.

    Raises:
        ToolError: nothing is left; the conversation's own next request then ends the run.
    """
    try:
        return log.spending.remaining(config.limits)
    except LimitReachedError as error:
        raise ToolError(f"{error} Nothing was done.") from error
