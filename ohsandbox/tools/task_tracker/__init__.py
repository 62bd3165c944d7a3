"""`task_tracker`: the agent's own list of what is to be done."""

from ohsandbox.tools.task_tracker.definition import TaskItem, TaskTrackerTool, TaskTrackingAction

__all__ = ["TaskItem", "TaskTrackerTool", "TaskTrackingAction"]
