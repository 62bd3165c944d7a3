"""`ToolExecutor`: the part of a tool that runs its calls."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Generic, TypeVar

from ohsandbox.schema import Action, Observation

ActionT = TypeVar("ActionT", bound=Action)
ObservationT = TypeVar("ObservationT", bound=Observation)


class ToolExecutor(ABC, Generic[ActionT, ObservationT]):
    """Turns an action into an observation."""

    @abstractmethod
    def __call__(self, action: ActionT) -> ObservationT:
        """Run the action.

        Raises:
            ToolError: it failed; the model gets the message and the run continues.
            SandboxUnavailable: the sandbox is gone; the run ends.
        """

    def close(self) -> None:
        """Release the executor's resources. Safe to call twice."""

    def interrupt(self) -> None:
        """End the running call soon; called from another thread when the user stops the run. Default: does nothing."""

    def last_output(self) -> bytes:
        """The end of the running call's output, not masked; called from another thread. Default: empty."""
        return b""
