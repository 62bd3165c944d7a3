"""The page of a conversation that a run has open: `run --view` serves it, and `view` in another process finds it."""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
import threading
from typing import TYPE_CHECKING

from ohsandbox import host_programs
from ohsandbox.cli.rendering.markdown import StreamedMarkdown
from ohsandbox.cli.rendering.text import current_masker, output, safe
from ohsandbox.errors import UsageError
from ohsandbox.persistence import holder_of
from ohsandbox.private_files import read_regular, write_atomically
from ohsandbox.strict_json import load_json

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from ohsandbox.conversation import Conversation
    from ohsandbox.conversation.live_output import OutputEvent
    from ohsandbox.events import SDKEvent
    from ohsandbox.llm import LLMEvent

ADDRESS_NAME = "view.json"
"""Name of the file with the page's address, while it is served; the conversation's directory is private (0700)."""
_OPENING_NAME = "view-open.html"
"""Name of the file that leads the browser to the page; a leftover contains only an expired token."""
_OPENING = """<!doctype html><meta charset="utf-8"><meta name="referrer" content="no-referrer"><title>ohsandbox</title>
<meta http-equiv="refresh" content="0; url={address}"><a href="{address}">The page of the conversation</a>
"""
MAX_NOW_LINES, MAX_NOW_CHARS = 8, 2000
"""Size of the live output on the page."""
_ENDS_ANSWER = frozenset({"assistant_message", "tool_call", "user_message", "status_update"})
_MAX_BYTES = 4096
_ADDRESS = re.compile(r"http://127\.0\.0\.1:\d{1,5}/#token=[\w-]{20,100}")


class PageAddress:
    """The address of a session's successive pages: an open page continues with the next conversation."""

    def __init__(self, port: int = 0, *, is_followed: Callable[[], bool] = lambda: False) -> None:
        """Reserve an address. port 0 chooses a free port for the first page; is_followed: another page follows."""
        self.port, self.token, self.is_followed = port, "", is_followed


@contextlib.contextmanager
def hosted(
    conversation: Conversation,
    *,
    user: str,
    begin: Callable[[str], None] | None = None,
    at: PageAddress | None = None,
) -> Iterator[str]:
    """Serve the page of a started conversation of this process during the block; yield its address.

    begin: see `ConversationControl`. at: the address for this page and those of later conversations.

    Raises:
        UsageError: the port cannot be opened.
    """
    from ohsandbox.cli.viewer.control import ConversationControl  # noqa: PLC0415 - 0.2 s, only for `--view`
    from ohsandbox.cli.viewer.server import PageServer  # noqa: PLC0415 - 0.2 s, only for `--view`

    control = ConversationControl(conversation, user=user, begin=begin)
    description = f"conversation {conversation.id}"
    at = at or PageAddress()
    with PageServer(
        conversation.directory, control, title="", facts=description, port=at.port, token=at.token
    ) as server:
        at.port, at.token = server.port, server.token
        now = _Now(server.show_now)
        conversation.register_callback(now.add)
        conversation.register_callback(server.notify)
        conversation.register_output(now.show_output)
        conversation.register_stream(now.show_answer)
        note = {"process": str(os.getpid()), "address": server.address}
        path = conversation.directory / ADDRESS_NAME
        with contextlib.suppress(OSError):  # then `view` of another process only reads
            write_atomically(path, json.dumps(note).encode() + b"\n")
        try:
            yield server.address
        finally:
            server.is_followed = at.is_followed()
            with contextlib.suppress(OSError):
                path.unlink()


class _Now:
    """The end of the text being written or printed, until the event with all of it."""

    def __init__(self, show: Callable[[str], None]) -> None:
        self._show = show
        self._answer = StreamedMarkdown(current_masker())
        self._begun = ""

    def add(self, event: SDKEvent) -> None:
        """Handle an event of the log."""
        if event.type in _ENDS_ANSWER:
            self._answer, self._begun = StreamedMarkdown(current_masker()), ""
        if event.type in _ENDS_ANSWER or event.type == "tool_result":
            self._show("")

    def show_output(self, event: OutputEvent) -> None:
        """Show the output of a running call."""
        self._show(_end_of(output(event.text)))

    def show_answer(self, event: LLMEvent) -> None:
        """Show a piece of an answer; a repeated request discards the earlier pieces."""
        if event.type == "retry":
            self._answer, self._begun = StreamedMarkdown(current_masker()), ""
        elif event.type == "delta":
            self._begun = (self._begun + "".join(self._answer.feed(event.text)))[-MAX_NOW_CHARS:]
            self._show(_end_of(safe(self._begun + self._answer.tail)))


def _end_of(text: str) -> str:
    return "\n".join(text.rstrip("\n").split("\n")[-MAX_NOW_LINES:])[-MAX_NOW_CHARS:]


def wait_for_page(conversation: Conversation) -> bool:
    """Wait until the pending calls have been answered on the page; return True, as the run goes on then.

    Raises:
        KeyboardInterrupt: Ctrl-C; calls without an answer stay pending.
    """
    known_ids = {call.tool_call_id for call in conversation.pending}
    is_answered = threading.Event()

    def look(_event: object) -> None:
        if known_ids.isdisjoint(call.tool_call_id for call in conversation.pending):
            is_answered.set()

    conversation.register_callback(look)
    look(None)
    is_answered.wait()
    return True


def hosted_at(directory: Path) -> str | None:
    """Return the page's address of the process that has the conversation open; None if it serves none."""
    try:
        note = load_json(read_regular(directory / ADDRESS_NAME, limit_bytes=_MAX_BYTES))
        process, address = str(note["process"]), str(note["address"])
    except (OSError, ValueError, LookupError, TypeError):
        return None
    return address if process == holder_of(directory) and _ADDRESS.fullmatch(address) else None


def has_browser() -> bool:
    """Return whether a browser could open a window here: not over ssh without a display."""
    return sys.platform == "darwin" or any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"))


def open_browser(address: str, directory: Path) -> bool:
    """Open a live page in a browser; return False if there is no browser.

    Every user of this machine can see a program's arguments, so the browser gets a file in the conversation's
    directory that redirects to the address.
    """
    path = directory / _OPENING_NAME
    try:
        write_atomically(path, _OPENING.format(address=address).encode())
    except OSError as error:
        raise UsageError(f"{str(path)!r} cannot be written: {error.strerror}. Open the address yourself.") from None
    return open_file(path)


_OPEN_IN_BROWSER = "import sys, webbrowser; sys.exit(not webbrowser.open(sys.argv[1]))"
"""Run in a process of its own: `webbrowser` looks for browsers in the PATH of its process."""


def open_file(path: Path) -> bool:
    """Open a page's file in a browser; return False if there is no browser."""
    words = [sys.executable, "-I", "-c", _OPEN_IN_BROWSER, path.resolve().as_uri()]
    return host_programs.run(words, check=False).returncode == 0
