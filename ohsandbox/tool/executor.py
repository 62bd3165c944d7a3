"""`ToolExecutor`: the part of a tool that does the work."""

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
        """Do it.

        Raises:
            ToolError: it cannot be done; the model is told and goes on.
            SandboxUnavailable: the sandbox is gone; the run ends.
        """

    def close(self) -> None:
        """Let go of what the executor holds. Twice is fine."""

    def interrupt(self) -> None:
        """End soon what runs now; called from another thread when the person stops the run. By default nothing."""

    def last_output(self) -> bytes:
        """The end of what the running call has printed, not masked; asked from another thread. By default nothing."""
        return b""
