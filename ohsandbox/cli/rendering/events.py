"""How each kind of event is shown: `EVENTS` has a row per kind of event, and its `forms` are the columns.

A row makes blocks of an event. The views and `markdown` print blocks, and none of them knows kinds of events: a new
kind needs its constructor in `ohsandbox.events` and a row here.
"""

from __future__ import annotations

import json
import re
from enum import Flag, auto
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from ohsandbox.cli.rendering.text import output, safe, safe_line
from ohsandbox.conversation.storage import MALFORMED
from ohsandbox.tools import arguments_of, hint_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ohsandbox.events import SDKEvent

MAX_NOTE_CHARS = 1000
"""A message of an error may quote the path of a file and what a server answered."""
_OWN_LAST_LINE = re.compile(r"\[[^\n]*; working directory [^\n]*\]")
"""What `CommandObservation` appends for the model; a person is shown the exit code by us."""


class Form(Flag):
    """Where an event is shown. A view has one or more of them, and shows what any of them shows."""

    TERMINAL = auto()
    """A run, in colors."""
    PLAIN = auto()
    """A run, one line per event."""
    STORED = auto()
    """`conversations show`: also what a run leaves to the command that runs it."""
    EXPORTED = auto()
    """`conversations export --format md`."""
    PAGE = auto()
    """`view`."""

    NOWHERE = 0
    NOT_LIVE = STORED | EXPORTED | PAGE
    """While it runs, the command that runs it tells the person."""
    EVERYWHERE = TERMINAL | PLAIN | STORED | EXPORTED | PAGE


# --- blocks -----------------------------------------------------------------------------------------


class TurnBlock(NamedTuple):
    """The next speaker: a heading of an export, nothing elsewhere."""

    speaker: Literal["Person", "Agent"]


class MessageBlock(NamedTuple):
    """What was said; a thought is what the agent said before its calls."""

    kind: Literal["user", "answer", "thought"]
    raw: str
    """As in the log: to be made printable."""


class CallBlock(NamedTuple):
    """A tool call, printable."""

    sign: str
    """One character: see `CallHint.sign`."""
    text: str
    """May have several lines."""
    name: str
    """The tool's."""
    is_answer: bool = False
    """The text is the agent's answer to the person."""


class ResultBlock(NamedTuple):
    """A tool result, printable."""

    text: str
    ending: str
    """`exit 1`, `still running`, `failed`; empty where there is nothing to say."""
    ok: bool
    seconds: float | None = None
    """Since the call, by the events' own times."""
    images: tuple[str, ...] = ()
    """Data URLs, unchecked, for an export, which has room for them."""

    @property
    def summary(self) -> list[str]:
        """The ending and the duration, as far as they are known."""
        return [*filter(None, [self.ending, "" if self.seconds is None else f"{self.seconds:.1f} s"])]


class NoteBlock(NamedTuple):
    """One line about the run, printable."""

    kind: str
    """`info`, `allowed`, `status`, or one of a warning."""
    text: str
    details: str = ""
    """Several lines that only an export has room for."""

    @property
    def is_warning(self) -> bool:
        """It should not be overlooked."""
        return self.kind in {"warning", "error", "notice", "retry"}


Block = TurnBlock | MessageBlock | CallBlock | ResultBlock | NoteBlock


def note(kind: str, text: object) -> NoteBlock:
    """A note of foreign text."""
    return NoteBlock(kind, safe_line(text, limit_chars=MAX_NOTE_CHARS))


class BlockReader:
    """Makes blocks of a conversation's events, in their order: a result's block depends on its call."""

    def __init__(self, forms: Form) -> None:
        self._forms = forms
        self._calls: dict[str, SDKEvent] = {}

    def blocks_of(self, event: SDKEvent) -> list[Block]:
        """What is shown of the event in any of forms. An unknown kind, or one with malformed fields, is a note."""
        row = EVENTS.get(event.type, UNKNOWN)
        try:
            call_id = str(event.data.get("tool_call_id", ""))
            call = self._calls.pop(call_id, None)
            if event.type == "tool_call":
                self._calls[call_id] = event
            return list(row.blocks(event, call)) if row.forms & self._forms else []
        except MALFORMED as error:
            return [note("warning", f"Event {event.seq} ({event.type}) cannot be shown: {error!r}")]


# --- the table --------------------------------------------------------------------------------------


class Row(NamedTuple):
    """How one kind of event is shown."""

    forms: Form
    blocks: Callable[[SDKEvent, SDKEvent | None], Iterator[Block]]
    """Of an event and, for a result, its call where that is known."""


def _noted(kind: str, template: str, forms: Form) -> Row:
    """A row whose events are notes of the template, filled with their data."""
    return Row(forms, lambda event, _: iter([note(kind, template.format_map(event.data))]))


def _message(kind: Literal["user", "answer"], speaker: Literal["Person", "Agent"]) -> Row:
    def blocks(event: SDKEvent, _: object) -> Iterator[Block]:
        yield TurnBlock(speaker)
        yield MessageBlock(kind, str(event.data.get("content", "")))

    return Row(Form.EVERYWHERE, blocks)


def _tool_call(event: SDKEvent, _: object) -> Iterator[Block]:
    if not event.data.get("call_index"):
        yield TurnBlock("Agent")
    if thought := event.data.get("thought"):
        yield MessageBlock("thought", str(thought))
    yield call_of(event)
    if "approval" in event.data:
        yield NoteBlock("allowed", safe_line(f"Allowed by approval {event.data['approval']}."))


def _tool_result(event: SDKEvent, call: SDKEvent | None) -> Iterator[Block]:
    result = _result_of(event)._replace(images=tuple(map(str, event.data.get("images") or ())))
    if call is not None:
        result = result._replace(seconds=max(0.0, (event.ts - call.ts).total_seconds()))
    kind = hint_of(str(event.data.get("name", "")), call.data if call else {}).kind
    if not (result.ok and kind in {"thought", "answer"}):  # such a result only confirms the call
        yield result


def _retry(event: SDKEvent, _: object) -> Iterator[Block]:
    message, attempts = event.data["message"], event.data.get("attempts")
    follows = f" Attempt {event.data['attempt'] + 1} of {attempts} in {event.data['wait_s']:.0f} s." if attempts else ""
    yield note("retry", f"{message}{follows}")


def _condensation(event: SDKEvent, _: object) -> Iterator[Block]:
    text = f"From here on, the model is shown a summary of {event.data.get('dropped')} earlier messages."
    yield note("info", text)._replace(details=safe(event.data.get("summary", "")))


def _confirmation(event: SDKEvent, _: object) -> Iterator[Block]:
    word = "Approved" if event.data.get("approved") else "Rejected"
    reason = f" {reason}" if (reason := event.data.get("reason")) else ""
    yield note("info", f"{word} by {event.data.get('by', '')}.{reason}")


def _unknown(event: SDKEvent, _: object) -> Iterator[Block]:
    data = json.dumps(event.data, ensure_ascii=False)
    yield note("info", f"Unknown event '{event.type}', of a newer ohsandbox: {data}")


EVENTS: dict[str, Row] = {
    "system_message": Row(Form.NOWHERE, lambda *_: iter(())),
    "user_message": _message("user", "Person"),
    "assistant_message": _message("answer", "Agent"),
    "tool_call": Row(Form.EVERYWHERE, _tool_call),
    "tool_result": Row(Form.EVERYWHERE, _tool_result),
    "status_update": _noted("status", "{status}", Form.PLAIN | Form.PAGE),
    "error": _noted("error", "{message}", Form.NOT_LIVE),
    "retry": Row(Form.EVERYWHERE, _retry),
    "notice": _noted("notice", "{message}", Form.EVERYWHERE),
    "condensation": Row(Form.NOT_LIVE, _condensation),
    "confirmation": Row(Form.NOT_LIVE, _confirmation),
    "approval": _noted("info", "Approval {number} by {by}: from now on {text}.", Form.NOT_LIVE),
    "approval_revoked": _noted("info", "Approval {number} was revoked by {by}.", Form.NOT_LIVE),
    "checkpoint": _noted("info", "A checkpoint was taken.", Form.STORED | Form.PAGE),
}
"""A row per kind of event."""
UNKNOWN = Row(Form.EVERYWHERE, _unknown)


# --- calls and results ------------------------------------------------------------------------------


def call_of(event: SDKEvent) -> CallBlock:
    """The `tool_call` event in a person's words, ready to be printed."""
    name, arguments = str(event.data.get("name", "")), arguments_of(event.data)
    hint = hint_of(name, event.data)
    subject = arguments.get(hint.subject)
    if not hint.subject or not isinstance(subject, str):
        shown = event.data.get("raw_arguments") or json.dumps(arguments, ensure_ascii=False)
        return CallBlock(".", f"{safe_line(name)} {safe(shown)}", safe_line(name))
    between = " " if subject and hint.note and not hint.note.startswith("\n") else ""
    text = safe(subject) + between + safe(hint.note)
    return CallBlock(safe(hint.sign), text, safe_line(name), is_answer=hint.answers)


def _result_of(event: SDKEvent) -> ResultBlock:
    result, details = event.data.get("result") or {}, event.data.get("details") or {}
    if result.get("status") == "error":
        return ResultBlock(safe(result.get("error") or ""), "failed", ok=False)
    text = str(result.get("output") or "")
    if "exit_code" not in details:
        return ResultBlock(output(text), "", ok=True)
    above, _, last = text.rpartition("\n")
    shown = output(above if _OWN_LAST_LINE.fullmatch(last) else text)
    return ResultBlock(shown, _ending(details), ok=details["exit_code"] == 0)


_UNFINISHED = {
    "waiting_for_input": "waits for input",
    "running": "still running",
    "timed_out": "stopped by its time limit",
    "cancelled": "cancelled",
}


def _ending(details: dict[str, Any]) -> str:
    if words := [words for name, words in _UNFINISHED.items() if details.get(name)]:
        return words[0]
    code = details.get("exit_code")
    return "exit unknown" if code is None else f"exit {int(code)}"
