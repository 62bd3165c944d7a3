"""`task_tracker`: the agent's own task list."""

from ohsandbox.tools.task_tracker.definition import TaskItem, TaskTrackerTool, TaskTrackingAction

__all__ = ["TaskItem", "TaskTrackerTool", "TaskTrackingAction"]
