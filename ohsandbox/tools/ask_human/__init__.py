"""`ask_human`: a question to the user, who answers next."""

from ohsandbox.tools.ask_human.definition import AskHumanAction, AskHumanTool

__all__ = ["AskHumanAction", "AskHumanTool"]
