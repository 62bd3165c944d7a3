"""`execute_ipython_cell`: Python cells in a kernel inside the sandbox that keeps its variables.

One request to the kernel per cell; its output arrives separately, as standard error.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import re
import secrets
import threading
import time
from collections.abc import Sequence  # noqa: TC003 - pydantic reads annotations at run time
from functools import partial
from typing import TYPE_CHECKING, Any

from pydantic import Field

from ohsandbox.content import DEFAULT_LIMITS, Content, ImageContent, OutputLimits, TextContent, image_type
from ohsandbox.errors import ToolError
from ohsandbox.runtime.shell.output import Capture, Captured
from ohsandbox.runtime.shell.terminal import Mark, MarkSplitter
from ohsandbox.schema import Action, Observation
from ohsandbox.schema.execution import LAST_OUTPUT_BYTES
from ohsandbox.tool import BuiltInTool, CallHint, ToolAnnotations, ToolDefinition, ToolExecutor
from ohsandbox.tools.driver import NO_PROGRAM, Driver, ProgramDied, RequestTimedOut, join_modules

if TYPE_CHECKING:
    from ohsandbox.runtime.base import Runtime
    from ohsandbox.secrets import Masker
    from ohsandbox.state import ConversationState

TOOL_NAME = "execute_ipython_cell"
HINT = CallHint(sign="%", kind="python", subject="code")
DEFAULT_TIMEOUT_S = 120.0
"""The same limit as for a shell command."""
MAX_TIMEOUT_S = 3600.0
"""Limit of a cell's `timeout`: longer work belongs in the background, where it can be polled."""
MAX_IMAGES = 8
"""Limit per cell; each image costs a model some 1,500 tokens."""
DESCRIPTION = f"""\
Run a cell of Python in a persistent kernel inside the sandbox, and return what it printed, the value of its last
expression and its images.

`code` (required) is a cell as in a notebook. Variables, imports and the working directory stay for the next cell.
The value of the last expression is shown, unless `;` ends it. `await` works at the top level. An exception is an
answer, with a short traceback, not a failure of the tool. Define variables and import packages before you use them:
they live in this IPython environment, and are not available outside of it, in `execute_bash` for example.

* Commands: `!command` runs a shell command (`{{expression}}` in it is filled in), `x = !command` keeps its lines, `%cd`
  changes the directory. Install packages with `%pip install name`, which is of this very Python. Other magics work
  where IPython is installed; without it the kernel is plain Python, and says so.
* Images: open matplotlib figures are returned at the end of a cell (`plt.show()` shows them earlier), as is what
  `display(...)` or the last expression gives as PNG, JPEG, GIF or WebP; at most {MAX_IMAGES} a cell.
* Time: after `timeout` seconds ({DEFAULT_TIMEOUT_S:.0f} when left out, at most {MAX_TIMEOUT_S:.0f}) the cell is
  interrupted (KeyboardInterrupt) and the variables stay. If it ignores that, the kernel is killed and they are lost;
  you are told.
* Output beyond {{max_chars}} characters loses its middle, and how much is stated: print less, or to a file.
* `input()` gets no answer. Long work (servers, training) belongs in a child process with its output in a file.
* `reset` true starts a new kernel first: variables, and processes that cells started, are lost; files stay. A newly
  installed IPython is used after it."""
SHORT_DESCRIPTION = f"""\
Run a cell of Python (`code`, required) in a persistent kernel inside the sandbox; returns what it printed, the value of
its last expression, images, or a traceback. Variables, imports and directory stay for the next cell. Define variables
and import packages before you use them: they are not available outside of this IPython environment.
* `!command` runs a shell command, `%cd` changes the directory, `%pip install name` installs. Other magics need IPython.
* Open matplotlib figures and `display(...)` come back as images, at most {MAX_IMAGES}.
* After `timeout` seconds (default {DEFAULT_TIMEOUT_S:.0f}, at most {MAX_TIMEOUT_S:.0f}) the cell is interrupted; if
  it ignores that, the kernel is killed and its variables are lost.
* Output beyond {{max_chars}} characters loses its middle: print less, or to a file.
* `input()` gets no answer. Long work (servers, training): a child process with its output in a file.
* `reset` true starts a new kernel: variables and child processes are lost, files stay."""
_GROUP_AFTER_S = 0.5
"""An interrupt goes to the kernel only, so that servers of earlier cells keep running; `os.system` ignores it while its
child runs, so the children get it too if it had no effect for this long."""
_INSIST_S = 0.9
"""A cancelled cell that catches KeyboardInterrupt and continues gets an exception of the kernel's own after this time;
a cell whose time is over gets it this long before the kill."""
KILL_AFTER_S = 5.0
"""Time before a kill; also the limit of clean-up in `except KeyboardInterrupt` once a cell's time is over."""
IGNORED_STATUS = 113
"""Exit code of a kernel that ended itself because its cell continued after every exception that was raised in it;
defined in `_ipython_kernel/main.py` too."""
_QUIT_S = 1.0
"""Time for `atexit` functions and open files of a kernel that is reset or closed."""
_MARK_S = 2.0
"""Time from the answer to the end of the output: the engine copies the two streams in two threads."""
_CAPTURED_PER_CHAR = 8
"""Bytes kept for each shown character: enough for the longest ones at both ends."""
MAX_IMAGE_CHARS = 5_000_000
"""Limit of an image in base64: that of the strictest large provider."""

_MODULES = ("display", "plain", "ipython", "main")
_OUR_FRAMES = re.compile(
    r'^  File "(?:<ohsandbox>|<string>|[^"\n]*/IPython/core/[^"\n]*)", line \d+ in .*\n', re.MULTILINE
)
"""Frames of the kernel in the crash output of `faulthandler`."""


class IPythonRunCellAction(Action):
    """A cell for the kernel."""

    code: str = Field(description="The cell's Python code; may be empty with reset.")
    timeout: float | None = Field(
        default=None,
        gt=0,
        le=MAX_TIMEOUT_S,
        allow_inf_nan=False,
        description=f"Seconds after which the cell is interrupted; {DEFAULT_TIMEOUT_S:.0f} when left out.",
    )
    reset: bool = Field(default=False, description="Start a new kernel first; all variables are lost.")


class IPythonObservation(Observation):
    """What came of a cell. A Python exception is an answer, as a command's non-zero exit code is; `error` names it."""

    text: str
    """What the cell and its child processes printed, its value, its traceback; bounded."""
    images: tuple[str, ...] = ()
    """`data:` URLs, in the order of their marks in text."""
    error: str | None = None
    """The exception that ended the cell, in one line."""
    timed_out: bool = False
    """Interrupted or killed because its time was over."""
    kernel_died: bool = False
    """The kernel ended with the cell, and all variables are lost."""
    notice: str | None = None
    """A note for the model."""

    @property
    def is_error(self) -> bool:
        """Whether the kernel died: variables that the model believes to be in memory are lost."""
        return self.kernel_died

    @property
    def to_llm_content(self) -> Sequence[Content]:
        """Return the text, the notes on it, then the images."""
        lines = [self.text.removesuffix("\n")] if self.text else []
        if self.notice:
            lines.append(f"[{self.notice}]")
        text = TextContent(text="\n".join(lines) or "[The cell printed nothing and has no value.]")
        return [text, ImageContent(image_urls=self.images)] if self.images else [text]


def make_execute_ipython_cell_tool(
    *, conv_state: ConversationState, python: str = "python3"
) -> ToolDefinition[IPythonRunCellAction, IPythonObservation]:
    """Create the Python tool, with its own kernel that the first cell starts. python is found by the sandbox's PATH.

    Raises:
        UsageError: the conversation has no runtime.
    """
    return ToolDefinition(
        name=TOOL_NAME,
        description=conv_state.output.fill(DESCRIPTION),
        short_description=conv_state.output.fill(SHORT_DESCRIPTION),
        action_type=IPythonRunCellAction,
        observation_type=IPythonObservation,
        hint=HINT,
        annotations=ToolAnnotations(title="Python"),
        executor=IPythonExecutor(conv_state.require_runtime(), python=python, limits=conv_state.output),
    )


class IPythonExecutor(ToolExecutor[IPythonRunCellAction, IPythonObservation]):
    """Runs cells in one kernel of a runtime."""

    def __init__(self, runtime: Runtime, *, python: str = "python3", limits: OutputLimits = DEFAULT_LIMITS) -> None:
        self._python, self._limit_chars = python, limits.max_chars
        self._output = _Output(runtime.secrets.masker, limits.max_chars)
        self._lock = threading.RLock()
        self._asked_to_stop: float | None = None
        # PEP 668 keeps pip from a distribution's own Python; in a container of ours there is nothing to protect
        env = {"PIP_BREAK_SYSTEM_PACKAGES": "1", "PIP_ROOT_USER_ACTION": "ignore"} if runtime.private_processes else {}
        self._driver = Driver(
            runtime,
            join_modules("ohsandbox.tools._ipython_kernel", *_MODULES),
            interpreters=[python],
            name="The Python kernel",
            env=env | runtime.environment(),
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
                self._driver.stop(grace_s=_QUIT_S)
                self._output.read()
            notice = self._start()
            if action.reset:
                notice = f"A new kernel was started: {self._version()}"
                if not action.code.strip():
                    return IPythonObservation(text="", notice=notice)
            observation = self._run(action.code, action.timeout or DEFAULT_TIMEOUT_S)
            notices = [part for part in (notice, observation.notice) if part]
            return observation.model_copy(update={"notice": ". ".join(notices) or None})

    def last_output(self) -> bytes:
        """The end of the running cell's output."""
        return self._output.last(LAST_OUTPUT_BYTES)

    def interrupt(self) -> None:
        """Interrupt the running cell, from any thread; repeated calls escalate, finally to a kill."""
        time_s = time.monotonic()
        since = self._asked_to_stop
        if since is not None and time_s - since > KILL_AFTER_S:
            self._driver.stop()
        elif since is not None and time_s - since > _INSIST_S:
            self._driver.interrupt(signal="XCPU")
        elif self._driver.interrupt(group=since is not None and time_s - since > _GROUP_AFTER_S) and since is None:
            self._asked_to_stop = time_s

    def close(self) -> None:
        """End the kernel and its cells' processes; a cell that runs in another thread ends with it."""
        self._driver.close(grace_s=_QUIT_S)

    def _start(self) -> str | None:
        """Ensure that a kernel runs; return a note if the last one ended between two cells."""
        try:
            death = self._driver.start()
        except ProgramDied as error:
            if error.status == NO_PROGRAM:
                raise ToolError(
                    f"This sandbox has no {self._python!r}, which this tool needs (3.8 or newer). Install it with "
                    "execute_bash, or do the work there."
                ) from None
            raise ToolError(
                f"{error} Use execute_bash to look at what is wrong with {self._python!r} in the sandbox."
            ) from None
        return f"Between two cells: {death} All variables are lost; this cell ran in a new kernel" if death else None

    def _version(self) -> str:
        versions = self._driver.facts
        ipython = versions.get("ipython")
        return f"Python {versions.get('python')}, " + (f"IPython {ipython}" if ipython else "without IPython")

    def _run(self, code: str, timeout_s: float) -> IPythonObservation:
        between = self._output.read()
        nonce = secrets.token_hex(16)
        self._output.expect(nonce)
        self._asked_to_stop = None
        timed_out = False
        try:
            try:
                answer = self._driver.request({"code": code, "mark": f"\x1b]7117;{nonce};end\x07"}, timeout_s)
            except RequestTimedOut:
                timed_out = True
                answer = self._stop_cell()
        except ProgramDied as death:
            reason = str(death).split(" It said: ")[0].rstrip(".")  # the text holds its output
            if death.status == IGNORED_STATUS:
                reason = "The cell ignored its interrupts, so the kernel was ended"
            late = f"The time of {timeout_s:g} s was over. " if timed_out else ""
            return IPythonObservation(
                text=_OUR_FRAMES.sub("", _text(between, self._output.read(), self._limit_chars)),
                timed_out=timed_out,
                kernel_died=True,
                error=reason,
                notice=f"{late}{reason}. All variables are lost, and the next cell starts a new kernel",
            )
        finally:
            self._asked_to_stop = None
        self._output.ended.wait(_MARK_S)  # without the mark, what has arrived by then belongs to the cell
        images, refused = _images(answer.get("images"))
        notices = [f"Interrupted after {timeout_s:g} s; variables are kept. Ask for a longer `timeout`"] * timed_out
        notices += [f"{refused} image(s) left out: the data is not of the type that it claims"] * bool(refused)
        error = answer.get("error")
        return IPythonObservation(
            text=_text(between, self._output.read(), self._limit_chars),
            images=images,
            error=error.encode("utf-8", "replace").decode() if isinstance(error, str) else None,
            timed_out=timed_out,
            notice=". ".join(notices) or None,
        )

    def _stop_cell(self) -> dict[str, Any]:
        """Interrupt the cell; return its answer.

        Raises:
            ProgramDied: it ignored the interrupt and was killed.
        """
        interrupts = (
            (partial(self._driver.interrupt), _GROUP_AFTER_S),
            (partial(self._driver.interrupt, group=True), KILL_AFTER_S - _GROUP_AFTER_S - _INSIST_S),
            (partial(self._driver.interrupt, signal="XCPU"), _INSIST_S),
        )
        for interrupt, patience_s in interrupts:
            interrupt()
            with contextlib.suppress(RequestTimedOut):
                return self._driver.await_answer(patience_s)
        self._driver.stop()
        raise ProgramDied(f"The cell ignored its interrupt for {KILL_AFTER_S:g} s, so the kernel was killed")


class _Output:
    """The output of the kernel's process tree, split at the marks."""

    def __init__(self, masker: Masker, limit_chars: int) -> None:
        self._masker = masker
        self._lock = threading.Lock()
        self._splitter = MarkSplitter()
        self._capture = Capture(limit_bytes=_CAPTURED_PER_CHAR * limit_chars)
        self._nonce = ""
        self.ended = threading.Event()
        """The mark that was expected has arrived."""

    def expect(self, nonce: str) -> None:
        with self._lock:
            self._nonce = nonce
            self.ended.clear()

    def feed(self, data: bytes) -> None:
        with self._lock:
            for piece in self._splitter.feed(data):
                if not isinstance(piece, Mark):
                    self._capture.feed(piece)
                elif piece.nonce == self._nonce:
                    self.ended.set()

    def last(self, size: int) -> bytes:
        with self._lock:
            return self._capture.last(size)

    def read(self) -> Captured:
        with self._lock:
            return self._capture.read(final=True, masker=self._masker)


def _text(between: Captured, cell: Captured, limit_chars: int) -> str:
    """Both outputs for the model; the first is of background work before the cell."""
    text = _bounded(cell, limit_chars)
    if not between.text.strip():
        return text
    cell_text = f"[This cell]\n{text}" if text else "[This cell printed nothing and has no value.]"
    return f"[Printed since the last cell]\n{_bounded(between, limit_chars).rstrip()}\n{cell_text}"


def _bounded(output: Captured, limit_chars: int) -> str:
    """The output, or its head and tail with a line between that states how much is missing."""
    if not output.omitted_bytes and len(output.text) <= limit_chars:
        return output.text
    half = limit_chars // 2
    head, tail = output.text[:half], output.text[-half:]
    missing = output.output_bytes - len(head.encode()) - len(tail.encode())
    return (
        f"{head}\n[... {missing} of {output.output_bytes} bytes left out here: print less, or write to a file and read "
        f"the part that matters ...]\n{tail}"
    )


def _images(images: object) -> tuple[tuple[str, ...], int]:
    """Return the images of an answer as data URLs, and how many were refused. The sandbox is not trusted."""
    urls, refused = [], 0
    for image in (images if isinstance(images, list) else [])[:MAX_IMAGES]:
        kind, data = (image.get("type"), image.get("data")) if isinstance(image, dict) else (None, None)
        if isinstance(kind, str) and isinstance(data, str) and _is_image(kind, data):
            urls.append(f"data:{kind};base64,{data}")
        else:
            refused += 1
    return tuple(urls), refused


def _is_image(kind: str, data: str) -> bool:
    """Whether data is one complete image: a provider permanently refuses a conversation with a broken image."""
    if len(data) > MAX_IMAGE_CHARS:
        return False
    try:
        raw = base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError):
        return False
    return image_type(raw) == kind and (kind != "image/png" or b"IEND" in raw[-16:])


BUILT_IN = BuiltInTool(make_execute_ipython_cell_tool, HINT)
