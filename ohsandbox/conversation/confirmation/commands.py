"""Rules about commands and code: what destroys, reaches out, gives away, or stays behind.

They see what is written there. What a script does that is run, a variable holds or a link points to, they do not see.
"""

from __future__ import annotations

import itertools
import re
from typing import TYPE_CHECKING

from ohsandbox.conversation.confirmation.findings import Finding, quoted
from ohsandbox.conversation.confirmation.places import place_findings, secret_findings
from ohsandbox.conversation.confirmation.programs import DOWNLOADERS, INTERPRETERS, SHELLS, simple_findings
from ohsandbox.conversation.confirmation.shell_words import simple_commands

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ohsandbox.conversation.confirmation.shell_words import Simple

MAX_CHARS = 64 * 1024
"""Read by the rules; reading costs about 2 µs a character."""

_MAX_DEPTH = 4
"""Commands in commands: `sh -c "eval ..."`."""

_MAX_PIPELINE = 20

_DECODERS = frozenset({"base64", "base32", "xxd", "openssl", "gunzip", "zcat", "rev", "tr"})
_EVALUATING = frozenset({"eval", "source", "."})
_SENDING = frozenset({"nc", "ncat", "netcat", "socat", "telnet", "curl", "wget", "mail", "sendmail", "ssh"})

_PATTERNS: tuple[tuple[re.Pattern[str], Finding], ...] = (
    (re.compile(r":\s*\(\s*\)\s*\{"), Finding("HIGH", "Looks like a fork bomb.")),
    (re.compile(r"/dev/(?:tcp|udp)/"), Finding("HIGH", "Opens a network connection from the shell.")),
    (
        re.compile(r"\b(?:drop|truncate)\s+(?:table|database|schema)\b", re.IGNORECASE),
        Finding("HIGH", "Deletes a database or a table."),
    ),
    (
        re.compile(r"\b(?:requests|httpx|session|client)\.(?:post|put|patch)\s*\("),
        Finding("HIGH", "Sends data over the network."),
    ),
    (re.compile(r"\burlopen\s*\(|\brequests\.get\s*\(|\bsocket\.socket\b"), Finding("MEDIUM", "Uses the network.")),
    (re.compile(r"\brmtree\s*\("), Finding("MEDIUM", "Deletes a whole tree.")),
    (
        re.compile(r"\beval\s*\(\s*(?:compile|base64|bytes)|\bexec\s*\(\s*(?:base64|requests|urlopen)"),
        Finding("HIGH", "Runs code that it decodes or downloads."),
    ),
)

_QUOTED = re.compile(r"\$\(([^()]*)\)|`([^`]*)`")
_CALLS_COMMANDS = re.compile(
    r"\b(?:subprocess|os\.(?:system|popen|exec|spawn|posix_spawn)|child_process|popen|check_output)|^[ \t]*[!%]",
    re.MULTILINE,
)
"""Code that runs commands, which are then words in quotes."""
_CODE_MARKS = re.compile(r"[\"',\[\]]|^[ \t]*[!%]+", re.MULTILINE)
"""What stands around the words of a command in Python: `subprocess.run(["rm", "-r"])`, `!rm -r`."""


def command_findings(text: str, *, workdir: str) -> list[Finding]:
    """What the rules find in a shell command or in Python code, each once."""
    found: list[Finding] = []
    if len(text) > MAX_CHARS:
        found.append(Finding("HIGH", f"It has {len(text)} characters; rules read no more than {MAX_CHARS}."))
        text = text[:MAX_CHARS]
    found += (finding for pattern, finding in _PATTERNS if pattern.search(text))
    found += secret_findings(text)
    found += _in_shell(text, workdir=workdir, depth=0)
    if _CALLS_COMMANDS.search(text):
        found += _in_shell(_CODE_MARKS.sub(" ", text), workdir=workdir, depth=_MAX_DEPTH)
    return list(dict.fromkeys(found))


def _in_shell(text: str, *, workdir: str, depth: int, evaluated: bool = False) -> Iterator[Finding]:
    commands = simple_commands(text)
    pipeline: list[Simple] = []
    away = False
    for command, follower in itertools.zip_longest(commands, commands[1:]):
        pipeline = [*pipeline[-_MAX_PIPELINE:], command] if command.before in {"|", "|&"} else [command]
        yield from simple_findings(command, workdir=workdir)
        if command.program in {"cd", "pushd"}:
            away = any(list(place_findings(target, workdir=workdir)) for target in command.operands[:1])
        elif away and command.program == "rm" and set(command.flags) & {"r", "R"}:
            yield Finding("HIGH", "Deletes a tree after it has left the workspace.")
        yield from _in_pipeline(pipeline)
        yield from _fed_by_substitution(command, follower, evaluated=evaluated)
        if depth < _MAX_DEPTH:
            for inner, runs_it in _inner(command):
                yield from _in_shell(inner, workdir=workdir, depth=depth + 1, evaluated=evaluated or runs_it)


def _in_pipeline(pipeline: Sequence[Simple]) -> Iterator[Finding]:
    last = pipeline[-1]
    sources = {command.program for command in pipeline[:-1]}
    if not sources:
        return
    if last.program in INTERPRETERS and not [word for word in last.operands if word != "-"]:
        if sources & DOWNLOADERS:
            yield Finding("HIGH", f"Runs what it downloads with {last.program}.")
        elif sources & _DECODERS:
            yield Finding("HIGH", f"Runs what it decodes with {last.program}.")
        else:
            yield Finding("MEDIUM", f"Runs what another program writes with {last.program}.")
    if last.program in _SENDING:
        yield Finding("HIGH", f"Sends the output of {', '.join(sorted(map(quoted, sources)))} out with {last.program}.")


def _fed_by_substitution(command: Simple, follower: Simple | None, *, evaluated: bool) -> Iterator[Finding]:
    if evaluated and command.program in DOWNLOADERS:
        yield Finding("HIGH", "Runs what it downloads.")
    if evaluated and command.program in _DECODERS:
        yield Finding("HIGH", "Runs what it decodes.")
    if follower is None or "(" not in follower.before:
        return
    runs_it = command.program in _EVALUATING | INTERPRETERS
    if runs_it and follower.program in DOWNLOADERS | _DECODERS:
        yield Finding("HIGH", f"Runs what {follower.program} gives.")


def _inner(command: Simple) -> Iterator[tuple[str, bool]]:
    """Texts in the command's words that a shell runs, and whether what those print is run again."""
    runs_it = command.program in _EVALUATING | SHELLS
    if command.program == "eval":
        yield " ".join(command.arguments), True
    elif command.program in {*INTERPRETERS, "su", "runuser", "watch", "script", "parallel"}:
        yield from ((word, False) for word in command.operands if " " in word or ";" in word)
    elif command.program in {"ssh", "sudo", "doas", "pkexec", "nsenter", "unshare"}:
        yield " ".join(command.arguments), False
    elif command.program == "find":
        for number, word in enumerate(command.arguments):
            if word in {"-exec", "-execdir", "-ok", "-okdir"}:
                yield " ".join(command.arguments[number + 1 :]), False
    for word in command.arguments:
        for match in _QUOTED.finditer(word):
            yield match[1] or match[2] or "", runs_it
