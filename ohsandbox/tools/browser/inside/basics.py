"""What the other files stand on: limits, refusals, and words for errors."""

from __future__ import annotations

import asyncio
import contextlib
import os
import pwd
import re
from collections.abc import Awaitable  # noqa: TC003 - one program in the sandbox
from pathlib import Path
from typing import Any, TypeVar

USER = "ohsandbox-browser"
"""Made by images/browser: pages are run by somebody who owns nothing of the agent's."""

VIEWPORT = {"width": 1280, "height": 720}
ACTION_MS = 5_000
"""An element that cannot be acted on for so long is hidden, covered or disabled."""
NAVIGATION_MS = 30_000
MAX_TABS = 20
MAX_NOTES = 20
MAX_NOTE_CHARS = 500
MAX_SHORT_CHARS = 200

REASONS = re.compile(
    r"intercepts pointer|not visible|not enabled|not editable|not stable|outside of the viewport|did not find"
)
"""Lines of Playwright's log that say why an element could not be acted on."""

T = TypeVar("T")
_tasks: set[asyncio.Future[Any]] = set()


class Refusal(Exception):  # noqa: N818 - said as it is
    """An action cannot be done; the text says why."""


class Unavailable(Exception):  # noqa: N818 - said as it is
    """There is no browser to be had here; the text says why."""


def become_nobody() -> None:
    """As root: give up the rights of the agent for those of USER, where there is one."""
    if os.geteuid() == 0:
        with contextlib.suppress(KeyError):
            user = pwd.getpwnam(USER)
            os.setgroups([])
            os.setgid(user.pw_gid)
            os.setuid(user.pw_uid)
            os.environ.update(HOME=user.pw_dir, USER=USER, LOGNAME=USER)
    os.chdir("/")


async def within(seconds: float, awaitable: Awaitable[T], otherwise: T) -> T:
    """What it gives, or otherwise when it fails or takes longer."""
    try:
        return await asyncio.wait_for(awaitable, seconds)
    except Exception:  # noqa: BLE001 - whatever a page makes of it
        return otherwise


def in_background(awaitable: Awaitable[Any]) -> None:
    """Done some time, or not at all."""
    task = asyncio.ensure_future(within(30, awaitable, None))
    _tasks.add(task)
    task.add_done_callback(_tasks.discard)


def check_readable(path: str) -> None:
    """Say it in words before Chromium shows an empty page or an error of its own.

    Raises:
        Refusal: this user cannot read it.
    """
    try:
        if Path(path).is_dir():
            os.scandir(path).close()
        else:
            Path(path).open("rb").close()
    except FileNotFoundError:
        raise Refusal(f"there is no file {short(path)} in the sandbox") from None
    except (OSError, ValueError) as error:  # a NUL in the name is a ValueError
        reason = getattr(error, "strerror", None) or error
        raise Refusal(
            f"{short(path)} cannot be read by the browser, which runs as uid {os.geteuid()} ({reason}); "
            "chmod it, or copy it to /tmp"
        ) from None


def short(text: object) -> str:
    """One line of at most MAX_SHORT_CHARS."""
    line = " ".join(str(text).split())
    return line if len(line) <= MAX_SHORT_CHARS else line[:MAX_SHORT_CHARS] + "..."


def explain(error: BaseException) -> str:
    """An error of Playwright in a line: what was not done, and the last reasons of its log."""
    text = re.sub(r"\x1b\[[0-9;]*m", "", str(error))
    first, _, log = text.partition("Call log:")
    first = re.sub(r"^\w+\.\w+: ", "", first.strip()).rstrip(".") or type(error).__name__
    reasons = [short(line).lstrip("- ") for line in log.splitlines() if REASONS.search(line)]
    last = list(dict.fromkeys(reversed(reasons)))[:2]
    return ": ".join([short(first), *(["; ".join(last)] if last else [])])
