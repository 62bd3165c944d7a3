"""Conversations that worked on a copy because their engine is on another machine: a person is asked at the end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ohsandbox.cli.prompt import person_present
from ohsandbox.cli.rendering.text import say
from ohsandbox.errors import OhsandboxError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable


def offer_changes(conversations: Iterable[str]) -> None:
    """Ask a person of each whether what it changed shall come to their directory, once the screen is theirs."""
    from ohsandbox.cli.time_travel import apply_changes  # noqa: PLC0415 - most runs have nothing to ask

    for conversation in dict.fromkeys(conversations) if person_present() else ():
        try:
            apply_changes(conversation, None, to=None, yes=False)
        except UsageError:  # it has changed nothing
            continue
        except (OhsandboxError, KeyboardInterrupt) as error:
            why = f"{error} " if isinstance(error, OhsandboxError) else ""
            say(f"{why}Its changes are kept: ohsandbox apply {conversation}")
