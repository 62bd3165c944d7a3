"""`ohsandbox view`: a conversation as a page for the browser."""

# ruff: noqa: T201 - a command prints
from __future__ import annotations

import os
import sys
import threading
from typing import TYPE_CHECKING

from ohsandbox.cli.conversations import SECRETS_NOTE, opened_output
from ohsandbox.cli.rendering.text import safe_line, say
from ohsandbox.cli.viewer.hosting import hosted_at
from ohsandbox.cli.viewer.page import facts_of, title_of, write_page
from ohsandbox.conversation.storage import find_stored, read_stored
from ohsandbox.errors import UsageError
from ohsandbox.paths import conversations_dir

if TYPE_CHECKING:
    from pathlib import Path

PAGE_NAME = "view.html"
"""In the conversation's directory: it is removed with the conversation."""
MAX_PATH_CHARS = 5000


def view_conversation(wanted: str, root: Path | None, *, output: Path | None, opens: bool | None) -> int:
    """Write the page to output (mode 0600), or into the conversation's directory, and print where it is.

    opens: None opens it in a browser where a person and a browser with a window are there and output is none.
    """
    directory = find_stored(root or conversations_dir(), wanted)
    path = output or directory / PAGE_NAME
    with opened_output(path, read_stored(directory), force=True, within=output is None) as out:
        write_page(out, directory)
    print(safe_line(path.resolve(), limit_chars=MAX_PATH_CHARS), flush=True)
    if output is not None:
        say(SECRETS_NOTE)
    if opens or (opens is None and output is None and sys.stdout.isatty() and has_browser()):
        open_browser(path.resolve().as_uri(), must=bool(opens))
    return 0


def serve_conversation(wanted: str, root: Path | None, *, port: int, opens: bool | None) -> int:
    """Serve the page until Ctrl-C: what another process does in the conversation appears, and is answered there.

    Where a run with `--view` has it open, the page of that run is opened instead.
    """
    from ohsandbox.cli.viewer.control import ReadingControl  # noqa: PLC0415 - a file needs no server
    from ohsandbox.cli.viewer.server import PageServer  # noqa: PLC0415 - as above

    directory = find_stored(root or conversations_dir(), wanted)
    if (address := hosted_at(directory)) is not None:
        show_address(address, opens=opens)
        return 0
    one = read_stored(directory)
    control = ReadingControl(directory)
    with PageServer(directory, control, title=title_of(one), facts=facts_of(one), port=port) as server:
        show_address(server.address, opens=opens)
        say("It only reads. Ctrl-C ends it.")
        threading.Event().wait()
    return 0


def show_address(address: str, *, opens: bool | None) -> None:
    """Print it, and open it as `view_conversation` does."""
    print(address, flush=True)
    if opens or (opens is None and sys.stdout.isatty() and has_browser()):
        open_browser(address, must=bool(opens))


def has_browser() -> bool:
    """Whether a browser could open a window here: not over ssh without a display."""
    return sys.platform == "darwin" or any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"))


def open_browser(address: str, *, must: bool) -> None:
    """Open the address in a browser.

    Raises:
        UsageError: there is none, and it must.
    """
    import webbrowser  # noqa: PLC0415 - looks for browsers

    if not webbrowser.open(address) and must:
        raise UsageError("No browser was found. Open the file by its path, or set BROWSER.")
