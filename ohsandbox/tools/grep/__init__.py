"""`grep`: finds lines by regular expression, newest files first."""

from ohsandbox.tools.grep.definition import GrepAction, GrepObservation, GrepTool

__all__ = ["GrepAction", "GrepObservation", "GrepTool"]
