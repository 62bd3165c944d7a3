"""Implementation of `delegate_to_browsing_agent`: the conversation runs the sub-agent."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ohsandbox.schema import TextObservation
from ohsandbox.state import Delegation
from ohsandbox.tool import ToolExecutor
from ohsandbox.tools.delegate.definition import AgentDelegateAction

if TYPE_CHECKING:
    from ohsandbox.state import Delegate


class BrowsingDelegateExecutor(ToolExecutor[AgentDelegateAction, TextObservation]):
    """Hands tasks to sub-agents with a browser."""

    def __init__(self, delegate: Delegate, *, tools: tuple[str, ...], max_iterations: int | None) -> None:
        self._delegate = delegate
        self._tools = tools
        self._max_iterations = max_iterations

    def __call__(self, action: AgentDelegateAction) -> TextObservation:
        """Run the sub-agent.

        Raises:
            ToolError: the sub-agent gave no answer.
            SandboxUnavailable: the sandbox is gone.
        """
        return TextObservation(
            text=self._delegate(Delegation(action.task, "browsing-agent", self._tools, self._max_iterations))
        )
