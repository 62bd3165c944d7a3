"""Long output a page at a time, as git shows it: through `$PAGER`, or less, where there is a person and a terminal."""

from __future__ import annotations

import contextlib
import io
import os
import shlex
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

from rich.console import Console

from ohsandbox.cli.rendering.tables import open_console

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rich.text import Text

LESS = {"LESS": "FRX", "LV": "-c"}
"""What git gives less where the person has not: leave what fits, show colours, do not clear the screen."""


def print_paged(lines: Iterable[Text]) -> None:
    """Print lines, whose text is safe; more than a screenful through the person's pager, if it is there."""
    console, found = open_console(), [*lines]
    pager = shlex.split(os.environ.get("PAGER", "less"))
    is_long = sum(1 + line.cell_len // max(console.width, 1) for line in found) >= console.height
    if not (is_long and console.is_terminal and sys.stdin.isatty() and pager and shutil.which(pager[0])):
        for line in found:
            console.print(line, soft_wrap=True)
        return
    out = io.StringIO()
    painted = Console(
        file=out,
        force_terminal=True,
        color_system="standard" if console.color_system else None,
        no_color=console.no_color,
        highlight=False,
        markup=False,
        emoji=False,
    )
    for line in found:
        painted.print(line, soft_wrap=True)
    with contextlib.suppress(KeyboardInterrupt):
        subprocess.run(pager, input=out.getvalue(), text=True, env=LESS | os.environ, check=False)
