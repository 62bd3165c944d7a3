"""Recognises shell texts that only read, for plan mode: programs whose words, by the table, are only read or printed.

Also recognises texts that lose files permanently, for sandboxes without checkpoints.

A program in no table counts as one that writes. This is not a security boundary: if an earlier command replaced `ls`,
the shell runs the replacement.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ohsandbox.conversation.approvals.rules import Finding, names
from ohsandbox.conversation.approvals.rules.known_programs import FREE, arguments_of
from ohsandbox.conversation.approvals.rules.shell_syntax import UnreadableError, parse_commands

if TYPE_CHECKING:
    from ohsandbox.conversation.approvals.rules.known_programs import Argument
    from ohsandbox.conversation.approvals.rules.shell_syntax import SimpleCommand

_SED = re.compile(r"(?:\d+|\$)(?:,(?:\d+|\$))?p(?:;(?:\d+|\$)(?:,(?:\d+|\$))?p)*")
"""Matches `sed -n 10,20p`, which prints lines and does nothing else."""
_HARMLESS_TARGETS = frozenset({"/dev/null", "/dev/stdout", "/dev/stderr"})


def only_looks(text: str, *, workdir: str) -> bool:
    """Whether every command of a shell text, at any depth, is known to write nothing and to run no other program."""
    try:
        commands, functions, arithmetic = parse_commands(text, cwd=workdir)
    except UnreadableError:
        return False
    return bool(commands) and not functions and not arithmetic and all(map(_looks, commands))


def _looks(command: SimpleCommand) -> bool:
    if command.assigned or not set(command.written) <= _HARMLESS_TARGETS or command.path != command.program:
        return False
    if not command.program:
        return bool(command.written)  # a redirection around several commands, which are checked separately
    if command.program == "sed":
        return (
            command.arguments[:1] == ("-n",)
            and bool(_SED.fullmatch("".join(command.arguments[1:2])))
            and not any(word.startswith("-") for word in command.arguments[2:])
        )
    arguments = arguments_of(command)
    usage = arguments.usage
    if usage is None or usage.changes or arguments.command or usage.operands[:1] in {("sub",), ("asks*",), ("script",)}:
        return False
    may_be_option = usage.has_dangers and not command.splits.isdisjoint(command.arguments)
    return not may_be_option and not command.has("-delete") and all(map(_is_read, arguments.items))


def _is_read(argument: Argument) -> bool:
    is_directory = argument.kind == "write" and argument.option == "-C"  # git(1), -C
    return argument.kind in FREE or argument.kind in {"read", "tree"} or is_directory


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
