"""`ohsandbox run` without the interactive screen: a task or a conversation, printed block by block or line by line."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from ohsandbox.cli.commands.time_travel import offer_changes
from ohsandbox.cli.prompts.prompt import open_prompt, person_present
from ohsandbox.cli.rendering.headless import AnswerView, JsonView, PipedView, open_view
from ohsandbox.cli.session.run_session import RunSession
from ohsandbox.cli.session.slash_commands import HELP_LINE, CommandContext, is_command, message_of, run_slash_command
from ohsandbox.events import ConversationStatus

if TYPE_CHECKING:
    from collections.abc import Callable

    from ohsandbox.cli.commands.run import RunRequest
    from ohsandbox.cli.options.per_command import RunOptions
    from ohsandbox.cli.rendering.view import View


def run_plain(run: RunRequest) -> int:
    """Run the task. A resumed conversation ends after its run unless the person is prompted for messages."""
    options = run.what
    person = person_present(no_tui=options.headless)
    code = 0
    with RunSession(options, run.settings, _open_view(options), person=person) as session:
        session.open(run.where, run.resumed, run.begun)
        if options.task is not None:
            code = session.send_message(options.task, in_talk=False)
        elif run.resumed is not None:
            code = session.go_on(in_talk=person and options.talks)
        if options.task is None and options.talks and not code:
            code = _read_messages(session, open_prompt())
    offer_changes(session.unapplied)
    return code


def _open_view(options: RunOptions) -> View:
    """Open the view: blocks at a terminal. Otherwise stdout carries only the answer, stderr the rest."""
    if options.as_json:
        return JsonView()
    if options.quiet:
        return AnswerView()
    return PipedView() if not (options.no_tui or sys.stdout.isatty()) else open_view(no_tui=options.no_tui)


def _read_messages(session: RunSession, ask: Callable[[], str]) -> int:
    """Send the person's messages until they leave; return the last run's exit code. Stopping a run is not a failure."""
    context = CommandContext(session)
    if sys.stdin.isatty():
        context.show(HELP_LINE)
    code, interrupted = 0, not sys.stdin.isatty()
    while True:
        try:
            text = ask()
        except EOFError:
            return code
        except KeyboardInterrupt:
            if interrupted:
                raise
            interrupted = True
            context.show("Ctrl-C again leaves.")
            continue
        if is_command(text):
            if not run_slash_command(context, text):
                return code
        elif text.strip():
            code = session.send_message(message_of(text).strip(), in_talk=True)
            interrupted = session.conversation.status() is ConversationStatus.CANCELED
