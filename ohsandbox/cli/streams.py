"""stdin, stdout and stderr as the command finds them: closed (`>&-`), or unable to hold every character."""

from __future__ import annotations

import io
import os
import sys

missing: set[int] = set()
"""Of this process: the descriptors that were closed."""


def prepare_streams() -> None:
    """Have nothing read from closed ones, and what is written go nowhere; what cannot be encoded is a `?`.

    Else the next file that is opened gets the number, and what is printed reaches a log or a socket.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            missing.add(number)
            os.open(os.devnull, os.O_RDWR)  # the lowest free number is this one
    if sys.stdin is None:
        sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115 - the process's own
    if sys.stdout is None:
        sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115 - the process's own
    if sys.stderr is None:
        sys.stderr = open(2, "w", encoding="utf-8", closefd=False)  # noqa: SIM115 - the process's own
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
