"""The agent: a model, its tools and its prompt; one step is one request and what comes of it."""

from ohsandbox.agent.agent import Agent
from ohsandbox.agent.calls import PlannedCall, response_to_actions
from ohsandbox.agent.execution import StepOutcome
from ohsandbox.agent.history import History, messages_from_events
from ohsandbox.agent.prompt import render_system_prompt

__all__ = [
    "Agent",
    "History",
    "PlannedCall",
    "StepOutcome",
    "messages_from_events",
    "render_system_prompt",
    "response_to_actions",
]
