"""The texts of slash commands about a session: `/status`, `/why`, `/cost`, `/tools`, `/mcp` and others."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

from rich.text import Text

from ohsandbox.agent.prompt import INSTRUCTIONS_NAME, read_workspace_instructions
from ohsandbox.cli.rendering.cost import cost_table, price_words
from ohsandbox.cli.rendering.events import BlockReader, CallBlock, Form, NoteBlock, ResultBlock
from ohsandbox.cli.rendering.tables import aligned
from ohsandbox.cli.rendering.text import joined_lines, safe, safe_line, truncated
from ohsandbox.cli.sandbox.network_words import network_words
from ohsandbox.cli.sandbox.runtime import place_of
from ohsandbox.cli.session.approvals import MODES
from ohsandbox.cli.settings.model import key_source
from ohsandbox.conversation.run.result import answer_in
from ohsandbox.conversation.storage import list_stored
from ohsandbox.errors import UsageError
from ohsandbox.paths import conversations_dir
from ohsandbox.persistence import stream_events
from ohsandbox.text import counted
from ohsandbox.timetravel.checkpoints import CheckpointIndex
from ohsandbox.timetravel.turns import is_turn
from ohsandbox.timetravel.workspace_diff import diff_workspace

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from ohsandbox.cli.session.presenter import Presenter
    from ohsandbox.cli.session.run_session import RunSession
    from ohsandbox.cli.session.slash_commands import CommandContext
    from ohsandbox.conversation.cost import ConversationCost
    from ohsandbox.events import SDKEvent

_MAX_TOOL_CHARS = 90
_MAX_CHANGED_NAMED = 5
"""Number of changed files that a line names."""
_MAX_WHY_LINES = 5
"""Number of lines from the end of a failed call's output, where the reason is."""
_NO_NETWORK = re.compile(
    r"(?i)could not resolve|name resolution|network is unreachable|getaddrinfo|bad address|blocked by the sandbox"
)
"""Messages of glibc, musl, busybox, Python and Node without a network, and of our proxy when it refuses."""


# --- at the beginning and the end -------------------------------------------------------------------------------------


def last_exchange(directory: Path) -> list[SDKEvent]:
    """Return the user's last message and the agent's last answer to it."""
    words: list[SDKEvent] = []

    def on_event(event: SDKEvent) -> None:
        if is_turn(event):
            words[:] = [event]
        elif words and answer_in(event) is not None:
            words[1:] = [event]

    stream_events(directory, on_event)
    return words


def change_reporter(presenter: Presenter, *, unless: Callable[[], bool]) -> Callable[[], None]:
    """Return a context for an ExitStack that reports changed files of bound workspaces; not after a second Ctrl-C."""
    directory = presenter.conversation.directory
    count_before = len(CheckpointIndex.of(directory).kept) if directory.exists() else 0

    def report() -> None:
        if presenter.has_worked and not presenter.hurried and not unless():
            line = _changed_line(directory, count_before)
            if line is not None:
                presenter.view.info(line)

    return report


def _changed_line(directory: Path, count_before: int) -> str | None:
    """Return a line with the files of bound workspaces changed since the kept-th checkpoint; None if none changed."""
    checkpoints = CheckpointIndex.of(directory).kept[count_before:]
    if not checkpoints or not checkpoints[0].data.get("workspace"):
        return None
    since = checkpoints[0].seq if count_before else None
    try:
        with diff_workspace(directory, since, ignored=False) as work:
            paths = [change.path for change in work.changes if not change.is_of_directories]
    except (UsageError, OSError):
        return None  # `ohsandbox diff` says why
    if not paths:
        return None
    names = ", ".join(safe_line(path, limit_chars=60) for path in paths[:_MAX_CHANGED_NAMED])
    more = f" and {len(paths) - _MAX_CHANGED_NAMED:,} more" if len(paths) > _MAX_CHANGED_NAMED else ""
    command = f"ohsandbox diff {directory.name}{'' if since is None else f' {since}'}"
    return f"Changed: {counted(len(paths), 'file')}: {names}{more}. To see it: {command}"


# --- /status, /model --------------------------------------------------------------------------------


def status_text(session: RunSession) -> Text:
    """Return model, context, cost, files, container, network, checkpoints, confirmation mode and ids."""
    conversation, runtime = session.conversation, session.runtime
    cost = conversation.cost
    rows = [
        ("model", safe_line(session.settings.model)),
        ("context", _context_words(session)),
        ("tokens", f"{cost.total.prompt_tokens:,} read, {cost.total.completion_tokens:,} written"),
        ("cost", price_words(cost.total)),
        ("files", _files(session)),
        ("sandbox", safe_line(place_of(runtime, session.where))),
        ("network", _network_words(session)),
        *([("ports", ", ".join(session.sandbox.ports.urls))] if session.sandbox.ports.urls else []),
        ("asks about", MODES[session.policy_name].asks),
        ("checkpoint", _checkpoint(session)),
        ("conversation", f"{conversation.id}, {conversation.status().value.lower()}, {_turns(cost)}"),
        ("log", safe_line(conversation.directory)),
    ]
    return Text("\n").join(Text.assemble((f"{name:<13}", "bold"), text) for name, text in rows)


def _context_words(session: RunSession) -> str:
    """Describe how full the model's context window is."""
    used = session.conversation.context
    if used.window is None:
        return f"{used.tokens:,} tokens; the window of this model is not known"
    return f"{used.tokens:,} of {used.window:,} tokens ({used.share or 0:.0%})"


def _turns(cost: ConversationCost) -> str:
    return counted(sum(1 for turn in cost.turns if turn.number), "turn")


def _files(session: RunSession) -> str:
    runtime = session.runtime
    if runtime.host_workspace is not None:
        return safe_line(f"{runtime.host_workspace}, mounted")
    if runtime.copied_workspace is not None:
        return safe_line(f"a copy of {runtime.copied_workspace}; `ohsandbox apply` brings changes back")
    if not runtime.isolated:
        machine = runtime.machine.replace("this host", "THIS HOST")
        return safe_line(f"{runtime.workdir}, on {machine} without a container")
    return safe_line(f"{runtime.workdir} in the container; none of this machine (--workspace DIR mounts one)")


def _checkpoint(session: RunSession) -> str:
    if not session.runtime.keeps_checkpoints:
        return "none: this kind of sandbox keeps none, so nothing can be undone"
    if not session.settings.checkpoints:
        return 'none: "checkpoints" is false in the settings, so nothing can be undone'
    files = CheckpointIndex.of(session.conversation.directory) if session.has_begun else CheckpointIndex()
    if not files.kept:
        return "none yet: the first is taken before the first change"
    after = "files may have changed since" if not files.is_known else "files are as it has them"
    return f"{len(files.kept)} taken, the last after event {files.kept[-1].seq}; {after}"


def model_text(session: RunSession) -> Text:
    """Return the model, the source of its key and its context window."""
    source = key_source(session.settings) or "none"
    rows = [
        ("model", safe_line(session.settings.model)),
        ("key", safe_line(source)),
        ("context", _context_words(session)),
    ]
    if session.settings.base_url:
        rows.append(("server", safe_line(session.settings.base_url)))
    return Text("\n").join(Text.assemble((f"{name:<9}", "bold"), text) for name, text in rows)


def known_models(session: RunSession) -> list[str]:
    """Return the models of the settings, of stored conversations, and of litellm's list."""
    from ohsandbox.llm.model_list import model_list  # noqa: PLC0415 - 0.03 s, for those who press Tab

    stored_models = [conversation.metadata.model for conversation in list_stored(conversations_dir())]
    used_models = dict.fromkeys(filter(None, [session.given.model, session.settings.model, *stored_models]))
    chat = [
        (name, entry.get("litellm_provider")) for name, entry in model_list().items() if entry.get("mode") == "chat"
    ]
    chat_models = sorted(name if "/" in name or not provider else f"{provider}/{name}" for name, provider in chat)
    return [*dict.fromkeys([*used_models, *chat_models])]


def _network_words(session: RunSession) -> str:
    runtime = session.runtime
    return network_words(session.network, session.allowed) if runtime.isolated else f"of {runtime.machine}"


# --- /why -------------------------------------------------------------------------------------------


def why_text(session: RunSession) -> Text:
    """Describe the last refusal, failure, stop or warning, and a remedy."""
    reader = BlockReader(Form.EVERYWHERE)
    call, last_problem = "", Text("Nothing was refused, and nothing failed in this conversation.")
    for event in session.conversation.events():
        for block in reader.blocks_of(event):
            match block:
                case CallBlock(text=text):
                    call = joined_lines(text, limit_chars=_MAX_TOOL_CHARS)
                case ResultBlock(ok=False) | ResultBlock(is_declined=True):
                    last_problem = Text.assemble(
                        (f"{call}\n", "bold"), f"{block.ending or 'failed'}{_end_of(block.text)}"
                    )
                    last_problem.append(_remedy(session, block))
                case NoteBlock(text=text) if block.is_warning:
                    last_problem = Text(text)
    return last_problem


def _end_of(output: str) -> str:
    lines = [line for line in output.splitlines() if line.strip()][-_MAX_WHY_LINES:]
    return "".join(f"\n  {line}" for line in lines)


def _remedy(session: RunSession, result: ResultBlock) -> Text:
    if result.is_declined:
        return Text("\nSay what to do in its place, or /approvals for what you allow from now on.", "dim")
    if session.runtime.isolated and session.network != "open" and _NO_NETWORK.search(result.text):
        reaches = "has no network" if session.network == "none" else "reaches the hosts on its list alone, by a proxy"
        return Text(f"\nThe sandbox {reaches}. /net says what would change that.", "dim")
    return Text("")


# --- /cost ------------------------------------------------------------------------------------------


def cost_report(session: RunSession) -> Text:
    """Return the cost by turn and in total."""
    text, total_here = cost_table(session.conversation.cost), session.conversation.cost.total
    if session.spent.tokens > total_here.tokens:
        text.append("\nThis session, with what was undone, cleared or left: ")
        text.append(f"${session.spent.cost_usd:.4f}, {session.spent.tokens:,} tokens.")
    return text


# --- /tools, /mcp, /secrets, /instructions ------------------------------------------------------------


def show_tools(context: CommandContext, arguments: Sequence[str]) -> None:
    """Show the agent's tools, or what the model is told about one of them."""
    session = context.session
    tools = session.conversation.tools
    if not tools:
        names = [tool if isinstance(tool, str) else tool.name for tool in session.conversation.agent.tools]
        context.show(Text(f"They are made with the first message, of: {safe_line(', '.join(names), limit_chars=2000)}"))
        return
    if not arguments:
        rows = [(safe_line(name), _first_words(tool.description)) for name, tool in sorted(tools.items())]
        context.show(aligned(rows))
        return
    if (tool := tools.get(arguments[0])) is None:
        raise UsageError(f"The agent has no tool {arguments[0]!r}. /tools lists those that it has.")
    parameters = json.dumps(tool.to_openai_tool()["function"]["parameters"], indent=2, ensure_ascii=False)
    context.show(Text(f"{safe_line(tool.name)}\n{safe(tool.description)}\n{safe(parameters)}"))


def _first_words(description: str) -> str:
    return truncated(safe_line(description.strip().split("\n")[0], limit_chars=10_000), _MAX_TOOL_CHARS)


def servers_text(session: RunSession) -> Text:
    """Return each MCP server with its state and the number of its tools."""
    servers = session.conversation.servers
    waiting = session.conversation.pending_servers
    question = "" if waiting is None else f"{len(waiting.servers)} of the repository's skills wait for your word."
    if not servers:
        return Text(question or 'No MCP servers. "mcpServers" in the settings, or --mcp-config FILE, names some.')
    rows = [("SERVER", "STATE", "RUNS IN", "TOOLS", "WHY")]
    for server in servers:
        withheld = f"; {len(server.withheld)} withheld, they changed" if server.withheld else ""
        reason = safe_line(server.reason) + "".join(f" {safe_line(change)}" for change in server.withheld.values())
        rows.append(
            (safe_line(server.name), server.state.value, server.where, f"{len(server.tools)}{withheld}", reason)
        )
    text = aligned(rows, heading=True)
    return text.append(f"\n{question}") if question else text


def secrets_text(session: RunSession) -> Text:
    """Return the names of the secrets, never their values."""
    names = session.conversation.secrets.names
    if not names:
        return Text("Commands have no secrets. `ohsandbox run --secret NAME` gives them a variable of yours.")
    heading = "Variables of the agent's commands, masked in what the model, the log and you are shown:"
    return Text(f"{heading} {safe_line(', '.join(names), limit_chars=2000)}")


def instructions_text(session: RunSession) -> Text:
    """Return the files whose text is in the system prompt, and their length."""
    rows = []
    instructions = read_workspace_instructions(session.runtime)
    path = f"{session.runtime.workdir.rstrip('/')}/{INSTRUCTIONS_NAME}"
    if instructions:
        rows.append(
            (safe_line(path), f"{len(instructions):,} characters, from the sandbox", _first_words(instructions))
        )
    if session.settings.instructions:
        rows.append((safe_line(session.settings.instructions), "from this machine (instructions)", ""))
    if not rows:
        return Text(safe_line(f"None. {path} is read where it is there, and the file that --instructions names."))
    return aligned(rows)
