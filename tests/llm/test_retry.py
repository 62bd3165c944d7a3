from __future__ import annotations

from datetime import UTC, datetime

import pytest

from ohsandbox.llm.retry import RETRY_AFTER_LIMIT_S, retry_after_s

NOW = datetime(2030, 1, 1, 12, 0, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        ("1", 1.0),
        ("0.5", 0.5),
        (" 7 ", 7.0),
        ("1000000000", RETRY_AFTER_LIMIT_S),
        ("inf", RETRY_AFTER_LIMIT_S),
        ("Tue, 01 Jan 2030 12:00:30 GMT", 30.0),
        ("Tue, 01 Jan 2030 12:00:30", 30.0),
        ("Wed, 01 Jan 2031 12:00:00 GMT", RETRY_AFTER_LIMIT_S),
    ],
)
def test_retry_after_is_honoured_up_to_five_minutes(header: str | None, seconds: float) -> None:
    assert retry_after_s(header, now=NOW) == seconds


@pytest.mark.parametrize(
    "header",
    [None, "", "0", "-5", "nan", "soon", "Tue, 01 Jan 2030 11:59:00 GMT", "Tue, 99 Foo 2030", "1e999999 x", "\ud800"],
)
def test_retry_after_that_says_nothing_is_ignored(header: str | None) -> None:
    assert retry_after_s(header, now=NOW) is None
