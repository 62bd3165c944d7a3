"""Asking the person before the agent acts: at the terminal of a run, and for `ohsandbox confirm` from another."""

# ruff: noqa: T201 - a command prints
from __future__ import annotations

import getpass
import json
from enum import Enum
from typing import TYPE_CHECKING, Any, Protocol

from ohsandbox.cli.errors import WAITING
from ohsandbox.cli.prompt import person_present
from ohsandbox.cli.view import safe, safe_line
from ohsandbox.conversation.confirmation import POLICIES, Approvals, Decision, NeverConfirm, PendingCall, pending_of
from ohsandbox.conversation.store import default_root
from ohsandbox.conversation.stored import find_stored
from ohsandbox.conversation.trail import Trail
from ohsandbox.errors import UsageError
from ohsandbox.persistence import write_atomically

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from ohsandbox.cli.options import ConfirmOptions
    from ohsandbox.conversation import Conversation

MAX_CHARS = 20_000
"""Of a call so much is shown: whoever allows it should have seen it; a file's content beyond that stands in the log."""

POLICY_NAME = "confirm"
"""Beside the log."""

_MAIN = {"execute_bash": "command", "execute_ipython_cell": "code"}

HELP = (
    "y: yes. n: no. a: yes, and ask no more in this session. o: one by one. Anything else: no, with that as the reason."
)


class Wish(Enum):
    """What a person may say beside yes and no."""

    ALWAYS = "always"
    ONE_BY_ONE = "one by one"


class Decide(Protocol):
    """Takes the person's word."""

    def __call__(self, decision: Decision, *, always: bool) -> None:
        """Store it; always: nothing is to ask any more."""


def shown(pending: Sequence[PendingCall]) -> str:
    """The calls for a person, whole where they are not enormous, each with its risk and why."""
    return "\n".join(line for number, call in enumerate(pending, 1) for line in _lines(number, call))


def ask(pending: Sequence[PendingCall]) -> Decision | Wish | None:
    """Ask about all of pending, which have been shown.

    Returns:
        The decision, a wish, or None where the person leaves it open (end of input).

    Raises:
        KeyboardInterrupt: Ctrl-C.
    """
    choices = "y/n/a" if len(pending) == 1 else "y/n/a/o"
    while True:
        try:
            said = input(f"Allow {_count(len(pending))}? [{choices}, or why not; ? helps] ").strip()
        except EOFError:
            return None
        match said.lower():
            case "":
                continue
            case "?" | "h" | "help":
                print(HELP)
            case "y" | "yes":
                return Decision(approved=True)
            case "n" | "no":
                return Decision(approved=False)
            case "a" | "always":
                return Wish.ALWAYS
            case "o" if len(pending) > 1:
                return Wish.ONE_BY_ONE
            case _:
                return Decision(approved=False, reason=said)


def answer_at_terminal(conversation: Conversation) -> bool:
    """Show what waits and ask until each call has its answer; whether the run goes on.

    Raises:
        KeyboardInterrupt: Ctrl-C; what has no answer goes on waiting.
    """

    def decide(decision: Decision, *, always: bool) -> None:
        if always:
            conversation.confirmation = NeverConfirm()
        if decision.approved:
            conversation.confirm(decision.tool_call_ids, by=who())
        else:
            conversation.reject(decision.reason, decision.tool_call_ids, by=who())

    return settle(lambda: conversation.pending, decide)


def waiting_line(conversation: Conversation) -> str:
    """How to answer, on one line."""
    count = len(conversation.pending)
    verb = "waits" if count == 1 else "wait"
    return f"{_count(count)} {verb} for confirmation. Answer: ohsandbox confirm {conversation.id}"


def keep_policy(directory: Path, name: str) -> None:
    """Keep the policy's name with the conversation, so that who resumes it is asked about the same."""
    if name != (kept_policy(directory) or "never"):
        write_atomically(directory / POLICY_NAME, f"{name}\n".encode())


def kept_policy(directory: Path) -> str | None:
    """The name that was kept; None where none was. One that cannot be read asks about everything."""
    try:
        name = (directory / POLICY_NAME).read_text(encoding="ascii", errors="replace").strip()
    except FileNotFoundError:
        return None
    except OSError:
        return "always"
    return name if name in POLICIES else "always"


def answer_stored(wanted: str, options: ConfirmOptions, *, root: Path | None = None) -> int | str:
    """Show what waits in a conversation on disk, and store the answer that options give or the person at the terminal.

    Returns:
        The conversation's id where the run can go on; else the exit code: 0 nothing more to do, 6 it waits still.

    Raises:
        UsageError: there is no such conversation, nothing waits, or options contradict each other.
        ConversationOpenError: another process has it.
    """
    if options.yes and options.no:
        raise UsageError("--yes and --no contradict each other. Give one of them.")
    if options.as_json and (options.yes or options.no):
        raise UsageError("--json only shows what waits. Leave it out to answer.")
    if options.reason and not options.no:
        raise UsageError("--reason is the reason for a no. Give --no with it.")
    directory = find_stored(root or default_root(), wanted)
    trail = Trail(directory, conversation_id=directory.name)
    trail.open(lambda _event: None)
    try:
        pending = pending_of(trail.history)
        if not pending and not trail.history.held.is_decided:
            raise UsageError(f"Nothing waits for confirmation in conversation {directory.name!r}.")
        if options.as_json:
            print(json.dumps([_fields(call) for call in pending], indent=2))
            return WAITING if pending else 0
        if pending:
            _store_answers(Approvals(trail), options)
        if trail.history.held.waiting:
            return WAITING
    finally:
        trail.close()
    return 0 if options.no_run else directory.name


def who() -> str:
    """The person, for the log."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # no such user id, no variable
        return "user"


def settle(waiting: Callable[[], list[PendingCall]], decide: Decide) -> bool:
    """Ask until nothing of what waits now does; False where the person leaves some open.

    Once the last one is answered the run goes on in its own thread, and may come to wait for other calls at any moment:
    those have not been shown, so they are not asked about here.
    """
    first = waiting()
    print(shown(first), flush=True)
    names_shown = {call.tool_call_id for call in first}
    one_by_one = False
    while pending := [call for call in waiting() if call.tool_call_id in names_shown]:
        if one_by_one:
            pending = pending[:1]
            print(shown(pending), flush=True)
        said = ask(pending)
        if said is None:
            return False
        if isinstance(said, Wish):
            one_by_one = said is Wish.ONE_BY_ONE
            if said is Wish.ALWAYS:
                decide(Decision(approved=True), always=True)
        else:
            names = tuple(call.tool_call_id for call in pending) if one_by_one else None
            decide(said._replace(tool_call_ids=names), always=False)
    return True


def _store_answers(approvals: Approvals, options: ConfirmOptions) -> None:
    def decide(decision: Decision, *, always: bool) -> None:
        if always:
            print("`a` is for the session of a run: this is a yes to what waits now.")
        approvals.decide(decision, by=who())

    if options.yes or options.no:
        print(shown(approvals.pending), flush=True)
        decide(Decision(approved=options.yes, reason=options.reason), always=False)
    elif person_present(no_tui=False):
        settle(lambda: approvals.pending, decide)
    else:
        print(shown(approvals.pending), flush=True)


def _lines(number: int, call: PendingCall) -> list[str]:
    arguments = dict(call.arguments)
    arguments.pop("security_risk", None)
    main = arguments.pop(_MAIN.get(call.name, ""), None)
    lines = [f"[{number}] {safe_line(call.name)}, risk {call.risk.value}"]
    if main is not None:
        lines += _indented(str(main))
    for name, value in arguments.items():
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        first, *rest = _indented(text)
        lines += [f"    {safe_line(name)}: {first.strip()}", *rest]
    return [*lines, *(f"    - {safe_line(why, limit_chars=500)}" for why in call.why)]


def _indented(text: str) -> list[str]:
    kept = text[:MAX_CHARS]
    lines = [f"    {line}" for line in safe(kept).split("\n")]
    if len(text) > len(kept):
        lines.append(f"    … {len(text) - len(kept)} more characters; the log has them")
    return lines


def _fields(call: PendingCall) -> dict[str, Any]:
    return {**call._asdict(), "risk": call.risk.value, "why": list(call.why)}


def _count(number: int) -> str:
    return "this call" if number == 1 else f"these {number} calls"
