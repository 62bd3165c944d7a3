"""The async face of a runtime: the same results, any number at once, and nothing that outlives its task."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import inspect
import os
import select
import subprocess
import sys
import textwrap
import threading
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest

from ohsandbox import Runtime, abuild_image, afind_sandbox, alist_sandboxes, aremove_sandbox
from ohsandbox.errors import EngineUnavailable, SandboxFileNotFoundError, UsageError, WorkdirMissingError
from ohsandbox.runtime import aio, to_thread
from ohsandbox.runtime.local import LocalChannel
from ohsandbox.testing import FakeRuntime
from ohsandbox.testing.conformance.case import is_running, number_nobody_sleeps
from tests.aio import on, on_each

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator, Sequence

    from ohsandbox.runtime import Channel

TREE = "setsid sleep {0} & sleep {0} & echo begun; wait"


class OneDescriptor(LocalChannel):
    """A process whose streams come over one descriptor, as an engine's do."""

    def __init__(self, *words: Any, **options: Any) -> None:
        super().__init__(*words, **options)
        self._both = select.epoll()
        for descriptor in super().filenos():
            self._both.register(descriptor, select.EPOLLIN)

    def filenos(self) -> list[int]:
        return [self._both.fileno()] if super().filenos() else []

    def close(self) -> None:
        super().close()
        self._both.close()


class EngineLike(FakeRuntime):
    """A `FakeRuntime` whose workers have channels like those of an engine."""

    def open_channel(self, argv: Sequence[str], *, tty: bool = False, **options: Any) -> Channel:
        env = options.get("env") or {}
        if tty or "OHSANDBOX_KEEPER" in env:
            return super().open_channel(argv, tty=tty, **options)
        return OneDescriptor(argv, tty=False, env={**os.environ, **env}, workdir=self.workdir)


@pytest.fixture(params=[pytest.param(FakeRuntime, marks=pytest.mark.slow), EngineLike])
def runtime(request: pytest.FixtureRequest) -> Iterator[FakeRuntime]:
    with request.param() as started:
        yield started


def a_minute_without_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have no call need a thread because this machine is busy."""
    monkeypatch.setattr(aio, "AT_ONCE_S", 60.0)


async def cancelled_once_it_prints(call: Callable[..., Coroutine[Any, Any, object]]) -> None:
    """Await call in a task that is cancelled at its first output."""
    begun = threading.Event()
    async with anyio.create_task_group() as group:
        group.start_soon(partial(call, on_output=lambda *_: begun.set()))
        await anyio.to_thread.run_sync(begun.wait)
        group.cancel_scope.cancel()


# --- the same as the blocking methods ---

AT_ONCE = {
    "describe", "discard_changes", "environment", "get_tools", "give_secrets", "hand_over", "hold", "last_output",
    "is_warm", "keep_outside", "list_sessions", "reopen_session", "take_notices",
}  # fmt: skip
"""They ask the sandbox nothing."""
FOR_BACKENDS = {
    "channel", "check_alive", "connect_proxy", "fork", "keep_setup", "leave", "open_channel", "prepare_browser",
    "ran_out_of_memory", "recover", "recover_from", "restart", "snippet", "warm_up", "watch", "with_recovery",
}  # fmt: skip
"""Called by ourselves, or by who writes a runtime."""


def test_each_public_method_of_a_runtime_that_asks_the_sandbox_has_an_async_form_in_the_reference() -> None:
    methods = {name for name, one in inspect.getmembers(Runtime, inspect.isfunction) if not name.startswith("_")}
    blocking = {name for name in methods if not inspect.iscoroutinefunction(getattr(Runtime, name))}
    page = (Path(__file__).parents[2] / "docs" / "api.md").read_text()
    for name in blocking - AT_ONCE - FOR_BACKENDS:
        awaited = f"a{name}"
        assert inspect.iscoroutinefunction(getattr(Runtime, awaited, None)), f"{name} has no async form"
        assert f"| `{awaited}(...)` | `{name}(...)` |" in page or f"#### `Runtime.{awaited}`" in page


@on_each
async def test_sandboxes_are_found_and_refused_as_by_the_blocking_functions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///nonexistent/docker.sock")
    for call in (alist_sandboxes(), afind_sandbox("x"), aremove_sandbox("x"), abuild_image("none/such")):
        with pytest.raises((EngineUnavailable, UsageError), match=r"No Docker engine answers|does not exist"):
            await call


@on_each
async def test_each_call_returns_what_the_blocking_one_does(runtime: FakeRuntime, tmp_path: Path) -> None:
    assert (await runtime.aexecute("cd /tmp; echo $X", env={"X": "1"})).output == "1\n"
    assert (await runtime.arun(["sh", "-c", "cat; exit 3"], stdin=b"\x00"))[:2] == (3, b"\x00")
    await runtime.awrite_bytes("notes/a", b"text", mode=0o600)
    assert await runtime.aread_bytes("notes/a") == b"text"
    assert [entry.name for entry in await runtime.alist_dir("notes")] == ["a"]
    assert await runtime.adownload("notes/a", tmp_path / "a") == []
    assert await runtime.aupload(tmp_path / "a", "notes/b") == []
    assert runtime.read_bytes("notes/b") == b"text"
    await runtime.aset_env({"Y": "2"})
    await runtime.aopen_session("other", workdir="/tmp")
    assert (await runtime.aexecute("echo $Y $PWD", session="other")).output == "2 /tmp\n"
    await runtime.ainterrupt("other")
    await runtime.aclose_session("other")
    assert runtime.list_sessions() == ["main"]
    assert await runtime.ais_alive()
    assert (await runtime.aresume()).how == "same"
    assert (await runtime.aworkspace_changes()).changes == runtime.workspace_changes().changes
    seen = await runtime.aexecute_tool("file_read", {"path": "notes/b"})
    assert seen == runtime.execute_tool("file_read", {"path": "notes/b"})


@on_each
async def test_async_with_starts_and_closes() -> None:
    async with FakeRuntime() as runtime:
        assert runtime.is_alive()
    assert not runtime.is_alive()


@on_each
async def test_exceptions_are_those_of_the_blocking_call(runtime: FakeRuntime) -> None:
    raised = ZeroDivisionError("of a callback")

    def fail(*_: object) -> None:
        raise raised

    with pytest.raises(UsageError, match="NUL"):
        await runtime.aexecute("\0")
    with pytest.raises(SandboxFileNotFoundError):
        await runtime.aread_bytes("missing")
    with pytest.raises(ZeroDivisionError) as caught:
        await runtime.arun(["echo"], on_output=fail) or await runtime.arun(["echo", "x"], on_output=fail)
    assert caught.value is raised


@on_each
async def test_context_variables_reach_the_callbacks(runtime: FakeRuntime) -> None:
    who = contextvars.ContextVar("who", default="nobody")
    who.set("me")
    heard: list[str] = []
    await runtime.aexecute("echo", on_output=lambda _: heard.append(who.get()))
    assert set(heard) == {"me"}


@on_each
async def test_output_is_heard_in_the_call_s_thread_not_in_the_event_loop_s(runtime: FakeRuntime) -> None:
    threads: set[threading.Thread] = set()
    await runtime.arun(["echo", "x"], on_output=lambda *_: threads.add(threading.current_thread()))
    assert [thread.name for thread in threads] == ["ohsandbox-call"]
    assert threading.current_thread() not in threads


@on_each
async def test_a_subclass_s_own_method_is_the_one_that_is_awaited() -> None:
    class Loud(FakeRuntime):
        def read_bytes(self, path: Any, **options: Any) -> bytes:
            return str(path).upper().encode() + super().read_bytes(path, **options)

    async with Loud() as runtime:
        await runtime.awrite_bytes("a", b"!")
        assert await runtime.aread_bytes("a") == b"A!"


def test_the_methods_have_the_signature_and_the_words_of_the_blocking_ones() -> None:
    assert FakeRuntime.arun.__doc__ == FakeRuntime.run.__doc__
    assert FakeRuntime.arun.__qualname__ == "Runtime.arun"


# --- without a thread ---


@on_each
async def test_a_short_call_needs_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    with EngineLike() as runtime:
        runtime.execute("X=1")
        while not runtime._pool._idle[None]:
            runtime.run(["true"])
        a_minute_without_threads(monkeypatch)
        monkeypatch.setattr(aio, "_idle_or_new", None)
        told = await runtime.aexecute("echo $X; (exit 4)", timeout_s=90)
        assert (told.output, told.exit_code) == ("1\n", 4)
        assert (await runtime.arun(["sh", "-c", "echo $Y; exit 5"], env={"Y": "2"}))[:2] == (5, b"2\n")
        with pytest.raises(WorkdirMissingError):
            await runtime.arun(["true"], workdir="/missing")


@on_each
async def test_a_blocking_call_from_the_event_loop_waits_for_an_awaited_one(
    runtime: FakeRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime.execute("true")
    a_minute_without_threads(monkeypatch)
    results: list[str] = []

    async def awaited() -> None:
        results.append((await runtime.aexecute("until [ -e go ]; do sleep 0.02; done; echo done")).output)

    async with anyio.create_task_group() as group:
        group.start_soon(awaited)
        await anyio.lowlevel.checkpoint()
        timer = threading.Timer(0.2, runtime.write_bytes, ("go", b""))
        timer.start()
        assert runtime.execute("echo after").output == "after\n"
        timer.join()
    assert results == ["done\n"]


@pytest.mark.slow
@on_each
async def test_a_time_limit_that_is_shorter_than_the_wait_without_a_thread_is_kept(runtime: FakeRuntime) -> None:
    runtime.execute("true")
    number = number_nobody_sleeps()
    assert (await runtime.aexecute(f"sleep {number}", timeout_s=0.02)).timed_out
    assert (await runtime.arun(["sleep", number], timeout_s=0.02)).timed_out
    assert not is_running(runtime, f"sleep {number}", within_s=0)


@on_each
async def test_much_output_and_a_shell_that_ends_are_what_a_blocking_call_tells(runtime: FakeRuntime) -> None:
    runtime.execute("true")
    assert len((await runtime.aexecute("yes | head -c 300000")).output) == 300000
    assert len((await runtime.arun(["head", "-c", "300000", "/dev/zero"])).stdout) == 300000
    assert (await runtime.aexecute("exit 3")).exit_code == 3
    assert (await runtime.aexecute("kill -9 $$")).exit_code == 137
    assert (await runtime.arun(["sh", "-c", "kill -9 $$"])).exit_code == 137
    assert (await runtime.arun(["sh", "-c", "kill -9 $PPID"])).exit_code == 137
    assert (await runtime.aexecute("echo ok")).output == "ok\n"


@on("asyncio")
async def test_a_call_whose_task_is_thrown_away_ends_and_gives_its_session_back(runtime: FakeRuntime) -> None:
    number = number_nobody_sleeps()
    runtime.execute("true")
    call = runtime.aexecute(f"sleep {number}")
    call.send(None)
    with contextlib.suppress(RuntimeError):  # it waits for the end of the command, which nothing can await
        call.close()
    assert (await runtime.aexecute("echo ok")).output == "ok\n"
    assert not is_running(runtime, f"sleep {number}", within_s=0)


# --- many at once ---


@on_each
async def test_thirty_commands_run_at_the_same_time(runtime: FakeRuntime) -> None:
    all_are_there = threading.Barrier(30, timeout=60)
    async with anyio.create_task_group() as group:
        for _ in range(30):
            group.start_soon(partial(runtime.arun, ["echo", "x"], on_output=lambda *_: all_are_there.wait()))
    assert not all_are_there.broken


@pytest.mark.docker
@on("asyncio")
async def test_thirty_commands_at_once_leave_their_workers_for_the_next_thirty(
    flavour: Callable[[str], Runtime], monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime = flavour("debian")
    for _ in range(2):
        all_are_there = threading.Barrier(30, timeout=60)
        wait = partial(lambda barrier, *_: barrier.wait(), all_are_there)
        async with anyio.create_task_group() as group:
            for _ in range(30):
                group.start_soon(partial(runtime.arun, ["echo"], on_output=wait))
        monkeypatch.setattr(runtime, "open_channel", None)  # the next ones start no process
    assert not all_are_there.broken


@on_each
async def test_the_event_loop_goes_on_while_a_command_runs(runtime: FakeRuntime) -> None:
    release = anyio.Event()

    async def command() -> None:
        await runtime.arun(["sh", "-c", "until [ -e go ]; do sleep 0.02; done"])
        release.set()

    async with anyio.create_task_group() as group:
        group.start_soon(command)
        assert not release.is_set()
        await runtime.awrite_bytes("go", b"")
    assert release.is_set()


# --- cancelled ---


@on_each
@pytest.mark.parametrize("method", ["arun", "aexecute"])
async def test_a_cancelled_task_s_processes_are_gone_when_it_is_over(runtime: FakeRuntime, method: str) -> None:
    number = number_nobody_sleeps()
    script = TREE.format(number)
    command: Any = ["sh", "-c", script] if method == "arun" else f"({script})"
    await cancelled_once_it_prints(partial(getattr(runtime, method), command))
    assert not is_running(runtime, f"sleep {number}", within_s=0)
    assert (await runtime.aexecute("echo ok")).output == "ok\n"


@on_each
async def test_a_time_limit_of_the_event_loop_ends_the_command(runtime: FakeRuntime) -> None:
    number = number_nobody_sleeps()
    with pytest.raises(TimeoutError), anyio.fail_after(0.3):
        await runtime.aexecute(f"sleep {number}")
    assert not is_running(runtime, f"sleep {number}", within_s=0)


@on("asyncio")
async def test_asyncio_s_own_time_limits_end_the_command(runtime: FakeRuntime) -> None:
    number = number_nobody_sleeps()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(runtime.arun(["sleep", number]), 0.3)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.3):
            await runtime.arun(["sleep", number])
    assert not is_running(runtime, f"sleep {number}", within_s=0)


@on("asyncio")
async def test_a_task_that_is_cancelled_twice_still_waits_for_the_end(runtime: FakeRuntime) -> None:
    number, begun = number_nobody_sleeps(), threading.Event()
    call = runtime.arun(["sh", "-c", TREE.format(number)], on_output=lambda *_: begun.set())
    task = asyncio.ensure_future(call)
    await anyio.to_thread.run_sync(begun.wait)
    for _ in range(3):
        task.cancel()
        await asyncio.sleep(0)
    await asyncio.wait([task])
    assert task.cancelled()
    assert not is_running(runtime, f"sleep {number}", within_s=0)


@on_each
async def test_one_of_many_is_cancelled_and_the_others_go_on(runtime: FakeRuntime) -> None:
    results: list[bytes] = []

    async def other() -> None:
        results.append((await runtime.arun(["sh", "-c", "until [ -e go ]; do sleep 0.02; done; echo done"])).stdout)

    async with anyio.create_task_group() as group:
        group.start_soon(other)
        await cancelled_once_it_prints(partial(runtime.arun, ["sh", "-c", "echo begun; sleep 1000"]))
        await runtime.awrite_bytes("go", b"")
    assert results == [b"done\n"]


@on_each
async def test_the_caller_s_own_event_gives_a_result_and_is_not_set_by_a_cancelled_task(runtime: FakeRuntime) -> None:
    mine = threading.Event()
    await cancelled_once_it_prints(partial(runtime.arun, ["sh", "-c", "echo begun; sleep 1000"], cancel=mine))
    assert not mine.is_set()
    result = await runtime.arun(["sh", "-c", "echo x; sleep 1000"], cancel=mine, on_output=lambda *_: mine.set())
    assert result.cancelled


@on_each
async def test_a_write_is_waited_for_when_its_task_is_cancelled() -> None:
    begun, release = threading.Event(), threading.Event()

    class Slow(FakeRuntime):
        def write_bytes(self, path: Any, data: bytes, **options: Any) -> None:
            begun.set()
            release.wait(60)
            super().write_bytes(path, data, **options)

    async with Slow() as slow:
        async with anyio.create_task_group() as group:
            group.start_soon(slow.awrite_bytes, "a", b"whole")
            await anyio.to_thread.run_sync(begun.wait)
            group.cancel_scope.cancel()
            threading.Timer(0.1, release.set).start()
        assert slow.read_bytes("a") == b"whole"


@on_each
async def test_nothing_begins_in_a_task_that_is_cancelled_already(runtime: FakeRuntime) -> None:
    with anyio.CancelScope() as scope:
        scope.cancel()
        await runtime.arun(["touch", "begun"])
    assert scope.cancelled_caught
    assert (await runtime.arun(["ls"])).stdout == b""


# --- opened and closed ---


@on_each
async def test_a_cancelled_start_closes_what_it_started() -> None:
    starting, release = threading.Event(), threading.Event()
    closed: list[bool] = []

    class Slow(FakeRuntime):
        def start(self) -> Slow:
            starting.set()
            release.wait(60)
            return super().start()

        def close(self, *, keep: bool | None = None) -> None:
            closed.append(self.is_alive())
            super().close(keep=keep)

    async with anyio.create_task_group() as group:
        slow = Slow()
        group.start_soon(slow.astart)
        await anyio.to_thread.run_sync(starting.wait)
        group.cancel_scope.cancel()
        threading.Timer(0.1, release.set).start()
    assert closed == [True]
    assert not slow.is_alive()


@on_each
async def test_a_cancelled_start_of_what_runs_already_leaves_it_running(runtime: FakeRuntime) -> None:
    with anyio.CancelScope() as scope:
        scope.cancel()
        await runtime.astart()
    assert runtime.is_alive()


@on_each
async def test_leaving_a_cancelled_block_closes_the_sandbox() -> None:
    with anyio.CancelScope() as scope:
        async with FakeRuntime() as runtime:
            scope.cancel()
            await anyio.sleep_forever()
    assert not runtime.is_alive()


@on_each
async def test_two_tasks_may_close_at_the_same_time() -> None:
    runtime = await FakeRuntime().astart()
    async with anyio.create_task_group() as group:
        group.start_soon(runtime.aclose)
        group.start_soon(runtime.aclose)
    assert not runtime.is_alive()


# --- threads ---


@on_each
async def test_a_thread_is_used_again_and_ends_after_a_while_without_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    def current(*, cancel: threading.Event | None = None) -> threading.Thread:
        assert cancel is not None
        return threading.current_thread()

    first = await to_thread(current)
    assert await to_thread(current) is first
    monkeypatch.setattr(aio, "IDLE_S", 0.01)
    await to_thread(current)  # the limit is read before each wait
    await anyio.to_thread.run_sync(first.join)


@pytest.mark.slow
@on("asyncio")
async def test_a_call_that_never_ends_does_not_hold_up_the_end_of_the_program() -> None:
    program = """
        import asyncio, threading
        from ohsandbox.runtime.aio import in_thread
        loop = asyncio.new_event_loop()
        task = loop.create_task(in_thread(threading.Event().wait))
        loop.run_until_complete(asyncio.sleep(0.1))
        print("at the end", flush=True)
    """
    ended = await anyio.run_process([sys.executable, "-c", textwrap.dedent(program)], stderr=subprocess.DEVNULL)
    assert ended.stdout == b"at the end\n"
