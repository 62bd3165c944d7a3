"""Rules for git: commands that send commits, discard work, or make git run programs."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ohsandbox.conversation.approvals.rules import Finding, quoted
from ohsandbox.conversation.approvals.rules.shell_syntax import is_option

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ohsandbox.conversation.approvals.rules.shell_syntax import SimpleCommand

_CLUSTER = re.compile(r"-[a-zA-Z0-9]*")
"""A cluster of one-letter options."""
_READS = frozenset(
    """
    status log diff show branch add commit checkout switch stash merge rebase tag blame annotate ls-files ls-tree
    grep rev-parse rev-list describe remote worktree cherry-pick cherry init mv rm restore reset apply am shortlog
    reflog config bisect notes cat-file merge-base diff-tree diff-index diff-files name-rev show-ref for-each-ref
    symbolic-ref check-ignore check-attr count-objects fsck gc help version whatchanged range-diff revert
    format-patch archive hash-object var ls-remote submodule sparse-checkout show-branch merge-tree write-tree
    stripspace fetch pull clone push clean filter-branch
    """.split()  # noqa: SIM905 - a list of words reads better so
)
_NETWORK = frozenset({"fetch", "pull", "clone", "ls-remote"})
_TAKES_WORD = frozenset({"-C", "-c", "--git-dir", "--work-tree", "--namespace", "--config-env", "--super-prefix"})

_PLAIN_KEY = re.compile(
    r"(?:user\.(?:name|email|signingkey)|safe\.directory|init\.defaultbranch|advice\..*|color\..*|column\..*|pull\.\w+|"
    r"push\.\w+|core\.(?:autocrlf|eol|filemode|ignorecase|quotepath|safecrlf|longpaths|abbrev|bare|compression)|"
    r"commit\.gpgsign|tag\.gpgsign|fetch\.\w+|diff\.(?:algorithm|renames|noprefix|colormoved|context)|merge\.conflictstyle|"
    r"merge\.ff|rebase\.\w+|log\.\w+|status\.\w+|branch\..*\.(?:remote|merge|rebase)|rerere\.\w+|gc\.\w+|pack\.\w+|"
    r"feature\.\w+|maintenance\.\w+|core\.(?:pager|editor)=(?:cat|true|:|)|diff\.context|blame\.\w+|grep\.\w+)",
    re.IGNORECASE,
)
"""Configuration keys of git that name no program, file or URL."""

_RUNS = frozenset(
    {"--upload-pack", "--receive-pack", "--exec", "--open-files-in-pager", "--extcmd", "--exec-path", "--config-env",
     "--template", "--ext-diff"}
)  # fmt: skip


def git_findings(command: SimpleCommand) -> Iterator[Finding]:
    """Findings in a git command by itself."""
    options, words = _split(command.arguments)
    part, operands = (words[0], words[1:]) if words else ("", [])
    yield from _global_options(options)
    if part and part not in _READS:
        yield Finding("MEDIUM", f"Runs {quoted('git ' + part)}, which the rules do not know; it may be an alias.")
    if any(is_option(word, _RUNS) for word in (*options, *operands)) or any(
        word.startswith("ext::") for word in operands
    ):
        yield Finding("HIGH", "Lets git run a program that is named in its words.")
    if part in {"rebase", "difftool", "grep", "clone"}:
        short = {"rebase": "-x", "difftool": "-x", "grep": "-O", "clone": "-c"}[part]
        clusters = [found[0] for word in operands if (found := _CLUSTER.match(word))]
        if any(short[1] in cluster for cluster in clusters):
            yield Finding("HIGH", f"Lets {quoted('git ' + part)} run a program, or sets what does.")
    if part == "config":
        yield from _config(operands)
    elif part in {"submodule", "bisect"} and {"foreach", "run", "update"} & set(operands[:2]):
        yield Finding("MEDIUM", f"Runs what {quoted(' '.join(['git', part, *operands[:2]]))} says.")
    elif part == "remote" and {"add", "set-url"} & set(operands[:1]):
        yield Finding("MEDIUM", "Changes where the repository gets and sends commits.")
    yield from _work(command, part, operands)


def inner_words(command: SimpleCommand) -> list[str]:
    """The argv that `git bisect run` and `git submodule foreach` run."""
    _, words = _split(command.arguments)
    if words[:2] in (["bisect", "run"], ["submodule", "foreach"]):
        return [word for word in words[2:] if word != "--recursive"]
    return []


def _split(arguments: tuple[str, ...]) -> tuple[list[str], list[str]]:
    """Split arguments into git's own options and the subcommand with its arguments."""
    at = 0
    while at < len(arguments) and arguments[at].startswith("-"):
        at += 2 if arguments[at] in _TAKES_WORD else 1
    return list(arguments[:at]), list(arguments[at:])


def _global_options(options: list[str]) -> Iterator[Finding]:
    for option, value in zip(options, [*options[1:], ""], strict=False):
        if option == "-c" and not _PLAIN_KEY.fullmatch(value) and not _PLAIN_KEY.fullmatch(value.split("=", 1)[0]):
            yield Finding("HIGH", f"Sets {quoted(value)} for git, by which it may run programs.")
        if option.split("=", 1)[0] in {"--git-dir", "--work-tree"}:
            yield Finding("MEDIUM", "Uses another repository's settings.")


def _config(operands: list[str]) -> Iterator[Finding]:
    reads = {"--get", "--get-all", "--get-regexp", "--list", "-l", "--get-urlmatch", "--show-origin"}
    words = [word for word in operands if not word.startswith("-") and word not in {"set", "unset"}]
    if (
        reads & set(operands)
        or words[:1] in (["get"], ["list"])
        or (len(words) == 1 and not {"--unset", "--unset-all", "unset", "-e", "--edit"} & set(operands))
    ):
        return
    elsewhere = {"--global", "--system"} & set(operands)
    pairs = [words[0] if words else "", "=".join(words[:2])]
    if any(_PLAIN_KEY.fullmatch(one) for one in pairs):
        if elsewhere:
            yield Finding("MEDIUM", "Changes git's settings for all repositories.")
    elif elsewhere:
        yield Finding("HIGH", "Leaves something behind that runs by itself.")
    else:
        yield Finding("HIGH", f"Sets {quoted(' '.join(words[:2]))} for git, by which it may run programs.")


def _work(command: SimpleCommand, part: str, operands: list[str]) -> Iterator[Finding]:
    flags = {letter for word in operands if word.startswith("-") and not word.startswith("--") for letter in word[1:]}
    if part == "push":
        forced = "f" in flags or command.has("--force", "--force-with-lease", "--mirror", "--delete", "--prune")
        if forced or any(word.startswith(("+", ":")) for word in operands):
            yield Finding("HIGH", "Overwrites or deletes what others have (git push by force).")
        else:
            yield Finding("HIGH", "Sends commits out (git push).")
    if part in _NETWORK:
        yield Finding("MEDIUM", f"Uses the network (git {part}).")
        if any(mark in word for word in operands for mark in ("$(", "`", "${")):
            yield Finding("HIGH", f"Puts computed text into a request of git {part}.")
    yield from _discards(command, part, operands, flags)


def _discards(command: SimpleCommand, part: str, operands: list[str], flags: set[str]) -> Iterator[Finding]:
    if (part == "reset" and "--hard" in operands) or part in {"clean", "filter-branch"}:
        yield Finding("MEDIUM", "Throws away work in the repository.")
    if part in {"checkout", "restore"} and ({".", "--", "-f", "--force"} & set(operands)):
        yield Finding("MEDIUM", "Throws away changes that are not committed.")
    if part == "stash" and {"drop", "clear"} & set(operands[:1]):
        yield Finding("MEDIUM", "Throws away changes that are not committed.")
    if part in {"switch", "worktree"} and ("f" in flags or command.has("--force", "--discard-changes")):
        yield Finding("MEDIUM", "Throws away changes that are not committed.")
    if part == "rm" and "r" in flags:
        yield Finding("MEDIUM", "Deletes a whole tree.")
    if part in {"reflog", "gc"} and ({"expire", "delete"} & set(operands[:1]) or command.has("--prune")):
        yield Finding("MEDIUM", "Deletes what git could bring back.")
    if part == "branch" and (flags & {"D", "M"} or command.has("--delete", "--force")):
        yield Finding("MEDIUM", "Deletes a branch that may not be merged.")
