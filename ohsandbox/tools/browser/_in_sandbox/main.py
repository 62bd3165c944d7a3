"""The browser's process, and one request: do the actions, wait until the page is quiet, read it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import pwd
import shutil
import time
from typing import Any

from ohsandbox.tools.browser._in_sandbox.actions import ACTION_MS, VIEWPORT, Actions
from ohsandbox.tools.browser._in_sandbox.tabs import MAX_NOTE_CHARS, Refusal, Tab, error_summary, in_background, within

USER = "ohsandbox-browser"
"""The user that images/browser creates: it runs pages, and owns none of the agent's files."""
EXECUTABLES = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome")
QUIET = ("--disable-gpu", "--disable-quic", "--disable-sync")
"""Options in addition to Playwright's own, which keep Chromium off the network and out of /dev/shm.

Not `--disable-crashpad-for-testing`: with it Chromium 150 restarts its network process for ever.
"""
START_S = 60.0
LOAD_S = 10.0
"""Time for a page to load before it is shown as it is."""
QUIET_S = 0.1
BUSY_S = 1.5
"""Time to wait for requests that continue after a page has loaded."""
DOWNLOAD_S = 5.0
LOOK_S = 8.0
"""Limit for reading the tree, and for taking the screenshot."""
TITLE_S = 2.0
PDF_S = 1.0
"""Pause for a PDF: Chromium's viewer draws about 0.4 s after it has loaded, and there is no event for it."""
MAX_TREE_CHARS = 8_000_000
MAX_IMAGE_CHARS = 2_000_000
"""Limit of a PNG in base64; a page of photographs is smaller as JPEG."""
MAX_ELEMENTS = 60_000
MAX_TEXT_CHARS = 5_000_000
"""Limit of a page's text: a tree of 100,000 elements takes 9 s and 1.2 GiB of Chromium's memory, one of 200,000 more
than a sandbox has."""
PROBE_S = 3.0
PROBE = """() => {
  const e = document.scrollingElement || document.documentElement;
  return [e.scrollTop, e.scrollHeight, document.querySelectorAll('*').length, e.textContent.length];
}"""


class Unavailable(Exception):  # noqa: N818 - says what happens
    """No browser can run here; the text says why."""


class Browser(Actions):
    """Chromium with its tabs, started by the first request and again after its end."""

    def __init__(self) -> None:
        super().__init__()
        self.playwright: Any = None
        self.browser: Any = None
        self.sandboxed = True

    async def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """Do the actions up to the first that fails, then read the page."""
        try:
            await asyncio.wait_for(self._ensure(), START_S)
        except (Unavailable, asyncio.TimeoutError) as late:  # noqa: UP041 - two classes before Python 3.11
            return {"unavailable": str(late) or f"Chromium did not start within {START_S:.0f} s"}
        done_count, error = 0, ""
        deadline = time.monotonic() + request["budget_s"]
        for action in request["actions"]:
            error = await self._act(action, deadline)
            if error:
                break
            done_count += 1
        try:
            page_state = await self._look()
        except Exception as fault:  # noqa: BLE001 - a page may end at any moment
            page_state = {}
            self.note(f"The page could not be looked at: {error_summary(fault)}.")
        return {
            "done": done_count,
            "error": error,
            "sandboxed": self.sandboxed,
            **page_state,
            "notes": self.pop_notes(),
        }

    async def _act(self, action: dict[str, Any], deadline: float) -> str:
        """Do one action; return why it could not be done, or an empty text."""

        async def act() -> None:
            if self.tab.crashed:
                raise Refusal("the tab has crashed; the next call of the tool begins with an empty one")
            await self.do(action["name"], action["arguments"])
            await self._settle()

        try:
            await asyncio.wait_for(act(), max(deadline - time.monotonic(), 0.001))
        except Refusal as error:
            return str(error)
        except asyncio.TimeoutError:  # noqa: UP041 - two classes before Python 3.11
            return "the time for one call of the tool is over"
        except Exception as error:  # noqa: BLE001 - Playwright's, and what a page can make of a value
            return error_summary(error)
        return ""

    # --- life ---------------------------------------------------------------------------------

    async def _ensure(self) -> None:
        """Ensure that the browser runs and shows a tab that works."""
        # the event that Chromium was killed may not have arrived yet
        if self.browser is not None and not (
            self.browser.is_connected() and await within(LOOK_S, self.context.cookies([]), None) is not None
        ):
            self.note("Chromium had ended and was started again: its tabs, cookies and logins are lost.")
            self.browser = None
        if self.browser is None:
            await self._launch()
        for tab in [tab for tab in self.tabs if tab.crashed]:
            self.forget(tab)
            in_background(tab.page.close())
        if not self.tabs:
            await self.do_new_tab()

    async def _launch(self) -> None:
        """Start Chromium, with its own sandbox if it can have one.

        Raises:
            Unavailable: Chromium is missing, or it does not start.
        """
        if self.playwright is None:
            try:
                from playwright.async_api import (  # type: ignore[import-not-found, unused-ignore] # noqa: PLC0415 - its absence is an answer, not an error at start
                    async_playwright,
                )
            except ImportError:
                raise Unavailable("its Python has no Playwright") from None
            self.playwright = await async_playwright().start()
        bundled = self.playwright.chromium.executable_path
        executable = next(filter(None, map(shutil.which, (*EXECUTABLES, bundled))), None)
        if executable is None:
            raise Unavailable("Chromium is missing")
        self.tabs, self.shown = [], None
        # root may not have it; a container has neither user namespaces nor, under no-new-privileges, setuid helpers
        for self.sandboxed in (True, False) if os.geteuid() else (False,):
            try:
                self.browser = await self.playwright.chromium.launch(
                    executable_path=executable, chromium_sandbox=self.sandboxed, args=QUIET
                )
                break
            except Exception as error:  # noqa: BLE001 - Playwright's own kind, imported late
                if not (self.sandboxed and "sandbox" in str(error).lower()):
                    raise Unavailable(f"Chromium did not start: {error_summary(error)}") from None
        self.context = await self.browser.new_context(viewport=VIEWPORT)
        self.context.set_default_timeout(ACTION_MS)
        self.context.on("page", self.adopt)

    async def close(self) -> None:
        """End Chromium."""
        if self.browser is not None:
            await self.browser.close()
        if self.playwright is not None:
            await self.playwright.stop()

    # --- looking ------------------------------------------------------------------------------

    async def _settle(self) -> None:
        """Wait until the shown page has loaded and is quiet, within bounds."""
        began = quiet = time.monotonic()
        while self.shown is not None and not self.shown.crashed:
            tab, time_s = self.shown, time.monotonic()
            if tab.loading or tab.busy:
                quiet = time_s
            if time_s - quiet >= QUIET_S:
                break
            if time_s - began >= (LOAD_S if tab.loading else BUSY_S):
                if tab.loading:
                    self.note(f"The page still loads after {LOAD_S:.0f} s and is shown as it is; noop(5000) waits on.")
                tab.loading = False
                tab.busy.clear()
                break
            await asyncio.sleep(0.02)
        if self.saving:
            await asyncio.wait(self.saving, timeout=DOWNLOAD_S)
        if self.saving:
            self.note("A download is still going on; noop(5000) waits on.")

    async def _look(self, *, again: bool = True) -> dict[str, Any]:
        """Return the tabs, and the shown tab's size, tree and screenshot; read again if a tab opened meanwhile."""
        if self.shown is None and self.browser.is_connected():
            with contextlib.suppress(Exception):
                await asyncio.wait_for(self.do_new_tab(), LOOK_S)
        tab = self.shown
        if tab is None:
            self.note("Chromium has ended; the next call starts it again.")
            return {}
        titles = await asyncio.gather(*(within(TITLE_S, tab_read.title(), "") for tab_read in self.tabs))
        page_state: dict[str, Any] = {
            "tabs": [
                {"url": tab_read.page.url[:MAX_NOTE_CHARS], "title": title[:MAX_NOTE_CHARS], "shown": tab_read is tab}
                for tab_read, title in zip(self.tabs, titles)  # noqa: B905 - as many
            ]
        }
        if tab.crashed:
            return page_state
        if any(frame.url.startswith("chrome-extension:") for frame in tab.page.frames):
            await asyncio.sleep(PDF_S)
        await self._probe(tab, page_state)
        if again and self.shown is not tab:
            await self._settle()
            return await self._look(again=False)
        if not (tab.stuck or tab.crashed):
            page_state["image"] = await self._screenshot(tab)
        return page_state

    async def _probe(self, tab: Tab, page_state: dict[str, Any]) -> None:
        """Add the page's scroll position and size, and its tree unless that is too large to read."""
        try:
            sizes = await asyncio.wait_for(tab.page.evaluate(PROBE), PROBE_S)
            top, height, elements, chars = (min(int(size), 1 << 40) for size in sizes)  # the page made these values
            page_state["scroll"] = [top, height]
        except asyncio.TimeoutError:  # noqa: UP041 - two classes before Python 3.11
            tab.stuck = True
            self.note("The page does not answer: a script keeps it busy, or it loads itself again and again.")
            return
        except Exception:  # noqa: BLE001 - a navigation took the page away, or it has broken its own functions
            await self._settle()
            elements = chars = 0
        if tab.crashed:
            return
        tab.stuck = False
        if elements > MAX_ELEMENTS or chars > MAX_TEXT_CHARS:
            self.note(
                f"The page is too large for a tree: {elements} elements, {chars} characters of text (at most "
                f"{MAX_ELEMENTS} and {MAX_TEXT_CHARS}). Look at the screenshot, or fetch it with a command and search."
            )
            return
        page_state["tree"] = await self._tree(tab)

    async def _tree(self, tab: Tab) -> str | None:
        """Return the accessibility tree as Playwright writes it, with boxes; None if the page does not answer."""
        reason = ""
        for _ in range(2):  # a navigation in between takes the first one's page away
            try:
                tree: str = await tab.page.aria_snapshot(mode="ai", boxes=True, timeout=1000 * LOOK_S)
            except Exception as error:  # noqa: BLE001 - Playwright's, told
                reason = error_summary(error)
                if "Timeout" in reason:
                    break
                await self._settle()
                continue
            if len(tree) > MAX_TREE_CHARS:
                self.note(f"The tree has {len(tree)} characters; what comes after {MAX_TREE_CHARS} was not looked at.")
            return tree[:MAX_TREE_CHARS]
        tab.stuck = True
        self.note(f"The page's tree could not be read, it may be busy or broken: {reason}.")
        return None

    async def _screenshot(self, tab: Tab) -> str | None:
        """Return a PNG in base64, or a JPEG if that is too large; None if the page does not draw itself."""
        # not Playwright's: that waits for every font to load
        for options in ({"format": "png"}, {"format": "jpeg", "quality": 70}):
            shot = await within(LOOK_S, tab.cdp("Page.captureScreenshot", **options), None)
            if shot is None:
                self.note("The screenshot is missing: the page does not draw itself.")
                return None
            if len(shot["data"]) <= MAX_IMAGE_CHARS:
                break
        image: str = shot["data"]
        return image


def drop_privileges() -> None:
    """If this runs as root, change to USER, which lacks the agent's rights, if that user exists."""
    if os.geteuid() == 0:
        with contextlib.suppress(KeyError):
            user = pwd.getpwnam(USER)
            os.setgroups([])
            os.setgid(user.pw_gid)
            os.setuid(user.pw_uid)
            os.environ.update(HOME=user.pw_dir, USER=USER, LOGNAME=USER)
    os.chdir("/")


def main(ready: Any, receive: Any, send: Any) -> None:
    """Answer requests `{actions, budget_s}` with what `Browser.answer` returns."""

    async def serve() -> None:
        browser = Browser()
        while (request := await asyncio.get_running_loop().run_in_executor(None, receive)) is not None:
            send(await browser.answer(request))
        await browser.close()

    drop_privileges()
    ready({})
    asyncio.run(serve())
