"""Implementation of `web_read`: fetches in the sandbox, converts here, caches pages for reading on."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import TYPE_CHECKING

from ohsandbox.errors import ToolError
from ohsandbox.schema import TextObservation
from ohsandbox.tool import ToolExecutor
from ohsandbox.tools.web_read.definition import MAX_READ_CHARS, WebReadAction
from ohsandbox.tools.web_read.fetch import Fetcher, checked
from ohsandbox.tools.web_read.page import Page, page_of

if TYPE_CHECKING:
    from ohsandbox.runtime.base import Runtime

KEPT_PAGES = 4
"""Cached pages, whose rest can be read without another fetch."""


class WebReadExecutor(ToolExecutor[WebReadAction, TextObservation]):
    """Reads pages through a runtime; calls may run concurrently."""

    def __init__(self, runtime: Runtime) -> None:
        self._fetcher = Fetcher(runtime)
        self._guard = threading.Lock()
        self._pages: OrderedDict[str, Page] = OrderedDict()

    def __call__(self, action: WebReadAction) -> TextObservation:
        """Fetch the page, or read on in a cached one.

        Raises:
            ToolError: it cannot be fetched, is no text, or ends before offset.
            SandboxUnavailable: the sandbox is gone.
        """
        url = checked(action.url)
        with self._guard:
            page = self._pages.get(url) if action.offset else None
        if page is None:
            page = page_of(self._fetcher.fetch(url))
            self._keep(url, page)
        if action.offset and action.offset >= len(page.text):
            raise ToolError(f"{url} has {len(page.text)} characters; offset {action.offset} is behind its end.")
        return TextObservation(text=_shown(page, action.offset))

    def interrupt(self) -> None:
        """End the running fetches."""
        self._fetcher.interrupt()

    def _keep(self, url: str, page: Page) -> None:
        with self._guard:
            self._pages[url] = page
            self._pages.move_to_end(url)
            while len(self._pages) > KEPT_PAGES:
                self._pages.popitem(last=False)


def _shown(page: Page, offset: int) -> str:
    facts = [f"Page {page.url}", f"title {page.title!r}" if page.title else "", page.kind]
    facts += [f"{len(page.text)} characters", *page.notes]
    head = f"[{'; '.join(fact for fact in facts if fact)}]"
    part = page.text[offset : offset + MAX_READ_CHARS]
    left = len(page.text) - offset - len(part)
    tail = f"\n[... {left} characters left out here; read on with offset {offset + len(part)} ...]" if left else ""
    return f"{head}\n{part or '(no text)'}{tail}"
