"""`delegate`: a task for a sub-agent in the same sandbox; the conversation runs it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pydantic import Field

from ohsandbox.errors import UsageError
from ohsandbox.schema import Action, TextObservation
from ohsandbox.schema.execution import LAST_OUTPUT_BYTES, ActionT
from ohsandbox.state import Delegation
from ohsandbox.tool import BuiltInTool, CallHint, ToolAnnotations, ToolDefinition, ToolExecutor

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ohsandbox.state import ConversationState, Delegate

TOOL_NAME = "delegate"

HINT = CallHint(sign="&", kind="delegation", subject="task", needs_agent=True)

_MAX_STEPS = 200
"""Limit of a running sub-agent's steps that are kept for a user who watches; its log has them all."""

MAX_TASK_CHARS = 100_000
"""Limit of a task: data belongs in a file that the task names."""

NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9_-]{0,39}$"
"""The name becomes part of a directory's name."""

DESCRIPTION = """\
Give a task to an agent of its own and return its answer. The agent works in this sandbox, on these files, with a
conversation of its own: it knows nothing of this one, and of what it does only its answer comes back here.

`task` (required) is all that it is told: the goal, the paths and facts it needs, and what the answer shall hold.
`name` is what it is called, for example `tester`. `tools` are the names of the tools it shall have: some of yours,
by default all of them but delegation; it can always think and finish. `max_iterations` bounds how many requests to the
model it may make, within what is left to you. It has shells of its own, and what it leaves running ends with it.

Use it for work that reads much and answers little: a search, a review, a test run to be understood. You wait for it."""


class AgentDelegateAction(Action):
    """A task for another agent."""

    task: str = Field(min_length=1, max_length=MAX_TASK_CHARS, description="What is to be done, with all it needs.")

    @property
    def agent(self) -> str:
        """The kind of agent that is asked."""
        return "BrowsingAgent"

    @property
    def inputs(self) -> dict[str, Any]:
        """The inputs that the agent is given."""
        return {"task": self.task}


class DelegateAction(AgentDelegateAction):
    """A task for an agent with chosen tools."""

    name: str = Field(default="agent", pattern=NAME_PATTERN, description="Letters, digits, _ and -, at most 40.")
    tools: tuple[str, ...] | None = Field(default=None, max_length=50, description="Names of tools; yours by default.")
    max_iterations: int | None = Field(default=None, gt=0, description="At most so many requests to the model.")

    @property
    def agent(self) -> str:
        """The agent's name."""
        return self.name


OnStep = Callable[[str], None]


class DelegatingExecutor(ToolExecutor[ActionT, TextObservation]):
    """Runs a function that delegates; while it runs, the sub-agent's steps are its output."""

    def __init__(self, function: Callable[[ActionT, OnStep], TextObservation]) -> None:
        self._function = function
        self._steps: deque[str] = deque(maxlen=_MAX_STEPS)

    def __call__(self, action: ActionT) -> TextObservation:
        """Delegate, and wait for the answer."""
        self._steps.clear()
        return self._function(action, self._steps.append)

    def last_output(self) -> bytes:
        """Return the last steps, one per line."""
        return "\n".join(self._steps.copy()).encode("utf-8", "replace")[-LAST_OUTPUT_BYTES:]


def make_delegate_tool(
    *, conv_state: ConversationState, tools: Sequence[str] = ()
) -> ToolDefinition[DelegateAction, TextObservation]:
    """Create the tool; tools are the names of tools that sub-agents may have beyond those of the agent itself.

    Raises:
        UsageError: the conversation cannot delegate.
    """
    delegate = delegate_of(conv_state, TOOL_NAME)

    def run(action: DelegateAction, on_step: OnStep) -> TextObservation:
        task = Delegation(action.task, action.name, action.tools, action.max_iterations, on_step=on_step)
        return TextObservation(text=delegate(task))

    more = f"\n\nBeyond your own tools it can be given: {', '.join(tools)}." if tools else ""
    return ToolDefinition(
        name=TOOL_NAME,
        description=DESCRIPTION + more,
        action_type=DelegateAction,
        observation_type=TextObservation,
        hint=HINT,
        annotations=ToolAnnotations(title="Delegate a task"),
        executor=DelegatingExecutor(run),
    )


_AGENT_DESCRIPTION = """\
Give a task to the agent {name!r}, which has tools of its own, and return its answer. {purpose}`task` (required) is all
that it is told: the goal, the paths and facts it needs, and what the answer shall hold. It works in this sandbox, on
these files, and knows nothing of this conversation. You wait for it."""


def make_agent_tool(
    agent: object, *, name: str, description: str, conv_state: ConversationState
) -> ToolDefinition[AgentDelegateAction, TextObservation]:
    """Create the tool that gives tasks to the given agent, with its tools, its prompt and its model, if it has one.

    Raises:
        UsageError: the conversation cannot delegate.
    """
    delegate = delegate_of(conv_state, name)
    purpose = f"{description.strip().rstrip('.')}.\n\n" if description.strip() else ""

    def run(action: AgentDelegateAction, on_step: OnStep) -> TextObservation:
        return TextObservation(text=delegate(Delegation(action.task, name, agent=agent, on_step=on_step)))

    return ToolDefinition(
        name=name,
        description=_AGENT_DESCRIPTION.format(name=name, purpose=purpose),
        action_type=AgentDelegateAction,
        observation_type=TextObservation,
        hint=HINT,
        annotations=ToolAnnotations(title=f"Delegate to {name}"),
        executor=DelegatingExecutor(run),
    )


def delegate_of(state: ConversationState, tool: str) -> Delegate:
    """Return the conversation's function that delegates.

    Raises:
        UsageError: the conversation has none.
    """
    if state.delegate is None:
        raise UsageError(
            f"Tool {tool!r} is not available here: sub-agents of sub-agents do not delegate, nor does a conversation "
            "without a model. Leave the tool out."
        )
    return state.delegate


BUILT_IN = BuiltInTool(make_delegate_tool, HINT)
