"""`grep`: lines of files by a regular expression, newest files first."""

from ohsandbox.tools.grep.definition import GrepAction, GrepObservation, GrepTool

__all__ = ["GrepAction", "GrepObservation", "GrepTool"]
