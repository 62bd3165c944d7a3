"""What many conversations with one provider do where it limits the rate."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from ohsandbox.llm import LLM, LLMEvent, ModelCanceledError, ModelRateLimitedError, ModelUnavailableError, RetryEvent
from ohsandbox.llm.back_off import SharedBackOff
from ohsandbox.llm.error_mapping import RATE_LIMIT, Failure, failure
from ohsandbox.testing.provider import FakeClock, FakeProvider, Reply, Request, error, text

if TYPE_CHECKING:
    from collections.abc import Callable


HI = [{"role": "user", "content": "hi"}]
WORKERS = 8


class LimitedServer:
    """Refuses the first `WORKERS` requests, which are there at the same time, and so many more; then it answers."""

    def __init__(self, *, refuses_more: int, retry_after: str | None = "1") -> None:
        self.refused = 0
        self.herd = 0
        """The most that were there at the same time after the first refusals, before the first answer."""
        self._refusals = WORKERS + refuses_more
        self._headers = {} if retry_after is None else {"Retry-After": retry_after}
        self._storm = threading.Barrier(WORKERS)
        self._lock = threading.Lock()
        self._inside = 0
        self._answered = False

    def __call__(self, _request: Request) -> Reply:
        with self._lock:
            number = self.refused
            self.refused += number < self._refusals
        if number < WORKERS:
            self._storm.wait(60)
            return error(429, "slow down", self._headers)
        with self._lock:
            self._inside += 1
            if not self._answered:
                self.herd = max(self.herd, self._inside)
        time.sleep(0.2)  # whoever comes with it is there by then
        with self._lock:
            self._inside -= 1
            if number < self._refusals:
                return error(429, "slow down", self._headers)
            self._answered = True
        return text("fine")


def ask_all(provider: FakeProvider, shared: SharedBackOff) -> list[str]:
    def ask(_: int) -> str:
        return LLM(provider.config(), back_off=shared.member()).send(HI).message.content

    with ThreadPoolExecutor(WORKERS) as pool:
        return list(pool.map(ask, range(WORKERS)))


@pytest.mark.slow
def test_eight_workers_come_back_one_by_one_and_meet_a_limit_once() -> None:
    server, waits = LimitedServer(refuses_more=1), list[float]()
    with FakeProvider(answer=server) as provider:
        assert ask_all(provider, SharedBackOff(tell=waits.append)) == ["fine"] * WORKERS
    assert (server.refused, len(provider.requests), server.herd) == (WORKERS + 1, 2 * WORKERS + 1, 1)
    assert waits == pytest.approx([1.0, 1.0], abs=0.01)


def send(llm: LLM, on_event: Callable[[LLMEvent], None] | None = None) -> str:
    return llm.send(HI, on_event=on_event).message.content


def test_one_that_was_not_refused_waits_with_the_one_that_was() -> None:
    clock = FakeClock()
    shared = SharedBackOff(clock=clock)
    refused, other = shared.member(), shared.member()
    with FakeProvider(error(429, "no", {"Retry-After": "30"})) as provider, pytest.raises(ModelRateLimitedError):
        LLM(provider.config(num_retries=0), clock=clock, back_off=refused).send(HI)
    clock.waits.clear()
    with FakeProvider(error(429, "no", {"Retry-After": "30"}), text("fine"), text("fine")) as provider:
        assert send(LLM(provider.config(), clock=clock, back_off=refused)) == "fine"
        waited = sum(clock.waits)
        assert send(LLM(provider.config(), clock=clock, back_off=other)) == "fine"
    assert waited == pytest.approx(30)
    assert refused.waited_s == pytest.approx(30)
    assert other.waited_s == 0


def test_a_wait_that_is_on_counts_as_waited_for_those_who_came_later() -> None:
    clock = FakeClock()
    shared = SharedBackOff(clock=clock)
    first, later = shared.member(), shared.member()
    with first.turn() as turn:
        turn.wait(threading.Event(), deadline=1e9)
        failed = turn.ended(refusal("30"), num_retries=6)
        assert failed is not None
        assert failed.retry_after == "30.000"
        clock.waits.append(10.0)
        with later.turn() as another:
            assert another.wait(threading.Event(), deadline=1e9) is None
    assert [first.waited_s, later.waited_s] == pytest.approx([30, 20])


def test_the_retry_names_the_wait_of_all() -> None:
    clock, seen = FakeClock(), list[LLMEvent]()
    member = SharedBackOff(clock=clock).member()
    with FakeProvider(error(429, "no", {"Retry-After": "7"}), text("fine")) as provider:
        send(LLM(provider.config(), clock=clock, back_off=member), seen.append)
    assert [(event.wait_s, event.attempt) for event in seen if isinstance(event, RetryEvent)] == [(7.0, 1)]


def test_refused_for_ever_all_give_up_after_the_tries_of_one() -> None:
    clock = FakeClock()
    shared = SharedBackOff(clock=clock)
    with FakeProvider(*[error(429, "no")] * 7) as provider:
        with pytest.raises(ModelRateLimitedError):
            LLM(provider.config(), clock=clock, back_off=shared.member()).send(HI)
        assert len(provider.requests) == 7
    assert shared.surrenders == 1


def test_who_waits_when_the_others_give_up_gives_up_too() -> None:
    clock = FakeClock()
    shared = SharedBackOff(clock=clock)
    with shared.member().turn() as prober, shared.member().turn() as waiting:
        prober.wait(threading.Event(), deadline=1e9)
        waiting.wait(threading.Event(), deadline=1e9)
        prober.ended(refusal("5"), num_retries=1)
        waiting.ended(refusal("5"), num_retries=1)  # refused with it
        prober.wait(threading.Event(), deadline=1e9)
        assert prober.ended(refusal("5"), num_retries=1) is not None
        given_up = waiting.wait(threading.Event(), deadline=1e9)
    assert given_up is not None
    assert not given_up.kind.retryable


def test_no_wait_outlasts_the_time_of_the_request() -> None:
    clock = FakeClock()
    shared = SharedBackOff(clock=clock)
    with shared.member().turn() as refused, shared.member().turn() as other:
        refused.wait(threading.Event(), deadline=1e9)
        refused.ended(refusal("100"), num_retries=6)
        given_up = other.wait(threading.Event(), deadline=50)
    assert given_up is not None
    assert sum(clock.waits) == 0


def test_a_wait_ends_when_it_is_cancelled() -> None:
    shared = SharedBackOff()
    with shared.member().turn() as turn:
        turn.wait(threading.Event(), deadline=1e12)
        turn.ended(refusal("200"), num_retries=6)
    with FakeProvider(text("fine")) as provider:
        llm = LLM(provider.config(), back_off=shared.member())
        threading.Timer(0.3, llm.cancel).start()
        with pytest.raises(ModelCanceledError):
            llm.send(HI)
        assert provider.requests == []


def test_a_server_that_is_down_is_no_limit() -> None:
    clock = FakeClock()
    shared = SharedBackOff(clock=clock)
    with FakeProvider(error(500, "oops")) as provider, pytest.raises(ModelUnavailableError):
        LLM(provider.config(num_retries=0), clock=clock, back_off=shared.member()).send(HI)
    assert shared.last_refusal is None


def refusal(retry_after: str) -> Failure:
    return failure(RATE_LIMIT, model="fake")._replace(retry_after=retry_after)
