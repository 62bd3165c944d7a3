"""`glob`: files by the pattern of their path, newest first."""

from ohsandbox.tools.glob.definition import GlobAction, GlobObservation, GlobTool

__all__ = ["GlobAction", "GlobObservation", "GlobTool"]
