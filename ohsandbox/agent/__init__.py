"""The agent: a model, its tools and its prompt; one step is one request and its tool calls."""

from ohsandbox.agent.agent import Agent
from ohsandbox.agent.calls import (
    RISK_LEVELS,
    SECURITY_RISK_DESC,
    ActionEvent,
    ActionSecurityRisk,
    FunctionCallNotExistsError,
    FunctionCallValidationError,
    MessageAction,
    ToolCallMetadata,
    combine_thought,
    response_to_actions,
    set_security_risk,
)
from ohsandbox.agent.condenser import CondensationAction
from ohsandbox.agent.execution import AgentErrorEvent, ObservationEvent, StepOutcome
from ohsandbox.agent.history import History, messages_from_events
from ohsandbox.agent.prompt import render_system_prompt

__all__ = [
    "RISK_LEVELS",
    "SECURITY_RISK_DESC",
    "ActionEvent",
    "ActionSecurityRisk",
    "Agent",
    "AgentErrorEvent",
    "CondensationAction",
    "FunctionCallNotExistsError",
    "FunctionCallValidationError",
    "History",
    "MessageAction",
    "ObservationEvent",
    "StepOutcome",
    "ToolCallMetadata",
    "combine_thought",
    "messages_from_events",
    "render_system_prompt",
    "response_to_actions",
    "set_security_risk",
]
