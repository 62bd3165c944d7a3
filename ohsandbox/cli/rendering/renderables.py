"""Rich renderables of calls, results and live output: coloured, and folded if they are long."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, NamedTuple

from rich.console import Group
from rich.markdown import CodeBlock, Heading, Markdown, MarkdownElement, TableElement
from rich.segment import Segment
from rich.syntax import Syntax
from rich.table import Table
from rich.text import Text

from ohsandbox.cli.rendering.text import output
from ohsandbox.text import counted

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rich.console import Console, ConsoleOptions, RenderableType, RenderResult

    from ohsandbox.cli.rendering.events import CallBlock, ResultBlock
    from ohsandbox.cli.rendering.lines import BlockLine, LineKind

_MAX_COMMAND_LINES = 12
"""Largest number of lines of a command, counted from its beginning; the log has all of it."""
_MAX_OUTPUT_LINES = 15
"""Largest number of lines of an output, counted from its end, where failures are."""
MAX_LINES = 40
"""Largest number of lines of a change, of fields or of tasks, counted from the beginning."""
MAX_LINE_CHARS = 400
"""Longest line, about five rows; nobody reads a minified file."""
INDENT = 2
_NUMBER_COLUMNS = 4

STYLES: Mapping[LineKind, str] = {
    "": "",
    "added": "green",
    "removed": "red",
    "same": "dim",
    "place": "cyan",
    "field": "",
    "done": "green",
    "active": "bold yellow",
    "todo": "",
}


class Glyphs(NamedTuple):
    """Signs, with replacements for terminals that cannot show them."""

    done: str = "✓"
    failed: str = "✗"
    declined: str = "∅"
    separator: str = " · "
    more: str = "…"
    said: str = "●"
    tasks: Mapping[LineKind, str] = {"done": "☑ ", "active": "▸ ", "todo": "☐ "}

    @classmethod
    def of(cls, console: Console) -> Glyphs:
        """Return the signs that the console's encoding supports."""
        return ASCII if console.options.ascii_only else UNICODE


UNICODE = Glyphs()
ASCII = Glyphs("ok", "x", "-", ", ", "...", "*", {"done": "[x] ", "active": "[>] ", "todo": "[ ] "})


def command(call: CallBlock, glyphs: Glyphs = UNICODE, *, is_whole: bool = False) -> RenderableType:
    """Render a call with its sign and the lines below it."""
    shown = call.text.split("\n")
    lines_kept = shown if is_whole else [truncate_line(line) for line in shown[:_MAX_COMMAND_LINES]]
    if len(shown) > len(lines_kept):
        lines_kept.append(f"{glyphs.more} {counted(len(shown) - len(lines_kept), 'more line')}")
    colour = "green" if call.sign in "$>" else "blue"
    text = Text.assemble((f"{call.sign} ", f"bold {colour}"))
    text.append("\n  ".join(lines_kept), style="dim" if call.sign == "*" else f"bold {colour}")
    for line in _beginning(call.lines, glyphs, is_whole=is_whole):
        text.append("\n  ").append_text(line)
    return text


def result(
    block: ResultBlock,
    glyphs: Glyphs = UNICODE,
    *,
    images: Sequence[str] = (),
    hint: str = "",
    is_whole: bool = False,
) -> RenderableType:
    """Render a call's result, and a line below it that says how the call ended.

    Args:
        block: the result.
        glyphs: the signs.
        images: one line for each image.
        hint: how to see all of a folded result.
        is_whole: do not fold.
    """
    body = _beginning(block.lines, glyphs, is_whole=is_whole) or _ending(block, glyphs, hint=hint, is_whole=is_whole)
    body += [Text(line, style="cyan") for line in images]
    if block.is_declined:
        sign, style = glyphs.declined, "yellow"
    else:
        sign, style = (glyphs.done, "green") if block.ok else (glyphs.failed, "red")
    footer = Text(f"{sign} {glyphs.separator.join(block.summary)}".rstrip(), style=style)
    return Rows(Group(*body, footer), indent=INDENT)


class Rows:
    """Adds margins to a renderable: at its left, above and below it.

    Rows have no trailing blanks: a row filled with blanks becomes two rows if the terminal is
    made narrower.
    """

    def __init__(self, inner: RenderableType, *, indent: int = 0, above: int = 0, below: int = 0) -> None:
        self.inner, self.indent, self.above, self.below = inner, indent, above, below

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the rows."""
        yield from [Segment.line()] * self.above
        inside = options.update(width=max(options.max_width - self.indent, 1))
        rows = [_without_end(row) for row in console.render_lines(self.inner, inside, pad=False)]
        shown = [at for at, row in enumerate(rows) if row] or [0]
        for row in rows[shown[0] : shown[-1] + 1]:
            if row:
                yield Segment(" " * self.indent)
                yield from row
            yield Segment.line()
        yield from [Segment.line()] * self.below


def _without_end(row: list[Segment]) -> list[Segment]:
    segments = [*row]
    while segments and not segments[-1].text.rstrip(" "):
        segments.pop()
    if segments:
        segments[-1] = Segment(segments[-1].text.rstrip(" "), segments[-1].style)
    return segments


class _Code(CodeBlock):
    """A code block without rows of padding, on the terminal's own background."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the highlighted lines."""
        code = str(self.text).rstrip()
        syntax = Syntax(code, self.lexer_name, theme="ansi_dark", word_wrap=True, background_color="default")
        yield Rows(syntax, indent=INDENT)


class _Heading(Heading):
    """A heading at the left margin, without a box."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the heading on a line of its own."""
        self.text.justify = "left"
        self.text.stylize("bold underline" if self.tag in {"h1", "h2"} else "bold")
        yield self.text


class _Table(TableElement):
    """A table without empty rows around it."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the table's rows."""
        for table in super().__rich_console__(console, options):
            if isinstance(table, Table):
                table.show_edge = False
            yield table


class AnswerMarkdown(Markdown):
    """Markdown with one blank line between blocks and no hyperlinks, which are control sequences to a terminal."""

    elements: ClassVar[dict[str, type[MarkdownElement]]] = {
        **Markdown.elements,
        "fence": _Code,
        "code_block": _Code,
        "heading_open": _Heading,
        "table_open": _Table,
    }

    def __init__(self, text: str) -> None:
        super().__init__(text, hyperlinks=False)


def is_folded(block: CallBlock | ResultBlock) -> bool:
    """Return whether the block is shown whole only on request."""
    limit = _MAX_OUTPUT_LINES if hasattr(block, "ending") and not block.lines else _MAX_COMMAND_LINES
    lines = block.text.strip("\n").split("\n")
    return len(block.lines) > MAX_LINES or len(lines) > limit or any(len(line) > MAX_LINE_CHARS for line in lines)


def tail(text: str, *, rows: int) -> list[Text]:
    """Return the last rows of a running call's output, one Text each."""
    lines = [line.rstrip() for line in output(text).rstrip("\n").split("\n")]
    return [Text(truncate_line(line), style="dim", no_wrap=True, overflow="ellipsis") for line in lines[-rows:]]


def truncate_line(line: str) -> str:
    """Return the line, cut to MAX_LINE_CHARS."""
    return line if len(line) <= MAX_LINE_CHARS else f"{line[:MAX_LINE_CHARS]}… ({len(line):,} characters)"


def _ending(block: ResultBlock, glyphs: Glyphs, *, hint: str, is_whole: bool) -> list[Text]:
    """Render the end of an output, where failures are."""
    lines = [line.rstrip() for line in block.text.strip("\n").splitlines()]
    lines_kept = lines if is_whole else [truncate_line(line) for line in lines[-_MAX_OUTPUT_LINES:]]
    above = len(lines) - len(lines_kept)
    more_text = ", ".join(filter(None, [f"{glyphs.more} {counted(above, 'line')} above", hint]))
    style = "dim" if block.ok or block.is_declined else ""
    return [
        *([Text(more_text, style="italic dim")] if above else []),
        *(Text(line, style=style) for line in lines_kept),
    ]


def _beginning(lines: Sequence[BlockLine], glyphs: Glyphs, *, is_whole: bool) -> list[Text]:
    lines_kept = lines if is_whole else lines[:MAX_LINES]
    rows = [_row(line, glyphs, is_numbered=any(line_kept.number for line_kept in lines_kept)) for line in lines_kept]
    if more := len(lines) - len(lines_kept):
        rows.append(Text(f"{glyphs.more} {counted(more, 'more line')}", style="italic dim"))
    return rows


def _row(line: BlockLine, glyphs: Glyphs, *, is_numbered: bool) -> Text:
    style = STYLES[line.kind]
    shown = truncate_line(line.text)
    if line.kind in {"added", "removed", "same"}:
        number = f"{line.number or '':>{_NUMBER_COLUMNS}} " if is_numbered else ""
        sign = {"added": "+", "removed": "-"}.get(line.kind, " ")
        return Text.assemble((number, "dim"), (f"{sign} {shown}".rstrip(), style))
    if line.kind == "field":
        name, colon, value = shown.partition(":")
        return Text.assemble((name + colon, "dim"), value)
    if line.kind == "place":
        return Text(f"{' ' * (_NUMBER_COLUMNS + 1) if is_numbered else ''}{shown}", style=style)
    return Text(glyphs.tasks.get(line.kind, "") + shown, style=style)
