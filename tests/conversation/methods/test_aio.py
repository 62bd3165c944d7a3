"""A conversation awaited: the same result, the events as they come, and no run behind the caller's back."""

from __future__ import annotations

import contextlib
import inspect
import time
from typing import TYPE_CHECKING

import anyio
import anyio.to_thread
import pytest

from ohsandbox.agent import Agent
from ohsandbox.conversation import Conversation
from ohsandbox.errors import UsageError
from ohsandbox.events import ConversationStatus as Status
from ohsandbox.testing import FakeRuntime
from ohsandbox.testing.conformance.case import is_running, number_nobody_sleeps
from tests.aio import on_each
from tests.fakes import FakeModel, RecordingRuntime, answer, call

if TYPE_CHECKING:
    from pathlib import Path

    from ohsandbox.llm import ChatResponse


def bash(command: str) -> ChatResponse:
    return answer("", call("execute_bash", {"command": command}))


def until_it_runs(runtime: FakeRuntime, command: str) -> None:
    while not is_running(runtime, command, within_s=0):
        time.sleep(0.05)


def talk(tmp_path: Path, *turns: ChatResponse) -> Conversation:
    return Conversation(Agent(FakeModel(*turns)), RecordingRuntime(), tmp_path)


@on_each
async def test_arun_returns_what_run_returns(tmp_path: Path) -> None:
    async with talk(tmp_path, answer("Hello."), answer("Again.")) as conversation:
        awaited, ran = await conversation.arun("hi"), conversation.run("hi")
        assert type(awaited) is type(ran)
        assert awaited == Status.IDLE
        assert (awaited.answer, ran.answer) == ("Hello.", "Again.")
    with pytest.raises(UsageError, match="closed"):
        conversation.run("more")


@on_each
async def test_time_travel_is_awaited_as_it_is_called(tmp_path: Path) -> None:
    for name in ("fork", "undo", "redo", "diff"):
        called, awaited = (inspect.signature(getattr(Conversation, one)) for one in (name, f"a{name}"))
        assert awaited.parameters == called.parameters
    async with talk(tmp_path, answer("Hello.")) as conversation:
        await conversation.arun("hi")
        with pytest.raises(UsageError, match=r"fewer|kept|turn"):
            await conversation.aundo(2)
        with pytest.raises(UsageError, match="undo"):
            await conversation.aredo()


@on_each
async def test_a_message_is_sent_and_waited_for(tmp_path: Path) -> None:
    async with talk(tmp_path, answer("Hello.")) as conversation:
        await conversation.asend_message("hi")
        assert conversation.wait(60) == Status.IDLE
        assert await conversation.astop() is Status.IDLE


@on_each
async def test_a_stream_has_every_event_of_the_run_in_order(tmp_path: Path) -> None:
    turns = (bash("ls"), answer("Done."), answer("Two."))
    async with talk(tmp_path, *turns) as conversation:
        before = len(conversation.events())
        streamed = [event async for event in conversation.stream("hi")]
        assert streamed == conversation.events()[before:]
        assert "tool_result" in {event.type for event in streamed}
        assert conversation.status() is Status.IDLE
        assert [event.data async for event in conversation.stream("more") if event.type == "user_message"] != []


@on_each
async def test_a_cancelled_run_is_stopped_with_what_it_runs(tmp_path: Path) -> None:
    number = number_nobody_sleeps()
    with FakeRuntime() as runtime:
        agent = Agent(FakeModel(bash(f"setsid sleep {number} & sleep {number}")))
        async with Conversation(agent, runtime, tmp_path) as conversation:
            async with anyio.create_task_group() as group:
                group.start_soon(conversation.arun, "go")
                await anyio.to_thread.run_sync(until_it_runs, runtime, f"sleep {number}")
                group.cancel_scope.cancel()
            assert conversation.status() is Status.CANCELED
        assert not is_running(runtime, f"sleep {number}")


@on_each
async def test_a_stream_that_is_left_early_stops_the_run(tmp_path: Path) -> None:
    number = number_nobody_sleeps()
    with FakeRuntime() as runtime:
        agent = Agent(FakeModel(bash(f"sleep {number}")))
        async with Conversation(agent, runtime, tmp_path) as conversation:
            async with contextlib.aclosing(conversation.stream("go")) as stream:
                async for event in stream:
                    if event.type == "tool_call":
                        break
            assert conversation.status() is Status.CANCELED
        assert not is_running(runtime, f"sleep {number}")


@on_each
async def test_a_stream_that_is_cancelled_stops_the_run(tmp_path: Path) -> None:
    with FakeRuntime() as runtime:
        agent = Agent(FakeModel(bash("sleep 1000")))
        async with Conversation(agent, runtime, tmp_path) as conversation:
            with anyio.CancelScope() as scope:
                async for event in conversation.stream("go"):
                    if event.type == "tool_call":
                        scope.cancel()
            assert scope.cancelled_caught
            assert await conversation.astop() is Status.CANCELED


@on_each
async def test_a_stream_raises_what_send_message_raises(tmp_path: Path) -> None:
    conversation = talk(tmp_path, answer("Hello."))
    await conversation.aclose()
    with pytest.raises(UsageError, match="closed"):
        await anext(conversation.stream("hi"))
