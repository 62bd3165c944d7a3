"""What a person sees of a conversation: `View`, and the words that its two forms share.

`tui.RichView` is for a terminal, `plain.PlainView` for logs. A view is only ever called from the main thread. Every
text that a model or a sandbox wrote passes through `safe`, `safe_line` or `words` before it is printed, which delete
nothing; what a program printed passes through `output` instead.
"""

from __future__ import annotations

import json
import re
import time
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from ohsandbox.cli.hidden import masked
from ohsandbox.review_text import on_one_line, visible
from ohsandbox.runtime.shell.terminal import sanitize_for_terminal

if TYPE_CHECKING:
    from datetime import datetime

    from ohsandbox.events import SDKEvent
    from ohsandbox.llm.chat import LLMEvent

TAB_COLUMNS = 8
MODEL_WORKS = "the model works"
"""The status while an answer is awaited."""
ALLOWED_BY = "Allowed by approval {}."
"""Of a call that a person would have been asked about."""

_OWN_LAST_LINE = re.compile(r"\[[^\n]*; working directory [^\n]*\]")
"""What `CommandObservation` appends for the model; a person is shown the exit code by us."""


class View(Protocol):
    """Shows what happens."""

    streams: bool
    """Pieces of an answer are of use to it."""

    def say(self, text: str) -> None:
        """A line of our own."""

    def warn(self, text: str) -> None:
        """A line of our own that should not be overlooked."""

    def show(self, event: SDKEvent) -> None:
        """An event of the log."""

    def hear(self, event: LLMEvent) -> None:
        """What the model's client tells while an answer is written; the event that holds the answer comes after."""

    def status(self, text: str) -> None:
        """What is going on now, until the next call; an empty text for nothing."""

    def tick(self) -> None:
        """Time passes; called some times a second while the view has nothing to show."""


class Call(NamedTuple):
    """A tool call for a person's eyes."""

    sign: str
    """One character: `$` a command, `>` input, `%` a Python cell, `+` a file written, `~` one changed, `<` one read,
    `?` a search, `@` a web page, `&` a sub-agent, `*` a thought, `.` anything else."""
    text: str
    """May have several lines."""
    answer: bool = False
    """The text is the agent's answer to the person."""


class Outcome(NamedTuple):
    """A tool result for a person's eyes."""

    text: str
    ending: str
    """`exit 1`, `still running`, `failed`; empty where there is nothing to say."""
    ok: bool


class Figures:
    """What a run came to."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._responses: set[str] = set()
        self.tokens = 0
        self.cost_usd: float | None = None

    def add(self, event: SDKEvent) -> None:
        """Take in what the event says was used."""
        usage, cost = event.data.get("usage"), event.data.get("cost_usd")
        if usage:
            self.tokens += int(usage.get("prompt_tokens") or 0) + int(usage.get("completion_tokens") or 0)
        if cost:
            self.cost_usd = (self.cost_usd or 0.0) + float(cost)
        if event.data.get("response_id"):
            self._responses.add(str(event.data["response_id"]))

    @property
    def steps(self) -> int:
        """Answers of the model."""
        return len(self._responses)

    def __str__(self) -> str:
        steps = f"{self.steps} step{'' if self.steps == 1 else 's'}"
        parts = [f"{time.monotonic() - self._began:.1f} s", steps]
        if self.tokens:
            parts.append(f"{self.tokens:,} tokens")
        if self.cost_usd is not None:
            parts.append(f"${self.cost_usd:.4f}")
        return " · ".join(parts)


class Stopwatch:
    """How long each tool call took, by the events' own times."""

    def __init__(self) -> None:
        self._called_at: dict[str, datetime] = {}

    def seconds(self, event: SDKEvent) -> float | None:
        """Of a `tool_result`, the seconds since its `tool_call`."""
        call_id = str(event.data.get("tool_call_id", ""))
        if event.type == "tool_call":
            self._called_at[call_id] = event.ts
            return None
        began = self._called_at.pop(call_id, None)
        return None if began is None else max(0.0, (event.ts - began).total_seconds())


def safe(text: object) -> str:
    """Foreign text that may be printed, on its lines, with nothing deleted: see `review_text`. Tabs are spaces."""
    return visible(masked(str(text))).expandtabs(TAB_COLUMNS)


def safe_line(text: object, *, limit_chars: int = 200) -> str:
    """Foreign text on one line, a newline spelt out, cut to limit_chars: a name in a list, a cell, a command."""
    return cut(on_one_line(visible(masked(str(text)))), limit_chars)


def words(text: object, *, limit_chars: int = 200) -> str:
    """Prose on one line, cut to limit_chars: between words one blank, whatever stood there."""
    return cut(" ".join(visible(masked(str(text))).split()), limit_chars)


def output(text: object) -> str:
    """What a program printed, as its terminal would show it: no escape or control but newlines, tabs as spaces."""
    return masked(sanitize_for_terminal(str(text))).expandtabs(TAB_COLUMNS)


def cut(line: str, limit_chars: int) -> str:
    """The line, or its beginning and an ellipsis."""
    return line if len(line) <= limit_chars else line[: limit_chars - 1] + "…"


def size(count: int) -> str:
    """Bytes as people say them."""
    value = float(count)
    for unit in ("B", "kB", "MB"):
        if value < 1000:  # noqa: PLR2004 - SI
            return f"{value:.0f} {unit}"
        value /= 1000
    return f"{value:.1f} GB"


def call_of(event: SDKEvent) -> Call:
    """The `tool_call` event in a person's words, ready to be printed."""
    name, arguments = str(event.data.get("name", "")), _arguments(event.data)
    given = {key: safe(value) for key, value in arguments.items() if isinstance(value, str)}
    match name, given:
        case "execute_bash", {"command": command}:
            is_input = arguments.get("is_input") in (True, "true")
            call = Call(">" if is_input else "$", command or "(waiting on)")
        case "file_editor", {"command": command, "path": path}:
            call = _edit(command, path, given)
        case "file_write", {"path": path, "content": content}:
            call = Call("+", f"{path} ({_lines(content)})")
        case "think", {"thought": thought}:
            call = Call("*", thought)
        case "finish", {"message": message}:
            call = Call(".", message, answer=True)
        case "ask_human", {"question": question}:
            offered = arguments.get("options")
            options = [f"\n- {safe_line(one)}" for one in (offered if isinstance(offered, list) else ())]
            call = Call("?", question + "".join(options), answer=True)
        case name, _ if (one := _SIGN_AND_FIELD.get(name)) and one[1] in given:
            call = Call(one[0], given[one[1]])
        case _:
            shown = event.data.get("raw_arguments") or json.dumps(arguments, ensure_ascii=False)
            call = Call(".", f"{safe_line(name)} {safe(shown)}")
    return call


_SIGN_AND_FIELD = {
    "file_read": ("<", "path"),
    "glob": ("?", "pattern"),
    "grep": ("?", "pattern"),
    "execute_ipython_cell": ("%", "code"),
    "edit_file": ("~", "path"),
    "web_read": ("@", "url"),
    "browser": ("@", "code"),
    "delegate": ("&", "task"),
    "delegate_to_browsing_agent": ("&", "task"),
}
"""Of the calls that one argument tells all of."""


def _lines(text: str) -> str:
    count = len(text.splitlines())
    return "1 line" if count == 1 else f"{count} lines"


def _edit(command: str, path: str, given: dict[str, str]) -> Call:
    if command == "view":
        return Call("<", path)
    if command == "create":
        return Call("+", f"{path} ({_lines(given.get('file_text', ''))})")
    return Call("~", f"{path} ({command})")


def _arguments(data: dict[str, Any]) -> dict[str, Any]:
    try:
        found = json.loads(data.get("arguments") or "{}")
    except (ValueError, TypeError, RecursionError):  # a log that somebody else made
        return {}
    return found if isinstance(found, dict) else {}


def outcome_of(event: SDKEvent) -> Outcome:
    """The `tool_result` event in a person's words, ready to be printed."""
    result, details = event.data.get("result") or {}, event.data.get("details") or {}
    if result.get("status") == "error":
        return Outcome(safe(result.get("error") or ""), "failed", ok=False)
    text = str(result.get("output") or "")
    if "exit_code" not in details:
        return Outcome(output(text), "", ok=True)
    above, _, last = text.rpartition("\n")
    return Outcome(
        output(above if _OWN_LAST_LINE.fullmatch(last) else text), _ending(details), ok=details["exit_code"] == 0
    )


def _ending(details: dict[str, Any]) -> str:
    if details.get("waiting_for_input"):
        return "waits for input"
    if details.get("running"):
        return "still running"
    if details.get("timed_out"):
        return "stopped by its time limit"
    if details.get("cancelled"):
        return "cancelled"
    code = details.get("exit_code")
    return "exit unknown" if code is None else f"exit {int(code)}"
