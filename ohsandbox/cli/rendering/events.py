"""How each kind of event is shown: `EVENTS` has a row per kind of event, and its `forms` are the columns.

A row turns an event into blocks. The views and `markdown` print blocks and do not know the kinds of events: a new
kind needs its constructor in `ohsandbox.events` and a row here.
"""

from __future__ import annotations

import getpass
import json
import re
from enum import Flag, auto
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from ohsandbox.cli.rendering.lines import (
    BlockLine,
    TextEdit,
    change_counts,
    checked_lines,
    edit_lines,
    field_lines,
    json_lines,
    patch_lines,
    progress_of,
    task_lines,
)
from ohsandbox.cli.rendering.text import output, safe, safe_line
from ohsandbox.conversation.storage import MALFORMED
from ohsandbox.text import counted
from ohsandbox.tools import arguments_of, hint_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from datetime import datetime

    from ohsandbox.events import SDKEvent

MAX_NOTE_CHARS = 1000
"""Longest note; an error message may quote a file's path and a server's answer."""
_OWN_LAST_LINE = re.compile(r"\[[^\n]*; working directory [^\n]*\]")
"""The line that `CommandObservation` appends for the model; for a person we print the exit code ourselves."""


class Form(Flag):
    """The outputs in which an event is shown. A view shows the events of any form that it has."""

    TERMINAL = auto()
    """A run, in colours."""
    PLAIN = auto()
    """A run, one line per event."""
    STORED = auto()
    """`conversations show`, which includes what the command of a run prints itself."""
    EXPORTED = auto()
    """`conversations export --format md`."""
    PAGE = auto()
    """`view`."""

    NOWHERE = 0
    NOT_LIVE = STORED | EXPORTED | PAGE
    """Not shown during a run, because the command that runs it prints it."""
    EVERYWHERE = TERMINAL | PLAIN | STORED | EXPORTED | PAGE


# --- blocks -----------------------------------------------------------------------------------------


class TurnBlock(NamedTuple):
    """A change of speaker: a heading in an export, nothing elsewhere."""

    speaker: Literal["Person", "Agent"]


class MessageBlock(NamedTuple):
    """A message. A thought is what the agent said before its calls."""

    kind: Literal["user", "answer", "thought"]
    raw: str
    """The text as in the log, not yet safe to print."""


class CallBlock(NamedTuple):
    """A tool call; all texts are safe to print."""

    sign: str
    """The sign, one character: see `CallHint.sign`."""
    text: str
    """The call's text, possibly of several lines."""
    name: str
    """The tool's name."""
    is_answer: bool = False
    """True if the text is the agent's answer to the person."""
    lines: tuple[BlockLine, ...] = ()
    """Lines below the text: fields, tasks."""


class ResultBlock(NamedTuple):
    """A tool result; all texts are safe to print."""

    text: str
    ending: str
    """How the call ended: `exit 1`, `still running`, `failed`; empty if there is nothing to say."""
    ok: bool
    seconds: float | None = None
    """Duration since the call started, by the events' own times."""
    lines: tuple[BlockLine, ...] = ()
    """Lines shown instead of the text, if there are any: a change, fields, tasks."""
    is_declined: bool = False
    """True if the call did not run and that is not a failure: a person said no, or the run had ended."""
    images: tuple[str, ...] = ()
    """Images as unchecked data URLs, for an export."""

    @property
    def summary(self) -> list[str]:
        """Return the ending and the duration, if known."""
        return [*filter(None, [self.ending, "" if self.seconds is None else f"{self.seconds:.1f} s"])]


class NoteBlock(NamedTuple):
    """One line about the run, safe to print."""

    kind: str
    """The kind: `info`, `allowed`, `status`, or a kind of warning."""
    text: str
    details: str = ""
    """Several more lines, shown only in an export."""

    @property
    def is_warning(self) -> bool:
        """True if the note should not be overlooked."""
        return self.kind in {"warning", "error", "notice", "retry"}


Block = TurnBlock | MessageBlock | CallBlock | ResultBlock | NoteBlock


def note(kind: str, text: object) -> NoteBlock:
    """Make a note of foreign text."""
    return NoteBlock(kind, safe_line(text, limit_chars=MAX_NOTE_CHARS))


class BlockReader:
    """Turns a conversation's events into blocks, in order: a result's block depends on its call."""

    def __init__(self, forms: Form) -> None:
        self._forms = forms
        self._calls: dict[str, SDKEvent] = {}
        self._answers: dict[str, SDKEvent] = {}
        """The person's decisions on calls that have no result yet."""
        self._ended_at: datetime | None = None
        """Time of the last result."""

    def blocks_of(self, event: SDKEvent) -> list[Block]:
        """Return the event's blocks for the given forms. An unknown or malformed event becomes a note."""
        row = ASIDE if event.data.get("for_person") is False else EVENTS.get(event.type, UNKNOWN)
        try:
            call_id = str(event.data.get("tool_call_id", ""))
            call = self._calls.pop(call_id, None)
            if event.type == "tool_call":
                self._calls[call_id] = event
            elif event.type == "confirmation":
                self._answers.update(dict.fromkeys(map(str, event.data["tool_call_ids"]), event))
            answer = self._answers.pop(call_id, None)
            began = None if call is None else _began(call, answer, self._ended_at)
            if event.type == "tool_result":
                self._ended_at = event.ts
            return list(row.blocks(event, _CallFacts(call, answer, began))) if row.forms & self._forms else []
        except MALFORMED as error:
            return [note("warning", f"Event {event.seq} ({event.type}) cannot be shown: {error!r}")]


class _CallFacts(NamedTuple):
    """Facts about the call that a result belongs to."""

    event: SDKEvent | None = None
    answer: SDKEvent | None = None
    """The `confirmation` event; None if nobody was asked."""
    began: datetime | None = None
    """When the call started; the person's decision and earlier calls are not part of its duration."""


def _began(call: SDKEvent, answer: SDKEvent | None, ended_before: datetime | None) -> datetime:
    hold = call.data.get("held") or {}
    waited_for = [] if not hold or hold.get("only_reads") else [ended_before]
    return max(filter(None, [call.ts, None if answer is None else answer.ts, *waited_for]))


# --- the table --------------------------------------------------------------------------------------


class Row(NamedTuple):
    """How one kind of event is shown."""

    forms: Form
    blocks: Callable[[SDKEvent, _CallFacts], Iterator[Block]]
    """Makes the blocks of an event; for a result, with the known facts about its call."""


def _noted(kind: str, template: str, forms: Form) -> Row:
    """Make a row whose events are notes: the template filled with the event's data."""
    return Row(forms, lambda event, _: iter([note(kind, template.format_map(event.data))]))


def _message(kind: Literal["user", "answer"], speaker: Literal["Person", "Agent"]) -> Row:
    def blocks(event: SDKEvent, _: object) -> Iterator[Block]:
        yield TurnBlock(speaker)
        yield MessageBlock(kind, str(event.data.get("content", "")))
        if images := event.data.get("images"):
            yield note("info", f"with {counted(len(images), 'image')}")

    return Row(Form.EVERYWHERE, blocks)


def _tool_call(event: SDKEvent, _: object) -> Iterator[Block]:
    if not event.data.get("call_index"):
        yield TurnBlock("Agent")
    if thought := event.data.get("thought"):
        yield MessageBlock("thought", str(thought))
    yield call_of(event)
    if "approval" in event.data:
        yield NoteBlock("allowed", safe_line(f"Allowed by approval {event.data['approval']}."))


def _tool_result(event: SDKEvent, call: _CallFacts) -> Iterator[Block]:
    name, call_data = str(event.data.get("name", "")), call.event.data if call.event else {}
    hint = hint_of(name, call_data)
    result = _result_of(event)._replace(images=tuple(map(str, event.data.get("images") or ())))
    if call.answer is not None and not call.answer.data.get("approved"):
        reason = safe(call.answer.data.get("reason") or "")
        result = ResultBlock(reason, _no_of(call.answer), ok=False, is_declined=True)
    elif not result.ok and result.text.startswith(NOT_RUN):
        result = result._replace(ending="not run", text=result.text.removeprefix(NOT_RUN), is_declined=True)
    elif result.ok:
        lines = tuple(_lines_of(event, arguments_of(call_data), hint.kind))
        result = result._replace(lines=lines, ending=result.ending or change_counts(lines))
    if call.began is not None and not result.is_declined:
        result = result._replace(seconds=max(0.0, (event.ts - call.began).total_seconds()))
    confirms = hint.kind in {"thought", "answer"} or (hint.kind == "tasks" and "task_list" in arguments_of(call_data))
    if not (result.ok and confirms):  # such a result says what the call has said
        yield result


NOT_RUN = "Not executed: "
"""Prefix of the text that the engine gives the model for a call that was not run."""


def _no_of(answer: SDKEvent) -> str:
    by = str(answer.data.get("by", ""))
    try:
        is_you = by in {"user", getpass.getuser()}
    except (KeyError, OSError):  # no such user id, no variable
        is_you = by == "user"
    return "you said no" if is_you else f"{safe_line(by)} said no"


def _lines_of(event: SDKEvent, arguments: dict[str, Any], kind: str) -> list[BlockLine]:
    """Return the lines that replace a result's text, which is meant for the model; empty to keep the text."""
    text = str((event.data.get("result") or {}).get("output") or "")
    if kind == "edit":
        first = (event.data.get("details") or {}).get("first_line")
        edit = TextEdit.of(arguments)
        first_number = first if isinstance(first, int) else int({"file_text", "content"} & arguments.keys() != set())
        return patch_lines(text) or ([] if edit is None else edit_lines(edit, first=first_number))
    if kind == "tasks":
        return checked_lines(text)
    return json_lines(text) if not kind else []


def _retry(event: SDKEvent, _: object) -> Iterator[Block]:
    message, attempts = event.data["message"], event.data.get("attempts")
    if attempts:
        message = f"{message} Attempt {event.data['attempt'] + 1} of {attempts}, next in {event.data['wait_s']:.0f} s."
    yield note("retry", message)


def _condensation(event: SDKEvent, _: object) -> Iterator[Block]:
    text = f"From here on, the model is shown a summary of {event.data.get('dropped')} earlier messages."
    yield note("info", text)._replace(details=safe(event.data.get("summary", "")))


def _confirmation(event: SDKEvent, _: object) -> Iterator[Block]:
    word = "Approved" if event.data.get("approved") else "Rejected"
    reason = f" {reason}" if (reason := event.data.get("reason")) else ""
    yield note("info", f"{word} by {event.data.get('by', '')}.{reason}")


def _notice_blocks(event: SDKEvent, _: object) -> Iterator[Block]:
    prefix = "The agent was told: " if event.data.get("to_model") else ""
    yield note("info", f"{prefix}{event.data['message']}")


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
"""The row of each kind of event."""
UNKNOWN = Row(Form.EVERYWHERE, _unknown)
ASIDE = Row(Form.NOT_LIVE, _notice_blocks)
"""The row of a notice that is of no use to a person during a run."""


# --- calls and results ------------------------------------------------------------------------------


def call_of(event: SDKEvent) -> CallBlock:
    """Describe a `tool_call` event for a person; all texts are safe to print."""
    name, arguments = str(event.data.get("name", "")), arguments_of(event.data)
    hint = hint_of(name, event.data)
    subject = arguments.get(hint.subject)
    if hint.kind == "tasks" and (tasks := tuple(task_lines(arguments.get("task_list")))):
        return CallBlock(safe(hint.sign), progress_of(tasks), safe_line(name), lines=tasks)
    if not hint.subject or not isinstance(subject, str):
        raw = event.data.get("raw_arguments")
        fields = field_lines(arguments if raw is None else {"arguments": raw})
        return CallBlock(".", safe_line(name), safe_line(name), lines=tuple(fields))
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
