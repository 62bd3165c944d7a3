"""`StreamedMarkdown`: an answer while the model writes it, for a terminal that cannot take back what it was given."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ohsandbox.secrets import Masker

MAX_TAIL_CHARS = 2000
"""Of a line that does not end so much is kept in sight."""

_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})(.*)")
"""A code block's first line, and its last: of the same character, at least as long, with nothing behind it."""


class StreamedMarkdown:
    """Takes pieces of an answer and gives out its blocks of Markdown, each when it is whole.

    A block ends with an empty line outside a fence: so each can be rendered, and made harmless, by itself, wherever the
    pieces were cut. Values of secrets are masked before that, also those that come in pieces.
    """

    def __init__(self, masker: Masker) -> None:
        self._masker = masker
        self._begin()

    def feed(self, piece: str) -> list[str]:
        """The blocks that are whole with piece added."""
        return self._take(self._stream.feed(piece))

    @property
    def tail(self) -> str:
        """The end of what is not whole yet."""
        return self._unfinished[-MAX_TAIL_CHARS:]

    def end(self, final: str) -> str:
        """What of the final text was not given out; all of it where something else was. The next answer may begin."""
        given = self._given
        self._begin()
        for said in filter(None, (given, given.rstrip())):  # before a call that is written as text the end is stripped
            if final.startswith(said):
                return final[len(said) :]
        return final

    def void(self) -> bool:
        """Forget the answer: it failed, and is asked for again. True where some of it was given out."""
        had = bool(self._given)
        self._begin()
        return had

    def _begin(self) -> None:
        self._stream = self._masker.text_stream()
        self._given = ""
        self._unfinished = ""
        self._checked = 0
        self._fence = ""

    def _take(self, text: str) -> list[str]:
        """Look at each line once, when it has ended."""
        self._unfinished += text
        blocks: list[str] = []
        while (end := self._unfinished.find("\n", self._checked)) >= 0:
            line = self._unfinished[self._checked : end]
            self._checked = end + 1
            if found := _FENCE.match(line):
                self._note_fence(found[1], found[2])
            elif not line.strip() and not self._fence:
                blocks.append(self._unfinished[: self._checked])
                self._unfinished = self._unfinished[self._checked :]
                self._checked = 0
        self._given += "".join(blocks)
        return [block for block in blocks if block.strip()]

    def _note_fence(self, mark: str, rest: str) -> None:
        if not self._fence:
            self._fence = mark
        elif mark.startswith(self._fence) and not rest.strip():
            self._fence = ""
