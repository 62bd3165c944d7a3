"""Choosing one of several rows at a terminal, with the arrow keys or by typing a number."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from ohsandbox.cli.prompt import borrowed_terminal

if TYPE_CHECKING:
    from collections.abc import Sequence

    from prompt_toolkit.key_binding import KeyPressEvent

HINT = "(Arrows or a number choose, Enter takes it, Esc leaves.)"


def pick(title: str, rows: Sequence[str]) -> int | None:
    """The index of the row that the person chose; None where they left. Rows are printable, and at least one.

    It decides nothing by itself: it is for what can be undone or is asked about again.
    """
    from prompt_toolkit.application import create_app_session  # noqa: PLC0415 - 0.1 s, for those who choose
    from prompt_toolkit.key_binding import KeyBindings  # noqa: PLC0415 - as above
    from prompt_toolkit.output import create_output  # noqa: PLC0415 - as above
    from prompt_toolkit.shortcuts import choice  # noqa: PLC0415 - as above

    keys = KeyBindings()

    @keys.add("escape")
    @keys.add("q")
    @keys.add("c-d")
    def _leave(event: KeyPressEvent) -> None:
        event.app.exit(result=-1)

    options = [(at, row) for at, row in enumerate(rows)]
    with borrowed_terminal(), create_app_session(output=create_output(sys.__stdout__)):
        try:
            chosen = choice(f"{title}\n{HINT}", options=options, default=0, key_bindings=keys)
        except (KeyboardInterrupt, EOFError):
            return None
    return None if chosen < 0 else chosen
