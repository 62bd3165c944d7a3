"""`Agent`: one step is one request to the model and the resulting tool calls."""

from __future__ import annotations

import copy
import fnmatch
import inspect
import re
import threading
import uuid
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ohsandbox import events
from ohsandbox.agent.calls import ActionSecurityRisk, MessageAction, response_to_actions
from ohsandbox.agent.condenser import SummarizingCondenser
from ohsandbox.agent.execution import Step, StepOutcome, run_calls
from ohsandbox.agent.held import Verdict, held_events, ready
from ohsandbox.agent.history import EMPTY_ANSWER, History
from ohsandbox.agent.prompt import prompt_template, read_workspace_instructions, render_system_prompt, secrets_note
from ohsandbox.agent.tool_entries import AnyTool, GivenTool, tool_entry
from ohsandbox.arguments import expect, expect_method, expect_texts, unknown_argument, wrong_type
from ohsandbox.content import DEFAULT_LIMITS
from ohsandbox.errors import LimitReachedError, UsageError
from ohsandbox.llm.capabilities import wants_short_descriptions
from ohsandbox.text import counted
from ohsandbox.tool import (
    Tool,
    ToolDefinition,
    find_runtime_tool,
    is_pattern,
    is_registered,
    matching_tools,
    origin_of_tool,
    resolve_tool,
)
from ohsandbox.tools import ToolFlags
from ohsandbox.tools.delegate import NAME_PATTERN, make_agent_tool

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Mapping, Sequence

    from ohsandbox.agent.calls import ActionEvent
    from ohsandbox.agent.condenser import Condenser
    from ohsandbox.agent.held import ApprovalFilter
    from ohsandbox.content import OutputLimits
    from ohsandbox.events import EventBody
    from ohsandbox.llm import ChatModel, ChatResponse
    from ohsandbox.llm.chat import OnEvent
    from ohsandbox.mcp import MCPConfig, MCPServers
    from ohsandbox.runtime.base import Runtime
    from ohsandbox.state import ConversationState

    MCPSource = Mapping[str, Any] | str | os.PathLike[str] | MCPConfig | MCPServers

ToolsMap = dict[str, AnyTool]

_MAX_EMPTY_RETRIES = 3
"""Number of requests after an empty answer; a model that gives four in a row will not do better the fifth time."""

ALWAYS_ASKS = "The tool is set to ask each time."

_NUDGE = (
    "Your last reply was empty. Go on with the task by calling a tool, or answer the user in words; "
    "call finish when the task is done."
)


class Agent:
    """A model, its tools and its prompt. It holds no conversation: several may use one agent at a time."""

    def __init__(
        self,
        llm: ChatModel | None = None,
        tools: Sequence[GivenTool | Agent] | None = None,
        microagents: Sequence[str] | None = None,
        system_prompt: str | None = None,
        system_prompt_extensions: Sequence[str] | None = None,
        *,
        condenser: Condenser | None = None,
        mcp_config: MCPSource | None = None,
        name: str = "agent",
        description: str = "",
        **switches: bool,
    ) -> None:
        """Create an agent, without loading anything.

        Args:
            llm: the model; with None, the conversation opens the one that the settings name.
            tools: names of registered tools or of the runtime's (`get_tools`); shell patterns of names (`file_*`);
                specs; definitions; dicts in OpenAI's form that name a registered tool; Python functions, which run on
                the host (`function_tool`); agents, to which this one can give a task. None means the tools that the
                switches enable, and the runtime's own.
            microagents: texts with knowledge, appended to the prompt.
            system_prompt: replaces the default prompt.
            system_prompt_extensions: paragraphs appended to the prompt.
            condenser: shortens the model's messages if they are too long; None means a summary.
            mcp_config: `{"mcpServers": {...}}`, or a JSON file with that: each conversation starts these servers in its
                sandbox and adds their tools. Running `MCPServers` are used, and closed by the caller.
            name: the name of the tool that this agent becomes among the tools of another one.
            description: for the other agent's model: what tasks this agent is for.
            switches: `enable_browsing=True`, `enable_jupyter=False`, ...: the fields of `ToolFlags`.

        Raises:
            TypeError: there is no argument of a given name.
            UsageError: an argument has a wrong type, such as an llm that is not a model; a switch is unknown, or both
                tools and switches are given; an object cannot be a tool; the name has characters other than letters,
                digits, _ and -, or more than 40.
            MCPConfigError: a UsageError: the configuration of MCP servers is invalid, or its file cannot be read.
        """
        _check_switches(switches, tools)
        _check_name(name)
        model = f"{llm!r:.200}" if isinstance(llm, str) else "..."
        expect_method("llm", llm, "send", "a model", f"Open one: Agent(open_model(LLMConfig(model={model}))).")
        expect_method("condenser", condenser, "condense", "a Condenser")
        expect("system_prompt", system_prompt, str)
        expect("description", description, str, optional=False)
        expect_texts("microagents", microagents)
        expect_texts("system_prompt_extensions", system_prompt_extensions)
        on, off = ([name for name, is_on in switches.items() if is_on is value] for value in (True, False))
        self.llm = llm
        self.name, self.description = name, description
        self.tools = _entries(ToolFlags().switched(on=on, off=off).names() if tools is None else tools)
        self.takes_runtime_tools = tools is None
        """Whether the agent gets the runtime's own unregistered tools without naming them."""
        self.mcp_config = _checked(mcp_config)
        self.condenser = condenser or SummarizingCondenser()
        self.microagents = tuple(microagents or ())
        self.system_prompt = system_prompt
        self.system_prompt_extensions = tuple(system_prompt_extensions or ())
        self._initialized: list[ToolsMap] = [{}]

    @property
    def tools_map(self) -> ToolsMap:
        """The tools by name that the last `initialize` made, with those of MCP servers; empty before. Read only.

        Copies with another model or other MCP servers share it; copies with other tools do not. Each conversation has a
        map of its own.
        """
        return self._initialized[-1]

    def with_tools(self, tools: Sequence[GivenTool | Agent], *, takes_runtime_tools: bool = False) -> Agent:
        """Return a copy with other tools; takes_runtime_tools adds the runtime's own.

        Raises:
            UsageError: as for a new agent.
        """
        return self.copied(tools=_entries(tools), takes_runtime_tools=takes_runtime_tools)

    def with_llm(self, llm: ChatModel) -> Agent:
        """Return a copy with another model."""
        return self.copied(llm=llm)

    def with_mcp(self, mcp_config: MCPSource | None) -> Agent:
        """Return a copy with other MCP servers; None means none.

        Raises:
            MCPConfigError: as for a new agent.
        """
        return self.copied(mcp_config=_checked(mcp_config))

    def copied(self, **changes: object) -> Agent:
        """Copy the agent with other attributes, unchecked; with other `tools`, the copy has a map of its own."""
        agent = copy.copy(self)
        vars(agent).update({"_initialized": [{}], **changes} if "tools" in changes else changes)
        return agent

    def check_names(self, runtime: Runtime | None) -> None:
        """Check that each named tool is registered or one of the runtime's own; the runtime need not be started.

        Raises:
            UsageError: one is neither; the message suggests a similar name.
        """
        named = [
            entry if isinstance(entry, str) else entry.name for entry in self.tools if isinstance(entry, str | Tool)
        ]
        unknown = [name for name in named if not is_pattern(name) and not is_registered(name)]
        own = {tool["name"] for tool in runtime.get_tools()} if unknown and runtime is not None else set()
        for name in unknown:
            if name not in own:
                origin_of_tool(name)

    def preload(self) -> None:
        """Load slow parts in threads, while a sandbox starts: the model's client, and the prompt's template."""
        if self.llm is not None:
            self.llm.preload()
        if self.system_prompt is None:
            threading.Thread(target=prompt_template, name="ohsandbox-prompt-preload", daemon=True).start()

    def initialize(self, state: ConversationState) -> ToolsMap:
        """Make the tools for the conversation; return them by name.

        Raises:
            UsageError: a name is neither registered nor the runtime's, a tool cannot be made, or two share a name.
        """
        tools_map: ToolsMap = {}
        by_pattern: set[str] = set()
        for entry in self._all_entries(state):
            matches = not isinstance(entry, ToolDefinition | Agent) and is_pattern(_name_of(entry))
            for tool in _made(entry, state):
                if tool.name in tools_map and matches:
                    continue
                if tool.name in tools_map and tool.name not in by_pattern:
                    raise UsageError(f"Two tools are named {tool.name!r}. Leave one out, or rename it.")
                (by_pattern.add if matches else by_pattern.discard)(tool.name)
                tools_map[tool.name] = replace(tool, limits=state.output) if tool.limits != state.output else tool
        if self.llm is not None and wants_short_descriptions(self.llm.name):
            tools_map = {name: tool.shortened() for name, tool in tools_map.items()}
        self._initialized[:] = [tools_map]
        return tools_map

    def _all_entries(self, state: ConversationState) -> Sequence[Entry]:
        if not self.takes_runtime_tools or state.runtime is None:
            return self.tools
        named = {_name_of(entry) for entry in self.tools}
        own = [tool["name"] for tool in state.runtime.get_tools()]
        return [*self.tools, *(name for name in own if name not in named and not is_registered(name))]

    def system_message(self, state: ConversationState, tools_map: ToolsMap, *, note: str = "") -> EventBody:
        """Return the event with the exact prompt and the tools. note is a paragraph for this conversation only."""
        prompt = render_system_prompt(
            tool_names=tools_map,
            runtime=state.runtime,
            system_prompt=self.system_prompt,
            extensions=(*self.system_prompt_extensions, *secrets_note(state.runtime), note),
            microagents=self.microagents,
            workspace=None if state.runtime is None else read_workspace_instructions(state.runtime),
        )
        return events.system_message(prompt, tools=[tool.to_openai_tool() for tool in tools_map.values()])

    def step(
        self,
        tools_map: ToolsMap,
        history: History,
        *,
        tool_choice: str | Mapping[str, Any] = "auto",
        on_event: OnEvent | None = None,
        screen: ApprovalFilter | None = None,
        limits: OutputLimits = DEFAULT_LIMITS,
    ) -> Step:
        """Ask the model once and run its calls; yield each event before the next action, and return the outcome.

        The caller stores each event and adds it to history before it asks for the next one, so a `tool_call` is durable
        before its tool runs. If `screen`, or a tool that requires confirmation, wants a person to be asked about one of
        the calls, all are yielded, none is run, and the outcome is WAITING. Calls that a person has allowed meanwhile
        run first, without a request. After the user's `/exit` there is no request either, and the outcome is FINISHED.
        `limits` say how much is shown of a refusal; a tool has its own.

        Raises:
            LimitReachedError: the answer has no calls and was cut; its code is AnswerCut.
            ModelError: the model gave no answer.
            SandboxUnavailable: the sandbox failed while a tool ran; the call stays without a result.
            UsageError: the agent has no model.
        """
        if self.llm is None:
            raise UsageError("The agent has no model. Give it one: Agent(llm=open_model(LLMConfig(model=...))).")
        if pending := history.pending_actions:
            return (yield from run_calls(ready(pending, tools_map), limits=limits))
        if history.last_user_message.strip() == events.EXIT:
            return StepOutcome.FINISHED
        messages = history.messages()
        if history.empty_answers:
            messages.append({"role": "user", "content": _NUDGE})
        offered = [tool.to_openai_tool() for tool in tools_map.values()]
        response = self.llm.send(messages, offered, tool_choice, on_event=on_event)
        if response.is_empty:
            return (yield from _ask_again(response, attempt=history.empty_answers + 1))
        if not response.id or response.id in history.response_ids:
            response = response.model_copy(update={"id": f"resp_{uuid.uuid4().hex[:24]}"})
        planned = response_to_actions(response, tools_map, taken_ids=history.call_ids)
        if isinstance(planned[0].action, MessageAction):
            yield planned[0].event
            _check_whole(response)
            return StepOutcome.IDLE
        if verdicts := _verdicts(screen, planned):
            planned = [
                call._replace(approval=verdict.approval, refusal=call.refusal or verdict.refusal)
                for call, verdict in zip(planned, verdicts, strict=True)
            ]
            if any(verdict.asks for verdict in verdicts):
                yield from held_events(planned, verdicts)
                return StepOutcome.WAITING
        return (yield from run_calls(planned, limits=limits))

    def resume_calls(
        self,
        tools_map: ToolsMap,
        history: History,
        *,
        stopped: Callable[[], str | None],
        limits: OutputLimits = DEFAULT_LIMITS,
    ) -> Step:
        """Run the approved calls, and answer the rejected ones; yield the results, as `step` does.

        Args:
            tools_map: the tools by name.
            history: has the calls with the user's decisions.
            stopped: returns why no further call may start, once the run is being stopped, else None.
            limits: how much is shown of a refusal.
        """
        calls = ready(history.pending_actions, tools_map)
        return run_calls(calls, limits=limits, stopped=stopped)


Entry = str | Tool | AnyTool | Agent
"""The form in which an agent stores each of its tools."""


def _check_name(name: str) -> None:
    expect("name", name, str, optional=False)
    if not re.fullmatch(NAME_PATTERN, name):
        raise UsageError(f"An agent cannot be named {name!r}. Use 1 to 40 letters, digits, _ and -.")


def _check_switches(switches: Mapping[str, object], tools: object) -> None:
    for switch, is_on in switches.items():
        if not switch.startswith("enable_") and not is_registered(switch):
            raise unknown_argument("Agent", switch, [*inspect.signature(Agent).parameters, *ToolFlags.model_fields])
        expect(switch, is_on, bool, optional=False)
    if tools is not None and switches:
        raise UsageError(f"Agent(tools=[...]) excludes {', '.join(switches)}. Name the tools, or leave tools out.")


def _checked(source: MCPSource | None) -> MCPSource | None:
    """Read a configuration of MCP servers, to find its errors now; return it unread, as a file may change."""
    if source is not None:
        from ohsandbox.mcp import MCPServers, read_mcp_config  # noqa: PLC0415 - few agents have servers

        if not isinstance(source, MCPServers):
            read_mcp_config(source)
    return source


def _entries(tools: Sequence[GivenTool | Agent]) -> tuple[Entry, ...]:
    if isinstance(tools, str) or not isinstance(tools, Iterable):
        raise wrong_type("tools", tools, "a list of tools", "Give names, say: tools=['execute_bash', 'file_*'].")
    return tuple(tool if isinstance(tool, Agent) else tool_entry(tool) for tool in tools)


def _name_of(entry: Entry) -> str:
    return entry if isinstance(entry, str) else entry.name


def _made(entry: Entry, state: ConversationState) -> Sequence[AnyTool]:
    """Resolve an entry of an agent's tools; a registered name takes precedence over a runtime's."""
    if isinstance(entry, ToolDefinition):
        return [entry]
    if isinstance(entry, Agent):
        return [make_agent_tool(entry, name=entry.name, description=entry.description, conv_state=state)]
    spec = Tool(name=entry) if isinstance(entry, str) else entry
    if is_pattern(spec.name):
        return _matching(spec, state)
    if state.runtime is not None and not is_registered(spec.name):
        runtime_tool = find_runtime_tool(state.runtime, spec.name)
        if runtime_tool is not None:
            if spec.params:
                raise UsageError(f"Tool {spec.name!r} is the runtime's own and takes no params. Leave them out.")
            return [replace(runtime_tool, require_confirmation=spec.require_confirmation)]
    return resolve_tool(spec, state)


def _matching(spec: Tool, state: ConversationState) -> Sequence[AnyTool]:
    """Make the registered tools that match the spec's pattern, and those of the runtime's unregistered ones."""
    names = matching_tools(spec.name)
    own = [] if state.runtime is None else [tool["name"] for tool in state.runtime.get_tools()]
    names += [name for name in fnmatch.filter(own, spec.name) if not is_registered(name)]
    if not names:
        raise UsageError(f"No tool matches {spec.name!r}. `ohsandbox tools` lists those that are registered.")
    return [tool for name in names for tool in _made(spec.model_copy(update={"name": name}), state)]


def _verdicts(screen: ApprovalFilter | None, planned: Sequence[ActionEvent]) -> Sequence[Verdict] | None:
    """Combine the screen's verdicts with the tools' own `require_confirmation`; None if neither applies."""
    verdicts = None if screen is None else screen(planned)
    asking = [call.refusal is None and call.tool is not None and call.tool.require_confirmation for call in planned]
    if not any(asking):
        return verdicts
    verdicts = verdicts or [Verdict(call.security_risk or ActionSecurityRisk.UNKNOWN) for call in planned]
    return [
        verdict._replace(asks=True, why=(*verdict.why, ALWAYS_ASKS), approval=None)
        if asks and verdict.refusal is None
        else verdict
        for verdict, asks in zip(verdicts, asking, strict=True)
    ]


def _check_whole(response: ChatResponse) -> None:
    if response.cut:
        more = ", raise `max_output_tokens`," if response.choices[0].finish_reason == "length" else ""
        raise LimitReachedError(
            f"The model's answer was cut {response.cut}. Say how to go on{more} or take another `model`.",
            code="AnswerCut",
        )


def _ask_again(response: ChatResponse, *, attempt: int) -> Step:
    fields = {"attempt": attempt, "usage": response.usage.model_dump(), "cost_usd": response.cost_usd}
    is_filtered = response.choices[0].finish_reason == "content_filter"  # the same request would be filtered again
    if attempt <= _MAX_EMPTY_RETRIES and not is_filtered:
        cut = f" (it was cut {response.cut})" if response.cut else ""
        message = f"The model's answer was empty{cut}; it is asked again ({attempt} of {_MAX_EMPTY_RETRIES})."
        yield events.retry(code=EMPTY_ANSWER, message=message, **fields)
        return StepOutcome.CONTINUE
    message = f"The model gave {counted(attempt, 'empty answer')} in a row. Say how to go on, or use another model."
    yield events.notice(code=EMPTY_ANSWER, message=message, **fields)
    _check_whole(response)
    return StepOutcome.IDLE
