"""Parsers of the values of options: typer puts the option's name before the message of a BadParameter."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from typer import BadParameter

from ohsandbox.errors import UsageError
from ohsandbox.text import MAX_BYTES, byte_size

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
"""A name that POSIX lets a shell export (XBD 3.230)."""
MAX_GPUS = 1024
MAX_NUMBER = 1e9
"""Thirty years of seconds; timers of the system overflow at 9.2e9."""


def _number(text: str, *, minimum: float = 0, expected: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not (0 < number <= MAX_NUMBER and number >= minimum):  # nan is neither
        raise BadParameter(f"expected {expected}, got {text!r}")
    return number


positive_number = partial(_number, expected=f"a number above 0 and at most {MAX_NUMBER:,.0f}")
cpu_count = partial(_number, minimum=0.01, expected="a number of processors, 0.01 or more")
"""The engine takes hundredths."""


def gpu_count(text: str) -> str:
    """'all' or a number, as text."""
    if text != "all" and not (text.isdecimal() and 0 < int(text) <= MAX_GPUS):
        raise BadParameter(f"expected 'all' or a number of GPUs from 1 on, got {text!r}")
    return text


def check_variables(pairs: Sequence[str]) -> None:
    """Raise UsageError for the first that is not NAME=VALUE with a name that a shell can export."""
    for pair in pairs:
        if "=" not in pair[1:]:
            raise UsageError(f"Invalid --env {pair!r}: expected NAME=VALUE.")
        if not _VARIABLE.fullmatch(pair.partition("=")[0]):
            raise UsageError(
                f"Invalid --env {pair.partition('=')[0]!r}: a name has letters, digits and underscores, and begins "
                "with no digit."
            )


def byte_size_of(*, minimum: int) -> Callable[[str], int]:
    """A parser of sizes such as 512m and 2g, of at most MAX_BYTES; a number without a unit is bytes."""

    def parse(text: str) -> int:
        try:
            size = byte_size(text)
        except ValueError:
            size = 0
        if not minimum <= size <= MAX_BYTES:
            least = f"{minimum // 1024**2}m"
            raise BadParameter(f"expected a size of {least} or more, as in 512m or 2g, got {text!r}")
        return size

    return parse


def path(text: str) -> Path:
    """The path of a file or directory. `Path("")` would be the current directory, which nobody named."""
    if not text:
        raise BadParameter("expected a path, got an empty text")
    return Path(text)


def directory(text: str) -> str:
    """`DIR[:ro]`, as it stands."""
    from ohsandbox.runtime.mount_text import parse_path  # noqa: PLC0415 - `--help` reads this module

    path(parse_path(text).path)
    return text


def mount_of(text: str) -> str:
    """`SRC:DST[:ro]` with an absolute source, so that it means the same where the conversation is resumed."""
    from ohsandbox.runtime.mount_text import Mount  # noqa: PLC0415 - `--help` reads this module

    try:
        named = Mount.parse(text)
    except UsageError as error:
        raise BadParameter(str(error)) from None
    return str(named.model_copy(update={"source": str(Path(named.source).expanduser().absolute())}))
