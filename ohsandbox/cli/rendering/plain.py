"""`PlainView`: one line an event, for logs and for those who read with other programs."""

from __future__ import annotations

import sys
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, TextIO

from ohsandbox.cli.rendering.events import (
    Block,
    CallBlock,
    Form,
    MessageBlock,
    NoteBlock,
    ResultBlock,
    ThoughtBlock,
    blocks_of,
)
from ohsandbox.cli.rendering.text import cut, safe, safe_line, words
from ohsandbox.cli.rendering.view import MODEL_WORKS, Stopwatch
from ohsandbox.review_text import on_one_line

if TYPE_CHECKING:
    from ohsandbox.events import SDKEvent
    from ohsandbox.llm.chat import LLMEvent

_KIND_COLUMNS = 8

MAX_CALL_CHARS = 200
"""Of a call; whoever is asked about it is shown it whole."""

QUIET_S = 3.0
"""Whoever reads along wonders after so long."""


class PlainView:
    """`12:00:01 kind    text`, flushed; an answer to the person is the one thing that may take several lines."""

    wants_stream = False

    def __init__(self, out: TextIO | None = None, *, forms: Form = Form.PLAIN) -> None:
        self._forms = forms
        self._out = out or sys.stdout
        self._watch = Stopwatch()
        self._at = datetime.now(UTC)
        """Of what is being shown: an old conversation is shown with its own times."""
        self._status = self._told = ""
        self._wrote_at = time.monotonic()

    def info(self, text: str) -> None:
        """Kind `info`."""
        self._at = datetime.now(UTC)
        self._line("info", safe_line(text, limit_chars=1000))

    def warn(self, text: str) -> None:
        """Kind `warning`."""
        self._at = datetime.now(UTC)
        self._line("warning", safe_line(text, limit_chars=1000))

    def status(self, text: str) -> None:
        """A line where there has been none for QUIET_S seconds, as while an image or a server is downloaded."""
        self._status = text
        self.tick()

    def stream(self, event: LLMEvent) -> None:
        """Nothing: the whole answer comes as an event."""

    def tick(self) -> None:
        """See `status`."""
        if self._status in {"", self._told, MODEL_WORKS} or time.monotonic() - self._wrote_at < QUIET_S:
            return
        self._at, self._told = datetime.now(UTC), self._status
        self._line("progress", safe_line(self._status))

    def show(self, event: SDKEvent) -> None:
        """One line per block, and several for an answer to the person."""
        seconds = self._watch.seconds(event)
        self._at = event.ts
        for block in blocks_of(event, self._forms):
            self._show_block(block, seconds)

    def _show_block(self, block: Block, seconds: float | None) -> None:
        match block:
            case MessageBlock(raw, by_person=True):
                self._line("user", words(raw))
            case MessageBlock(raw):
                self._answer_lines(safe(raw))
            case ThoughtBlock(raw):
                self._line("model", words(raw))
            case CallBlock(text=text, is_answer=True):
                self._answer_lines(text)
            case CallBlock(sign, text):
                self._line("call", f"{sign} {cut(on_one_line(text), MAX_CALL_CHARS)}")
            case ResultBlock(text, ending):
                took = "" if seconds is None else f"{seconds:.1f} s"
                head = ", ".join(filter(None, [ending, took]))
                self._line("result", ": ".join(filter(None, [head, _tail(text)])))
            case NoteBlock(kind, text):
                self._line(kind, text)

    def _answer_lines(self, shown: str) -> None:
        for line in shown.split("\n"):
            self._line("answer", line)

    def _line(self, kind: str, text: str) -> None:
        line = f"{self._at.astimezone():%H:%M:%S} {kind:<{_KIND_COLUMNS}} {text}".rstrip()
        encoding = self._out.encoding or "utf-8"
        self._out.write(line.encode(encoding, "replace").decode(encoding) + "\n")
        self._out.flush()
        self._wrote_at = time.monotonic()


def _tail(text: str, *, limit_chars: int = 200) -> str:
    """The end of an output on one line: that is where a failure stands."""
    line = " | ".join(" ".join(part.split()) for part in text.splitlines() if part.strip())
    return line if len(line) <= limit_chars else "…" + line[-limit_chars + 1 :]
