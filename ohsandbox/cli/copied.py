"""Conversations that worked on a copy because their engine is on another machine: a person is asked at the end."""

from __future__ import annotations

from ohsandbox.cli.rendering.text import say
from ohsandbox.errors import OhsandboxError, UsageError

unapplied: list[str] = []
"""Their ids, in the order in which they were closed."""


def offer_changes(code: int) -> int:
    """Ask a person whether what they changed shall come to their directory, once the screen is theirs; returns code."""
    from ohsandbox.cli.prompt import person_present  # noqa: PLC0415 - most runs have nothing to ask
    from ohsandbox.cli.time_travel import apply_changes  # noqa: PLC0415 - as above

    asked, unapplied[:] = [*dict.fromkeys(unapplied)], []
    for conversation in asked if person_present() else ():
        try:
            apply_changes(conversation, None, to=None, yes=False)
        except UsageError:  # it has changed nothing
            continue
        except (OhsandboxError, KeyboardInterrupt) as error:
            why = f"{error} " if isinstance(error, OhsandboxError) else ""
            say(f"{why}Its changes are kept: ohsandbox apply {conversation}")
    return code
