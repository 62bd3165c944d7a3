"""`delegate_to_browsing_agent`: a task on the web, for an agent with a browser; the conversation runs it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ohsandbox.errors import ToolError
from ohsandbox.schema import TextObservation
from ohsandbox.state import Delegation
from ohsandbox.tool import BuiltInTool, CallHint, ToolAnnotations, ToolDefinition
from ohsandbox.tools.browser.definition import REMEDY, find_browser
from ohsandbox.tools.delegate import AgentDelegateAction, DelegatingExecutor, OnStep, delegate_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ohsandbox.state import ConversationState

TOOL_NAME = "delegate_to_browsing_agent"

HINT = CallHint(sign="&", kind="delegation", subject="task", needs_agent=True)

BROWSING_TOOLS = ("browser", "web_read", "think", "finish")
"""The browsing agent's tools by default; without `browser` if the sandbox has none."""

_NO_BROWSER = "This sandbox has no browser: the agent could read pages, and not click, type or run their scripts."

DESCRIPTION = """\
Give a task on the web to an agent with a browser, and return its answer in words. `task` (required) is all that it is
told: what to find out or to do, the addresses, and what the answer shall hold. It knows nothing of this conversation
and has no shell. It reaches what the sandbox's network lets through. You wait for it."""


def make_delegate_to_browsing_agent_tool(
    *, conv_state: ConversationState, tools: Sequence[str] = BROWSING_TOOLS, max_iterations: int | None = None
) -> ToolDefinition[AgentDelegateAction, TextObservation]:
    """Create the tool; tools names the browsing agent's tools, and max_iterations bounds its requests to the model.

    Raises:
        UsageError: the conversation cannot delegate.
    """
    delegate, runtime = delegate_of(conv_state, TOOL_NAME), conv_state.runtime

    def run(action: AgentDelegateAction, on_step: OnStep) -> TextObservation:
        has_browser = "browser" not in tools or runtime is None or find_browser(runtime)
        offered = tuple(name for name in tools if has_browser or name != "browser")
        if not offered or {*offered} <= {"think", "finish"}:
            raise ToolError(f"The sandbox has no browser, so nothing can browse. {REMEDY}")
        text = delegate(Delegation(action.task, "browsing-agent", offered, max_iterations, on_step=on_step))
        return TextObservation(text=text if has_browser else f"{text}\n[{_NO_BROWSER}]")

    return ToolDefinition(
        name=TOOL_NAME,
        description=DESCRIPTION,
        action_type=AgentDelegateAction,
        observation_type=TextObservation,
        hint=HINT,
        annotations=ToolAnnotations(title="Delegate to a browsing agent"),
        executor=DelegatingExecutor(run),
    )


BUILT_IN = BuiltInTool(make_delegate_to_browsing_agent_tool, HINT)
