"""Rules for git: the effects of its global options and settings. Its subcommands are in the table of `programs`."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ohsandbox.conversation.approvals.rules import Finding, quoted

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ohsandbox.conversation.approvals.rules.shell_syntax import SimpleCommand

_TAKES_WORD = frozenset({"-C", "-c", "--git-dir", "--work-tree", "--namespace", "--config-env", "--super-prefix"})

_PLAIN_KEY = re.compile(
    r"(?!\w+\.\w*(?:hook|command|program)(?:=|$))(?:user\.(?:name|email|signingkey)|safe\.directory|init\.defaultbranch|advice\..*|color\..*|column\..*|pull\.\w+|"
    r"push\.\w+|core\.(?:autocrlf|eol|filemode|ignorecase|quotepath|safecrlf|longpaths|abbrev|bare|compression)|"
    r"commit\.gpgsign|tag\.gpgsign|fetch\.\w+|diff\.(?:algorithm|renames|noprefix|colormoved|context)|merge\.conflictstyle|"
    r"merge\.ff|rebase\.\w+|log\.\w+|status\.\w+|branch\..*\.(?:remote|merge|rebase)|rerere\.\w+|gc\.\w+|pack\.\w+|"
    r"feature\.\w+|maintenance\.\w+|core\.(?:pager|editor)=(?:cat|true|:|)|diff\.context|blame\.\w+|grep\.\w+)",
    re.IGNORECASE,
)
"""Git's configuration keys that do not name a program, a file or a URL."""

_READS_SETTINGS = frozenset({"--get", "--get-all", "--get-regexp", "--list", "-l", "--get-urlmatch", "--show-origin"})


def subcommand(command: SimpleCommand) -> SimpleCommand:
    """Return the command after git's own options, as a command of the program `git NAME`; `git` if there is none."""
    at = _after_options(command)
    name = " ".join(["git", *command.arguments[at : at + 1]])
    return command._replace(program=name, arguments=command.arguments[at + 1 :])


def git_findings(command: SimpleCommand, _workdir: str) -> Iterator[Finding]:
    """Findings in a git command, except those of its subcommand alone."""
    part, at = subcommand(command), _after_options(command)
    name = part.program.removeprefix("git").strip()
    for option, value in command.pairs[:at]:
        if option == "-c" and not _PLAIN_KEY.fullmatch(value) and not _PLAIN_KEY.fullmatch(value.split("=", 1)[0]):
            yield Finding("HIGH", f"Sets {quoted(value)} for git, by which it may run programs.")
        if option.split("=", 1)[0] in {"--git-dir", "--work-tree"}:
            yield Finding("MEDIUM", "Uses another repository's settings.")
    if any(word.startswith("ext::") for word in part.arguments):
        yield Finding("HIGH", "Lets git run a program that is named in its words.")
    if name == "config":
        yield from _config(part)


def _after_options(command: SimpleCommand) -> int:
    at = 0
    while at < len(command.arguments) and command.arguments[at].startswith("-"):
        at += 2 if command.arguments[at] in _TAKES_WORD else 1
    return min(at, len(command.arguments))


def _config(command: SimpleCommand) -> Iterator[Finding]:
    arguments = set(command.arguments)
    words = [word for word in command.operands if word not in {"set", "unset"}]
    changes = {"--unset", "--unset-all", "unset", "-e", "--edit"} & arguments
    if _READS_SETTINGS & arguments or words[:1] in (["get"], ["list"]) or (len(words) == 1 and not changes):
        return
    elsewhere = {"--global", "--system"} & arguments
    if any(_PLAIN_KEY.fullmatch(key) for key in ("".join(words[:1]), "=".join(words[:2]))):
        if elsewhere:
            yield Finding("MEDIUM", "Changes git's settings for all repositories.")
    elif elsewhere:
        yield Finding("HIGH", "Leaves something behind that runs by itself.")
    else:
        yield Finding("HIGH", f"Sets {quoted(' '.join(words[:2]))} for git, by which it may run programs.")
