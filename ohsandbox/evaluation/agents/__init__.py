"""The agents that work on a task: its own solution, none, predictions, any command; in `own`, ours or a recorded run.

`own` is imported by who uses it: the agent and its conversation take 0.15 s to load.
"""

from ohsandbox.evaluation.agents.base import AgentReport, Assignment, EvaluatedAgent
from ohsandbox.evaluation.agents.command import CommandAgent
from ohsandbox.evaluation.agents.predictions import PredictionsAgent
from ohsandbox.evaluation.agents.solution import NopAgent, OracleAgent

__all__ = [
    "AgentReport",
    "Assignment",
    "CommandAgent",
    "EvaluatedAgent",
    "NopAgent",
    "OracleAgent",
    "PredictionsAgent",
]
