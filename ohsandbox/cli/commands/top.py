"""`ohsandbox top`: what all sandboxes and conversations of this machine do now, as a table or as JSON.

Each look costs a bounded time and reads a bounded amount, however long the logs are.
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
from ohsandbox.cli.rendering.text import age, cut, safe_line, say, size, words
from ohsandbox.conversation.run.result import answer_in
from ohsandbox.conversation.storage import MALFORMED
from ohsandbox.conversation.storage.metadata import ConversationMetadata, FileConversationStore
from ohsandbox.errors import OhsandboxError
from ohsandbox.events import ConversationStatus
from ohsandbox.paths import conversations_dir, subdirectory
from ohsandbox.persistence import LOG_NAME, holder_of
from ohsandbox.persistence.reading import tail_events
from ohsandbox.review_text import on_one_line
from ohsandbox.runtime.factory import open_inventory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from ohsandbox.events import SDKEvent
    from ohsandbox.runtime.inventory import Inventory, SandboxInfo, SandboxUsage

ENGINE_WAIT_S = 6.0
"""Of a single look: an engine that takes longer is told, and not waited for."""
_BETWEEN_SAMPLES_S = 1.0
"""The engine samples once a second; a processor's share is between two samples."""
_MAX_PRINTED_CHARS = 100
HEADINGS = ("NAME", "STATE", "CPU", "MEMORY", "NET IN", "NET OUT", "COST", "AGE", "TITLE", "DOES")


def show_top(root: Path | None, *, once: bool, as_json: bool) -> int:
    """The live table at a terminal; a plain one, or JSON, where that is asked for or nobody is there."""
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
    """Two samples of the engine, as far as it answers."""

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
    name = safe_line(row.conversation or (row.sandbox.name if row.sandbox else row.key))
    title = "" if row.conversation is None else cut(row.title, _MAX_PRINTED_CHARS)
    shown = row.cells() | {"NAME": name, "TITLE": title, "DOES": cut(row.doing, _MAX_PRINTED_CHARS)}
    return tuple(shown[heading] for heading in HEADINGS)


# --- what is known --------------------------------------------------------------------------------

_MAX_CONVERSATIONS = 100
"""The newest, besides those whose sandbox is there."""
TAIL_BYTES, OPEN_TAIL_BYTES = 16 * 1024, 256 * 1024
"""So much of a log is read, and of one that a process has open: what it spent since its metadata was saved is there."""
_USAGE_TIMEOUT_S = 2.0
_MAX_DOING_CHARS = 400
_RANKS = {"waiting": 0, "running": 1}
_OTHER, _NOT_OURS = 2, 3
"""What needs a person stands first, then what is at work; last what another user or state directory owns."""
_WORDS = {
    ConversationStatus.WAITING_FOR_CONFIRMATION: "waiting",
    ConversationStatus.RUNNING: "running",
    ConversationStatus.IDLE: "idle",
    ConversationStatus.FINISHED: "finished",
    ConversationStatus.CANCELED: "stopped",
    ConversationStatus.ERROR: "failed",
}


class TopRow(NamedTuple):
    """A conversation with its sandbox, or one of them alone. Texts are printable."""

    key: str
    """Stays the same from look to look."""
    conversation: str | None
    sandbox: SandboxInfo | None
    state: str
    title: str
    doing: str
    """What it does, or came to; empty where nothing is known."""
    since: datetime
    """Of the last event, or when the sandbox was created."""
    began: datetime
    holder: str | None
    """The process that has it open, or that owns the sandbox."""
    model: str
    cost_usd: float | None
    cpu: float | None
    """Processors, 1.0 for one."""
    usage: SandboxUsage | None
    blocked: int = 0
    """Hosts that its allowlist refused."""

    @property
    def is_at_work(self) -> bool:
        """A process works on it."""
        return self.state == "running" and self.holder is not None

    def cells(self) -> dict[str, str]:
        """What tables show of it, by their headings; empty for what is not known."""
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
    """What was read of a conversation, and the sizes for which it holds."""

    log_bytes: int
    metadata: ConversationMetadata
    status: ConversationStatus
    doing: str
    since: datetime
    cost_usd: float | None


class Survey:
    """What is known now. `ask_engine` and `read_logs` bring news, each from a thread of its own."""

    def __init__(self, root: Path, *, opener: Callable[[], Inventory] = open_inventory) -> None:
        """Look at nothing yet. root has the conversations."""
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
        """By the name of a network log: when it was written last, and the hosts that it says were refused."""
        self._asked_at: float | None = None
        self._fault = ""

    @property
    def fault(self) -> str:
        """Why sandboxes are not known, in a sentence; empty where they are."""
        asked_at = self._asked_at
        if self._fault or asked_at is None or (waited := time.monotonic() - asked_at) < 2 * _USAGE_TIMEOUT_S:
            return self._fault
        return f"The engine has not answered for {waited:.0f} s."

    @property
    def is_measuring(self) -> bool:
        """A sandbox runs that was measured."""
        return bool(self._usage)

    # --- news -------------------------------------------------------------------------------------

    def ask_engine(self) -> None:
        """List the sandboxes and measure those that run. An engine that fails is told by `fault`."""
        self._asked_at = time.monotonic()
        try:
            if self._inventory is None:
                self._inventory = self._opener()
            found = self._inventory.list_sandboxes()
            with self._lock:
                self._sandboxes, self._fault = found, ""
            self._measure(self._inventory, [one.id for one in found if one.state == "running"])
        except (OhsandboxError, OSError) as error:
            self.close()
            with self._lock:
                self._sandboxes, self._fault = [], safe_line(error, limit_chars=_MAX_DOING_CHARS)
        finally:
            self._asked_at = None

    def _measure(self, inventory: Inventory, running: list[str]) -> None:
        """Those that were measured longest ago first: what there is no time for comes the next time."""
        never = datetime.fromtimestamp(0, UTC)
        order = sorted(running, key=lambda one: self._usage[one].measured_at if one in self._usage else never)
        for name, now in inventory.usage(order, timeout_s=_USAGE_TIMEOUT_S).items():
            before = self._usage.get(name)
            with self._lock:
                if before is not None and (share := now.cpu_share(before)) is not None:
                    self._cpu[name] = share
                self._usage[name] = now
        with self._lock:
            for name in self._usage.keys() - set(running):
                del self._usage[name]
                self._cpu.pop(name, None)

    def read_logs(self) -> None:
        """Look at the newest conversations, and at those whose sandbox is there; only at what has changed."""
        with self._lock:
            wanted = {one.conversation for one in self._sandboxes}
        sizes = _logs(self._root)
        newest = sorted(sizes, key=lambda name: sizes[name][0], reverse=True)
        names = [*newest[:_MAX_CONVERSATIONS], *(name for name in newest[_MAX_CONVERSATIONS:] if name in wanted)]
        holders = {name: holder for name in names if (holder := holder_of(self._root / name))}
        found = ((name, self._look(name, sizes[name][1], is_open=name in holders)) for name in names)
        looks = {name: look for name, look in found if look is not None}
        with self._lock:
            self._looks, self._holders = looks, holders
            lone = [one.name for one in self._sandboxes if one.conversation is None]
        self._count_blocked([*looks, *lone])

    def _count_blocked(self, names: Iterable[str]) -> None:
        """Of the logs that were written since the last look."""
        directory = subdirectory("network")
        for name in names:
            try:
                written_at = (directory / f"{name}.jsonl").lstat().st_mtime
            except OSError:
                continue
            if self._blocked.get(name, (0.0, 0))[0] != written_at:
                from ohsandbox.network.audit import read_decisions  # noqa: PLC0415 - most machines have no log

                refused = {one.host for one in read_decisions(name) if not one.allowed}
                self._blocked[name] = written_at, len(refused)

    def _look(self, name: str, log_bytes: int, *, is_open: bool) -> _Look | None:
        known = self._looks.get(name)
        if known is not None and known.log_bytes == log_bytes:
            return known
        metadata = FileConversationStore(self._root).load(name)
        limit = OPEN_TAIL_BYTES if is_open else TAIL_BYTES
        return None if metadata is None else _read(self._root / name, metadata, log_bytes, limit)

    def close(self) -> None:
        """Close the connection to the engine. Twice is fine."""
        inventory, self._inventory = self._inventory, None
        if inventory is not None:
            inventory.close()

    # --- rows -------------------------------------------------------------------------------------

    def rows(self) -> list[TopRow]:
        """All that is known: what waits for a person, what is at work, the rest; the newest first."""
        with self._lock:
            of_conversation = {one.conversation: one for one in self._sandboxes if one.conversation in self._looks}
            rows = [self._conversation_row(name, of_conversation.get(name)) for name in self._looks]
            rows += [
                self._sandbox_row(one)
                for one in self._sandboxes
                if one.conversation is None or of_conversation.get(one.conversation) is not one
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

    def _sandbox_row(self, one: SandboxInfo) -> TopRow:
        holder = str(one.owner_pid) if one.owner_alive else None
        kept = "kept" if one.keep else "to be resumed" if one.resumable else "its owner is gone"
        owner = "" if one.ours else "not ours"
        return TopRow(
            key=one.id, conversation=None, sandbox=one, state=safe_line(one.state), title=safe_line(one.name),
            doing=owner or (f"process {holder} works in it" if holder else kept), since=one.created_at,
            began=one.created_at, holder=holder, model="", cost_usd=None, cpu=self._cpu.get(one.id),
            usage=self._usage.get(one.id), blocked=self._blocked.get(one.name, (0.0, 0))[1],
        )  # fmt: skip


def _rank(row: TopRow) -> int:
    if row.conversation is None and row.sandbox is not None and not row.sandbox.ours:
        return _NOT_OURS
    return _RANKS.get(row.state, _OTHER)


def _logs(root: Path) -> dict[str, tuple[float, int]]:
    """When each conversation's log was written last, and its length in bytes."""
    found = {}
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
        found[name] = (state.st_mtime, state.st_size)
    return found


def _read(directory: Path, metadata: ConversationMetadata, log_bytes: int, limit_bytes: int) -> _Look:
    """What its metadata says, and the end of its log beyond that."""
    events = tail_events(directory, limit_bytes=limit_bytes)
    later = [event for event in events if event.seq >= metadata.events]
    status, prices = metadata.status, [metadata.cost_usd]
    try:
        for event in later:
            prices.append(event.data.get("cost_usd"))
            if event.type == "status_update":
                status = ConversationStatus(event.data["status"])
        doing = _doing(events, status)
    except MALFORMED:
        doing = ""
    known = [price for price in prices if price is not None]
    since = events[-1].ts if events else metadata.updated_at
    return _Look(log_bytes, metadata, status, doing, since, sum(known) if known else None)


def _doing(events: Iterable[SDKEvent], status: ConversationStatus) -> str:
    """One printable line on what goes on, or what it came to."""
    calls: dict[str, SDKEvent] = {}
    said = problem = ""
    for event in events:
        if event.type == "tool_call":
            calls[event.data["tool_call_id"]] = event
        elif event.type == "tool_result":
            calls.pop(event.data["tool_call_id"], None)
        elif event.type in {"error", "retry"}:
            problem = words(event.data["message"], limit_chars=_MAX_DOING_CHARS)
        if event.type == "user_message":
            said = problem = ""
            calls.clear()
        elif (answer := answer_in(event)) is not None:
            said = words(answer, limit_chars=_MAX_DOING_CHARS)
    if calls and status in {ConversationStatus.RUNNING, ConversationStatus.WAITING_FOR_CONFIRMATION}:
        call = call_of(next(iter(calls.values())))
        more = f" (and {len(calls) - 1} more)" if len(calls) > 1 else ""
        return cut(f"{call.sign} {on_one_line(call.text)}{more}", _MAX_DOING_CHARS)
    if status is ConversationStatus.RUNNING:
        return problem or "the model works"
    return problem if status is ConversationStatus.ERROR else said
