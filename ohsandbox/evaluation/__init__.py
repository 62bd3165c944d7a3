"""Isolated evaluation: tasks in the formats that exist, a fresh sandbox for each trial, results that CI understands."""

from ohsandbox.evaluation.formats import LoadedTasks, Problem, load_tasks
from ohsandbox.evaluation.results import TrialResult
from ohsandbox.evaluation.task import Task

__all__ = ["LoadedTasks", "Problem", "Task", "TrialResult", "load_tasks"]
