"""Headless Chromium for tests, driven over its own protocol through a pair of pipes: no port, no driver, no library."""

from __future__ import annotations

import base64
import contextlib
import itertools
import json
import os
import select
import shutil
import subprocess
import time
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from pathlib import Path

PROGRAM = shutil.which("chromium") or shutil.which("google-chrome")
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--no-first-run", "--hide-scrollbars", "--remote-debugging-pipe",
)  # fmt: skip
ANSWER_S = 60.0


class NavigatedError(Exception):
    """The page was left while it was asked."""


class Chromium:
    """A browser with one tab; a `with` block. `problems` has what its console and its network would rather not tell."""

    def __init__(self, profile: Path) -> None:
        self._profile = profile
        self._numbers = itertools.count(1)
        self._buffer = b""
        self._session = self._other = ""
        self.problems: list[str] = []
        """Errors of the console, exceptions, and violations of a content policy."""
        self._requests: dict[str, str] = {}

    def __enter__(self) -> Self:
        assert PROGRAM is not None
        to_browser, self._commands = os.pipe()
        self._answers, from_browser = os.pipe()
        script = f'exec "$@" 3<&{to_browser} 4>&{from_browser}'
        argv = ["bash", "-c", script, "bash", PROGRAM, *FLAGS, f"--user-data-dir={self._profile}", "about:blank"]
        self._process = subprocess.Popen(
            argv, pass_fds=(to_browser, from_browser), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        os.close(to_browser)
        os.close(from_browser)
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._commands)
        os.close(self._answers)

    @property
    def requests(self) -> list[str]:
        """Addresses that were asked for, but for `data:` and what a content policy stopped."""
        return [*self._requests.values()]

    def forget(self) -> None:
        """Begin anew with problems and requests."""
        self.problems.clear()
        self._requests.clear()

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send a command, and return its result."""
        number = next(self._numbers)
        message: dict[str, Any] = {"id": number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self._commands, data) :]
        while True:
            answer = self._next()
            if answer.get("id") == number:
                if "navigated" in (told := str(answer.get("error", ""))):
                    raise NavigatedError(told)
                assert not told, told
                result: dict[str, Any] = answer["result"]
                return result

    def open(self, address: str, *, width: int = 1400, height: int = 1000, dark: bool = False) -> None:
        """Show a page, and wait until it is loaded."""
        self.size(width, height)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.call("Page.navigate", url=address)
        self.wait_for("document.readyState === 'complete' && location.href !== 'about:blank'")

    def size(self, width: int, height: int) -> None:
        """Of the window, in CSS pixels; a narrow one is a phone's."""
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 500
        )

    def evaluate(self, expression: str) -> Any:
        """The value of an expression in the page; of a promise, what it comes to."""
        told = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in told, told["exceptionDetails"]
        return told["result"].get("value")

    def wait_for(self, condition: str) -> None:
        """Until the expression is true, frame by frame; a page that is loaded anew meanwhile is asked again."""
        deadline = time.monotonic() + ANSWER_S
        is_true = False
        while not is_true:
            assert time.monotonic() < deadline, f"never true: {condition}"
            with contextlib.suppress(NavigatedError):
                is_true = bool(self.evaluate(condition))
                if not is_true:
                    self.frame()

    def frame(self) -> None:
        """Until the page was drawn twice."""
        self.evaluate("new Promise((done) => setTimeout(done, 30))")

    def key(self, key: str) -> None:
        """Type one key."""
        text = {"Enter": "\r"}.get(key, key if len(key) == 1 else "")
        code = {"Enter": 13, "Escape": 27, "Tab": 9}.get(key, 0)
        for kind in ("keyDown", "keyUp"):
            self.call(
                "Input.dispatchKeyEvent", type=kind, key=key, text=text if kind == "keyDown" else "",
                windowsVirtualKeyCode=code,
            )  # fmt: skip

    def click(self, selector: str) -> None:
        """Click the middle of an element with the mouse."""
        find = f"const one = document.querySelector({json.dumps(selector)}); one.scrollIntoView({{block: 'center'}});"
        middle = "const box = one.getBoundingClientRect(); return [box.x + box.width / 2, box.y + box.height / 2];"
        box = self.evaluate(f"(() => {{ {find} {middle} }})()")
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=box[0], y=box[1], button="left", clickCount=1)

    def hide(self) -> None:
        """Put another tab in front of the page."""
        session, self._session = self._session, ""
        self._other = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.call("Target.activateTarget", targetId=self._other)
        self._session = session
        self.wait_for("document.visibilityState === 'hidden' || !document.hasFocus()")

    def show(self) -> None:
        """Put the page in front again."""
        self.call("Page.bringToFront")
        self.wait_for("document.visibilityState === 'visible' && document.hasFocus()")
        session, self._session = self._session, ""
        self.call("Target.closeTarget", targetId=self._other)
        self._session = session

    def picture(self, path: Path) -> None:
        """Write what the window shows as a PNG."""
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot")["data"]))

    def _next(self) -> dict[str, Any]:
        deadline = time.monotonic() + ANSWER_S
        while b"\0" not in self._buffer:
            assert select.select([self._answers], [], [], max(0.0, deadline - time.monotonic()))[0], "no answer"
            piece = os.read(self._answers, 1 << 20)
            assert piece, "the browser has gone"
            self._buffer += piece
        line, _, self._buffer = self._buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(line)
        self._note(message.get("method", ""), message.get("params", {}))
        return message

    def _note(self, method: str, told: dict[str, Any]) -> None:
        if method == "Runtime.exceptionThrown":
            self.problems.append(str(told["exceptionDetails"].get("exception", told))[:500])
        elif method == "Log.entryAdded" and told["entry"]["level"] == "error":
            self.problems.append(told["entry"]["text"])
        elif method == "Runtime.consoleAPICalled" and told["type"] in {"error", "assert"}:
            self.problems.append(str(told["args"])[:500])
        elif method == "Network.requestWillBeSent" and not told["request"]["url"].startswith("data:"):
            self._requests[told["requestId"]] = told["request"]["url"]
        elif method == "Network.loadingFailed" and told.get("blockedReason") == "csp":
            self._requests.pop(told["requestId"], None)
