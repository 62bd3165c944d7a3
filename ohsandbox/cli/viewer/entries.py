"""Entries of the page, from events and network decisions: plain JSON, with every text masked and made safe."""

from __future__ import annotations

import contextlib
import json
import math
import re
import time
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ohsandbox.cli.rendering.events import (
    Block,
    BlockReader,
    CallBlock,
    Form,
    MessageBlock,
    NoteBlock,
    ResultBlock,
    TurnBlock,
)
from ohsandbox.cli.rendering.lines import TextEdit, edit_lines
from ohsandbox.cli.rendering.text import safe, safe_line
from ohsandbox.cli.sandbox.network_words import decision_table, rule_host
from ohsandbox.cli.viewer.changes_entry import difference
from ohsandbox.cli.viewer.markup import cut_pieces, markdown_elements, output_elements
from ohsandbox.conversation.storage import MALFORMED
from ohsandbox.errors import UsageError
from ohsandbox.events import AGENT_STARTED
from ohsandbox.network.audit import audit_path, read_decisions
from ohsandbox.paths import conversations_dir
from ohsandbox.persistence.layout import check_id
from ohsandbox.tools import arguments_of, hint_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from ohsandbox.cli.rendering.lines import BlockLine
    from ohsandbox.events import SDKEvent
    from ohsandbox.network.audit import NetworkDecision

_MAX_IMAGES_CHARS = 64 * 1024**2
"""Largest total size of a page's images, as data URLs, for the browser's sake."""
_IMAGE = re.compile(r"data:image/(?:png|jpeg|gif|webp|bmp);base64,[A-Za-z0-9+/=]+")
"""An image's data URL. SVG is excluded, because it is a document."""
_USUAL = frozenset({"RUNNING", "IDLE", "WAITING_FOR_CONFIRMATION"})
"""Statuses that are evident from the entries around them."""
_IN_DIFFERENCE = frozenset({"path", "old_str", "new_str", "file_text", "content", "command"})


class EntryMaker:
    """Makes the entries of one conversation from its events in order."""

    def __init__(self) -> None:
        self._reader = BlockReader(Form.PAGE)
        self._calls: dict[str, SDKEvent] = {}
        """Calls without a result, by id."""
        self._images_left = _MAX_IMAGES_CHARS
        self._prompt: object = None

    def entry(self, event: SDKEvent) -> dict[str, Any] | None:
        """Return the entry of an event; None for an event that is left out.

        It has `n`, the event's number, `t`, its time in ms since 1970, `type` and `blocks`; a result has `of`, the
        number of its call; a call and an answer have what they cost, as far as that is known.
        """
        entry: dict[str, Any] = {
            "n": event.seq,
            "t": round(event.ts.timestamp() * 1000),
            "type": safe_line(event.type),
        }
        try:
            self._relate(entry, event)
        except MALFORMED:
            entry = {name: entry[name] for name in ("n", "t", "type")}
        if event.type == "status_update" and event.data.get("status") in _USUAL:
            return None
        blocks = [self._block(block) for block in self._reader.blocks_of(event) if not isinstance(block, TurnBlock)]
        if event.type == "tool_result":
            _colour(blocks, event.data)
        if event.type == "system_message":
            blocks = self._prompt_of(event.data)
        entry["blocks"] = blocks
        shows_more = entry.keys() & {"agent", "of"}
        return entry if blocks or shows_more else None

    @staticmethod
    def fault(number: int, error: Exception) -> dict[str, Any]:
        """Return an entry that says why there are no more."""
        blocks = [note_block("error", safe_line(error, limit_chars=1000), warns=True)]
        return {"n": number, "t": round(time.time() * 1000), "type": "error", "blocks": blocks}

    def _relate(self, entry: dict[str, Any], event: SDKEvent) -> None:
        """Add to the entry what the event says besides its blocks."""
        data = event.data
        usage, cost = data.get("usage") or {}, data.get("cost_usd")
        if usage:
            entry["tokens"] = [int(usage.get(name) or 0) for name in ("prompt_tokens", "completion_tokens")]
        if isinstance(cost, int | float):
            entry["cost"] = cost
        if response := data.get("response_id"):
            entry["response"] = safe_line(response)
        if event.type == "tool_call":
            self._relate_call(entry, event)
        elif event.type == "tool_result":
            call = self._calls.pop(str(data.get("tool_call_id")), None)
            if call is not None:
                entry["of"] = call.seq
        elif event.type == "notice" and data.get("code") == AGENT_STARTED:
            with contextlib.suppress(UsageError):  # a name that leads elsewhere
                entry["agent"] = check_id(Path(str(data.get("trail", ""))).parent.name)

    def _relate_call(self, entry: dict[str, Any], event: SDKEvent) -> None:
        name, arguments = str(event.data.get("name", "")), arguments_of(event.data)
        hint, edit = hint_of(name, event.data), TextEdit.of(arguments)
        found = None
        if hint.kind == "edit" and edit is not None:
            found = difference(str(arguments.get("path", "")), edit_lines(edit))
            entry |= {} if found is None else {"difference": found}
        hidden = {hint.subject} | (_IN_DIFFERENCE if found is not None else set())
        more = [[safe_line(one), _text_of(value)] for one, value in arguments.items() if one not in hidden]
        if hint.subject and more:
            entry["arguments"] = more
        if held := event.data.get("held"):
            why = [safe_line(one, limit_chars=500) for one in held.get("why") or ()]
            entry["held"] = {"risk": safe_line(held.get("risk", "")), "why": why, "asks": bool(held.get("asks"))}
        elif risk := event.data.get("security_risk"):
            entry["risk"] = safe_line(risk)
        self._calls[str(event.data.get("tool_call_id"))] = event

    def _block(self, block: Block) -> dict[str, Any]:
        match block:
            case MessageBlock(kind, raw):
                return {"is": "message", "kind": kind, "text": markdown_elements(raw)}
            case CallBlock(sign, text, name, is_answer):
                shown = markdown_elements(text) if is_answer else text
                return {"is": "call", "sign": sign, "name": name, "text": shown, "lines": _lines(block.lines)}
            case ResultBlock():
                return self._result(block)
            case NoteBlock("status", text):
                return note_block("status", text.lower().replace("_", " "))
            case NoteBlock(kind, text, details):
                return note_block(kind, text, details, warns=block.is_warning)
        return note_block("info", safe_line(block, limit_chars=1000))

    def _result(self, block: ResultBlock) -> dict[str, Any]:
        images = []
        for url in block.images:
            is_kept = len(url) <= self._images_left and _IMAGE.fullmatch(url)
            self._images_left -= len(url) if is_kept else 0
            images.append(url if is_kept else "")
        change = difference("", block.lines)
        return {
            "is": "result", "text": block.text, "ending": block.ending, "ok": block.ok, "images": images,
            "seconds": block.seconds, "declined": block.is_declined, "lines": [] if change else _lines(block.lines),
            **({"difference": change} if change else {}),
        }  # fmt: skip

    def _prompt_of(self, data: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Return the blocks of the prompt and the tools' names, if they have changed."""
        content, tools = str(data.get("content", "")), data.get("tools") or []
        if (prompt := (content, json.dumps(tools))) == self._prompt:
            return []
        self._prompt = prompt
        named = [one.get("function", one) if isinstance(one, dict) else {} for one in tools]
        names = ", ".join(safe_line(one.get("name", "?")) for one in named if isinstance(one, dict))
        details = f"{safe(content)}\n\nTools: {names or 'none'}"
        title = f"System prompt and {len(tools)} tools"
        return [note_block("prompt", title, details)]


def note_block(kind: str, text: str, details: str = "", *, warns: bool = False) -> dict[str, Any]:
    """Return a note for the page, with details to unfold; the texts must be printable."""
    return {"is": "note", "kind": kind, "text": text, "details": details, "warns": warns}


def _lines(lines: Iterable[BlockLine]) -> list[list[str]]:
    return [[line.kind, line.text] for line in lines]


def _colour(blocks: Sequence[dict[str, Any]], data: Mapping[str, Any]) -> None:
    """Add the colours that a program set to the text of its result, if they can be determined."""
    raw = (data.get("result") or {}).get("output")
    for block in blocks:
        if isinstance(raw, str) and block["is"] == "result" and isinstance(pieces := output_elements(raw), list):
            text, length = "".join(piece for _, piece in pieces), len(block["text"])
            if text[:length] == block["text"]:
                block["text"] = cut_pieces(pieces, length)


def _text_of(value: object) -> str:
    return safe(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))


def as_script_data(value: object) -> str:
    """Return JSON that is safe inside a `script` element: it cannot end the element or open a comment."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


# --- the network ----------------------------------------------------------------------------------

_MAX_HOSTS_BESIDE = 20
"""Largest number of blocked hosts beside one event; the table has the others."""
_PART = 0.01
"""Step between the numbers of network entries, which lie between the numbers of two events."""


class NetworkEntries:
    """Entries about the network of one conversation, between the entries of its events."""

    def __init__(self, directory: Path) -> None:
        """Prepare to read the conversation's network log; there are no entries if the log is elsewhere."""
        self._path: Path | None = None
        self._name = directory.name
        if directory.resolve().parent == conversations_dir().resolve():
            with contextlib.suppress(UsageError):  # a name of no log
                self._path = audit_path(self._name)
        self._state: tuple[int, int] | None = None
        self._decisions: tuple[NetworkDecision, ...] = ()
        self._blocked: deque[NetworkDecision] = deque()
        self._known_until = -math.inf
        self._place = (-1, 0)
        """Number of the last event that has hosts beside it, and how many."""
        self.read()

    def read(self) -> None:
        """Read new decisions, if the log has changed."""
        if self._path is None:
            return
        with contextlib.suppress(UsageError, OSError):  # it is not there yet, or cannot be read
            found = self._path.stat()
            if (state := (found.st_size, found.st_mtime_ns)) == self._state:
                return
            self._state, self._decisions = state, read_decisions(self._name)
            fresh = [one for one in self._decisions if not one.allowed and one.time > self._known_until]
            self._blocked.extend(sorted(fresh, key=lambda one: one.time))
            self._known_until = max([self._known_until, *(one.time for one in fresh)])

    def before(self, number: int, ended_ms: float) -> Iterator[dict[str, Any]]:
        """Yield an entry for each host blocked before ended_ms, in ms since 1970; number is the last event's."""
        found: dict[str, list[NetworkDecision]] = {}
        while self._blocked and self._blocked[0].time * 1000 <= ended_ms:
            one = self._blocked.popleft()
            found.setdefault(f"{rule_host(one)} ({one.reason})", []).append(one)
        first = self._place[1] if self._place[0] == number else 0
        for place, (text, group) in enumerate([*found.items()][: _MAX_HOSTS_BESIDE - first], first + 1):
            self._place = (number, place)
            count = _count(group)
            times = f", {count} times" if count > 1 else ""
            note = note_block("network", safe_line(f"Blocked: {text}{times}", limit_chars=500), warns=True)
            at = round(group[0].time * 1000)
            yield {"n": round(number + place * _PART, 2), "t": at, "type": "blocked", "blocks": [note]}

    def table(self, number: int, at_ms: int) -> dict[str, Any] | None:
        """Return the last entry, with a row for each host and decision; None if there was no request."""
        if not self._decisions:
            return None
        blocked = _count([one for one in self._decisions if not one.allowed])
        hosts = len({one.host for one in self._decisions})
        text = f"Network: {_count(self._decisions)} requests to {hosts} hosts, {blocked} blocked"
        note = note_block("network", text, details=decision_table(self._decisions, with_age=False).plain)
        return {"n": round(number + 0.99, 2), "t": at_ms, "type": "network", "blocks": [note]}


def _count(decisions: Sequence[NetworkDecision]) -> int:
    return sum(one.count for one in decisions)
