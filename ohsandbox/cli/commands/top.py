"""`ohsandbox top`: current activity of all sandboxes and conversations of this machine, as a table or JSON.

Each refresh takes bounded time and reads a bounded amount, however long the logs are.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from ohsandbox.cli.prompts.prompt import person_present
from ohsandbox.cli.rendering.events import call_of
from ohsandbox.cli.rendering.tables import print_json, print_table
from ohsandbox.cli.rendering.text import age, joined_lines, prose_line, safe_line, say, size, truncated
from ohsandbox.conversation.run.result import answer_in
from ohsandbox.conversation.storage import MALFORMED
from ohsandbox.conversation.storage.metadata import ConversationMetadata, FileConversationStore
from ohsandbox.errors import OhsandboxError
from ohsandbox.events import ConversationStatus
from ohsandbox.paths import conversations_dir, subdirectory
from ohsandbox.persistence import LOG_NAME, holder_of
from ohsandbox.persistence.reading import tail_events
from ohsandbox.runtime.factory import open_inventory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from ohsandbox.events import SDKEvent
    from ohsandbox.runtime.inventory import Inventory, SandboxInfo, SandboxUsage

ENGINE_WAIT_S = 6.0
"""How long, in seconds, a single sample waits for the engine; a slower engine is reported."""
_BETWEEN_SAMPLES_S = 1.0
"""Seconds between two samples. The engine samples once a second, and a processor share needs two samples."""
_MAX_PRINTED_CHARS = 100
HEADINGS = ("NAME", "STATE", "CPU", "MEMORY", "NET IN", "NET OUT", "COST", "AGE", "TITLE", "DOES")


def show_top(root: Path | None, *, once: bool, as_json: bool) -> int:
    """Show the live table at a terminal; a plain table or JSON if asked for, or if nobody is there."""
    survey = Survey(root or conversations_dir())
    if not (once or as_json) and person_present() and os.environ.get("TERM", "dumb") != "dumb":
        from ohsandbox.cli.commands.top_screen import TopScreen  # noqa: PLC0415 - prompt_toolkit is slow to import

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
    """Take two samples from the engine, if it answers."""

    def ask() -> None:
        survey.ask_engine()
        if not survey.fault and survey.is_measuring:
            time.sleep(_BETWEEN_SAMPLES_S)
            survey.ask_engine()

    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(ENGINE_WAIT_S)
    survey.read_logs()


def fields(row: TopRow) -> dict[str, Any]:
    """Return a row as JSON."""
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
    name = safe_line(row.conversation or (row.sandbox.name if row.sandbox else row.key))
    title = "" if row.conversation is None else truncated(row.title, _MAX_PRINTED_CHARS)
    shown = row.cells() | {"NAME": name, "TITLE": title, "DOES": truncated(row.doing, _MAX_PRINTED_CHARS)}
    return tuple(shown[heading] for heading in HEADINGS)


# --- what is known --------------------------------------------------------------------------------

_MAX_CONVERSATIONS = 100
"""Largest number of conversations without a sandbox that are shown, newest first."""
TAIL_BYTES, OPEN_TAIL_BYTES = 16 * 1024, 256 * 1024
"""Bytes read from the end of a log; more for an open one, whose newest costs are only in the log."""
_USAGE_TIMEOUT_S = 2.0
_MAX_DOING_CHARS = 400
_RANKS = {"waiting": 0, "running": 1}
_OTHER, _NOT_OURS = 2, 3
"""Sort ranks: rows that need a person or are at work come first; those of another user or state directory come last."""
_WORDS = {
    ConversationStatus.WAITING_FOR_CONFIRMATION: "waiting",
    ConversationStatus.RUNNING: "running",
    ConversationStatus.IDLE: "idle",
    ConversationStatus.FINISHED: "finished",
    ConversationStatus.CANCELED: "stopped",
    ConversationStatus.ERROR: "failed",
}


class TopRow(NamedTuple):
    """A conversation with its sandbox, or either alone. All texts are safe to print."""

    key: str
    """Identifies the row across refreshes."""
    conversation: str | None
    sandbox: SandboxInfo | None
    state: str
    title: str
    doing: str
    """The current activity or the outcome; empty if unknown."""
    since: datetime
    """Time of the last event, or of the sandbox's creation."""
    began: datetime
    holder: str | None
    """The process that has the conversation open or owns the sandbox."""
    model: str
    cost_usd: float | None
    cpu: float | None
    """Processors in use; 1.0 is one full processor."""
    usage: SandboxUsage | None
    blocked: int = 0
    """Number of hosts that the allowlist refused."""

    @property
    def is_at_work(self) -> bool:
        """True if a process works on the conversation."""
        return self.state == "running" and self.holder is not None

    def cells(self) -> dict[str, str]:
        """Return the table cells by heading; empty for unknown values."""
        usage = self.usage
        received, sent = ("", "") if usage is None else (size(usage.received_bytes), size(usage.sent_bytes))
        return {
            "STATE": self.state,
            "CPU": "" if self.cpu is None else f"{self.cpu:.0%}",
            "MEMORY": "" if usage is None else size(usage.memory_bytes),
            "NET IN": received,
            "NET OUT": sent,
            "NET": "" if usage is None else f"{received} / {sent}",
            "COST": "" if self.cost_usd is None else f"${self.cost_usd:.2f}",
            "AGE": age(self.began),
            "SANDBOX": "" if self.sandbox is None else safe_line(self.sandbox.name),
            "TITLE": self.title,
            "DOES": self.doing,
        }


class _Look(NamedTuple):
    """Data read from a conversation, and the file sizes for which it is valid."""

    log_bytes: int
    metadata: ConversationMetadata
    status: ConversationStatus
    doing: str
    since: datetime
    cost_usd: float | None


class Survey:
    """The current data. `ask_engine` and `read_logs` update it, each from its own thread."""

    def __init__(self, root: Path, *, opener: Callable[[], Inventory] = open_inventory) -> None:
        """Prepare a survey of the conversations below root; nothing is read yet."""
        self._root = root
        self._opener = opener
        self._inventory: Inventory | None = None
        self._lock = threading.Lock()
        self._sandboxes: list[SandboxInfo] = []
        self._usage: dict[str, SandboxUsage] = {}
        self._cpu: dict[str, float] = {}
        self._looks: dict[str, _Look] = {}
        self._holders: dict[str, str] = {}
        self._blocked: dict[str, tuple[float, int]] = {}
        """By network log: its modification time and the number of hosts it says were refused."""
        self._asked_at: float | None = None
        self._fault = ""
        self._has_asked = False

    @property
    def has_asked(self) -> bool:
        """True if the engine has answered, or failed to, at least once; until then no sandbox is known."""
        return self._has_asked

    @property
    def fault(self) -> str:
        """Why sandboxes are unknown, in a sentence; empty if they are known."""
        asked_at = self._asked_at
        if self._fault or asked_at is None or (waited := time.monotonic() - asked_at) < 2 * _USAGE_TIMEOUT_S:
            return self._fault
        return f"The engine has not answered for {waited:.0f} s."

    @property
    def is_measuring(self) -> bool:
        """True if a running sandbox has been measured."""
        return bool(self._usage)

    # --- news -------------------------------------------------------------------------------------

    def ask_engine(self) -> None:
        """List the sandboxes and measure the running ones. If the engine fails, `fault` says why."""
        self._asked_at = time.monotonic()
        try:
            if self._inventory is None:
                self._inventory = self._opener()
            infos = self._inventory.list_sandboxes()
            with self._lock:
                self._sandboxes, self._fault, self._has_asked = infos, "", True
            self._measure(self._inventory, [info.id for info in infos if info.state == "running"])
        except (OhsandboxError, OSError) as error:
            self.close()
            with self._lock:
                self._sandboxes, self._fault = [], safe_line(error, limit_chars=_MAX_DOING_CHARS)
                self._has_asked = True
        finally:
            self._asked_at = None

    def _measure(self, inventory: Inventory, running: list[str]) -> None:
        """Measure those measured longest ago first; the others follow in the next round."""
        never = datetime.fromtimestamp(0, UTC)
        order = sorted(
            running, key=lambda sandbox_id: self._usage[sandbox_id].measured_at if sandbox_id in self._usage else never
        )
        for name, now in inventory.usage(order, timeout_s=_USAGE_TIMEOUT_S).items():
            previous = self._usage.get(name)
            with self._lock:
                if previous is not None and (share := now.cpu_share(previous)) is not None:
                    self._cpu[name] = share
                self._usage[name] = now
        with self._lock:
            for name in self._usage.keys() - set(running):
                del self._usage[name]
                self._cpu.pop(name, None)

    def read_logs(self) -> None:
        """Read the newest conversations and those with a sandbox, if they have changed."""
        with self._lock:
            with_sandbox = {info.conversation for info in self._sandboxes}
        sizes = _logs(self._root)
        newest = sorted(sizes, key=lambda name: sizes[name][0], reverse=True)
        names = [*newest[:_MAX_CONVERSATIONS], *(name for name in newest[_MAX_CONVERSATIONS:] if name in with_sandbox)]
        holders = {name: holder for name in names if (holder := holder_of(self._root / name))}
        looks_by_name = ((name, self._look(name, sizes[name][1], is_open=name in holders)) for name in names)
        looks = {name: look for name, look in looks_by_name if look is not None}
        with self._lock:
            self._looks, self._holders = looks, holders
            lone = [info.name for info in self._sandboxes if info.conversation is None]
        self._count_blocked([*looks, *lone])

    def _count_blocked(self, names: Iterable[str]) -> None:
        """Count the refused hosts in logs written since the last round."""
        directory = subdirectory("network")
        for name in names:
            try:
                written_at = (directory / f"{name}.jsonl").lstat().st_mtime
            except OSError:
                continue
            if self._blocked.get(name, (0.0, 0))[0] != written_at:
                from ohsandbox.network.audit import read_decisions  # noqa: PLC0415 - most machines have no log

                refused = {decision.host for decision in read_decisions(name) if not decision.allowed}
                self._blocked[name] = written_at, len(refused)

    def _look(self, name: str, log_bytes: int, *, is_open: bool) -> _Look | None:
        previous = self._looks.get(name)
        if previous is not None and previous.log_bytes == log_bytes:
            return previous
        metadata = FileConversationStore(self._root).load(name)
        limit = OPEN_TAIL_BYTES if is_open else TAIL_BYTES
        return None if metadata is None else _read(self._root / name, metadata, log_bytes, limit)

    def close(self) -> None:
        """Close the connection to the engine. A second call does nothing."""
        inventory, self._inventory = self._inventory, None
        if inventory is not None:
            inventory.close()

    # --- rows -------------------------------------------------------------------------------------

    def rows(self) -> list[TopRow]:
        """Return all rows: those waiting for a person, those at work, then the rest; newest first in each group."""
        with self._lock:
            of_conversation = {info.conversation: info for info in self._sandboxes if info.conversation in self._looks}
            rows = [self._conversation_row(name, of_conversation.get(name)) for name in self._looks]
            rows += [
                self._sandbox_row(info)
                for info in self._sandboxes
                if info.conversation is None or of_conversation.get(info.conversation) is not info
            ]
        return sorted(rows, key=lambda row: (_rank(row), -row.since.timestamp(), row.key))

    def _conversation_row(self, name: str, sandbox: SandboxInfo | None) -> TopRow:
        look, holder = self._looks[name], self._holders.get(name)
        state = _WORDS[look.status]
        return TopRow(
            key=name, conversation=name, sandbox=sandbox,
            state="interrupted" if state == "running" and holder is None else state,
            title=safe_line(look.metadata.title or name), doing=look.doing, since=look.since,
            began=look.metadata.created_at, holder=holder, model=safe_line(look.metadata.model or ""),
            cost_usd=look.cost_usd, cpu=self._cpu.get(sandbox.id if sandbox else ""),
            usage=self._usage.get(sandbox.id if sandbox else ""), blocked=self._blocked.get(name, (0.0, 0))[1],
        )  # fmt: skip

    def _sandbox_row(self, info: SandboxInfo) -> TopRow:
        holder = str(info.owner_pid) if info.owner_alive else None
        ending = "kept" if info.keep else "to be resumed" if info.resumable else "its owner is gone"
        owner = "" if info.ours else "not ours"
        return TopRow(
            key=info.id, conversation=None, sandbox=info, state=safe_line(info.state), title=safe_line(info.name),
            doing=owner or (f"process {holder} works in it" if holder else ending), since=info.created_at,
            began=info.created_at, holder=holder, model="", cost_usd=None, cpu=self._cpu.get(info.id),
            usage=self._usage.get(info.id), blocked=self._blocked.get(info.name, (0.0, 0))[1],
        )  # fmt: skip


def _rank(row: TopRow) -> int:
    if row.conversation is None and row.sandbox is not None and not row.sandbox.ours:
        return _NOT_OURS
    return _RANKS.get(row.state, _OTHER)


def _logs(root: Path) -> dict[str, tuple[float, int]]:
    """Return the modification time and the length in bytes of each conversation's log."""
    states = {}
    try:
        with os.scandir(root) as entries:
            names = [entry.name for entry in entries if not entry.name.startswith(".")]
    except OSError:
        return {}
    for name in names:
        try:
            state = os.stat(root / name / LOG_NAME, follow_symlinks=False)  # noqa: PTH116 - ten thousand of them
        except OSError:
            continue
        states[name] = (state.st_mtime, state.st_size)
    return states


def _read(directory: Path, metadata: ConversationMetadata, log_bytes: int, limit_bytes: int) -> _Look:
    """Read the metadata and the end of the log that it does not cover yet."""
    events = tail_events(directory, limit_bytes=limit_bytes)
    later = [event for event in events if event.seq >= metadata.events]
    status, prices = metadata.status, [metadata.cost_usd]
    try:
        for event in later:
            prices.append(event.data.get("cost_usd"))
            if event.type == "status_update":
                status = ConversationStatus(event.data["status"])
        doing = _activity_text(events, status)
    except MALFORMED:
        doing = ""
    known_prices = [price for price in prices if price is not None]
    since = events[-1].ts if events else metadata.updated_at
    return _Look(log_bytes, metadata, status, doing, since, sum(known_prices) if known_prices else None)


def _activity_text(events: Iterable[SDKEvent], status: ConversationStatus) -> str:
    """Describe the current activity or the outcome on one printable line."""
    calls: dict[str, SDKEvent] = {}
    answer_text = problem = ""
    for event in events:
        if event.type == "tool_call":
            calls[event.data["tool_call_id"]] = event
        elif event.type == "tool_result":
            calls.pop(event.data["tool_call_id"], None)
        elif event.type in {"error", "retry"}:
            problem = prose_line(event.data["message"], limit_chars=_MAX_DOING_CHARS)
        if event.type == "user_message":
            answer_text = problem = ""
            calls.clear()
        elif (answer := answer_in(event)) is not None:
            answer_text = prose_line(answer, limit_chars=_MAX_DOING_CHARS)
    if calls and status in {ConversationStatus.RUNNING, ConversationStatus.WAITING_FOR_CONFIRMATION}:
        call = call_of(next(iter(calls.values())))
        more = f" (and {len(calls) - 1} more)" if len(calls) > 1 else ""
        return truncated(f"{call.sign} {joined_lines(call.text, limit_chars=_MAX_DOING_CHARS)}{more}", _MAX_DOING_CHARS)
    if status is ConversationStatus.RUNNING:
        return problem or "the model works"
    return problem if status is ConversationStatus.ERROR else answer_text
