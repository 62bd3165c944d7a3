"""The tabs, and what pages do by themselves: dialogs, downloads, new tabs, crashes, errors."""

from __future__ import annotations

import asyncio
import contextlib
import re
import tempfile
from collections.abc import Awaitable  # noqa: TC003 - one program in the sandbox
from pathlib import Path
from typing import Any, TypeVar

MAX_TABS = 20
MAX_NOTES = 20
MAX_NOTE_CHARS = 500
MAX_SHORT_CHARS = 200

FOLLOWED = frozenset({"document", "stylesheet", "script", "image", "font", "xhr", "fetch"})
"""Requests that delay reading a page; media, sockets and event streams never end."""
REASONS = re.compile(
    r"intercepts pointer|not visible|not enabled|not editable|not stable|outside of the viewport|did not find"
)
"""Lines of Playwright's log that say why an element could not be acted on."""

T = TypeVar("T")
_tasks: set[asyncio.Future[Any]] = set()


class Refusal(Exception):  # noqa: N818 - says what happens
    """An action cannot be done; the text says why."""


async def within(seconds: float, awaitable: Awaitable[T], otherwise: T) -> T:
    """Return the result, or `otherwise` if the awaitable fails or takes longer."""
    try:
        return await asyncio.wait_for(awaitable, seconds)
    except Exception:  # noqa: BLE001 - whatever a page makes of it
        return otherwise


def in_background(awaitable: Awaitable[Any]) -> None:
    task = asyncio.ensure_future(within(30, awaitable, None))
    _tasks.add(task)
    task.add_done_callback(_tasks.discard)


def short(text: object) -> str:
    """Shorten to one line of at most MAX_SHORT_CHARS."""
    line = " ".join(str(text).split())
    return line if len(line) <= MAX_SHORT_CHARS else line[:MAX_SHORT_CHARS] + "..."


def error_summary(error: BaseException) -> str:
    """Describe an error of Playwright in one line: what was not done, and the last reasons of its log."""
    text = re.sub(r"\x1b\[[0-9;]*m", "", str(error))
    first, _, log = text.partition("Call log:")
    first = re.sub(r"^\w+\.\w+: ", "", first.strip()).rstrip(".") or type(error).__name__
    reasons = [short(line).lstrip("- ") for line in log.splitlines() if REASONS.search(line)]
    last = list(dict.fromkeys(reversed(reasons)))[:2]
    return ": ".join([short(first), *(["; ".join(last)] if last else [])])


class Tab:
    """A page and its unfinished requests."""

    def __init__(self, page: Any) -> None:
        self.page = page
        self.busy: set[Any] = set()
        self.loading = False
        self.crashed = False
        self.stuck = False
        self.has_mouse = False
        self._session: Any = None
        page.on("request", self._on_request)
        page.on("requestfinished", self._on_finished)
        page.on("requestfailed", self._on_failed)
        page.on("load", self._on_load)

    async def cdp(self, method: str, **parameters: Any) -> Any:
        """Call the DevTools protocol, for what Playwright lacks or does with long waits."""
        if self._session is None:
            self._session = await self.page.context.new_cdp_session(self.page)
        return await self._session.send(method, parameters)

    async def title(self) -> str:
        return "" if self.crashed else str(await self.page.title())

    def _on_request(self, request: Any) -> None:
        if request.resource_type in FOLLOWED:
            self.busy.add(request)
        if self._is_navigation(request):
            self.loading = True

    def _on_finished(self, request: Any) -> None:
        self.busy.discard(request)

    def _on_failed(self, request: Any) -> None:
        self.busy.discard(request)
        if self._is_navigation(request):
            self.loading = False

    def _on_load(self, _: Any) -> None:
        self.loading = False

    def _is_navigation(self, request: Any) -> bool:
        if not request.is_navigation_request():
            return False
        try:
            return bool(request.frame == self.page.main_frame)
        except Exception:  # noqa: BLE001 - Playwright's own kind: a frame that is still to come is the navigation's
            return True


class Tabs:
    """The open tabs, which one is shown, and what happened since the last answer."""

    def __init__(self) -> None:
        self.tabs: list[Tab] = []
        self.shown: Tab | None = None
        self.notes: dict[str, int] = {}
        self.opening = False
        """True while an action opens a tab."""
        self.choosing = False
        """True while an action waits for a file chooser."""
        self.dialog_answer: tuple[bool, str] | None = None
        self.downloads: Path | None = None
        self.saving: set[asyncio.Future[None]] = set()

    def note(self, text: str) -> None:
        """Add a note to the next answer; equal notes are counted."""
        line = " ".join(text[: 4 * MAX_NOTE_CHARS].split())
        line = line if len(line) <= MAX_NOTE_CHARS else line[:MAX_NOTE_CHARS] + "..."
        if line not in self.notes and len(self.notes) >= MAX_NOTES:
            line = "More happened that is not told here."
        self.notes[line] = self.notes.get(line, 0) + 1

    def pop_notes(self) -> list[str]:
        notes, self.notes = self.notes, {}
        return [line if count == 1 else f"{line} ({count} times)" for line, count in notes.items()]

    def adopt(self, page: Any) -> None:
        """Show a tab that we or a page opened."""
        if len(self.tabs) >= MAX_TABS:
            self.note(f"A page tried to open more than {MAX_TABS} tabs; the new ones were closed.")
            in_background(page.close())
            return
        self.shown = tab = Tab(page)
        self.tabs.append(tab)
        if not self.opening:
            self.note(f"A new tab was opened and is shown: tab {len(self.tabs) - 1}.")
        page.on("close", lambda _: self.forget(tab))
        page.on("crash", lambda _: self._on_crash(tab))
        page.on("dialog", self._on_dialog)
        page.on("download", self._on_download)
        page.on("filechooser", self._on_chooser)
        page.on("pageerror", lambda error: self.note(f"Uncaught error in the page: {error}"))
        page.on("console", self._on_console)

    def forget(self, tab: Tab) -> None:
        if tab in self.tabs:
            self.tabs.remove(tab)
        if self.shown is tab:
            self.shown = self.tabs[-1] if self.tabs else None

    def _on_crash(self, tab: Tab) -> None:
        tab.crashed = True
        self.note("The tab crashed (out of memory, or a fault of Chromium); the next call begins with an empty one.")

    async def _on_dialog(self, dialog: Any) -> None:
        """Answer a dialog at once, since its page stands still until then."""
        is_question = dialog.type in ("confirm", "prompt")
        accept, text = self.dialog_answer if is_question and self.dialog_answer else (not is_question, "")
        if is_question:
            self.dialog_answer = None
        answer_text = "accepted" if accept else "dismissed; on_dialog(True) on the line before what opens it accepts"
        self.note(f"The page showed a dialog ({dialog.type}), which was {answer_text}: {dialog.message}")
        with contextlib.suppress(Exception):  # the page, or the tab, has gone meanwhile
            await (dialog.accept(text or dialog.default_value) if accept else dialog.dismiss())

    def _on_chooser(self, _: Any) -> None:
        if not self.choosing:
            self.note("The page asks for a file: use upload_file(bid, file) with the id that was clicked.")

    def _on_console(self, message: Any) -> None:
        source_url = message.location.get("url", "")
        if message.type == "error" and not source_url.endswith("/favicon.ico"):  # Chromium requested it, not the page
            self.note(f"Console error: {message.text}")

    def _on_download(self, download: Any) -> None:
        task = asyncio.ensure_future(self._save(download))
        self.saving.add(task)
        task.add_done_callback(self.saving.discard)

    async def _save(self, download: Any) -> None:
        if self.downloads is None:
            self.downloads = Path(tempfile.mkdtemp(prefix="browser-downloads-"))
            self.downloads.chmod(0o755)
        # a name that cannot be mistaken for an option or hidden
        name = re.sub(r"[^\w.() -]", "_", download.suggested_filename.rpartition("/")[2])[-100:].lstrip(".- ") or "file"
        target, number = self.downloads / name, 1
        while target.exists():
            number += 1
            target = self.downloads / f"{number}-{name}"
        target.touch()
        try:
            await download.save_as(target)
            target.chmod(0o644)
            self.note(f"Downloaded: {target} ({target.stat().st_size} bytes).")
            await download.delete()
        except Exception as error:  # noqa: BLE001 - the network's, the disk's, Playwright's
            self.note(f"The download of {target.name} failed: {error_summary(error)}")
