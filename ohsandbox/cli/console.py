"""The terminal, by rich."""

from __future__ import annotations

import sys
from typing import NoReturn

from rich.console import Console

FILE_COLUMNS = 200
"""A table that goes to a file or a pipe is not folded at 80 columns."""


class _Console(Console):
    def on_broken_pipe(self) -> NoReturn:
        """Whoever reads has gone: `errors.exit_code_of` decides what that means. rich itself would exit with 1."""
        raise BrokenPipeError


def open_console() -> Console:
    """Stdout, with every word printed as it is: no markup, no highlighting, no emoji names."""
    width = None if sys.stdout.isatty() else FILE_COLUMNS
    return _Console(highlight=False, markup=False, emoji=False, width=width)
