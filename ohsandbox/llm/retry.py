"""When a request is made again: waits, limits, and a sleep that can be ended."""

from __future__ import annotations

import math
import sys
import time
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING

from tenacity import RetryCallState, Retrying, retry_if_result, wait_random_exponential

from ohsandbox.llm.chat import RetryEvent
from ohsandbox.llm.error_mapping import Failure

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable

    from ohsandbox.llm.config import LLMConfig

RETRY_AFTER_LIMIT_S = 300.0
"""A provider that asks for more is waited for this long only; the retries go on."""

_BACK_OFF = wait_random_exponential(multiplier=2, min=1, max=60)
"""Full jitter: uniform between 1 s and 2, 4, 8, ... 60 s, so that many conversations do not come back at once."""


class Clock:
    """Time as `send` sees it; tests pass one that does not wait."""

    def now(self) -> float:
        """Seconds of a clock that only goes forward."""
        return time.monotonic()

    def sleep(self, seconds: float, canceled: threading.Event) -> None:
        """Wait, or return as soon as canceled is set. Ctrl-C raises KeyboardInterrupt."""
        canceled.wait(seconds)


def retry_after_s(value: str | None, *, now: datetime | None = None) -> float | None:
    """The seconds that a `Retry-After` header (RFC 9110 10.2.3: seconds or an HTTP date) asks for.

    Returns:
        More than 0 and at most RETRY_AFTER_LIMIT_S; None when there is nothing usable: absent, junk, zero or past.
    """
    try:
        seconds = float(value or "")
    except ValueError:
        seconds = _seconds_until(value or "", now or datetime.now(UTC))
    return min(seconds, RETRY_AFTER_LIMIT_S) if seconds > 0 and not math.isnan(seconds) else None


def _seconds_until(date: str, now: datetime) -> float:
    """0.0 for an invalid HTTP date."""
    try:
        then = parsedate_to_datetime(date)
        return (then if then.tzinfo else then.replace(tzinfo=UTC)).timestamp() - now.timestamp()
    except (ValueError, TypeError, OverflowError):
        return 0.0


def retrying(
    config: LLMConfig,
    *,
    clock: Clock,
    deadline: float,
    canceled: threading.Event,
    emit: Callable[[RetryEvent], None],
) -> Retrying:
    """A tenacity loop over a function that *returns* a Failure where it failed; giving up, it returns the last one.

    Exceptions are not retried: KeyboardInterrupt and cancellation pass through.
    """

    def is_over(state: RetryCallState) -> bool:
        """No attempt starts after the deadline."""
        return state.attempt_number >= _attempts(state, config) or clock.now() + state.upcoming_sleep >= deadline

    return Retrying(
        retry=retry_if_result(lambda result: isinstance(result, Failure) and result.kind.retryable),
        wait=lambda state: retry_after_s(_failure(state).retry_after) or _BACK_OFF(state),
        stop=is_over,
        sleep=lambda seconds: clock.sleep(seconds, canceled),
        before_sleep=lambda state: emit(_event(state, config)),
        retry_error_callback=_failure,
    )


def _attempts(state: RetryCallState, config: LLMConfig) -> int:
    """How many are made of a request that failed so."""
    return min(config.num_retries + 1, _failure(state).kind.max_attempts or sys.maxsize)


def _event(state: RetryCallState, config: LLMConfig) -> RetryEvent:
    return RetryEvent(
        attempt=state.attempt_number,
        attempts=_attempts(state, config),
        wait_s=state.upcoming_sleep,
        reason=str(_failure(state).error),
    )


def _failure(state: RetryCallState) -> Failure:
    assert state.outcome is not None  # noqa: S101 - tenacity sets it before it asks
    result = state.outcome.result()
    assert isinstance(result, Failure)  # noqa: S101 - only failures are retried
    return result
