"""Calls, results and the output of what runs, as rich renders them: coloured, and folded where they are long."""

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
"""A heredoc is shown by its beginning; the log has it whole."""
_MAX_OUTPUT_LINES = 15
"""The end of an output, where failures stand."""
MAX_LINES = 40
"""Of a change, of fields, of tasks: their beginning."""
MAX_LINE_CHARS = 400
"""About five rows; a minified file is not for reading."""
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
    """Signs that not every terminal can show."""

    done: str = "✓"
    failed: str = "✗"
    declined: str = "∅"
    separator: str = " · "
    more: str = "…"
    said: str = "●"
    tasks: Mapping[LineKind, str] = {"done": "☑ ", "active": "▸ ", "todo": "☐ "}

    @classmethod
    def of(cls, console: Console) -> Glyphs:
        """Those that the console's encoding has."""
        return ASCII if console.options.ascii_only else UNICODE


UNICODE = Glyphs()
ASCII = Glyphs("ok", "x", "-", ", ", "...", "*", {"done": "[x] ", "active": "[>] ", "todo": "[ ] "})


def command(call: CallBlock, glyphs: Glyphs = UNICODE, *, is_whole: bool = False) -> RenderableType:
    """The call with its sign, and what stands below it."""
    shown = call.text.split("\n")
    kept = shown if is_whole else [cut(line) for line in shown[:_MAX_COMMAND_LINES]]
    if len(shown) > len(kept):
        kept.append(f"{glyphs.more} {counted(len(shown) - len(kept), 'more line')}")
    colour = "green" if call.sign in "$>" else "blue"
    text = Text.assemble((f"{call.sign} ", f"bold {colour}"))
    text.append("\n  ".join(kept), style="dim" if call.sign == "*" else f"bold {colour}")
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
    """What came of a call, and a line below it that says how it ended.

    Args:
        block: the result.
        glyphs: the signs.
        images: a line about each image.
        hint: how to see all of one that is folded.
        is_whole: fold nothing.
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
    """A renderable with a margin at its left and above and below it, and no other blanks around it.

    There are none at the ends of its rows either: a row that is filled with blanks is two rows once its terminal is
    made narrower.
    """

    def __init__(self, inner: RenderableType, *, indent: int = 0, above: int = 0, below: int = 0) -> None:
        self.inner, self.indent, self.above, self.below = inner, indent, above, below

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Its rows."""
        yield from [Segment.line()] * self.above
        inside = options.update(width=max(options.max_width - self.indent, 1))
        rows = [_without_end(row) for row in console.render_lines(self.inner, inside, pad=False)]
        shown = [at for at, row in enumerate(rows) if row] or [0]
        for kept in rows[shown[0] : shown[-1] + 1]:
            if kept:
                yield Segment(" " * self.indent)
                yield from kept
            yield Segment.line()
        yield from [Segment.line()] * self.below


def _without_end(row: list[Segment]) -> list[Segment]:
    kept = [*row]
    while kept and not kept[-1].text.rstrip(" "):
        kept.pop()
    if kept:
        kept[-1] = Segment(kept[-1].text.rstrip(" "), kept[-1].style)
    return kept


class _Code(CodeBlock):
    """A code block without rows of padding, on the terminal's own background."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Its lines, coloured."""
        code = str(self.text).rstrip()
        syntax = Syntax(code, self.lexer_name, theme="ansi_dark", word_wrap=True, background_color="default")
        yield Rows(syntax, indent=INDENT)


class _Heading(Heading):
    """A heading at the left margin, without a box."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """It on a line of its own."""
        self.text.justify = "left"
        self.text.stylize("bold underline" if self.tag in {"h1", "h2"} else "bold")
        yield self.text


class _Table(TableElement):
    """A table without empty rows around it."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Its rows."""
        for table in super().__rich_console__(console, options):
            if isinstance(table, Table):
                table.show_edge = False
            yield table


class AnswerMarkdown(Markdown):
    """Markdown with one blank line between blocks. No hyperlinks: they are operating system commands to a terminal."""

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
    """Whether it is shown whole only on demand."""
    limit = _MAX_OUTPUT_LINES if hasattr(block, "ending") and not block.lines else _MAX_COMMAND_LINES
    lines = block.text.strip("\n").split("\n")
    return len(block.lines) > MAX_LINES or len(lines) > limit or any(len(line) > MAX_LINE_CHARS for line in lines)


def tail(text: str, *, rows: int) -> list[Text]:
    """The last rows of what a running call has printed, a line each."""
    lines = [line.rstrip() for line in output(text).rstrip("\n").split("\n")]
    return [Text(cut(line), style="dim", no_wrap=True, overflow="ellipsis") for line in lines[-rows:]]


def cut(line: str) -> str:
    """A line that is not too long to be read."""
    return line if len(line) <= MAX_LINE_CHARS else f"{line[:MAX_LINE_CHARS]}… ({len(line):,} characters)"


def _ending(block: ResultBlock, glyphs: Glyphs, *, hint: str, is_whole: bool) -> list[Text]:
    """The last lines of an output, where failures stand."""
    lines = [line.rstrip() for line in block.text.strip("\n").splitlines()]
    kept = lines if is_whole else [cut(line) for line in lines[-_MAX_OUTPUT_LINES:]]
    above = len(lines) - len(kept)
    told = ", ".join(filter(None, [f"{glyphs.more} {counted(above, 'line')} above", hint]))
    style = "dim" if block.ok or block.is_declined else ""
    return [*([Text(told, style="italic dim")] if above else []), *(Text(line, style=style) for line in kept)]


def _beginning(lines: Sequence[BlockLine], glyphs: Glyphs, *, is_whole: bool) -> list[Text]:
    kept = lines if is_whole else lines[:MAX_LINES]
    rows = [_row(line, glyphs, is_numbered=any(one.number for one in kept)) for line in kept]
    if more := len(lines) - len(kept):
        rows.append(Text(f"{glyphs.more} {counted(more, 'more line')}", style="italic dim"))
    return rows


def _row(line: BlockLine, glyphs: Glyphs, *, is_numbered: bool) -> Text:
    style = STYLES[line.kind]
    shown = cut(line.text)
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
