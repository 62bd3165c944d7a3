"""Recognises shell texts that only read, for plan mode: programs that write nothing, with harmless options.

Also recognises texts that lose files permanently, for sandboxes without checkpoints.

A program in no table counts as one that writes. This is not a security boundary: if an earlier command replaced `ls`,
the shell runs the replacement.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from ohsandbox.conversation.approvals.rules import Finding, names
from ohsandbox.conversation.approvals.rules.git import subcommand
from ohsandbox.conversation.approvals.rules.shell_syntax import UnreadableError, parse_commands

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ohsandbox.conversation.approvals.rules.shell_syntax import SimpleCommand

_PLAIN = names(
    "basename cat cd cmp column comm cut diff dirname du df echo egrep expand expr false fgrep fold grep head "
    "hexdump id ls md5sum nl nproc od paste printenv pwd readlink realpath seq sha1sum sha256sum stat strings "
    "tac tail tr true type uname wc whereis which whoami"
)
"""Programs that write nothing, whatever their options."""


class _Use(NamedTuple):
    """Arguments that a use of a program must not have."""

    options: str = ""
    """Long options, which may be abbreviated, and words such as `-delete`."""
    letters: str = ""
    """Short options."""
    most_operands: int = 100


_USES: Mapping[str, _Use] = {
    "[": _Use(),
    "test": _Use(),
    "date": _Use("--set", "s", 1),
    "file": _Use("--compile", "C"),
    "find": _Use("-exec -execdir -ok -okdir -delete -fprint -fprint0 -fprintf -fls"),
    "jq": _Use(),
    "rg": _Use("--pre --hostname-bin --search-zip", "z"),
    "sort": _Use("--output --compress-program --temporary-directory", "oT"),
    "tree": _Use("", "oR"),
    "uniq": _Use("", "", 1),
    "xxd": _Use("", "r", 1),
} | {
    f"git {name}": _Use("--output --ext-diff --textconv --open-files-in-pager --filters", "O")
    for name in ("blame", "cat-file", "describe", "diff", "log", "ls-files", "ls-tree", "merge-base", "rev-list",
                 "rev-parse", "shortlog", "show", "show-ref", "status", "grep")
}  # fmt: skip
_GIT_OPTIONS = frozenset({"-C", "--no-pager", "-P"})
"""Options of git itself that are harmless: others change its settings, which can name programs."""
_SED = re.compile(r"(?:\d+|\$)(?:,(?:\d+|\$))?p(?:;(?:\d+|\$)(?:,(?:\d+|\$))?p)*")
"""Matches `sed -n 10,20p`, which prints lines and does nothing else."""
_ARITHMETIC = re.compile(r"\[\[|\(\(|\blet\b")
"""Arithmetic, in which the shell runs what stands in brackets, as in `[[ 'a[$(rm x)]' -eq 0 ]]`, quoted or not."""
_HARMLESS_TARGETS = frozenset({"/dev/null", "/dev/stdout", "/dev/stderr"})


def only_looks(text: str, *, workdir: str) -> bool:
    """Whether every command of a shell text, at any depth, is known to write nothing and to run no other program."""
    if _ARITHMETIC.search(text):
        return False
    try:
        commands, functions = parse_commands(text, cwd=workdir)
    except UnreadableError:
        return False
    return bool(commands) and not functions and all(map(_looks, commands))


def _looks(command: SimpleCommand) -> bool:
    if command.assigned or not set(command.written) <= _HARMLESS_TARGETS or command.path != command.program:
        return False
    if not command.program:
        return bool(command.written)  # a redirection around several commands, which are checked separately
    return command.program in _PLAIN or _prints_lines(command) or _is_harmless_use(command)


def _prints_lines(command: SimpleCommand) -> bool:
    options = [word for word in command.arguments if word.startswith("-")]
    is_quiet = command.program == "sed" and options == ["-n"] == [*command.arguments[:1]]
    return is_quiet and bool(command.operands) and _SED.fullmatch(command.operands[0]) is not None


def _is_harmless_use(command: SimpleCommand) -> bool:
    if any(set(word) & set("$`") for word in command.arguments):
        return False  # the computed word may be an option
    if command.program == "git":
        part = subcommand(command)
        own = command.arguments[: len(command.arguments) - len(part.arguments) - 1]
        if not {word for word in own if word.startswith("-")} <= _GIT_OPTIONS:
            return False
        command = part
    use = _USES.get(command.program)
    return (
        use is not None
        and not command.has(*use.options.split())
        and set(use.letters).isdisjoint(command.flags)
        and len(command.operands) <= use.most_operands
    )


_REMOVES = names("rm rmdir unlink")
_LOSES = ("Deletes ", "Throws away ")


def lasting(findings: list[Finding], text: str, *, workdir: str) -> list[Finding]:
    """Return findings for a sandbox without checkpoints: losing files, even by a plain `rm`, is HIGH."""
    rated = [finding._replace(risk="HIGH") if finding.what.startswith(_LOSES) else finding for finding in findings]
    try:
        removes = any(command.program in _REMOVES for command in parse_commands(text, cwd=workdir).commands)
    except UnreadableError:  # the findings report it
        removes = False
    return [*rated, Finding("HIGH", "Deletes files, and nothing here brings them back.")] if removes else rated
