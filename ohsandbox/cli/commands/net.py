"""`ohsandbox net`: a sandbox's network requests and the decisions on them, grouped by host, newest first."""

# ruff: noqa: T201 - a command prints
from __future__ import annotations

import contextlib
import time
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from ohsandbox.cli.options.shared import LAST
from ohsandbox.cli.rendering.tables import open_console, print_json
from ohsandbox.cli.rendering.text import safe_line
from ohsandbox.cli.sandbox.network_words import decision_table, is_allowable, rule_host
from ohsandbox.conversation.storage import find_stored
from ohsandbox.errors import OhsandboxError, UsageError
from ohsandbox.network.audit import audit_logs, read_decisions, remove_audit_log
from ohsandbox.paths import conversations_dir
from ohsandbox.runtime.factory import open_inventory

if TYPE_CHECKING:
    from ohsandbox.network.audit import NetworkDecision

_KEPT_S = 7 * 86400.0
"""How long after its last decision, in seconds, the log of a sandbox without a conversation is kept for inspection."""


def show_network(wanted: str, *, as_json: bool) -> int:
    """Print the network decisions of a conversation's sandbox, or of a sandbox given by name.

    Raises:
        UsageError: nothing of that name is known.
    """
    name = _find_log(wanted)
    decisions = read_decisions(name)
    if as_json:
        print_json(_fields_of(one) for one in decisions)
    elif not decisions:
        print(f"{name} has asked the network for nothing.")
    else:
        open_console().print(decision_table(decisions), soft_wrap=True)
        newest = {rule_host(one): one for one in decisions}  # a host that was allowed since needs no command
        if blocked := next((one for one in reversed(newest.values()) if is_allowable(one)), None):
            print(f"\nTo allow one: /net allow {safe_line(rule_host(blocked))} in the session, or --allow with `run`.")
    return 0


def _find_log(wanted: str) -> str:
    """Return the name of the log of a conversation or sandbox, given its name, a unique prefix of it, or "last".

    Raises:
        UsageError: there is none, or several begin so.
    """
    known = [*audit_logs()]
    if wanted == LAST:
        with contextlib.suppress(UsageError):
            known = [one for one in known if one == find_stored(conversations_dir(), LAST).name] or known
        if not known:
            raise UsageError("No sandbox has asked the network for anything yet. `ohsandbox run` has an allowlist.")
        return known[0]
    found = [one for one in known if one == wanted] or [one for one in known if one.startswith(wanted)]
    if not found:
        found = [name for name in (_conversation_of(wanted), _stored(wanted)) if name is not None][:1]
    if len(found) != 1:
        told = f"is the beginning of {len(found)}: {', '.join(found[:5])}" if found else "names none that is known"
        raise UsageError(f"{safe_line(wanted)!r} {told}. `ohsandbox conversations list` and `ohsandbox ps` list them.")
    return found[0]


def _conversation_of(sandbox: str) -> str | None:
    """Return the conversation whose sandbox has this name; None if there is none or no engine answers."""
    try:
        with open_inventory() as inventory:
            return next((one.conversation for one in inventory.list_sandboxes() if one.name == sandbox), None)
    except OhsandboxError:
        return None


def _stored(wanted: str) -> str | None:
    """Return the stored conversation of this name, for one whose sandbox has made no request."""
    with contextlib.suppress(UsageError):
        return find_stored(conversations_dir(), wanted).name
    return None


def _fields_of(decision: NetworkDecision) -> dict[str, Any]:
    """Return a decision as JSON."""
    return asdict(decision) | {"time": datetime.fromtimestamp(decision.time, UTC).isoformat()}


def old_logs() -> list[str]:
    """Return the names of logs that belong to no conversation and are older than _KEPT_S."""
    before = time.time() - _KEPT_S
    conversations = conversations_dir()
    return [name for name, at in audit_logs().items() if at < before and not (conversations / name).exists()]


def remove_old_logs() -> list[str]:
    """Remove the old logs and return their names."""
    names = old_logs()
    for name in names:
        remove_audit_log(name)
    return names
