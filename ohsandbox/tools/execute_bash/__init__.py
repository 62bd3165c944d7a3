"""`execute_bash`: a command in the sandbox's persistent shell."""

from ohsandbox.tools.execute_bash.definition import CmdRunAction, ExecuteBashTool

__all__ = ["CmdRunAction", "ExecuteBashTool"]
