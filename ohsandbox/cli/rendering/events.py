"""How each kind of event is shown: `EVENTS` has a row per kind of event, and its `forms` are the columns.

A row makes blocks of an event. `terminal`, `plain` and `markdown` print blocks, and none of them knows kinds of events:
a new kind needs its constructor in `ohsandbox.events` and a row here.
"""

from __future__ import annotations

import json
import re
from enum import Flag, auto
from typing import TYPE_CHECKING, Any, NamedTuple

from ohsandbox.cli.rendering.text import output, safe, safe_line
from ohsandbox.conversation.storage.catalog import MALFORMED
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
    """`conversations show`: what a run leaves to the command that runs it is shown here."""
    EXPORTED = auto()
    """`conversations export --format md`."""

    NOWHERE = 0
    EVERYWHERE = TERMINAL | PLAIN | STORED | EXPORTED


# --- blocks -----------------------------------------------------------------------------------------


class TurnBlock(NamedTuple):
    """Somebody has the floor from here on: a heading of an export, nothing elsewhere."""

    speaker: str
    """`Person` or `Agent`."""


class MessageBlock(NamedTuple):
    """What the person or the agent said."""

    raw: str
    """As in the log: to be made printable."""
    by_person: bool


class ThoughtBlock(NamedTuple):
    """What the agent said before its calls."""

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


class ImagesBlock(NamedTuple):
    """Images that a tool returned: in an export, which has room for them."""

    urls: tuple[str, ...]
    """Data URLs, unchecked."""


class NoteBlock(NamedTuple):
    """One line about the run, printable."""

    kind: str
    """`info`, `allowed`, `status`, and `warning`, `error`, `notice` and `retry`, which should not be overlooked."""
    text: str
    details: str = ""
    """Several lines that only an export has room for."""

    @property
    def is_warning(self) -> bool:
        """It should not be overlooked."""
        return self.kind in {"warning", "error", "notice", "retry"}


Block = TurnBlock | MessageBlock | ThoughtBlock | CallBlock | ResultBlock | ImagesBlock | NoteBlock


class Row(NamedTuple):
    """How one kind of event is shown."""

    blocks: Callable[[SDKEvent], Iterator[Block]]
    forms: Form


def blocks_of(event: SDKEvent, forms: Form) -> list[Block]:
    """What is shown of the event in any of forms. One of an unknown kind, or with malformed fields, is a note."""
    row = EVENTS.get(event.type, UNKNOWN)
    try:
        return list(row.blocks(event)) if row.forms & forms else []
    except MALFORMED as error:
        return [_note("warning", f"Event {event.seq} ({event.type}) cannot be shown: {error!r}")]


# --- one function per kind of event -----------------------------------------------------------------


def _nothing(_event: SDKEvent) -> Iterator[Block]:
    yield from ()


def _user_message(event: SDKEvent) -> Iterator[Block]:
    yield TurnBlock("Person")
    yield MessageBlock(str(event.data.get("content", "")), by_person=True)


def _assistant_message(event: SDKEvent) -> Iterator[Block]:
    yield TurnBlock("Agent")
    yield MessageBlock(str(event.data.get("content", "")), by_person=False)


def _tool_call(event: SDKEvent) -> Iterator[Block]:
    if not event.data.get("call_index"):
        yield TurnBlock("Agent")
    if thought := event.data.get("thought"):
        yield ThoughtBlock(str(thought))
    yield call_of(event)
    if "approval" in event.data:
        yield NoteBlock("allowed", safe_line(f"Allowed by approval {event.data['approval']}."))


def _tool_result(event: SDKEvent) -> Iterator[Block]:
    result = result_of(event)
    if not (result.ok and event.data.get("name") in _SAID_IN_THE_CALL):
        yield result
    if images := event.data.get("images"):
        yield ImagesBlock(tuple(map(str, images)))


_SAID_IN_THE_CALL = frozenset({"finish", "think"})
"""Tools whose result only confirms what the call says."""


def _status_update(event: SDKEvent) -> Iterator[Block]:
    yield _note("status", event.data.get("status", ""))


def _message(event: SDKEvent) -> Iterator[Block]:
    yield _note(event.type, event.data.get("message", ""))


def _condensation(event: SDKEvent) -> Iterator[Block]:
    text = f"From here on, the model is shown a summary of {event.data.get('dropped')} earlier messages."
    yield _note("info", text)._replace(details=safe(event.data.get("summary", "")))


def _confirmation(event: SDKEvent) -> Iterator[Block]:
    word = "Approved" if event.data.get("approved") else "Rejected"
    reason = f" {reason}" if (reason := event.data.get("reason")) else ""
    yield _note("info", f"{word} by {event.data.get('by', '')}.{reason}")


def _approval(event: SDKEvent) -> Iterator[Block]:
    data = event.data
    yield _note("info", f"Approval {data.get('number')} by {data.get('by')}: from now on {data.get('text')}.")


def _approval_revoked(event: SDKEvent) -> Iterator[Block]:
    yield _note("info", f"Approval {event.data.get('number')} was revoked by {event.data.get('by')}.")


def _checkpoint(_event: SDKEvent) -> Iterator[Block]:
    yield _note("info", "A checkpoint was taken.")


def _unknown(event: SDKEvent) -> Iterator[Block]:
    text = f"Unknown event '{event.type}', of a newer ohsandbox: {json.dumps(event.data, ensure_ascii=False)}"
    yield _note("info", text)


def _note(kind: str, text: object) -> NoteBlock:
    return NoteBlock(kind, safe_line(text, limit_chars=MAX_NOTE_CHARS))


_TOLD_BY_THE_COMMAND = Form.STORED | Form.EXPORTED
"""While it runs, the command that runs it tells the person."""

EVENTS: dict[str, Row] = {
    "system_message": Row(_nothing, Form.NOWHERE),
    "user_message": Row(_user_message, Form.EVERYWHERE),
    "assistant_message": Row(_assistant_message, Form.EVERYWHERE),
    "tool_call": Row(_tool_call, Form.EVERYWHERE),
    "tool_result": Row(_tool_result, Form.EVERYWHERE),
    "status_update": Row(_status_update, Form.PLAIN),
    "error": Row(_message, _TOLD_BY_THE_COMMAND),
    "retry": Row(_message, Form.EVERYWHERE),
    "notice": Row(_message, Form.EVERYWHERE),
    "condensation": Row(_condensation, _TOLD_BY_THE_COMMAND),
    "confirmation": Row(_confirmation, _TOLD_BY_THE_COMMAND),
    "approval": Row(_approval, _TOLD_BY_THE_COMMAND),
    "approval_revoked": Row(_approval_revoked, _TOLD_BY_THE_COMMAND),
    "checkpoint": Row(_checkpoint, Form.STORED),
}
"""A row per kind of event."""

UNKNOWN = Row(_unknown, Form.EVERYWHERE)


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


def result_of(event: SDKEvent) -> ResultBlock:
    """The `tool_result` event in a person's words, ready to be printed."""
    result, details = event.data.get("result") or {}, event.data.get("details") or {}
    if result.get("status") == "error":
        return ResultBlock(safe(result.get("error") or ""), "failed", ok=False)
    text = str(result.get("output") or "")
    if "exit_code" not in details:
        return ResultBlock(output(text), "", ok=True)
    above, _, last = text.rpartition("\n")
    return ResultBlock(
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
