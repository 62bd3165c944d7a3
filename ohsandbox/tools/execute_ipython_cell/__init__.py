"""`execute_ipython_cell`: Python cells in a kernel inside the sandbox that keeps its variables."""

from ohsandbox.tools.execute_ipython_cell.definition import (
    ExecuteIPythonCellTool,
    IPythonObservation,
    IPythonRunCellAction,
)

__all__ = ["ExecuteIPythonCellTool", "IPythonObservation", "IPythonRunCellAction"]
