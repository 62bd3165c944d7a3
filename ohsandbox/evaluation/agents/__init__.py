"""Who works on a task: its own solution, nobody, our agent, a recorded run, predictions, or any command."""

from ohsandbox.evaluation.agents.base import AgentReport, Assignment, EvaluatedAgent
from ohsandbox.evaluation.agents.command import CommandAgent
from ohsandbox.evaluation.agents.own import OhsandboxAgent, ReplayAgent
from ohsandbox.evaluation.agents.predictions import PredictionsAgent
from ohsandbox.evaluation.agents.solution import NopAgent, OracleAgent

__all__ = [
    "AgentReport",
    "Assignment",
    "CommandAgent",
    "EvaluatedAgent",
    "NopAgent",
    "OhsandboxAgent",
    "OracleAgent",
    "PredictionsAgent",
    "ReplayAgent",
]
