"""`SharedBackOff`: when a provider limits the rate, all conversations with its model wait, and continue in turn.

Each conversation that waits and retries by itself meets the limit again with all the others. Here the first refusal
holds all requests back, for as long as the provider says or for a random time that grows with each refusal in a row.
Then one request goes, and answers let more be under way, so that a few refusals find the limit, not one from each
conversation.
"""

from __future__ import annotations

import contextlib
import math
import random
import threading
from typing import TYPE_CHECKING

from ohsandbox.llm.error_mapping import RATE_LIMIT, Failure
from ohsandbox.llm.retry import Clock, retry_after_s

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_ADMITTED_AFTER_S = 2.0
"""A provider refuses within this time: a request that has lasted longer does not hold others back."""
_MAX_WAIT_S = 60.0
"""Longest random wait, as for a conversation alone; a provider may request a longer one."""
_LOOK_EVERY_S = 0.1
"""Interval at which a request that may not start yet checks again."""


class SharedBackOff:
    """The gate that the conversations of a run with one model pass before each request."""

    def __init__(self, *, clock: Clock | None = None, tell: Callable[[float], None] | None = None) -> None:
        self.tell = tell or (lambda _: None)
        """Called with the seconds of each wait that begins, in the thread whose request was refused."""
        self.clock = clock or Clock()
        self.surrenders = 0
        """How often all waiting requests gave up."""
        self.last_refusal: Failure | None = None
        self._lock = threading.Lock()
        self._closed_at = -math.inf
        self._opens_at = -math.inf
        self._allowed = math.inf
        """Limit of requests under way of which it is not known whether they are refused."""
        self._known_good = math.inf
        """Half of the allowed requests that were under way at the last refusal. Up to this number each answer allows
        one more request; above it, one more takes as many answers as requests are allowed, as TCP probes a path (RFC
        5681 3.1)."""
        self._under_way: dict[BackOffTurn, float] = {}
        """The time at which each request under way began."""
        self._refusals = 0
        """Number of refusals in a row; those of requests that were under way at the same time count as one."""

    def __reduce__(self) -> tuple[type[SharedBackOff], tuple[()]]:
        """Pickle as a new gate: on another machine, conversations there wait for each other."""
        return SharedBackOff, ()

    def member(self) -> BackOffMember:
        """Return the object with which one conversation passes the gate."""
        return BackOffMember(self)

    def enter(self, turn: BackOffTurn) -> float:
        """Let the turn pass and return 0, or return the seconds after which it should try again."""
        now = self.clock.now()
        with self._lock:
            if now < self._opens_at:
                return self._opens_at - now
            unknown = sum(now - began < _ADMITTED_AFTER_S for began in self._under_way.values())
            if unknown + 1 > self._allowed:
                return _LOOK_EVERY_S
            self._under_way[turn] = now
            return 0.0

    def leave(self, turn: BackOffTurn, *, is_answered: bool = False) -> None:
        """Remove a request that was not refused; an answer may let more requests pass."""
        with self._lock:
            began = self._under_way.pop(turn, -math.inf)
            if is_answered and began > self._closed_at:
                self._refusals = 0
                self._allowed += 1 if self._allowed < self._known_good else 1 / self._allowed

    def refuse(self, turn: BackOffTurn, refusal: Failure, *, num_retries: int) -> float | None:
        """Close the gate; return the seconds that all wait, or None after too many refusals in a row."""
        now, asked_s = self.clock.now(), retry_after_s(refusal.retry_after)
        with self._lock:
            met = min(self._allowed, len(self._under_way))
            is_first = self._under_way.pop(turn, -math.inf) > self._closed_at
            self.last_refusal = refusal
            if is_first:
                self._closed_at, self._allowed, self._known_good = now, 1, max(1, met / 2)
                self._refusals += 1
                if self._refusals > num_retries:
                    self._refusals = 0
                    self.surrenders += 1
                    return None
                asked_s = asked_s or random.uniform(1, min(2**self._refusals, _MAX_WAIT_S))  # noqa: S311 - jitter
            self._opens_at = max(self._opens_at, now + (asked_s or 0.0))
            wait_s = max(self._opens_at - now, 0.001)
        if is_first:
            self.tell(wait_s)
        return wait_s


class BackOffMember:
    """One conversation, which may make several requests at the same time."""

    def __init__(self, shared: SharedBackOff) -> None:
        self._shared = shared
        self._lock = threading.Lock()
        self._waiting = 0
        self._since = 0.0
        self._waited_s = 0.0

    @property
    def waited_s(self) -> float:
        """Seconds for which requests of the conversation were held back so far, including a current wait."""
        with self._lock:
            return self._waited_s + (self._shared.clock.now() - self._since if self._waiting else 0.0)

    @contextlib.contextmanager
    def turn(self) -> Iterator[BackOffTurn]:
        """Yield the turn of one request with its retries."""
        turn = BackOffTurn(self._shared, self.count)
        try:
            yield turn
        finally:
            turn.close()

    def count(self, change: int) -> None:
        """Change the number of waiting requests."""
        now = self._shared.clock.now()
        with self._lock:
            if self._waiting == 0:
                self._since = now
            self._waiting += change
            if self._waiting == 0:
                self._waited_s += now - self._since


class BackOffTurn:
    """One request with its retries: for each attempt call `wait`, then `ended`."""

    def __init__(self, shared: SharedBackOff, count: Callable[[int], None]) -> None:
        self._shared, self._count = shared, count
        self._is_waiting = False
        self._surrenders = 0

    def wait(self, canceled: threading.Event, *, deadline: float) -> Failure | None:
        """Wait until the request may be made, or canceled is set; return the failure if waiting is given up."""
        shared = self._shared
        while not canceled.is_set():
            if self._is_waiting and self._surrenders != shared.surrenders:
                return _final(shared.last_refusal)
            if not (delay_s := shared.enter(self)):
                break
            self._set_waiting(on=True)
            if shared.clock.now() + delay_s >= deadline:
                return _final(shared.last_refusal)
            shared.clock.sleep(min(delay_s, 1.0), canceled)
        self._set_waiting(on=False)
        return None

    def ended(self, failure: Failure | None, *, num_retries: int) -> Failure | None:
        """Tell the gate how the attempt ended; return the failure, its Retry-After set to the wait of all."""
        if failure is None or not _is_refusal(failure):
            self._shared.leave(self, is_answered=failure is None)
            return failure
        wait_s = self._shared.refuse(self, failure, num_retries=num_retries)
        if wait_s is None:
            return _final(failure)
        self._set_waiting(on=True)
        return failure._replace(retry_after=f"{wait_s:.3f}")

    def close(self) -> None:
        """End the turn, however the request ended."""
        self._shared.leave(self)
        self._set_waiting(on=False)

    def _set_waiting(self, *, on: bool) -> None:
        if on != self._is_waiting:
            self._is_waiting, self._surrenders = on, self._shared.surrenders
            self._count(1 if on else -1)


def _is_refusal(failure: Failure) -> bool:
    """Whether the provider says that there are too many requests, or when the next one may come."""
    return failure.kind is RATE_LIMIT or (failure.kind.retryable and retry_after_s(failure.retry_after) is not None)


def _final(failure: Failure | None) -> Failure:
    """Return the failure as one that is not retried, with an error of its own, since each conversation raises it."""
    assert failure is not None  # noqa: S101 - nobody waits before the first refusal
    return Failure(failure.kind._replace(retryable=False), type(failure.error)(str(failure.error)))
