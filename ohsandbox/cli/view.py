"""`ohsandbox view`: a conversation as a page for the browser."""

# ruff: noqa: T201 - a command prints
from __future__ import annotations

import sys
import threading
from typing import TYPE_CHECKING

from ohsandbox.cli.conversations import SECRETS_NOTE, opened_output
from ohsandbox.cli.rendering.text import safe_line, say
from ohsandbox.cli.viewer.hosting import has_browser, hosted_at, open_browser, open_file
from ohsandbox.cli.viewer.page import facts_of, title_of, write_page
from ohsandbox.conversation.storage import find_stored, read_stored
from ohsandbox.errors import UsageError
from ohsandbox.paths import conversations_dir
from ohsandbox.persistence import holder_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

PAGE_NAME = "view.html"
"""In the conversation's directory: it is removed with the conversation."""
MAX_PATH_CHARS = 5000


def view_conversation(
    wanted: str, root: Path | None, *, output: Path | None, serve: bool | None, port: int, opens: bool | None
) -> int:
    """Write the page to output (mode 0600), or into the conversation's directory, and print where it is; or serve it.

    Args:
        wanted: the conversation.
        root: the directory of all; None is that of the state directory.
        output: None is the conversation's own directory.
        serve: None serves it while a process has it open, or at a port that is named, where output is none.
        port: to serve it at; 0 takes a free one.
        opens: None opens it in a browser where a person and a browser with a window are there and output is none.
    """
    directory = find_stored(root or conversations_dir(), wanted)
    if serve and output is not None:
        raise UsageError("--serve and --output exclude each other. Use one of them.")
    if serve or (serve is None and output is None and (port or holder_of(directory) is not None)):
        return _serve(directory, port=port, opens=opens)
    path = output or directory / PAGE_NAME
    with opened_output(path, read_stored(directory), force=True, within=output is None) as out:
        write_page(out, directory)
    print(safe_line(path.resolve(), limit_chars=MAX_PATH_CHARS), flush=True)
    if output is not None:
        say(SECRETS_NOTE)
    _open(lambda: open_file(path), opens=False if output is not None and opens is None else opens)
    return 0


def _serve(directory: Path, *, port: int, opens: bool | None) -> int:
    """Serve the page until Ctrl-C; where a run with `--view` has the conversation open, name the page of that run."""
    from ohsandbox.cli.viewer.control import ReadingControl  # noqa: PLC0415 - a file needs no server
    from ohsandbox.cli.viewer.server import PageServer  # noqa: PLC0415 - as above

    if (address := hosted_at(directory)) is not None:
        found = address
        print(found, flush=True)
        _open(lambda: open_browser(found, directory), opens=opens)
        return 0
    one = read_stored(directory)
    with PageServer(
        directory, ReadingControl(directory), title=title_of(one), facts=facts_of(one), port=port
    ) as server:
        print(server.address, flush=True)
        say("This page only reads. Ctrl-C ends it.")
        _open(lambda: open_browser(server.address, directory), opens=opens)
        threading.Event().wait()
    return 0


def _open(open_it: Callable[[], bool], *, opens: bool | None) -> None:
    """None opens it where a person and a browser with a window are there."""
    if not (opens or (opens is None and sys.stdout.isatty() and has_browser())):
        return
    if not open_it() and opens:
        raise UsageError("No browser was found. Open what is printed above, or set BROWSER.")
