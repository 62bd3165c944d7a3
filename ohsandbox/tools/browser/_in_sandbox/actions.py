"""The actions: the functions that the model calls, with the arguments that the host has checked."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Awaitable, Callable  # noqa: TC003 - one program in the sandbox
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from ohsandbox.tools.browser._in_sandbox.tabs import (
    MAX_TABS,
    Refusal,
    Tab,
    Tabs,
    error_summary,
    in_background,
    short,
    within,
)

VIEWPORT = {"width": 1280, "height": 720}
ACTION_MS = 5_000
"""Timeout of an action: an element that cannot be acted on for this long is hidden, covered or disabled."""
NAVIGATION_MS = 30_000
MEANINGS = {
    "ERR_INTERNET_DISCONNECTED": "the sandbox has no network",
    "ERR_NAME_NOT_RESOLVED": "the host is unknown, or the sandbox has no network",
    "ERR_CONNECTION_REFUSED": "nothing listens there",
    "ERR_UNSAFE_PORT": "Chromium refuses this port; serve on another, such as 8000",
    "ERR_CERT_AUTHORITY_INVALID": "its certificate is not trusted here",
}
ELEMENT_METHODS = frozenset({"fill", "click", "dblclick", "hover", "focus", "clear"})
"""Actions that are Playwright's own methods of an element."""
SCROLL_S = 0.2
"""Pause after scrolling: the page scrolls in frames of its own, after the event."""
OPTION_MS = 1_000
"""Time to wait for a missing option: it may still appear, but seldom does."""
STOP_S = 2.0
GO_TRIES = 3
HTTP_ERROR = 400


def check_readable(path: str) -> None:
    """Refuse a file before Chromium shows an empty page or an error of its own.

    Raises:
        Refusal: this user cannot read it.
    """
    try:
        if Path(path).is_dir():
            os.scandir(path).close()
        else:
            Path(path).open("rb").close()
    except FileNotFoundError:
        raise Refusal(f"{short(path)} does not exist in the sandbox") from None
    except (OSError, ValueError) as error:  # a NUL in the name is a ValueError
        reason = getattr(error, "strerror", None) or error
        raise Refusal(
            f"{short(path)} cannot be read by the browser, which runs as uid {os.geteuid()} ({reason}); "
            "chmod it, or copy it to /tmp"
        ) from None


class Actions(Tabs):
    """The actions on the shown tab."""

    context: Any = None

    async def do(self, name: str, arguments: dict[str, Any]) -> None:
        """Do one action.

        Raises:
            Refusal: the action cannot be done.
            Exception: any error of Playwright.
        """
        if name in ELEMENT_METHODS:
            element = await self.element(arguments.pop("bid"))
            await getattr(element, name)(**arguments)
        else:
            await getattr(self, f"do_{name}")(**arguments)

    @property
    def tab(self) -> Tab:
        """The shown tab."""
        if self.shown is None:
            raise Refusal("no tab is open; call new_tab()")
        return self.shown

    async def element(self, bid: str) -> Any:
        """Return the element of this id in the newest tree."""
        locator = self.tab.page.locator(f"aria-ref={bid}")
        # if a frame has gone, Playwright says that the selector is wrong
        if not await within(ACTION_MS / 1000, locator.count(), 0):
            raise Refusal(f"unknown element {bid}; take the id from the newest tree")
        self.tab.has_mouse = True
        return locator

    async def do_goto(self, url: str) -> None:
        """Open an address; its page may still load when this returns."""
        if urlsplit(url).scheme == "file":
            check_readable(unquote(urlsplit(url).path))
        if self.tab.stuck:
            stuck = self.tab
            await self.do_new_tab()
            self.forget(stuck)
            in_background(stuck.page.close())
        try:
            await self._navigate(self.tab.page.goto, url)
        except Refusal:
            raise
        except Exception as error:  # noqa: BLE001 - Playwright's, sorted out there
            await self._refuse_navigation(url, error)

    async def _navigate(self, go: Callable[..., Awaitable[Any]], *arguments: str) -> Any:
        """Navigate until the page begins to load; return its response."""
        for _ in range(GO_TRIES):
            try:
                response = await go(*arguments, wait_until="commit", timeout=NAVIGATION_MS)
            except Exception as error:
                # another navigation took the place of ours: a late error page, or a page that reloads itself
                if not re.search("interrupted by another navigation|ERR_ABORTED", str(error)):
                    raise
                continue
            if response is not None and response.status >= HTTP_ERROR:
                self.note(f"The server answered with HTTP status {response.status}.")
            return response
        raise Refusal("there came no page: the server sent none (HTTP 204), or the page before navigates by itself")

    async def _refuse_navigation(self, url: str, error: Exception) -> None:
        text = str(error)
        if "Download is starting" in text:
            return  # another note reports it
        if "Timeout" in text:
            self.tab.loading = False
            await within(STOP_S, self.tab.cdp("Page.stopLoading"), None)
            raise Refusal(f"{short(url)} gave no answer within {NAVIGATION_MS // 1000} s") from None
        code = re.search(r"net::(ERR_\w+)", text)
        if code is None:
            raise error
        await within(1, self.tab.page.wait_for_url("chrome-error:**", wait_until="commit"), None)
        meaning = f", {MEANINGS[code[1]]}" if code[1] in MEANINGS else ""
        raise Refusal(f"{short(url)} cannot be opened: {code[1]}{meaning}") from None

    async def do_go_back(self) -> None:
        await self._in_history(self.tab.page.go_back, "before")

    async def do_go_forward(self) -> None:
        await self._in_history(self.tab.page.go_forward, "after")

    async def _in_history(self, go: Callable[..., Awaitable[Any]], direction: str) -> None:
        page = self.tab.page
        url_before = page.url
        # no response: there was nowhere to go, or the page was another place of the same document, or no server's
        if await self._navigate(go) is None and page.url == url_before:
            raise Refusal(f"the tab has no page {direction} this one")

    async def do_noop(self, wait_ms: float) -> None:
        await asyncio.sleep(wait_ms / 1000)

    async def do_scroll(self, delta_x: float, delta_y: float) -> None:
        """Turn the mouse wheel at the mouse's position, which is initially the middle."""
        mouse = self.tab.page.mouse
        if not self.tab.has_mouse:
            await mouse.move(VIEWPORT["width"] / 2, VIEWPORT["height"] / 2)
            self.tab.has_mouse = True
        await mouse.wheel(delta_x, delta_y)
        await asyncio.sleep(SCROLL_S)

    async def do_select_option(self, bid: str, options: list[str]) -> None:
        """Choose by value or label; a failure names the options."""
        element = await self.element(bid)
        try:
            await element.select_option(options, timeout=OPTION_MS)
        except Exception as error:
            labels = await element.evaluate("e => [...(e.options || [])].slice(0, 50).map(o => o.label)")
            if not labels:
                raise
            raise Refusal(f"{error_summary(error)}; the options are: {', '.join(map(short, labels))}") from None

    async def do_press(self, bid: str, key_comb: str) -> None:
        await (await self.element(bid)).press(key_comb)

    async def do_drag_and_drop(self, from_bid: str, to_bid: str) -> None:
        target = await self.element(to_bid)
        await (await self.element(from_bid)).drag_to(target)

    async def do_upload_file(self, bid: str, file: list[str]) -> None:
        """Give files to a field, or to the chooser that a click on the element opens."""
        for path in file:
            check_readable(path)
        element = await self.element(bid)
        if await element.evaluate("e => e.tagName === 'INPUT' && e.type === 'file'"):
            await element.set_input_files(file)
            return
        self.choosing = True
        try:
            async with self.tab.page.expect_file_chooser() as chooser:
                await element.click()
            await (await chooser.value).set_files(file)
        finally:
            self.choosing = False

    async def do_new_tab(self) -> None:
        if len(self.tabs) >= MAX_TABS:
            raise Refusal(f"{MAX_TABS} tabs are open, which is the most; close one with tab_close()")
        self.opening = True
        try:
            await self.context.new_page()
        finally:
            self.opening = False

    async def do_tab_focus(self, index: int) -> None:
        if index >= len(self.tabs):
            raise Refusal(f"unknown tab {index}; open are 0 to {len(self.tabs) - 1}")
        self.shown = self.tabs[index]
        await self.tab.page.bring_to_front()

    async def do_tab_close(self) -> None:
        """Close the shown tab; if it was the last one, open an empty tab."""
        tab = self.tab
        await tab.page.close()
        self.forget(tab)
        if self.shown is None:
            await self.do_new_tab()

    async def do_on_dialog(self, accept: bool, text: str) -> None:  # noqa: FBT001 - an argument of the model's
        self.dialog_answer = (accept, text)
