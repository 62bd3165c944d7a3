"""Implementation of `delegate`: the conversation runs the sub-agent."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ohsandbox.schema import TextObservation
from ohsandbox.state import Delegation
from ohsandbox.tool import ToolExecutor
from ohsandbox.tools.delegate.definition import DelegateAction

if TYPE_CHECKING:
    from ohsandbox.state import Delegate


class DelegateExecutor(ToolExecutor[DelegateAction, TextObservation]):
    """Hands tasks to sub-agents."""

    def __init__(self, delegate: Delegate) -> None:
        self._delegate = delegate

    def __call__(self, action: DelegateAction) -> TextObservation:
        """Run the sub-agent.

        Raises:
            ToolError: the sub-agent gave no answer.
            SandboxUnavailable: the sandbox is gone.
        """
        return TextObservation(
            text=self._delegate(Delegation(action.task, action.name, action.tools, action.max_iterations))
        )
