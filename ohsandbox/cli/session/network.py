"""`/net`: show which hosts the session's sandbox may reach and the decisions so far, and change the network."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.text import Text

from ohsandbox.cli.rendering.text import safe_line
from ohsandbox.cli.sandbox.network_words import decision_table, network_words
from ohsandbox.errors import UsageError
from ohsandbox.events import ConversationStatus

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ohsandbox.cli.session.run_session import RunSession
    from ohsandbox.cli.session.slash_commands import CommandContext
    from ohsandbox.network.audit import NetworkDecision

USAGE = "/net [allow HOST... | disallow HOST... | none | allowlist | open]"
_OPEN_QUESTION = "Let commands reach the internet? What they see of your files and secrets can be sent away."


def change_or_show(context: CommandContext, arguments: Sequence[str]) -> None:
    """Change the network as the words say, then show it."""
    match [*arguments]:
        case []:
            pass
        case ["allow", *rules] if rules:
            if context.session.network == "none":
                context.show("The list has what you name alone. /net allowlist brings back what it had besides.")
            _allow(context.session, rules)
        case ["disallow", *rules] if rules:
            _disallow(context.session, rules)
        case ["none" | "allowlist" | "open" as network]:
            if not _change(context, network):
                context.show("Nothing was changed.")
                return
        case ["allow" | "disallow" as word]:
            raise UsageError(f"/net {word} names no host. Usage: {USAGE}")
        case _:
            raise UsageError(f"Invalid network {safe_line(' '.join(arguments))!r}. Usage: {USAGE}")
    context.show(_network_text(context.session))


def net_completions(session: RunSession) -> list[str]:
    """Return the completions of `/net`: its words, and the hosts that were blocked or are allowed."""
    blocked = [one.host for one in reversed(_decisions_of(session)) if not one.allowed]
    return [*dict.fromkeys(["allow", "disallow", "none", "allowlist", "open", *blocked, *session.allowed])]


def _decisions_of(session: RunSession) -> tuple[NetworkDecision, ...]:
    """Return the decisions since the sandbox was opened; none if it has no allowlist."""
    tell = getattr(session.runtime, "network_decisions", None)
    return () if tell is None else tuple(tell())


def _network_text(session: RunSession) -> Text:
    """Describe the network, the decisions, and how to change it."""
    if not session.runtime.isolated:
        return Text(f"The network is that of {session.runtime.machine}: the agent runs without a container.")
    if session.where.attach:
        return Text("The container was joined, so its network is as its owner made it, and not ours to change.")
    match session.network:
        case "open":
            head, text = "network open", "Commands reach the internet, and can send what they see anywhere."
            change = "/net allowlist lets them reach named hosts alone, /net none nothing."
        case "none":
            head, text = "network none", "Commands reach nothing but the sandbox itself."
            change = "/net allow HOST lets them reach one, /net open the internet, after a question."
        case _:
            head = f"network by list: {network_words('allowlist', session.allowed)}"
            text = "Commands reach these hosts alone, over HTTPS and HTTP."
            change = (
                "/net allow HOST adds one at once, /net disallow HOST takes it off; /net none, /net open change all."
            )
    found = Text.assemble((f"{head}\n", "bold"), f"{text}\n")
    if decisions := _decisions_of(session):
        found.append("\n").append(decision_table(decisions)).append("\n\n")
    return found.append(f"{change}\n", "dim").append(_for_good(session), "dim")


def _for_good(session: RunSession) -> str:
    if session.network == "allowlist":
        return "For all new sandboxes: ohsandbox config set allow 'packages,HOST'."
    return f"For all new sandboxes: ohsandbox config set network {session.network}."


def _allow(session: RunSession, rules: Sequence[str]) -> None:
    if session.network == "open":
        raise UsageError("The network is open, so all hosts can be reached. /net allowlist names those that may be.")
    session.set_network("allowlist", [*dict.fromkeys([*session.allowed, *rules])])


def _disallow(session: RunSession, rules: Sequence[str]) -> None:
    if session.network != "allowlist":
        raise UsageError(f"The network is {session.network}, and has no list. /net allowlist gives it one.")
    if missing := [rule for rule in rules if rule not in session.allowed]:
        known = safe_line(", ".join(session.allowed) or "nothing")
        raise UsageError(f"{safe_line(missing[0])!r} is not on the list. It has: {known}.")
    session.set_network("allowlist", [rule for rule in session.allowed if rule not in rules])


def _change(context: CommandContext, network: str) -> bool:
    """Change the network; return whether it is now as the person wants it."""
    session = context.session
    if not session.runtime.isolated or session.where.attach:
        raise UsageError("This sandbox's network is not ours to change: /net says why.")
    match network:
        case _ if network == session.network:
            pass
        case "open":
            if session.conversation.status() is ConversationStatus.RUNNING:
                raise UsageError("/net open waits until the agent has stopped: Ctrl-C stops it.")
            if not context.confirm(_OPEN_QUESTION, what="The network would be opened"):
                return False
            session.set_network("open")
        case "none":
            session.set_network("none")
        case _:
            session.set_network("allowlist", session.sandbox.listed(session.settings))
    return True
