"""Rules for git: the effects of its global options and settings. Its subcommands are in the table of `programs`."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ohsandbox.conversation.approvals.rules import Finding, names, quoted

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ohsandbox.conversation.approvals.rules.shell_syntax import SimpleCommand

_SUBCOMMANDS = names(
    """
    status log diff show branch add commit checkout switch stash merge rebase tag blame annotate ls-files ls-tree
    grep rev-parse rev-list describe remote worktree cherry-pick cherry init mv rm restore reset apply am shortlog
    reflog config bisect notes cat-file merge-base diff-tree diff-index diff-files name-rev show-ref for-each-ref
    symbolic-ref check-ignore check-attr count-objects fsck gc help version whatchanged range-diff revert
    format-patch archive hash-object var ls-remote submodule sparse-checkout show-branch merge-tree write-tree
    stripspace fetch pull clone push clean filter-branch
    """
)
"""Git's own subcommands; any other may be an alias."""

_TAKES_WORD = frozenset({"-C", "-c", "--git-dir", "--work-tree", "--namespace", "--config-env", "--super-prefix"})

_RUNS = names(
    "--upload-pack --receive-pack --exec --open-files-in-pager --extcmd --exec-path --config-env --template --ext-diff"
)

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
    if name and name not in _SUBCOMMANDS:
        yield Finding("MEDIUM", f"Runs {quoted(part.program)}, which the rules do not know; it may be an alias.")
    if command.has(*_RUNS) or any(word.startswith("ext::") for word in part.arguments):
        yield Finding("HIGH", "Lets git run a program that is named in its words.")
    if name == "config":
        yield from _config(part)


def inner_words(command: SimpleCommand) -> list[str]:
    """The argv that `git bisect run` and `git submodule foreach` run."""
    words = [*command.arguments[_after_options(command) :]]
    if words[:2] in (["bisect", "run"], ["submodule", "foreach"]):
        return [word for word in words[2:] if word != "--recursive"]
    return []


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
