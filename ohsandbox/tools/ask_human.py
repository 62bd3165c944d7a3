"""`ask_human`: a question to the user. The agent sees the action and waits; the tool itself asks nobody."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import Field

from ohsandbox.schema import Action, TextObservation
from ohsandbox.tool import BuiltInTool, CallHint, FunctionExecutor, ToolAnnotations, ToolDefinition

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ohsandbox.state import ConversationState

TOOL_NAME = "ask_human"

_MAX_QUESTION_CHARS = 4_000
"""Limit of a question; users do not read more before they answer."""

DESCRIPTION = f"""\
Ask the user a question and stop until they answer; return that it was put to them. Their answer is their next message.

`question` (required) is plain text, at most {_MAX_QUESTION_CHARS} characters: what you need to know, why, and what you
would do without an answer. `options` are answers to choose from, where there are some; the user may say something else.

Use it alone, when a decision is theirs or a fact is missing that you cannot find out by other means."""

ASKED = "The question was put to the user. Their next message is the answer."


class AskHumanAction(Action):
    """A question to the user."""

    call_kind: ClassVar[str] = "question"
    question: str = Field(min_length=1, max_length=_MAX_QUESTION_CHARS, description="What you need to know.")
    options: tuple[str, ...] = Field(default=(), max_length=10, description="Answers to choose from.")


def hint(arguments: Mapping[str, Any]) -> CallHint:
    """Return the question, with the options on lines of their own."""
    offered = arguments.get("options")
    options = [f"\n- {' '.join(str(option).split())}" for option in (offered if isinstance(offered, list) else ())]
    note = "".join(options)
    return CallHint(
        sign="?", kind="question", subject="question", note=note, writes=False, answers=True, needs_agent=True
    )


def make_ask_human_tool(
    *,
    conv_state: ConversationState,  # noqa: ARG001 - every tool is made with it
) -> ToolDefinition[AskHumanAction, TextObservation]:
    """Create the tool for a conversation with a user; it has no state."""
    return ToolDefinition(
        name=TOOL_NAME,
        description=DESCRIPTION,
        action_type=AskHumanAction,
        observation_type=TextObservation,
        hint=hint,
        annotations=ToolAnnotations.reading("Ask the user"),
        executor=FunctionExecutor(lambda _: TextObservation(text=ASKED)),
    )


BUILT_IN = BuiltInTool(make_ask_human_tool, hint)
