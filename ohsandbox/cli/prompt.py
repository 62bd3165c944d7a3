"""Asking the person at the terminal, where there is one."""

from __future__ import annotations

import getpass
import sys
from typing import Protocol

from ohsandbox.errors import UsageError


class Prompt(Protocol):
    """Asks for the next message."""

    def ask(self) -> str:
        """A line.

        Raises:
            EOFError: there are no more.
            KeyboardInterrupt: Ctrl-C.
        """


def person_present(*, no_tui: bool) -> bool:
    """Whether somebody can be asked: both ends are a terminal, and headless was not asked for."""
    return not no_tui and sys.stdin.isatty() and sys.stdout.isatty()


def open_prompt() -> Prompt:
    """A line editor at a terminal, else plain lines of stdin."""
    return _TerminalPrompt() if sys.stdin.isatty() and sys.stdout.isatty() else _LinePrompt()


def ask(question: str) -> str:
    """One answer, without blanks around it; empty for none."""
    try:
        return input(question).strip()
    except EOFError:
        return ""


def ask_secret(question: str) -> str:
    """An answer that is not shown."""
    try:
        return getpass.getpass(question).strip()
    except EOFError:
        return ""


def confirm(question: str) -> bool:
    """A yes; anything else is a no."""
    return ask(f"{question} [y/N] ").lower() in {"y", "yes"}


def read_task() -> str:
    """The task from stdin.

    Raises:
        UsageError: it is empty.
    """
    text = sys.stdin.read().strip()
    if not text:
        raise UsageError("TASK is '-' and stdin is empty. Pipe the task in, or write it as an argument.")
    return text


class _TerminalPrompt:
    """prompt_toolkit: history, editing, multi-line paste."""

    def __init__(self) -> None:
        from prompt_toolkit import PromptSession  # noqa: PLC0415 - 0.1 s, for those who type

        self._session: PromptSession[str] = PromptSession()

    def ask(self) -> str:
        return str(self._session.prompt("> "))


class _LinePrompt:
    def ask(self) -> str:
        return input()
