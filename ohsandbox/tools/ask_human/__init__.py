"""`ask_human`: a question to the user, who has the next word."""

from ohsandbox.tools.ask_human.definition import AskHumanAction, AskHumanTool

__all__ = ["AskHumanAction", "AskHumanTool"]
