"""Slash commands: input of a person for the program, not for the agent. `COMMANDS` is the table."""

from __future__ import annotations

import contextlib
import difflib
import os
import re
import shlex
from typing import TYPE_CHECKING, NamedTuple

from rich.text import Text

from ohsandbox.cli.prompts.prompt import ask_yes_no, pick
from ohsandbox.cli.rendering.tables import aligned
from ohsandbox.cli.rendering.text import safe_line, truncated
from ohsandbox.cli.sandbox.sandbox_ports import forward_command, port_words
from ohsandbox.cli.session import approvals
from ohsandbox.cli.session import network as session_network
from ohsandbox.cli.session import reports as session_reports
from ohsandbox.cli.session import travel as session_travel
from ohsandbox.cli.session.approvals import MODES
from ohsandbox.conversation.approvals.policy import POLICIES
from ohsandbox.errors import OhsandboxError, UsageError
from ohsandbox.events import ConversationStatus
from ohsandbox.paths import state_dir
from ohsandbox.private_files import open_regular

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from ohsandbox.cli.session.run_session import RunSession

_NAME = re.compile(r"/[A-Za-z?][\w?-]*")
"""The name of a command. A path has a second slash, and is a message."""
_MAX_ROWS_SHOWN = 30
_MAX_OWN_CHARS = 80
KEYS = "Ctrl-C stops what the agent does, Ctrl-D leaves. Anything else goes to the agent."


class CommandContext:
    """The arguments of every command: the session, and ways to print to the person and to ask."""

    def __init__(self, session: RunSession, *, keys: str = KEYS) -> None:
        """Make the context of a session; keys describes the keys of this prompt, for `/help`."""
        self.session = session
        self.keys = keys

    def show(self, what: Text | str) -> None:
        """Print what; a str is one line of ours, a Text is safe to print and may have several lines."""
        self.session.view.text(what) if isinstance(what, Text) else self.session.view.info(what)

    def warn(self, text: str) -> None:
        """Print a warning."""
        self.session.view.warn(text)

    def confirm(self, question: str, *, what: str) -> bool:
        """Ask a question; return True for a yes that was typed after it was shown.

        Raises:
            UsageError: nobody can be asked; the message begins with what.
        """
        if not self.session.person:
            raise UsageError(f"{what}, which a person confirms at a terminal.")
        return ask_yes_no(question)

    def choose(self, title: str, rows: Sequence[str]) -> int | None:
        """Return the index of the row that the person chose; None for none, or if nobody can be asked."""
        if self.session.person:
            return pick(title, rows)
        self.show(Text(title, style="bold"))
        self.show(Text("\n").join(map(Text, rows[:_MAX_ROWS_SHOWN])))
        return None


class _SlashCommand(NamedTuple):
    """A slash command."""

    name: str
    arguments: str
    """The arguments, as in the help."""
    help: str
    run: Callable[[CommandContext, Sequence[str]], None]
    most: int | None = 0
    """Largest number of arguments; None leaves the check to the command."""
    while_running: bool = False
    """True if the command may be given while the agent works."""
    complete: Callable[[RunSession], Iterable[str]] = lambda _: ()
    """Returns the completions of the argument."""
    aliases: tuple[str, ...] = ()


class Leave(Exception):  # noqa: N818 - no error
    """The person leaves the session."""


# --- which command a line is ------------------------------------------------------------------------


def is_command(line: str) -> bool:
    """Return whether a line is for the program: it begins with `/word`, unless that is one of the user's own commands.

    A path is a message, and so is a line with a blank before the `/`.
    """
    word = line.split(maxsplit=1)[0] if line[:1] == "/" else ""
    return _NAME.fullmatch(word) is not None and message_of(line) == line


def message_of(line: str) -> str:
    """Return the message for the agent: for the user's own command the text of its file, else the line itself."""
    word = line.split(maxsplit=1)[0].lower() if line[:1] == "/" else ""
    if not word or any(word in {one.name, *one.aliases} for one in COMMANDS):
        return line
    with contextlib.suppress(UsageError):  # `find_command` says why
        return _own_message(line) or line
    return line


def find_command(word: str) -> _SlashCommand:
    """Return the command of that name.

    Raises:
        UsageError: there is none; the message suggests similar names.
    """
    word = word.lower()
    for command in COMMANDS:
        if word in {command.name, *command.aliases}:
            return command
    _own_message(word)  # says what is wrong with its file
    names = [*(command.name for command in COMMANDS), *own_commands()]
    beginning = [name for name in names if name.startswith(word)]
    near = beginning or difflib.get_close_matches(word, names, n=3, cutoff=0.7)
    meant = f" Did you mean {' or '.join(near)}?" if near else ""
    raise UsageError(
        f"Unknown command {safe_line(word)!r}.{meant} /help lists them; a blank before it sends it to the agent."
    )


def run_slash_command(context: CommandContext, line: str) -> bool:
    """Run a line for which `is_command` is true; return whether the session goes on. Failures are reported.

    Raises:
        OhsandboxError: no conversation is open any more.
        KeyboardInterrupt: Ctrl-C, and no conversation is open any more, or it was the second one.
    """
    word, _, rest = line.strip().partition(" ")
    session = context.session
    try:
        command = find_command(word)
        running = session.conversation.status() is ConversationStatus.RUNNING
        if running and not command.while_running:
            raise UsageError(f"{command.name} waits until the agent has stopped: Ctrl-C stops it.")
        try:
            arguments = shlex.split(rest)
        except ValueError:
            arguments = rest.split()
        if command.most is not None and len(arguments) > command.most:
            usage = f"{command.name} {command.arguments}".rstrip()
            raise UsageError(f"Too many words: {' '.join(arguments)!r}. Usage: {usage}")
        command.run(context, arguments)
    except Leave:
        return False
    except KeyboardInterrupt:
        if not session.is_open or session.presenter.hurried:
            raise
        context.show("Stopped; nothing more is done.")
    except OhsandboxError as error:
        if not session.is_open:
            raise
        context.warn(str(error))
    return True


def completions(session: RunSession | None, before_cursor: str) -> list[str]:
    """Return the completions of the last word before the cursor, in a line that begins with `/`."""
    word, blank, rest = before_cursor.partition(" ")
    if not blank:
        return [name for name in (*(one.name for one in COMMANDS), *own_commands()) if name.startswith(word)]
    last = rest.rpartition(" ")[2]
    try:
        command = find_command(word)
        found = [] if session is None or not session.is_open else [*command.complete(session)]
    except OhsandboxError:
        return []
    return [one for one in found if one.startswith(last)]


# --- the commands -----------------------------------------------------------------------------------


def _help(context: CommandContext, arguments: Sequence[str]) -> None:
    shown = [find_command(f"/{arguments[0].lstrip('/')}")] if arguments else COMMANDS
    width = max(len(f"{one.name} {one.arguments}") for one in shown)
    lines = [Text.assemble((f"{f'{one.name} {one.arguments}':<{width}}", "bold"), f"  {one.help}") for one in shown]
    context.show(Text("\n").join(lines))
    if not arguments and (own := own_commands()):
        rows = [(name, truncated(safe_line(text), _MAX_OWN_CHARS)) for name, text in own.items()]
        context.show(Text("Your own:\n", style="bold").append_text(aligned(rows)))
    if not arguments:
        context.show(Text(context.keys, style="dim"))


def _exit(context: CommandContext, _arguments: Sequence[str]) -> None:
    context.session.presenter.leave()
    raise Leave


def _approvals(context: CommandContext, arguments: Sequence[str]) -> None:
    approvals.list_or_revoke_live(context.session.conversation, arguments, context.show)


def _compact(context: CommandContext, _arguments: Sequence[str]) -> None:
    context.session.compact()


def _clear(context: CommandContext, _arguments: Sequence[str]) -> None:
    session = context.session
    before, had_begun = session.conversation.id, session.has_begun
    session.start_new_conversation()
    back = f" The one of before: /resume {before}" if had_begun else ""
    context.show(f"A new conversation in the same sandbox: files are as they were, shells are new.{back}")


def _model(context: CommandContext, arguments: Sequence[str]) -> None:
    session = context.session
    if arguments:
        session.use_model(arguments[0])
    context.show(session_reports.model_text(session))


def _mode(context: CommandContext, arguments: Sequence[str]) -> None:
    session = context.session
    if arguments:
        if (name := next((one for one in POLICIES if one == arguments[0]), None)) is None:
            raise UsageError(f"Unknown mode {arguments[0]!r}. Use one of: {', '.join(POLICIES)}.")
        session.use_policy(name)
    now = session.policy_name
    rows = [(f"{'*' if name == now else ' '} {name}", MODES[name].told) for name in POLICIES]
    context.show(aligned(rows))


def _view(context: CommandContext, _arguments: Sequence[str]) -> None:
    context.session.serve_page()


def _report(text: Callable[[RunSession], Text]) -> Callable[[CommandContext, Sequence[str]], None]:
    """Make a command without arguments that only shows a text."""

    def run(context: CommandContext, _arguments: Sequence[str]) -> None:
        context.show(text(context.session))

    return run


def _approval_words(session: RunSession) -> list[str]:
    return ["revoke", "all", *(str(one.number) for one in session.conversation.approvals)]


COMMANDS: tuple[_SlashCommand, ...] = (
    _SlashCommand(
        "/help", "[COMMAND]", "this list", _help, most=1, while_running=True,
        complete=lambda _: [one.name for one in COMMANDS], aliases=("/?",),
    ),
    _SlashCommand(
        "/status", "", "model, context, cost, files, container, network, what asks",
        _report(session_reports.status_text), while_running=True,
    ),
    _SlashCommand(
        "/cost", "", "tokens and dollars, by turn and in all",
        _report(session_reports.cost_report), while_running=True,
    ),
    _SlashCommand(
        "/why", "", "why the last call failed, was refused or was stopped, and what would help",
        _report(session_reports.why_text), while_running=True,
    ),
    _SlashCommand(
        "/diff", "[last|N] [--stat]", "what changed in all, in the last turn, or in the last N turns",
        session_travel.show_diff, most=2, while_running=True, complete=lambda _: ["last", "--stat"],
    ),
    _SlashCommand(
        "/view", "", "this conversation as a page in the browser, which can answer, stop and steer", _view,
        while_running=True,
    ),
    _SlashCommand(
        "/undo", "[N]", "take back the last turn, or N: what was said, and the files",
        session_travel.undo_turns, most=1, complete=session_travel.turn_numbers,
    ),
    _SlashCommand("/redo", "", "bring back what /undo took", session_travel.redo_undone),
    _SlashCommand(
        "/model", "[NAME]", "which model it is, or go on with another one", _model, most=1,
        complete=session_reports.known_models,
    ),
    _SlashCommand(
        "/mode", "[NAME]", "what is asked before it runs; plan: the agent only looks, and presents a plan",
        _mode, most=1, while_running=True, complete=lambda _: POLICIES,
    ),
    _SlashCommand("/compact", "", "sum up the older part of the conversation for the model", _compact),
    _SlashCommand("/clear", "", "begin a new conversation in the same sandbox", _clear, aliases=("/new",)),
    _SlashCommand(
        "/resume", "[ID]", "go on with another conversation, chosen from a list",
        session_travel.resume, most=1, complete=session_travel.resume_completions,
    ),
    _SlashCommand(
        "/fork", "[DIR]", "go on in a copy; DIR, an empty one, is for the files of a mounted directory",
        session_travel.fork_here, most=1,
    ),
    _SlashCommand(
        "/tools", "[NAME]", "the tools that the agent has, or what one is told to be",
        session_reports.show_tools, most=1, while_running=True,
        complete=lambda session: sorted(session.conversation.tools),
    ),
    _SlashCommand(
        "/mcp", "", "the MCP servers and their state", _report(session_reports.servers_text), while_running=True
    ),
    _SlashCommand(
        "/net", "[allow|disallow HOST, none|allowlist|open]", "what the sandbox reaches, what was blocked; changes it",
        session_network.change_or_show, most=None, while_running=True, complete=session_network.net_completions,
    ),
    _SlashCommand(
        "/forward", "[PORT|HOST:PORT]", "a port of the sandbox on this machine; close PORT closes it; alone lists them",
        forward_command, most=None, while_running=True, complete=port_words,
    ),
    _SlashCommand(
        "/secrets", "", "names of the secrets that commands have",
        _report(session_reports.secrets_text), while_running=True,
    ),
    _SlashCommand(
        approvals.COMMAND, "[revoke N|all]", "what you allowed from now on, and taking it back",
        _approvals, most=None, while_running=True, complete=_approval_words,
    ),
    _SlashCommand(
        "/instructions", "", "the files that instruct the agent",
        _report(session_reports.instructions_text), while_running=True,
    ),
    _SlashCommand("/exit", "", "leave", _exit, aliases=("/quit",)),
)  # fmt: skip
HELP_LINE = "/help lists the commands, /exit or Ctrl-D leaves, Ctrl-C stops the agent. Anything else goes to the agent."


# --- a person's own commands ----------------------------------------------------------------------

_DIRECTORY_NAME = "commands"
_MAX_OWN_BYTES = 64 * 1024
MAX_COMMANDS = 200
_OWN_ARGUMENTS = "$ARGUMENTS"
"""Placeholder in a command file for the arguments; without it, the arguments follow the text."""
_OWN_NAME = re.compile(r"[a-z][a-z0-9_-]{0,63}", re.ASCII)


def own_commands() -> dict[str, str]:
    """Return the first line of each of the user's commands by name, with the slash; unreadable files are left out.

    `commands/review.md` in the state directory defines `/review`, a message for the agent. Only that place is read,
    where no sandbox can write; a repository cannot add any.
    """
    found: dict[str, str] = {}
    names = sorted(path.stem for path in (state_dir() / _DIRECTORY_NAME).glob("*.md"))
    for name in names[:MAX_COMMANDS]:
        if _OWN_NAME.fullmatch(name):
            with contextlib.suppress(UsageError):
                found[f"/{name}"] = _text_of(name).partition("\n")[0].lstrip("# ")
    return found


def _own_message(line: str) -> str | None:
    """Return the message of the user's own command that begins the line; None if there is none of that name.

    Raises:
        UsageError: its file cannot be read, is empty, is not UTF-8, or has over MAX_OWN_BYTES.
    """
    word, _, rest = line.strip().partition(" ")
    name = word.removeprefix("/").lower()
    if not word.startswith("/") or not _OWN_NAME.fullmatch(name):
        return None
    if not (state_dir() / _DIRECTORY_NAME / f"{name}.md").exists():
        return None
    text, rest = _text_of(name), rest.strip()
    if _OWN_ARGUMENTS in text:
        return text.replace(_OWN_ARGUMENTS, rest)
    return f"{text}\n\n{rest}" if rest else text


def _text_of(name: str) -> str:
    path = state_dir() / _DIRECTORY_NAME / f"{name}.md"
    what = f"The command {str(path)!r}"
    with os.fdopen(open_regular(path, os.O_RDONLY, name="The command"), "rb") as file:
        data = file.read(_MAX_OWN_BYTES + 1)
    if len(data) > _MAX_OWN_BYTES:
        raise UsageError(f"{what} has over {_MAX_OWN_BYTES} bytes. Shorten it.")
    try:
        text = data.decode("utf-8-sig").strip()
    except UnicodeDecodeError as error:
        raise UsageError(f"{what} is not UTF-8 text (byte {error.start}). Convert it.") from None
    if not text:
        raise UsageError(f"{what} is empty. Write into it what the agent is to be told.")
    return text
