"""Names of OpenHands' documents, each an alias or a factory of an ohsandbox object (docs/compatibility.md).

Actions made here are the actions of our tools: `tools_map[name](action)` runs one, `to_tool_call(action)` is the call
that a model would write for it, and `Runtime.execute_tool` takes that call's name and arguments.
"""

# ruff: noqa: N802 - the constructors have the names of classes, and `isinstance` takes them as such
from __future__ import annotations

import copy
import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, NoReturn, ParamSpec, TypeVar, cast

from ohsandbox.agent import (
    RISK_LEVELS,
    SECURITY_RISK_DESC,
    ActionSecurityRisk,
    Agent,
    CondensationAction,
    FunctionCallNotExistsError,
    FunctionCallValidationError,
    MessageAction,
    messages_from_events,
)
from ohsandbox.agent import response_to_actions as events_of_response
from ohsandbox.agent.calls import find_tool
from ohsandbox.agent.condenser import Condensation
from ohsandbox.agent.parsing import parse_arguments
from ohsandbox.arguments import expect
from ohsandbox.conversation.storage.metadata import FileConversationStore
from ohsandbox.errors import UsageError
from ohsandbox.lazy_names import lazy_names
from ohsandbox.llm.capabilities import gemini_schema
from ohsandbox.llm.chat import ChatResponse
from ohsandbox.llm.chat import FunctionCall as _FunctionCall
from ohsandbox.llm.chat import ToolCall as MessageToolCall
from ohsandbox.llm.response_parsing import read_answer
from ohsandbox.runtime.local import CLIRuntime
from ohsandbox.runtime.tool_calls import MCPAction
from ohsandbox.schema import Action, ErrorObservation
from ohsandbox.state import ConversationState
from ohsandbox.strict_json import load_json
from ohsandbox.tool import Tool as _Spec
from ohsandbox.tool import ToolDefinition, ToolRegistry, origin_of_tool, resolve_tool
from ohsandbox.tool.registry import RuntimeTool as Tool
from ohsandbox.tools import (
    HINTS,
    AgentThinkAction,
    CmdRunAction,
    CondensationRequestAction,
    FileWriteAction,
    IPythonRunCellAction,
    TaskTrackingAction,
    ToolFlags,
    browser,
    delegate,
    file_editor,
    file_read,
    finish,
)
from ohsandbox.tools.edit_file import EditFileAction
from ohsandbox.tools.file_editor import FileEditSource, FileViewAction
from ohsandbox.tools.file_read import FileReadSource
from ohsandbox.tools.task_tracker import TOOL_NAME as TASK_TRACKER_TOOL_NAME

if TYPE_CHECKING:
    from ohsandbox.agent.condenser import Ask, Condenser
    from ohsandbox.events import SDKEvent
    from ohsandbox.llm import ChatModel, LLMConfig
    from ohsandbox.mcp.client import MCPClient

    BrowserTool: dict[str, Any]
    CondensationRequestTool: dict[str, Any]
    FinishTool: dict[str, Any]
    IPythonTool: dict[str, Any]
    LLMBasedFileEditTool: dict[str, Any]
    ThinkTool: dict[str, Any]

P = ParamSpec("P")
T = TypeVar("T", bound=Action)

_PARAMS = {
    "BrowserTool": "browser",
    "CondensationRequestTool": "request_condensation",
    "FinishTool": "finish",
    "IPythonTool": "execute_ipython_cell",
    "LLMBasedFileEditTool": "edit_file",
    "ThinkTool": "think",
}
"""Module constants that hold a tool's function definition: a copy of its own at each use, for a caller to change."""


# --- actions ----------------------------------------------------------------------------------------------------------


class _Constructor(type, Generic[P, T]):
    """Type of a name that is called to make an ohsandbox action; `isinstance` and `match` accept it, too."""

    make: Callable[P, T]
    kinds: tuple[type[Action], ...]

    def __call__(cls, *args: P.args, **kwargs: P.kwargs) -> T:
        return cls.make(*args, **kwargs)

    def __instancecheck__(cls, one: object) -> bool:
        return isinstance(one, cls.kinds)

    def __subclasscheck__(cls, kind: type) -> bool:
        return issubclass(kind, cls.kinds)


def _makes(*kinds: type[Action]) -> Callable[[Callable[P, T]], _Constructor[P, T]]:
    def constructor(make: Callable[P, T]) -> _Constructor[P, T]:
        class_body = {"make": staticmethod(make), "kinds": kinds, "__signature__": inspect.signature(make)}
        described = {"__doc__": make.__doc__, "__module__": make.__module__}
        return _Constructor(make.__name__, (), {**class_body, **described})

    return constructor


@_makes(finish.AgentFinishAction)
def AgentFinishAction(final_thought: str = "") -> finish.AgentFinishAction:
    """Ends the task: a call of `finish` with this message."""
    return finish.AgentFinishAction(message=final_thought)


@_makes(browser.BrowseInteractiveAction)
def BrowseInteractiveAction(browser_actions: str) -> browser.BrowseInteractiveAction:
    """Calls for the browser, one per line: a call of `browser` with this code."""
    return browser.BrowseInteractiveAction(code=browser_actions)


@_makes(delegate.AgentDelegateAction)
def AgentDelegateAction(
    agent: str = "BrowsingAgent", inputs: Mapping[str, Any] | None = None
) -> delegate.AgentDelegateAction:
    """A task for another agent: the browsing agent, or one of this name as the tool `delegate` makes it.

    Args:
        agent: "BrowsingAgent", or the name of a sub-agent.
        inputs: `task`; for a sub-agent also what else `delegate` takes.

    Raises:
        ValidationError: `task` is missing, or something else is in inputs.
    """
    if agent == "BrowsingAgent":
        return delegate.AgentDelegateAction.model_validate(dict(inputs or {}))
    return delegate.DelegateAction.model_validate({"name": agent, **(inputs or {})})


@_makes(file_read.FileReadAction)
def FileReadAction(
    path: str,
    *,
    view_range: Sequence[int] | None = None,
    impl_source: FileReadSource = FileReadSource.DEFAULT,
) -> file_read.FileReadAction:
    """A file to read: by `file_read`, or by the editor's `view` where impl_source is OH_ACI.

    Args:
        path: in the sandbox.
        view_range: first and last line, from 1; -1 is the last.
        impl_source: what reads it.

    Raises:
        ValidationError: path is empty, or view_range is not a range.
    """
    fields = {"path": path} | ({} if view_range is None else {"view_range": tuple(view_range)})
    if impl_source is FileReadSource.OH_ACI:
        return FileViewAction.model_validate({"command": "view", **fields})
    return file_read.FileReadAction.model_validate(fields)


@_makes(file_editor.FileEditAction, EditFileAction)
def FileEditAction(
    path: str,
    *,
    command: str | None = None,
    content: str | None = None,
    impl_source: FileEditSource | None = None,
    **fields: Any,
) -> file_editor.FileEditAction | EditFileAction:
    """A change of a file: with command a call of `file_editor`, with content (and start, end) one of `edit_file`.

    Args:
        path: in the sandbox.
        command: `create`, `str_replace`, `insert` or `undo_edit`; `view` as well, which changes nothing.
        content: the draft of the lines start to end.
        impl_source: None, or the one that belongs to the form.
        fields: `file_text`, `old_str`, `new_str`, `insert_line`, `view_range`, `encoding`; or `start` and `end`.

    Raises:
        UsageError: neither command nor content is given, or both, or impl_source is the other form's.
        ValidationError: a field is missing, wrong or of the other form.
    """
    if (command is None) == (content is None):
        raise UsageError("FileEditAction takes either command or content. Give one of them.")
    belongs = FileEditSource.LLM_BASED_EDIT if command is None else FileEditSource.OH_ACI
    if impl_source not in {None, belongs}:
        raise UsageError(f"impl_source is {impl_source}, and this form of FileEditAction is {belongs}. Leave it out.")
    if command is None:
        return EditFileAction.model_validate({"path": path, "content": content, **fields})
    kind = FileViewAction if command == "view" else file_editor.FileEditAction
    return kind.model_validate({"path": path, "command": command, **fields})


def to_tool_call(action: Action, call_id: str = "") -> MessageToolCall:
    """Return the tool call that a model would write for the action.

    Raises:
        UsageError: no built-in tool has such an action (a `MessageAction`, say, is words and no call).
    """
    if isinstance(action, MCPAction):
        name, arguments = action.name, action.arguments
    elif isinstance(action, FileViewAction):
        name, arguments = file_editor.definition.TOOL_NAME, action.to_arguments()
    else:
        tool_name = next((tool.name for tool in _tools().values() if tool.action_type is type(action)), None)
        if tool_name is None:
            raise UsageError(f"No built-in tool has the action {type(action).__name__}. Call its own tool with it.")
        name, arguments = tool_name, load_json(action.model_dump_json(by_alias=True, exclude_unset=True))
    return MessageToolCall(id=call_id, function=_FunctionCall(name=name, arguments=json.dumps(arguments)))


# --- tools as a model is told of them ---------------------------------------------------------------------------------


@cache
def _tools() -> dict[str, ToolDefinition[Any, Any]]:
    """The built-in tools by name, for inspection only: they belong to no conversation."""

    def nobody(*_: Any, **__: Any) -> NoReturn:
        raise UsageError("This tool is only described here. An agent's own can be called.")

    runtime = CLIRuntime("/", quiet=True)  # a tool starts nothing before its first call
    state = ConversationState(conversation_id="described", runtime=runtime, ask_model=nobody, delegate=nobody)
    own_names = [name for name in HINTS if origin_of_tool(name).name == "ohsandbox"]
    return {tool.name: tool for name in own_names for tool in resolve_tool(_Spec(name=name), state)}


def _param(name: str, *, use_short_description: bool = False) -> dict[str, Any]:
    tool = _tools()[name]
    return copy.deepcopy((tool.shortened() if use_short_description else tool).to_openai_tool())


def create_cmd_run_tool(use_short_description: bool = False) -> dict[str, Any]:  # noqa: FBT001, FBT002 - OpenHands'
    """Return `execute_bash` as a function tool of the chat completions API; `Agent(tools=[...])` takes it."""
    return _param("execute_bash", use_short_description=use_short_description)


def create_str_replace_editor_tool(
    use_short_description: bool = False,  # noqa: FBT001, FBT002 - OpenHands' signature
    runtime_type: str | None = None,  # noqa: ARG001 - as above
) -> dict[str, Any]:
    """Return `file_editor` as a function tool; it answers to the name `str_replace_editor`, too.

    runtime_type changes nothing: paths are the sandbox's in every runtime.
    """
    return _param("file_editor", use_short_description=use_short_description)


def create_task_tracker_tool(use_short_description: bool = False) -> dict[str, Any]:  # noqa: FBT001, FBT002 - as above
    """Return `task_tracker` as a function tool."""
    return _param(TASK_TRACKER_TOOL_NAME, use_short_description=use_short_description)


def check_tools(tools: Sequence[Mapping[str, Any]], llm_config: LLMConfig) -> list[dict[str, Any]]:
    """Return the function tools in the form that the model accepts. An `LLM` does this itself.

    For Gemini they are copies without what its API refuses (`default`, string formats other than enum and date-time);
    for other models they are those that were given.
    """
    if "gemini" not in llm_config.model.lower():
        return [cast("dict[str, Any]", tool) for tool in tools]
    checked = [copy.deepcopy(dict(tool)) for tool in tools]
    for tool in checked:
        if "parameters" in tool.get("function", {}):
            tool["function"]["parameters"] = gemini_schema(tool["function"]["parameters"])
    return checked


def response_to_actions(response: Any, mcp_tool_names: Sequence[str] | None = None) -> list[Action]:
    """The actions of a model's answer by the built-in tools, in its order; a message where it has no calls.

    Each action has `response_id`, and one that was called for has `tool_call_metadata`.
    `ohsandbox.agent.response_to_actions` gives an `ActionEvent` for each instead, with the thought and the risk, by the
    tools of an agent; a wrong call is a refusal there, and the model is told.

    Args:
        response: a `ChatResponse`, litellm's ModelResponse, or a dict in that form; only its first choice is read.
        mcp_tool_names: names of MCP tools; a call of one is an `MCPAction`.

    Raises:
        FunctionCallValidationError: arguments are not a JSON object, or one is missing, unknown or wrong.
        FunctionCallNotExistsError: there is no tool of that name.
    """
    if not isinstance(response, ChatResponse):
        response = read_answer(response if isinstance(response, Mapping) else response.model_dump())
    planned = events_of_response(response, _tools())
    actions: list[Action] = []
    for event, call in zip(planned, response.message.tool_calls or (None,), strict=True):
        action, refusal = event.action, event.refusal
        if call is not None and action is None and call.function.name in (mcp_tool_names or ()):
            action = MCPAction(name=call.function.name, arguments=parse_arguments(call.function.arguments))
            refusal = None
            vars(action)["tool_call_metadata"] = event.metadata  # as on every action of a response
        if action is None or refusal is not None:
            refusal = refusal or "The call cannot be read. Send it again."
            try:
                find_tool(_tools(), "" if call is None else call.function.name)
            except FunctionCallNotExistsError:
                raise FunctionCallNotExistsError(refusal) from None
            raise FunctionCallValidationError(refusal)
        vars(action)["response_id"] = response.id  # this is not a field, and those are frozen
        actions.append(action)
    return actions


# --- agent, history, bus ----------------------------------------------------------------------------------------------


class CodeActAgent(Agent):
    """`Agent`, made from switches: its tools are those that config enables (`enable_cmd`, `enable_browsing`, ...)."""

    def __init__(
        self, config: ToolFlags | Mapping[str, bool] | None = None, llm: ChatModel | None = None, **options: Any
    ) -> None:
        """Create an agent; this loads nothing.

        Args:
            config: the switches; any that is not set has its default of `ToolFlags`.
            llm: the model; None lets the conversation open the one that the settings name.
            options: keyword arguments of `Agent`, except tools and switches.

        Raises:
            UsageError: as for an `Agent`.
        """
        expect("config", config, (ToolFlags, Mapping))
        switches = config.model_dump(exclude_unset=True) if isinstance(config, ToolFlags) else dict(config or {})
        also, without = switches.pop("also", ()), switches.pop("without", ())
        super().__init__(llm, **options, **switches)
        if also or without:
            self.tools = ToolFlags.model_validate({**switches, "also": also, "without": without}).names()


class HistoryView(NamedTuple):
    """Returned by `condensed_history` where nothing is left out: the whole history. OpenHands calls it `View`."""

    events: Sequence[SDKEvent]

    @property
    def messages(self) -> list[dict[str, Any]]:
        """The messages that a model is shown for these events, in OpenAI form."""
        return messages_from_events(self.events)


View = HistoryView


def condensed_history(condenser: Condenser, events: Sequence[SDKEvent], ask: Ask) -> View | Condensation:
    """Apply a condenser to a history; `Condensation.action` is the action that follows.

    Args:
        condenser: the agent's.
        events: of a conversation's log.
        ask: the model, for condensers that summarise.

    Raises:
        ModelError: the model was asked and gave no answer.
    """
    messages = [message for message in messages_from_events(events) if message["role"] != "system"]
    return condenser.condense(messages, ask) or View(events)


class NoOpEventBus(NamedTuple):
    """An event bus that drops every event, for code that requires one. Runtimes here need none."""

    sid: str = ""
    user_id: str | None = None
    file_store: Any = None

    def subscribe(self, *_: Any, **__: Any) -> None:
        """Do nothing: no event is ever delivered."""

    def add_event(self, *_: Any, **__: Any) -> None:
        """Drop the event."""


__all__ = [
    "RISK_LEVELS",
    "SECURITY_RISK_DESC",
    "TASK_TRACKER_TOOL_NAME",
    "Action",
    "ActionSecurityRisk",
    "AgentDelegateAction",
    "AgentFinishAction",
    "AgentThinkAction",
    "BrowseInteractiveAction",
    "BrowserTool",
    "CmdRunAction",
    "CodeActAgent",
    "Condensation",
    "CondensationAction",
    "CondensationRequestAction",
    "CondensationRequestTool",
    "ErrorObservation",
    "FileConversationStore",
    "FileEditAction",
    "FileEditSource",
    "FileReadAction",
    "FileReadSource",
    "FileWriteAction",
    "FinishTool",
    "FunctionCallNotExistsError",
    "FunctionCallValidationError",
    "IPythonRunCellAction",
    "IPythonTool",
    "LLMBasedFileEditTool",
    "MCPAction",
    "MCPClient",
    "MessageAction",
    "MessageToolCall",
    "NoOpEventBus",
    "TaskTrackingAction",
    "ThinkTool",
    "Tool",
    "ToolRegistry",
    "View",
    "check_tools",
    "condensed_history",
    "create_cmd_run_tool",
    "create_str_replace_editor_tool",
    "create_task_tracker_tool",
    "response_to_actions",
    "to_tool_call",
]

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {"ohsandbox.mcp.client": "MCPClient"},  # imports fastmcp: one second
        made={name: partial(_param, tool) for name, tool in _PARAMS.items()},
    )
