"""When a failed request is repeated: waits, limits, and a sleep that can be interrupted."""

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
"""Limit of a wait that a provider requests; if it requests more, the next retry comes after this time."""

_BACK_OFF = wait_random_exponential(multiplier=2, min=1, max=60)
"""Full jitter: uniform between 1 s and 2, 4, 8, ... 60 s, so that conversations do not all retry at once."""


class Clock:
    """Time as `send` uses it; tests pass one that does not wait."""

    def now(self) -> float:
        """Return the seconds of a monotonic clock."""
        return time.monotonic()

    def sleep(self, seconds: float, canceled: threading.Event) -> None:
        """Wait, or return as soon as canceled is set. Ctrl-C raises KeyboardInterrupt."""
        canceled.wait(seconds)


def retry_after_s(value: str | None, *, now: datetime | None = None) -> float | None:
    """Read the seconds of a `Retry-After` header (RFC 9110 10.2.3: seconds or an HTTP date).

    Returns:
        More than 0 and at most RETRY_AFTER_LIMIT_S; None if the value is absent, malformed, zero or past.
    """
    try:
        seconds = float(value or "")
    except ValueError:
        seconds = _seconds_until(value or "", now or datetime.now(UTC))
    return min(seconds, RETRY_AFTER_LIMIT_S) if seconds > 0 and not math.isnan(seconds) else None


def _seconds_until(date: str, now: datetime) -> float:
    """Return the seconds until a date; 0.0 for an invalid HTTP date."""
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
    """Create a tenacity loop for a function that *returns* a Failure; when it gives up, it returns the last one.

    Exceptions are not retried: KeyboardInterrupt and cancellation pass through.
    """

    def is_over(state: RetryCallState) -> bool:
        """Whether the deadline has passed: no attempt starts after it."""
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
    """Return the limit of attempts for a request that failed in this way."""
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
