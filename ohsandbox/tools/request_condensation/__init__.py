"""`request_condensation`: the model asks for a shorter history."""

from ohsandbox.tools.request_condensation.definition import CondensationRequestAction, RequestCondensationTool

__all__ = ["CondensationRequestAction", "RequestCondensationTool"]
