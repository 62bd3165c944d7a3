"""Markdown: a conversation as an export, and an answer split into blocks while the model writes it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ohsandbox.cli.rendering.events import (
    Block,
    BlockReader,
    CallBlock,
    Form,
    MessageBlock,
    NoteBlock,
    ResultBlock,
    TurnBlock,
)
from ohsandbox.cli.rendering.text import safe

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ohsandbox.cli.rendering.lines import BlockLine, LineKind
    from ohsandbox.events import SDKEvent
    from ohsandbox.secrets import Masker

_MAX_TAIL_CHARS = 2000
"""Longest part of an unfinished line that is shown."""
_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})(.*)")
"""The first or last line of a code block; the last has the same character, at least as often, and nothing after it."""
_LONG_FENCE = re.compile(r"`{3,}")
_IMAGE = re.compile(r"data:image/[a-z0-9.+-]+;base64,[A-Za-z0-9+/=]+")


class MarkdownExport:
    """Turns the events of one conversation, in order, into paragraphs."""

    def __init__(self) -> None:
        self._reader = BlockReader(Form.EXPORTED)

    def paragraphs(self, event: SDKEvent) -> list[str]:
        """Return the event's paragraphs; none for an event that an export leaves out."""
        return [part for block in self._reader.blocks_of(event) for part in _paragraphs(block, event)]


def fenced(text: str) -> str:
    """Return text in a code block whose fence the text does not contain."""
    longest = max(map(len, _LONG_FENCE.findall(text)), default=2)
    fence = "`" * (longest + 1)
    return f"{fence}\n{text.rstrip(chr(10))}\n{fence}"


def _paragraphs(block: Block, event: SDKEvent) -> Iterator[str]:
    match block:
        case TurnBlock(speaker):
            yield f"## {speaker}, {event.ts.astimezone():%H:%M:%S}"
        case MessageBlock(_, raw):
            yield safe(raw)
        case CallBlock(text=text, is_answer=True):
            yield text
        case CallBlock(text=text, name=name, lines=lines):
            yield f"**{name}**\n\n{fenced(chr(10).join([text, *map(_row, lines)]))}"
        case ResultBlock(text, ending, lines=lines):
            yield f"Result, {ending}:" if ending else "Result:"
            yield fenced("\n".join(map(_row, lines)) or text)
            for url in block.images:
                yield f"![An image that the tool returned]({url})" if _IMAGE.fullmatch(url) else "(an image)"
        case NoteBlock(kind, text, details):
            yield f"> {kind}: {text}" if block.is_warning else f"> {text}"
            if details:
                yield fenced(details)


_SIGNS: Mapping[LineKind, str] = {
    "added": "+",
    "removed": "-",
    "same": " ",
    "done": "[x] ",
    "active": "[>] ",
    "todo": "[ ] ",
}


def _row(line: BlockLine) -> str:
    return _SIGNS.get(line.kind, "") + line.text


class StreamedMarkdown:
    """Takes pieces of an answer and returns its blocks once they are complete, because printed text cannot be changed.

    A block ends at an empty line outside a fence, so it can be rendered and made safe by itself, wherever the
    pieces were cut. Secrets are masked before that, also those split between pieces.
    """

    def __init__(self, masker: Masker) -> None:
        self._masker = masker
        self._begin()

    def _begin(self) -> None:
        self._stream = self._masker.stream()
        self._given = ""
        self._unfinished = ""
        self._fence = ""
        self._checked = 0

    def feed(self, piece: str) -> list[str]:
        """Return the blocks that piece completes; each line is examined once, when it has ended."""
        self._unfinished += self._stream.feed(piece)
        blocks: list[str] = []
        while (end := self._unfinished.find("\n", self._checked)) >= 0:
            line = self._unfinished[self._checked : end]
            self._checked = end + 1
            if match := _FENCE.match(line):
                mark, fence_rest = match[1], match[2]
                if not self._fence:
                    self._fence = mark
                elif mark.startswith(self._fence) and not fence_rest.strip():
                    self._fence = ""
            elif not line.strip() and not self._fence:
                blocks.append(self._unfinished[: self._checked])
                self._unfinished, self._checked = self._unfinished[self._checked :], 0
        self._given += "".join(blocks)
        return [block for block in blocks if block.strip()]

    @property
    def tail(self) -> str:
        """Return the end of the unfinished block."""
        return self._unfinished[-_MAX_TAIL_CHARS:]

    def end(self, final: str) -> str:
        """Return the part of the final text not returned yet; all of it if the text differs. Then reset."""
        given_text = self._given
        self._begin()
        for beginning in filter(
            None, (given_text, given_text.rstrip())
        ):  # before a call that is written as text the end is stripped
            if final.startswith(beginning):
                return final[len(beginning) :]
        return final

    def discard(self) -> bool:
        """Drop a failed answer, which is requested again. Return True if some of it was returned already."""
        had = bool(self._given)
        self._begin()
        return had
