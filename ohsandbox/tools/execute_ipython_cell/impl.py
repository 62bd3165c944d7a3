"""Implementation of `execute_ipython_cell`: one request to the kernel per cell; output arrives separately."""

from __future__ import annotations

import base64
import binascii
import contextlib
import re
import secrets
import threading
import time
from typing import TYPE_CHECKING, Any

from ohsandbox.errors import OhsandboxError, ToolError
from ohsandbox.runtime.shell.capture import Capture, Captured
from ohsandbox.runtime.shell.terminal import Mark, MarkSplitter
from ohsandbox.tool import ToolExecutor
from ohsandbox.tools.driver import NO_PROGRAM, Driver, ProgramDied, RequestTimedOut
from ohsandbox.tools.execute_ipython_cell import kernel
from ohsandbox.tools.execute_ipython_cell.definition import (
    DEFAULT_TIMEOUT_S,
    MAX_IMAGES,
    MAX_OUTPUT_CHARS,
    IPythonObservation,
    IPythonRunCellAction,
)

if TYPE_CHECKING:
    from ohsandbox.runtime.base import Runtime
    from ohsandbox.secrets import Masker

GROUP_AFTER_S = 0.5
"""An interrupt goes to the kernel only, so that servers of earlier cells keep running; `os.system` ignores it while its
child runs, so the children get it too if it had no effect for this long."""

KILL_AFTER_S = 5.0
"""Time of ignored interrupts before a kill; the limit of clean-up in `except KeyboardInterrupt`."""

QUIT_S = 1.0
"""Time for `atexit` and open files of a kernel that is reset or closed."""

MARK_S = 2.0
"""Time from the answer to the end of the output: the engine copies the two streams in two threads."""

CAPTURE_BYTES = 8 * MAX_OUTPUT_CHARS
"""Enough for MAX_OUTPUT_CHARS of the longest characters at both ends."""

SIGNATURES = {
    "image/png": (b"\x89PNG\r\n\x1a\n",),
    "image/jpeg": (b"\xff\xd8\xff",),
    "image/gif": (b"GIF87a", b"GIF89a"),
    "image/webp": (b"RIFF",),
}
"""A provider permanently refuses a conversation with a broken image: the first bytes must match the type."""

MAX_IMAGE_CHARS = 5_000_000
"""In base64: the limit of the strictest large provider."""

_OUR_FRAMES = re.compile(
    r'^  File "(?:<ohsandbox>|<string>|[^"\n]*/IPython/core/[^"\n]*)", line \d+ in .*\n', re.MULTILINE
)
"""Our frames in the crash output of `faulthandler`."""
_NEXT = "All variables are lost, and the next cell starts a new kernel"


class IPythonExecutor(ToolExecutor[IPythonRunCellAction, IPythonObservation]):
    """Runs cells in one kernel of a runtime."""

    def __init__(self, runtime: Runtime, *, python: str = "python3") -> None:
        self._python = python
        self._output = _Output(runtime.secrets.masker)
        self._lock = threading.RLock()
        self._asked_to_stop: float | None = None
        # PEP 668 keeps pip from a distribution's own Python; in a container of ours there is nothing to protect
        env = {"PIP_BREAK_SYSTEM_PACKAGES": "1", "PIP_ROOT_USER_ACTION": "ignore"} if runtime.private_processes else {}
        env |= runtime.secrets.environment()
        self._driver = Driver.python(
            runtime,
            kernel.source(),
            interpreter=python,
            name="The Python kernel",
            env=env,
            on_stderr=self._output.feed,
        )

    def __call__(self, action: IPythonRunCellAction) -> IPythonObservation:
        """Run the cell to its end or its timeout.

        Raises:
            ToolError: there is no Python 3.8 or newer in the sandbox, or its kernel does not start.
            SandboxUnavailable: the sandbox is gone.
        """
        with self._lock:
            if action.reset:
                self._quit()
            notice = self._start()
            if action.reset:
                notice = f"A new kernel was started: {self._kind()}"
                if not action.code.strip():
                    return IPythonObservation(text="", notice=notice)
            observation = self._run(action.code, action.timeout or DEFAULT_TIMEOUT_S)
            if notice is None:
                return observation
            said = f"{notice}. {observation.notice}" if observation.notice else notice
            return observation.model_copy(update={"notice": said})

    def last_output(self) -> bytes:
        """The end of the running cell's output."""
        return self._output.last(LAST_BYTES)

    def interrupt(self) -> None:
        """Interrupt the running cell, from any thread; repeated calls escalate, finally to a kill."""
        now = time.monotonic()
        since = self._asked_to_stop
        if since is not None and now - since > KILL_AFTER_S:
            self._driver.kill()
        elif self._driver.interrupt(group=since is not None and now - since > GROUP_AFTER_S) and since is None:
            self._asked_to_stop = now

    def close(self) -> None:
        """End the kernel and its cells' processes; a cell that runs in another thread ends with it."""
        if self._lock.acquire(blocking=False):
            with contextlib.suppress(OhsandboxError):
                self._quit()
            self._lock.release()
        self._driver.close()

    # --- the kernel ---------------------------------------------------------------------------

    def _start(self) -> str | None:
        """Ensure that a kernel runs; return a note if the last one ended between two cells."""
        death = self._driver.take_death()
        try:
            self._driver.start()
        except ProgramDied as error:
            raise _no_kernel(error, self._python) from None
        if death is None:
            return None
        return f"Between two cells: {death} All variables are lost; this cell ran in a new kernel"

    def _kind(self) -> str:
        facts = self._driver.facts
        ipython = facts.get("ipython")
        return f"Python {facts.get('python')}, " + (f"IPython {ipython}" if ipython else "without IPython")

    def _quit(self) -> None:
        if self._driver.facts:
            with contextlib.suppress(ProgramDied, RequestTimedOut):
                self._driver.request({"quit": True}, QUIT_S)
        self._driver.kill()
        self._driver.take_death()
        self._output.take()

    # --- a cell -------------------------------------------------------------------------------

    def _run(self, code: str, timeout_s: float) -> IPythonObservation:
        between = self._output.take()
        nonce = secrets.token_hex(16)
        self._output.expect(nonce)
        self._asked_to_stop = None
        timed_out = False
        try:
            try:
                answer = self._driver.request({"code": code, "mark": f"\x1b]7117;{nonce};end\x07"}, timeout_s)
            except RequestTimedOut:
                timed_out = True
                answer = self._stop()
        except ProgramDied as death:
            return self._died(death, between, timed_out=timed_out, timeout_s=timeout_s)
        finally:
            self._asked_to_stop = None
        self._output.wait(MARK_S)
        images, refused = _images(answer.get("images"))
        notices = [f"Interrupted after {timeout_s:g} s; variables are kept. Ask for a longer `timeout`"] * timed_out
        notices += [f"{refused} image(s) left out: the data is not of the type that it claims"] * bool(refused)
        error = answer.get("error")
        return IPythonObservation(
            text=_text(between, self._output.take()),
            images=images,
            error=error.encode("utf-8", "replace").decode() if isinstance(error, str) else None,
            timed_out=timed_out,
            notice=". ".join(notices) or None,
        )

    def _stop(self) -> dict[str, Any]:
        """Interrupt the cell; return its answer.

        Raises:
            ProgramDied: it ignored the interrupt and was killed.
        """
        for group, patience_s in ((False, GROUP_AFTER_S), (True, KILL_AFTER_S - GROUP_AFTER_S)):
            self._driver.interrupt(group=group)
            with contextlib.suppress(RequestTimedOut):
                return self._driver.await_answer(patience_s)
        self._driver.kill()
        raise ProgramDied(f"The cell ignored its interrupt for {KILL_AFTER_S:g} s, so the kernel was killed")

    def _died(self, death: ProgramDied, between: Captured, *, timed_out: bool, timeout_s: float) -> IPythonObservation:
        said = str(death).split(" It said: ")[0].rstrip(".")  # the text holds its output
        late = f"The time of {timeout_s:g} s was over. " if timed_out else ""
        return IPythonObservation(
            text=_OUR_FRAMES.sub("", _text(between, self._output.take())),
            timed_out=timed_out,
            kernel_died=True,
            error=said,
            notice=f"{late}{said}. {_NEXT}",
        )


LAST_BYTES = 4096
"""Enough for the last lines."""


class _Output:
    """The output of the kernel's process tree, split at the marks."""

    def __init__(self, masker: Masker) -> None:
        self._masker = masker
        self._lock = threading.Lock()
        self._splitter = MarkSplitter()
        self._capture = Capture(limit_bytes=CAPTURE_BYTES)
        self._nonce = ""
        self._ended = threading.Event()

    def expect(self, nonce: str) -> None:
        """Set the mark that ends the next cell."""
        with self._lock:
            self._nonce = nonce
            self._ended.clear()

    def feed(self, data: bytes) -> None:
        """Add bytes from the driver's thread."""
        with self._lock:
            for piece in self._splitter.feed(data):
                if not isinstance(piece, Mark):
                    self._capture.feed(piece)
                elif piece.nonce == self._nonce:
                    self._ended.set()

    def last(self, size: int) -> bytes:
        """The last size bytes since `take`."""
        with self._lock:
            return self._capture.last(size)

    def wait(self, timeout_s: float) -> None:
        """Wait for the mark; without it, the output received in time belongs to the cell."""
        self._ended.wait(timeout_s)

    def take(self) -> Captured:
        """Return the output since the last take."""
        with self._lock:
            return self._capture.take(final=True, masker=self._masker)


def _text(between: Captured, cell: Captured) -> str:
    """Both outputs for the model; the first is of background work before the cell."""
    text = _bounded(cell)
    if not between.text.strip():
        return text
    own = f"[This cell]\n{text}" if text else "[This cell printed nothing and has no value.]"
    return f"[Printed since the last cell]\n{_bounded(between).rstrip()}\n{own}"


def _bounded(output: Captured) -> str:
    """The output, or its head and tail with a line between that states how much is missing."""
    if not output.omitted_bytes and len(output.text) <= MAX_OUTPUT_CHARS:
        return output.text
    half = MAX_OUTPUT_CHARS // 2
    head, tail = output.text[:half], output.text[-half:]
    missing = output.output_bytes - len(head.encode()) - len(tail.encode())
    return (
        f"{head}\n[... {missing} of {output.output_bytes} bytes left out here: print less, or write to a file and read "
        f"the part that matters ...]\n{tail}"
    )


def _images(said: object) -> tuple[tuple[str, ...], int]:
    """The images of an answer as data URLs, and how many were refused. The sandbox is not trusted."""
    urls, refused = [], 0
    for image in (said if isinstance(said, list) else [])[:MAX_IMAGES]:
        kind, data = (image.get("type"), image.get("data")) if isinstance(image, dict) else (None, None)
        if isinstance(kind, str) and isinstance(data, str) and _is_image(kind, data):
            urls.append(f"data:{kind};base64,{data}")
        else:
            refused += 1
    return tuple(urls), refused


def _is_image(kind: str, data: str) -> bool:
    if len(data) > MAX_IMAGE_CHARS:
        return False
    try:
        raw = base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError):
        return False
    return raw.startswith(SIGNATURES.get(kind, ())) and (kind != "image/png" or b"IEND" in raw[-16:])


def _no_kernel(error: ProgramDied, python: str) -> ToolError:
    """The error for a missing kernel, with the remedy."""
    if error.status == NO_PROGRAM:
        return ToolError(
            f"This sandbox has no {python!r}, which this tool needs (3.8 or newer). Install it with execute_bash, or "
            "do the work there."
        )
    return ToolError(f"{error} Use execute_bash to look at what is wrong with {python!r} in the sandbox.")
