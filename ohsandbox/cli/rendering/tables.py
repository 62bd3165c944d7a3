"""Tables for a person: columns if the terminal is wide enough, else a few lines per row; no cell is cut."""

# ruff: noqa: T201 - a list is printed
from __future__ import annotations

import contextlib
import io
import json
import os
import shlex
import sys
from datetime import datetime
from typing import TYPE_CHECKING, Any, NoReturn

from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from ohsandbox import host_programs
from ohsandbox.cli.rendering.text import safe_line

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

GAP = "  "
_MIN_LAST_COLUMNS = 20
"""If the last column would be narrower than this, rows are printed as several lines."""
_MAX_CELL_CHARS = 2000
FILE_COLUMNS = 200
"""Width of a table that is written to a file or a pipe."""


def print_json(rows: Iterable[dict[str, Any]]) -> None:
    """Print rows for `--json` as an array of objects; times as ISO 8601."""
    print(json.dumps([*rows], indent=2, default=datetime.isoformat))


def print_list(
    found: Sequence[Any], headings: Sequence[str], rows: Sequence[Sequence[str]], *, as_json: bool, nothing: str
) -> bool:
    """Print named tuples as JSON, or as a table of rows, or the text nothing if there are none.

    Returns:
        Whether a table was printed.
    """
    if as_json:
        print_json(one._asdict() for one in found)
    elif not found:
        print(nothing)
    else:
        print_table(headings, rows)
    return bool(found) and not as_json


def print_message(text: object) -> None:
    """Print text, made safe for the terminal and wrapped between words."""
    open_console().print(safe_line(text, limit_chars=1000))


def print_table(headings: Sequence[str], rows: Sequence[Sequence[str]], *, printable: bool = False) -> None:
    """Print rows with as many cells as there are headings; empty columns are left out.

    Cells are foreign text, unless printable says that they are safe. The first column holds what other commands
    accept, so it is never wrapped; the last column may be.
    """
    console = open_console()
    cells = [[cell if printable else safe_line(cell, limit_chars=_MAX_CELL_CHARS) for cell in row] for row in rows]
    used = [at for at in range(len(headings)) if any(row[at] for row in cells)]
    names, cells = [headings[at] for at in used], [[row[at] for at in used] for row in cells]
    widths = [max(map(cell_len, column)) for column in zip(names, *cells, strict=True)]
    before_last = sum(widths[:-1]) + len(GAP) * (len(widths) - 1)
    room = max(console.width, 1) - before_last
    if widths[-1] <= room or room >= _MIN_LAST_COLUMNS:
        _print_columns(console, [names, *cells], widths, room if console.is_terminal else widths[-1])
    else:
        _print_records(console, names, cells)


def _print_columns(console: Console, rows: list[list[str]], widths: list[int], room: int) -> None:
    for number, (*first, last) in enumerate(rows):
        head = "".join(set_cell_size(cell, width) + GAP for cell, width in zip(first, widths, strict=False))
        lines = Text(last).wrap(console, max(room, 1)) if cell_len(last) > room else [last]
        for at, line in enumerate(lines or [""]):
            shown = f"{' ' * cell_len(head) if at else head}{line}".rstrip()
            console.print(Text(shown, style="" if number else "bold"), soft_wrap=True)


def _print_records(console: Console, names: list[str], rows: list[list[str]]) -> None:
    """Print each row as lines: the first cell, then the others below it, a bare number with its heading."""
    for first, *others in rows:
        console.print(Text(first, style="bold"), soft_wrap=True)
        named = zip(names[1:], others, strict=True)
        told = (f"{cell} {name.lower()}" if cell.isdecimal() else cell for name, cell in named)
        if below := Text(" · ".join(filter(None, told))):
            console.print(Padding(below, (0, 0, 0, 2)))


def aligned(rows: Iterable[Sequence[str]], *, right: Sequence[int] = (), heading: bool = False) -> Text:
    """Return rows of printable cells in columns; the columns in right are right-aligned. No cell is cut."""
    lines = [*rows]
    widths = [max(map(cell_len, column)) for column in zip(*lines, strict=True)]
    shown = []
    for number, line in enumerate(lines):
        cells = []
        for at, (cell, width) in enumerate(zip(line, widths, strict=True)):
            gap = " " * (width - cell_len(cell))
            cells.append(gap + cell if at in right else cell + gap)
        shown.append(Text("  ".join(cells).rstrip(), style="bold" if heading and not number else ""))
    return Text("\n").join(shown)


def print_wrapped(console: Console, text: Text) -> None:
    """Print text with line breaks between words; a word longer than a line, such as a path, stays whole."""
    console.print(text, soft_wrap=any(cell_len(word) > console.width for word in text.plain.split()))


class _Console(Console):
    def on_broken_pipe(self) -> NoReturn:
        """Raise the error for `entrypoint.exit_code_of` to handle; rich itself would exit with 1."""
        raise BrokenPipeError


def open_console(*, stderr: bool = False) -> Console:
    """Return a console on stdout or stderr that prints text as it is: no markup, no highlighting, no emoji names.

    Characters that the encoding lacks are printed as `?`.
    """
    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() else FILE_COLUMNS
    if isinstance(stream, io.TextIOWrapper) and not (stream.encoding or "").lower().startswith("utf"):
        stream.reconfigure(errors="replace")
    return _Console(highlight=False, markup=False, emoji=False, width=width, stderr=stderr)


# --- a page at a time -----------------------------------------------------------------------------

_LESS = {"LESS": "FRX", "LV": "-c"}
"""Defaults for less, as in git: exit if the text fits, show colours, do not clear the screen."""


def print_paged(lines: Iterable[Text]) -> None:
    """Print lines that are safe to print; use the person's pager for more than a screenful."""
    console, found = open_console(), [*lines]
    pager = shlex.split(os.environ.get("PAGER", "less"))
    is_long = sum(1 + line.cell_len // max(console.width, 1) for line in found) >= console.height
    if not (is_long and console.is_terminal and sys.stdin.isatty() and pager and host_programs.find_program(pager[0])):
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
        host_programs.run(pager, input=out.getvalue(), text=True, env=_LESS | os.environ, check=False)
