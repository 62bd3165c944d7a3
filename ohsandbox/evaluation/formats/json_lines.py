"""Files with one JSON object in each line: read one at a time, so that a line may be large and the file larger."""

from __future__ import annotations

import stat
from typing import TYPE_CHECKING, Any, NamedTuple

from ohsandbox import strict_json
from ohsandbox.evaluation.formats.problems import InvalidTask, Problem, unusable_texts

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MAX_LINE_BYTES = 64 * 1024**2
"""Of a task; the largest instance of SWE-bench's datasets has 3 MB, mostly a patch of the tests."""


class JsonLine(NamedTuple):
    """A line that is no blank one."""

    number: int
    """From 1."""
    offset: int
    """Of its first byte in the file."""
    value: dict[str, Any]
    problem: Problem | None = None
    """Why it is no object; value is empty then."""

    def line_of(self, _: object) -> int:
        """Return the line of any key: the one line that there is."""
        return self.number


def read_lines(path: Path, *, limit_bytes: int = MAX_LINE_BYTES) -> Iterator[JsonLine]:
    """Read a file line by line.

    Raises:
        InvalidTask: it cannot be read, or a line is longer than limit_bytes, after which nothing is read.
    """
    try:
        with path.open("rb") as opened:
            if not stat.S_ISREG(path.stat().st_mode):
                raise InvalidTask([Problem(path, None, "is no regular file")])
            number = offset = 0
            while data := opened.readline(limit_bytes + 1):
                number, begin, offset = number + 1, offset, offset + len(data)
                if len(data) > limit_bytes:
                    raise InvalidTask([Problem(path, number, f"is a line of more than {limit_bytes:,} bytes")])
                if data.strip():
                    yield _parsed(data, path, number, begin)
    except OSError as error:
        raise InvalidTask([Problem(path, None, f"cannot be read: {error.strerror}")]) from None


def _parsed(data: bytes, path: Path, number: int, offset: int) -> JsonLine:
    try:
        value = strict_json.parse(data)
    except ValueError as error:
        return JsonLine(number, offset, {}, Problem(path, number, f"not JSON: {error}"))
    if not isinstance(value, dict):
        return JsonLine(number, offset, {}, Problem(path, number, 'expected an object, as in {"id": ...}'))
    if places := unusable_texts(value):
        told = f"{'.'.join(places[0])}: holds a NUL character or half of a surrogate pair: remove it"
        return JsonLine(number, offset, {}, Problem(path, number, told))
    return JsonLine(number, offset, value)
