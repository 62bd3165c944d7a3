"""Ending a request from elsewhere."""

from __future__ import annotations

import os
import signal
import threading
import time

import pytest

from ohsandbox.llm import LLM, ChatResponse, ModelCanceledError, OnEvent
from ohsandbox.testing.provider import FakeProvider, error, text

pytestmark = pytest.mark.usefixtures("each_client")

HI = [{"role": "user", "content": "hi"}]


def in_thread(
    llm: LLM, *, on_event: OnEvent | None = None
) -> tuple[threading.Thread, list[ChatResponse | BaseException]]:
    outcome: list[ChatResponse | BaseException] = []

    def run() -> None:
        try:
            outcome.append(llm.send(HI, on_event=on_event))
        except BaseException as caught:  # noqa: BLE001 - handed to the test
            outcome.append(caught)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, outcome


def cancel_until_done(llm: LLM, thread: threading.Thread) -> None:
    while thread.is_alive():
        llm.cancel()
        thread.join(0.01)


@pytest.mark.parametrize("stream", [False, True])
def test_cancel_ends_a_request_under_way(*, stream: bool) -> None:
    with FakeProvider(text("late")._replace(delay_s=60)) as provider:
        llm = LLM(provider.config(stream=stream))
        thread, outcome = in_thread(llm)
        provider.arrived.wait()
        cancel_until_done(llm, thread)
    assert isinstance(outcome[0], ModelCanceledError)
    assert len(provider.requests) == 1


def test_cancel_ends_a_wait() -> None:
    waiting = threading.Event()
    with FakeProvider(error(429, "slow", {"Retry-After": "300"}), text("never")) as provider:
        llm = LLM(provider.config())
        thread, outcome = in_thread(llm, on_event=lambda _: waiting.set())
        waiting.wait()
        llm.cancel()
        thread.join()
    assert isinstance(outcome[0], ModelCanceledError)
    assert len(provider.requests) == 1


def test_a_canceled_model_can_be_asked_again() -> None:
    with FakeProvider(text("late")._replace(delay_s=60), text("ok")) as provider:
        llm = LLM(provider.config())
        thread, _ = in_thread(llm)
        provider.arrived.wait()
        cancel_until_done(llm, thread)
        llm.cancel()
        assert llm.send(HI).message.content == "ok"


def interrupt_when(event: threading.Event, *, after_s: float = 0.0) -> None:
    def run() -> None:
        event.wait()
        time.sleep(after_s)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=run, daemon=True).start()


def test_ctrl_c_passes_through_a_request() -> None:
    with FakeProvider(text("late")._replace(delay_s=60)) as provider:
        interrupt_when(provider.arrived)
        with pytest.raises(KeyboardInterrupt):
            LLM(provider.config()).send(HI)


def test_ctrl_c_passes_through_a_wait() -> None:
    waiting = threading.Event()
    with FakeProvider(error(429, "slow", {"Retry-After": "300"})) as provider:
        interrupt_when(waiting, after_s=0.1)
        with pytest.raises(KeyboardInterrupt):
            LLM(provider.config()).send(HI, on_event=lambda _: waiting.set())
