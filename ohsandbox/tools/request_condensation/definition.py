"""What the model is told of `request_condensation`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ohsandbox.schema import Action, TextObservation
from ohsandbox.tool import CallHint, ToolAnnotations, ToolDefinition

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ohsandbox.state import ConversationState

TOOL_NAME = "request_condensation"

HINT = CallHint(writes=False, needs_agent=True)

DESCRIPTION = """\
Ask for the older part of this conversation to be replaced by a summary, and return whether that will happen. Takes no
arguments. Use it when the conversation has grown long and its early details no longer matter; write down first what
you still need: facts, file names, decisions."""


class CondensationRequestAction(Action):
    """The wish for a shorter history. The agent sees this action and acts on it; the tool itself changes nothing."""


class RequestCondensationTool(ToolDefinition[CondensationRequestAction, TextObservation]):
    """The tool of an agent; only useful with a condenser."""

    @classmethod
    def create(
        cls,
        *,
        conv_state: ConversationState,  # noqa: ARG003 - every tool is created with it
        has_condenser: bool | None = None,
    ) -> Sequence[RequestCondensationTool]:
        """One tool. has_condenser says whether the agent has one; None leaves it open, and the answer says so."""
        from ohsandbox.tools.request_condensation.impl import (  # noqa: PLC0415 - impl is for running only
            RequestCondensationExecutor,
        )

        return [
            cls(
                name=TOOL_NAME,
                description=DESCRIPTION,
                action_type=CondensationRequestAction,
                observation_type=TextObservation,
                hint=HINT,
                annotations=ToolAnnotations.reading("Ask for a summary"),
                executor=RequestCondensationExecutor(has_condenser=has_condenser),
            )
        ]
