"""`glob`: finds files by path pattern, newest first."""

from ohsandbox.tools.glob.definition import GlobAction, GlobObservation, GlobTool

__all__ = ["GlobAction", "GlobObservation", "GlobTool"]
