"""Implementation of `browser`: calls are validated here; a program in the sandbox executes them in Chromium."""

from __future__ import annotations

import base64
import binascii
import logging
import posixpath
import re
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ohsandbox.content import image_type
from ohsandbox.errors import ToolArgumentsError, ToolError
from ohsandbox.tool import ToolExecutor, cut_middle
from ohsandbox.tools.browser.definition import (
    BUDGET_S,
    INTERPRETERS,
    MAX_TREE_CHARS,
    REMEDY,
    BrowseInteractiveAction,
    BrowserObservation,
)
from ohsandbox.tools.browser.functions import Call, parse_calls
from ohsandbox.tools.browser.tree import VIEW_HEIGHT, clean_line, render_tree
from ohsandbox.tools.driver import NO_PROGRAM, Driver, ProgramDied, RequestTimedOut, join_modules

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ohsandbox.runtime.base import Runtime

log = logging.getLogger(__name__)

_OVERHEAD_S = 120.0
"""Time beyond BUDGET_S to start Chromium (0.6 s idle) and to read a page, if every wait times out."""
END_S = 5.0
"""Limit for ending Chromium, which exits within 0.1 s on request."""
MAX_IMAGE_BYTES = 3 * 1024 * 1024
_MAX_HEAD_CHARS = 6_000
"""Limit of the text above the tree."""
_SCHEME = re.compile(r"(?:https?|file|data|about|blob|chrome|view-source):", re.IGNORECASE)


class _Tab(BaseModel):
    url: str = ""
    title: str = ""
    shown: bool = False


class _Answer(BaseModel):
    """The program's answer; validated completely, since it comes from the sandbox."""

    model_config = ConfigDict(extra="ignore")

    unavailable: str = ""
    done: int = Field(default=0, ge=0)
    error: str = ""
    sandboxed: bool = True
    notes: list[str] = []
    tabs: list[_Tab] = []
    tree: str | None = None
    scroll: tuple[float, float] | None = None
    """The scroll position and the page's height, in pixels."""
    image: str | None = None


class BrowserExecutor(ToolExecutor[BrowseInteractiveAction, BrowserObservation]):
    """Controls one browser in a runtime's sandbox; the first call starts it, and `close` ends it."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        source = join_modules("ohsandbox.tools.browser._in_sandbox", "tabs", "actions", "main")
        self._driver = Driver(runtime, source, interpreters=INTERPRETERS, name="The browser's program")
        self._warned = False

    def __call__(self, action: BrowseInteractiveAction) -> BrowserObservation:
        """Execute the calls up to the first failure, then read the page.

        Raises:
            ToolArgumentsError: code holds anything but calls of the functions; nothing was executed.
            ToolError: the sandbox has no browser; or the browser did not answer in time and was ended.
            SandboxUnavailable: the sandbox is gone.
        """
        calls = parse_calls(action.code)
        actions = [{"name": call.name, "arguments": self._in_sandbox(call)} for call in calls]
        answer = self._ask({"actions": actions, "budget_s": BUDGET_S})
        if answer.unavailable:
            raise ToolError(f"The sandbox has no browser: {clean_line(answer.unavailable)}. {REMEDY}")
        if not (answer.sandboxed or self._runtime.private_processes or self._warned):
            self._warned = True
            log.warning("Chromium runs without a sandbox of its own here: do not open pages that you do not trust.")
        return _observation(calls, answer)

    def close(self) -> None:
        """End the browser: removes its profile if idle, kills it if busy."""
        self._driver.close(grace_s=END_S)

    def _ask(self, request: dict[str, Any]) -> _Answer:
        if not self._driver.facts:
            self._runtime.prepare_browser()
        try:
            death = self._driver.start()
        except ProgramDied as died:
            reason = "Python 3 is missing." if died.status == NO_PROGRAM else clean_line(str(died))
            raise ToolError(f"The sandbox has no browser: {reason} {REMEDY}") from None
        try:
            answer = _Answer.model_validate(self._driver.request(request, BUDGET_S + _OVERHEAD_S))
        except RequestTimedOut:
            self._driver.stop()
            raise ToolError(
                f"The browser did not answer within {BUDGET_S + _OVERHEAD_S:.0f} s and was ended; its tabs are lost. "
                "Start again with goto(url)."
            ) from None
        except ValidationError:
            self._driver.stop()
            raise ToolError("The browser's program gave no proper answer and was ended; start again.") from None
        if death is not None:
            answer.notes.insert(0, f"{death} Its tabs, cookies and logins are lost; it was started again.")
        return answer

    def _in_sandbox(self, call: Call) -> dict[str, Any]:
        """The arguments, with addresses and paths translated for the sandbox."""
        arguments = dict(call.arguments)
        if call.name == "goto":
            arguments["url"] = self._url(arguments["url"].strip(), call)
        if call.name == "upload_file":
            arguments["file"] = [posixpath.join(self._runtime.workdir, path) for path in arguments["file"]]
        return arguments

    def _url(self, url: str, call: Call) -> str:
        if url.lower().startswith("javascript:") or not url:
            raise ToolArgumentsError(f"{call}: goto takes an address or an absolute path. Nothing was done.")
        if url.startswith(("/", "./", "../")):
            path = posixpath.normpath(posixpath.join(self._runtime.workdir, url))
            return f"file://{quote(path)}"
        return url if _SCHEME.match(url) else f"http://{url}"


def _observation(calls: Sequence[Call], answer: _Answer) -> BrowserObservation:
    tree, focused = render_tree(answer.tree or "", limit_chars=MAX_TREE_CHARS)
    head = "\n".join([*_place(answer), *([f"Focused: {focused}"] if focused else []), *_events(calls, answer)])
    body = tree or ("(no elements: look at the screenshot)" if answer.tree is not None else "(not readable now)")
    image = _data_url(answer.image)
    return BrowserObservation(
        text=f"{cut_middle(head, limit_chars=_MAX_HEAD_CHARS)}\nPage:\n{body}",
        images=(image,) if image else (),
        failed=bool(answer.error),
    )


def _place(answer: _Answer) -> list[str]:
    lines = []
    for tab in answer.tabs:
        if tab.shown:
            lines += [f"URL: {clean_line(tab.url)}", f"Title: {clean_line(tab.title)}"]
    if len(answer.tabs) > 1:
        lines.append("Tabs:")
        lines += [
            f"  {number}{' (shown)' if tab.shown else ''}: {clean_line(tab.title or tab.url)[:100]}"
            for number, tab in enumerate(answer.tabs)
        ]
    if answer.scroll is not None and answer.scroll[1] > VIEW_HEIGHT:
        top, height = answer.scroll
        lines.append(f"In view: pixels {top:.0f} to {min(top + VIEW_HEIGHT, height):.0f} of {height:.0f}")
    return lines


def _events(calls: Sequence[Call], answer: _Answer) -> list[str]:
    lines = []
    if answer.error:
        number = min(answer.done, len(calls) - 1)
        remaining = len(calls) - number - 1
        remainder_note = f" The {remaining} call(s) after it were not done." if remaining else ""
        lines.append(f"Error in {clean_line(str(calls[number]))}: {clean_line(answer.error)}.{remainder_note}")
    return lines + [f"Note: {clean_line(note)}" for note in answer.notes]


def _data_url(encoded: str | None) -> str | None:
    """A data URL of a PNG or JPEG that is not too large."""
    if encoded is None or len(encoded) > MAX_IMAGE_BYTES * 4 // 3:
        return None
    try:
        kind = image_type(base64.b64decode(encoded, validate=True))
    except (binascii.Error, ValueError):
        return None
    return f"data:{kind};base64,{encoded}" if kind in ("image/png", "image/jpeg") else None
