"""`SandboxSession`: the sandbox of one MCP session, created at its first call, and the calls of its tools."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

import anyio

import ohsandbox.tools  # noqa: F401 - registers the built-in tools
from ohsandbox.content import DEFAULT_LIMITS, OutputLimits
from ohsandbox.errors import OhsandboxError, SandboxFileError, SandboxGone
from ohsandbox.mcp_server.checkpoints import CheckpointTools
from ohsandbox.network import loop
from ohsandbox.runtime.shell.output import printable_end
from ohsandbox.schema import ErrorObservation, Observation
from ohsandbox.state import ConversationState
from ohsandbox.tool import Tool, ToolDefinition, resolve_tool

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence

    from ohsandbox.runtime.base import Runtime
    from ohsandbox.secrets import Masker

    AnyTool = ToolDefinition[Any, Any]
    Tell = Callable[[str], None]
    Report = Callable[[float, str], Awaitable[None]]

T = TypeVar("T")

MAX_SIDE_BY_SIDE = 4
"""Limit of concurrent read-only calls: more would only queue for the sandbox's cores."""

INTERRUPT_EVERY_S = 0.5
"""An interrupt can arrive before its command starts; it is repeated until the call has ended."""

_OBEY_S = 4.0
"""Time for a cancelled call to end; a command is killed within a second. Afterwards every shell is ended."""

CLOSE_S = 20.0
"""An engine takes up to ten seconds to remove a container; `gc` removes one that takes longer."""

_STARTING_S = 3.0
"""At the session's end, wait this long for a start in progress: it creates a container in one second, and pulls in
minutes. `gc` removes what it leaves."""

LOOK_EVERY_S = 0.5
"""The interval of checks for a new last line of output to report; nobody reads faster."""

_STILL_S = 1.0
"""The interval of progress reports for a call without new output: clients give up on a silent call."""


MAX_LINE_CHARS = 200
"""Limit of a reported line: a client shows progress on one line of a terminal or of a side bar."""


def submit_to_thread(work: Callable[[], T]) -> asyncio.Future[T]:
    """Run work in its own daemon thread: one that hangs (a pull, a dead engine) blocks neither loop nor exit.

    Cancelling the future does not end the work; nor does cancelling a wait for it with `asyncio.wait`.
    """
    future = asyncio.ensure_future(loop.in_daemon_thread(work, "ohsandbox-mcp-server"))
    future.add_done_callback(lambda done: done.cancelled() or done.exception())  # retrieved, so not logged by asyncio
    return future


class CallQueue:
    """Runs calls in the order of arrival; adjacent read-only calls run concurrently."""

    def __init__(self) -> None:
        self._first = asyncio.Lock()
        """Held by the first call in the queue; asyncio's lock is granted in the order of arrival."""
        self._ended = asyncio.Event()
        self._running: list[bool] = []
        """For each running call, whether it is read-only."""

    @contextlib.asynccontextmanager
    async def turn(self, *, reads: bool) -> AsyncIterator[None]:
        """Wait for the call's turn and hold it within the block; a caller cancelled while waiting leaves the queue."""
        async with self._first:
            while self._running and not (reads and all(self._running) and len(self._running) < MAX_SIDE_BY_SIDE):
                self._ended.clear()
                await self._ended.wait()
            self._running.append(reads)
        try:
            yield
        finally:
            self._running.remove(reads)
            self._ended.set()


@dataclass(frozen=True)
class SandboxFactory:
    """Creates and starts sandboxes."""

    make: Callable[[Tell], Runtime]
    """Makes a runtime that is not started; it reports the progress of its start."""
    start: Callable[[Runtime], contextlib.AbstractContextManager[Runtime]]
    """Starts the runtime, unless it has started, and closes it at the exit."""
    take: Callable[[], Runtime] | None = None
    """Returns a runtime that has started; None: each session makes and starts one when it needs it."""


def tools_in(
    runtime: Runtime, names: Sequence[str], keeper: CheckpointTools, limits: OutputLimits
) -> dict[str, AnyTool]:
    """Make the tools for the runtime, by name; it need not have started.

    Raises:
        UsageError: no tool has one of the names.
    """
    state = ConversationState(conversation_id="mcp", runtime=runtime, output=limits)
    made = [tool for name in names for tool in resolve_tool(Tool(name=name), state)]
    return {tool.name: replace(tool, limits=limits) for tool in [*made, *keeper.tools()]}


class SandboxSession:
    """One session's sandbox. All coroutines run on one loop."""

    def __init__(self, place: SandboxFactory, names: Sequence[str], limits: OutputLimits = DEFAULT_LIMITS) -> None:
        """Start with no sandbox: many clients start every configured server and never call most of them."""
        self._place, self._names, self._limits = place, names, limits
        self._turns = CallQueue()
        self._guard = threading.Lock()
        self._stack = contextlib.ExitStack()
        self._tools: dict[str, AnyTool] = {}
        self._runtime: Runtime | None = None
        self._closed = False

    @property
    def masker(self) -> Masker | None:
        """Masks the secrets of the sandbox; None before it is created."""
        runtime = self._runtime
        return None if runtime is None else runtime.secrets.masker

    async def call(self, tool: AnyTool, arguments: Mapping[str, Any], *, report: Report | None = None) -> Observation:
        """Run the tool when its turn comes. An error is returned as an observation.

        Cancelling ends the running command, and returns when it has ended. report receives the progress.
        """
        call = _ToolCall(self, tool.name, arguments)
        async with anyio.create_task_group() as group:
            if report is not None:
                group.start_soon(call.report, report)
            async with self._turns.turn(reads=tool.is_read_only):
                observation = await call.run()
            group.cancel_scope.cancel()
        return observation

    async def close(self) -> None:
        """End all running calls and close the sandbox, in bounded time."""
        with anyio.CancelScope(shield=True):
            await asyncio.wait(
                {submit_to_thread(self._close)}, timeout=_STARTING_S if self._runtime is None else CLOSE_S
            )

    def ready(self, name: str, tell: Tell) -> AnyTool:
        """Return the tool in a started sandbox; blocks.

        Raises:
            SandboxUnavailable: it cannot be started.
        """
        with self._guard:
            if self._closed:
                raise SandboxGone("The session has ended.")
            if self._runtime is None:
                runtime = self._place.make(tell) if self._place.take is None else self._place.take()
                keeper = CheckpointTools(runtime)
                self._stack.callback(keeper.close)  # runs after the sandbox has gone
                try:
                    self._stack.enter_context(self._place.start(runtime))
                except BaseException:
                    self._stack.close()
                    raise
                self._runtime = runtime
                self._tools = tools_in(runtime, self._names, keeper, self._limits)
            return self._tools[name]

    def lose(self, tool: AnyTool) -> None:
        """Drop the sandbox of the tool; the next call creates another."""
        with self._guard:
            if self._tools.get(tool.name) is tool:  # a concurrent call may have a new tool already
                self._let_go()

    def end_shells(self) -> None:
        """End every shell and its processes."""
        runtime = self._runtime
        for shell in [] if runtime is None else runtime.list_sessions():
            with contextlib.suppress(OhsandboxError):
                runtime.close_session(shell)  # type: ignore[union-attr]

    def _close(self) -> None:
        self._closed = True  # a start in progress sees it at its end
        with self._guard:
            self._let_go()

    def _let_go(self) -> None:
        tools, self._tools, self._runtime = self._tools, {}, None
        for tool in tools.values():
            with contextlib.suppress(OhsandboxError):
                tool.close()
        self._stack.close()


class _ToolCall:
    """One call, in a thread."""

    def __init__(self, session: SandboxSession, name: str, arguments: Mapping[str, Any]) -> None:
        self._session, self._name, self._arguments = session, name, arguments
        self._cancelled = False
        self._tool: AnyTool | None = None
        self._status = f"{name} waits for another call of this session to end"

    async def run(self) -> Observation:
        """Run the call; cancelling ends the running work, and returns when it has ended."""
        self._status = ""
        job = submit_to_thread(self._work)
        try:
            return await asyncio.shield(job)
        except asyncio.CancelledError:
            with anyio.CancelScope(shield=True):
                await self._end(job)
            raise

    def _work(self) -> Observation:
        try:
            self._tool = tool = self._session.ready(self._name, self._set_status)
            self._set_status("")
            if self._cancelled:
                return ErrorObservation(message="Cancelled before it began.")
            try:
                observation: Observation = tool(tool.action_from_arguments(self._arguments))
            except SandboxGone as error:
                self._session.lose(tool)
                message = f"{error} The next call starts a new sandbox; files in this one are lost."
                return ErrorObservation(message=message)
        except SandboxFileError as error:
            return ErrorObservation(message=error.message)
        except OhsandboxError as error:
            return ErrorObservation(message=str(error))
        except Exception as error:  # noqa: BLE001 - the client gets every fault of a tool
            return ErrorObservation(message=f"Tool {self._name!r} failed: {type(error).__name__}: {error}")
        return observation

    def _set_status(self, text: str) -> None:
        self._status = text

    async def report(self, report: Report) -> None:
        """Report progress until cancelled."""
        began = anyio.current_time()
        told, told_at = "", 0.0
        while True:
            await anyio.sleep(LOOK_EVERY_S)
            words = self._status or await submit_to_thread(self._last_line)
            elapsed_s = anyio.current_time() - began
            if words != told or elapsed_s - told_at >= _STILL_S:
                told, told_at = words, elapsed_s
                line = f"{int(elapsed_s)} s: {words}" if words else f"{self._name} has run for {int(elapsed_s)} s"
                await report(elapsed_s, line)

    def _last_line(self) -> str:
        return "" if self._tool is None else last_line(self._tool.last_output(), self._session.masker)

    async def _end(self, job: asyncio.Future[Observation]) -> None:
        """Interrupt the running work until it has ended; a sandbox start continues for the next call."""
        self._cancelled = True
        began = anyio.current_time()
        while not job.done() and self._tool is not None and anyio.current_time() - began < _OBEY_S:
            await asyncio.wait({submit_to_thread(self._interrupt)}, timeout=INTERRUPT_EVERY_S)
            await asyncio.wait({job}, timeout=INTERRUPT_EVERY_S)
        if not job.done() and self._tool is not None:
            await asyncio.wait({submit_to_thread(self._session.end_shells)}, timeout=CLOSE_S)
            await asyncio.wait({job}, timeout=_OBEY_S)

    def _interrupt(self) -> None:
        if self._tool is not None:
            with contextlib.suppress(OhsandboxError):  # a dead sandbox needs no interrupt
                self._tool.interrupt()


def last_line(tail: bytes, masker: Masker | None = None) -> str:
    """The last non-blank line of a growing stream's tail; incomplete sequences in it are left out."""
    for line in reversed(printable_end(tail, masker).split("\n")):
        if words := " ".join(line.split()):
            return words if len(words) <= MAX_LINE_CHARS else f"{words[: MAX_LINE_CHARS - 1]}…"
    return ""
