"""`ohsandbox top`: what all sandboxes and conversations of this machine do now."""

from __future__ import annotations

import os
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

from ohsandbox.cli.prompt import person_present
from ohsandbox.cli.rendering.tables import print_json, print_table
from ohsandbox.cli.rendering.text import age, cut, safe_line, say, size
from ohsandbox.cli.top_survey import Survey, TopRow, dollars, percent
from ohsandbox.paths import conversations_dir

if TYPE_CHECKING:
    from pathlib import Path

ENGINE_WAIT_S = 6.0
"""Of a single look: an engine that takes longer is told, and not waited for."""
BETWEEN_SAMPLES_S = 1.0
"""The engine samples once a second; a processor's share is between two samples."""
MAX_DOING_CHARS = 100
HEADINGS = ("NAME", "STATE", "CPU", "MEMORY", "NET IN", "NET OUT", "COST", "AGE", "TITLE", "DOES")


def show_top(root: Path | None, *, once: bool, as_json: bool) -> int:
    """The live table at a terminal; a plain one, or JSON, where that is asked for or nobody is there."""
    survey = Survey(root or conversations_dir())
    if not (once or as_json) and person_present() and os.environ.get("TERM", "dumb") != "dumb":
        from ohsandbox.cli.top_screen import TopScreen  # noqa: PLC0415 - prompt_toolkit is slow to import

        return TopScreen(survey, root).run()
    _look(survey)
    rows = survey.rows()
    if as_json:
        print_json(map(fields, rows))
    elif rows:
        print_table(HEADINGS, [_cells(row) for row in rows], printable=True)
    else:
        print("No sandboxes, and no conversations.")  # noqa: T201 - the output of the command
    sys.stdout.flush()
    if survey.fault:
        say(survey.fault)
    return 0


def _look(survey: Survey) -> None:
    """Two samples of the engine, as far as it answers."""

    def ask() -> None:
        survey.ask_engine()
        if not survey.fault and survey.is_measuring:
            time.sleep(BETWEEN_SAMPLES_S)
            survey.ask_engine()

    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(ENGINE_WAIT_S)
    survey.read_logs()


def fields(row: TopRow) -> dict[str, Any]:
    """A row as JSON."""
    usage, sandbox = row.usage, row.sandbox
    return {
        "conversation": row.conversation,
        "sandbox": None if sandbox is None else sandbox.name,
        "image": None if sandbox is None else sandbox.image,
        "sandbox_state": None if sandbox is None else sandbox.state,
        "state": row.state,
        "title": row.title,
        "does": row.doing,
        "process": row.holder,
        "model": row.model or None,
        "cpu": row.cpu,
        "memory_bytes": None if usage is None else usage.memory_bytes,
        "memory_limit_bytes": None if usage is None else usage.memory_limit_bytes,
        "received_bytes": None if usage is None else usage.received_bytes,
        "sent_bytes": None if usage is None else usage.sent_bytes,
        "blocked_hosts": row.blocked,
        "cost_usd": row.cost_usd,
        "created_at": row.began.isoformat(),
        "updated_at": row.since.isoformat(),
    }


def _cells(row: TopRow) -> tuple[str, ...]:
    usage = row.usage
    measured = ("", "", "")
    if usage is not None:
        measured = (size(usage.memory_bytes), size(usage.received_bytes), size(usage.sent_bytes))
    name = safe_line(row.conversation or (row.sandbox.name if row.sandbox else row.key))
    title = "" if row.conversation is None else cut(row.title, MAX_DOING_CHARS)
    return (
        name, row.state, percent(row), *measured, dollars(row), age(row.began), title, cut(row.doing, MAX_DOING_CHARS)
    )  # fmt: skip
