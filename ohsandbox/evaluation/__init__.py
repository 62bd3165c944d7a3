"""Isolated evaluation: reads tasks of several formats, runs each trial in a fresh sandbox, writes results for CI."""

from ohsandbox.evaluation.formats import LoadedTasks, Problem, load_tasks
from ohsandbox.evaluation.results import TrialResult
from ohsandbox.evaluation.task import Task

__all__ = ["LoadedTasks", "Problem", "Task", "TrialResult", "load_tasks"]
