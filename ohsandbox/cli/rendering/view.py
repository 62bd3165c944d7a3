"""How a conversation is shown: `View`, and its implementations `PlainView` and `terminal.RichView`."""

from __future__ import annotations

import base64
import binascii
import hashlib
import sys
import time
from abc import ABC, abstractmethod
from datetime import UTC, datetime
from typing import TYPE_CHECKING, TextIO

from ohsandbox.cli.rendering.events import (
    Block,
    BlockReader,
    CallBlock,
    Form,
    MessageBlock,
    NoteBlock,
    ResultBlock,
    note,
)
from ohsandbox.cli.rendering.text import joined_lines, prose_line, safe, safe_line
from ohsandbox.content import image_type
from ohsandbox.errors import UsageError
from ohsandbox.private_files import make_private_dir, write_atomically

if TYPE_CHECKING:
    from pathlib import Path

    from rich.text import Text

    from ohsandbox.conversation.live_output import OutputEvent
    from ohsandbox.conversation.run.result import RunResult
    from ohsandbox.events import SDKEvent
    from ohsandbox.llm.chat import LLMEvent
    from ohsandbox.network.audit import NetworkDecision

MODEL_WORKS = "the model works"
"""The status while the model's answer is awaited."""
MAX_STATUS_CHARS = 60
"""Longest status text of a running call."""


class View(ABC):
    """Shows what happens in a conversation. Subclasses implement `show_block`; the other methods are optional."""

    wants_stream = False
    """True if the view uses pieces of an answer while it is written."""

    def __init__(self, forms: Form) -> None:
        self.images_dir: Path | None = None
        """Directory in which images of results are saved for the person; None saves none."""
        self._reader = BlockReader(forms)
        self._shown_at: datetime | None = None
        """Time of the event being shown, which may be an old one; None for now."""

    @abstractmethod
    def show_block(self, block: Block) -> None:
        """Print a block."""

    def show(self, event: SDKEvent) -> None:
        """Show an event of the log."""
        self._shown_at = event.ts
        for block in self._reader.blocks_of(event):
            self.show_block(block)
        self._shown_at = None

    def info(self, text: str) -> None:
        """Print a line of our own."""
        self.show_block(note("info", text))

    def warn(self, text: str) -> None:
        """Print a line of our own that should not be overlooked."""
        self.show_block(note("warning", text))

    def text(self, text: Text) -> None:
        """Print several lines of ours that are safe to print."""
        for line in text.plain.split("\n"):
            self.info(line)

    def stream(self, event: LLMEvent) -> None:  # noqa: B027 - a view that does not want it need not have it
        """Handle an event of the model's client while an answer is written; the event with the whole answer follows."""

    def result(self, conversation_id: str, result: RunResult) -> None:  # noqa: B027 - as `stream`
        """Show the result of a run, after its last event."""

    def network(self, decision: NetworkDecision) -> None:  # noqa: B027 - as `stream`
        """Handle the decision on a request of the sandbox; of blocked ones each host is shown once."""

    def output(self, event: OutputEvent) -> None:  # noqa: B027 - as `stream`
        """Handle the end of a running call's output."""

    @abstractmethod
    def status(self, text: str) -> None:
        """Set the current activity, until the next call; an empty text for none."""

    @abstractmethod
    def tick(self) -> None:
        """Let time pass; called some times a second while there is nothing to show."""


_KIND_COLUMNS = 8

_MAX_CALL_CHARS = 200
"""Longest text of a call; the question about a call shows all of it."""
MAX_RESULT_CHARS = 200
"""Longest end of an output, where failures are."""
QUIET_S = 3.0
"""After this many seconds without a line the current activity is printed."""


class PlainView(View):
    """Prints `12:00:01 kind    text`, flushed; only an answer to the person takes several lines."""

    def __init__(self, out: TextIO | None = None, *, forms: Form = Form.PLAIN) -> None:
        super().__init__(forms)
        self._out = out or sys.stdout
        self._status = self._told = ""
        self._wrote_at = time.monotonic()

    def status(self, text: str) -> None:
        """Print the activity if there was no line for QUIET_S seconds, as while an image is downloaded."""
        self._status = text
        self.tick()

    def tick(self) -> None:
        """See `status`."""
        if self._status not in {"", self._told, MODEL_WORKS} and time.monotonic() - self._wrote_at >= QUIET_S:
            self._told = self._status
            self._line("progress", safe_line(self._status))

    def show_block(self, block: Block) -> None:
        """Print a line; for an answer to the person, several."""
        match block:
            case MessageBlock("user", raw):
                self._line("user", prose_line(raw))
            case MessageBlock("thought", raw):
                self._line("model", prose_line(raw))
            case MessageBlock("answer", raw):
                self._line("answer", *safe(raw).split("\n"))
            case CallBlock(text=text, is_answer=True):
                self._line("answer", *text.split("\n"))
            case CallBlock(sign, text, lines=lines):
                fields = ", ".join(line.text.strip() for line in lines if line.kind == "field")
                self._line("call", f"{sign} {joined_lines(f'{text} {fields}', limit_chars=_MAX_CALL_CHARS)}")
            case ResultBlock(text, lines=lines):
                if lines:
                    text = "\n".join(line.text for line in lines if line.kind == "field")
                end = " | ".join(" ".join(part.split()) for part in text.splitlines() if part.strip())
                end = end if len(end) <= MAX_RESULT_CHARS else "…" + end[-MAX_RESULT_CHARS + 1 :]
                self._line("result", ": ".join(filter(None, [", ".join(block.summary), end])))
            case NoteBlock(kind, text):
                self._line(kind, text)

    def _line(self, kind: str, *texts: str) -> None:
        at = (self._shown_at or datetime.now(UTC)).astimezone()
        encoding = self._out.encoding or "utf-8"
        for text in texts:
            line = f"{at:%H:%M:%S} {kind:<{_KIND_COLUMNS}} {text}".rstrip()
            self._out.write(line.encode(encoding, "replace").decode(encoding) + "\n")
        self._out.flush()
        self._wrote_at = time.monotonic()


# --- images ---------------------------------------------------------------------------------------

IMAGES_NAME = "images"
"""Name of the directory for images in the conversation's directory."""


def save_image(url: str, directory: Path) -> Path | None:
    """Save the image of a data URL under a name derived from its bytes, so that the same image is saved once.

    Returns: the file; None if the URL has no image of a kind that models read, or if it cannot be written.
    """
    kind, _, data = url.partition(";base64,")
    try:
        raw = base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError):
        return None
    if kind != f"data:{image_type(raw)}":
        return None
    path = directory / f"{hashlib.sha256(raw).hexdigest()[:16]}.{kind.rpartition('/')[2]}"
    try:
        if not path.exists():
            make_private_dir(directory)
            write_atomically(path, raw, durable=False)
    except (OSError, UsageError):
        return None
    return path
