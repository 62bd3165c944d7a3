"""Rules for a shell text or a Python cell: what deletes data, uses the network, leaks secrets, or persists.

They read the text itself and texts that it passes to other shells. They do not read workspace scripts that it runs and
do not follow links. Code that they cannot read is MEDIUM; a shell text that cannot be parsed is HIGH.
"""

from __future__ import annotations

import re
from itertools import takewhile
from typing import TYPE_CHECKING, Literal

from ohsandbox.conversation.approvals.rules import Finding, names, quoted
from ohsandbox.conversation.approvals.rules.foreign_code import is_harmless
from ohsandbox.conversation.approvals.rules.known_programs import UNKNOWN, Arguments, arguments_of, usage_of
from ohsandbox.conversation.approvals.rules.network import DOWNLOADERS
from ohsandbox.conversation.approvals.rules.paths import is_inside, secret_findings
from ohsandbox.conversation.approvals.rules.programs import is_ruled, simple_findings
from ohsandbox.conversation.approvals.rules.python_code import read_cell, read_python
from ohsandbox.conversation.approvals.rules.shell_syntax import (
    MAX_CHARS,
    SimpleCommand,
    UnreadableError,
    basename,
    parse_commands,
)
from ohsandbox.conversation.approvals.rules.shell_words import COMPUTED
from ohsandbox.conversation.approvals.rules.variables import RUN_BY_SHELL, variable_arguments
from ohsandbox.conversation.approvals.rules.words import options_findings, read_findings, word_findings
from ohsandbox.conversation.approvals.rules.wrappers import (
    MAX_WRAPPED,
    PYTHONS,
    approximate_commands,
    hazards_in,
    inner_of,
    is_interpreter,
    runs_input,
    script_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ohsandbox.conversation.approvals.rules.python_code import CodeReading
    from ohsandbox.conversation.approvals.rules.wrappers import InnerCommand

__all__ = ["MAX_CHARS", "cell_findings", "command_findings"]

_MAX_DEPTH = 5
"""Maximum depth of texts in texts: `sh -c "eval ..."`."""

_MAX_TEXTS = 24
"""Maximum number of texts in a text; parsing each is a child process of some 5 ms."""

_MAX_WORK = 10_000
"""Maximum number of commands, nested ones included."""

_DECODERS = names(
    "base64 base32 basenc xxd od openssl gunzip zcat gzip rev tr uudecode printf sed awk cut bzcat xzcat gpg"
)
_FOREIGN = (_DECODERS | DOWNLOADERS) - names("printf sed awk cut tr")
"""Programs whose output is a file that nobody has read."""

_OTHER_SHELLS = names("elvish xonsh nu osh oil ysh tcsh csh ion rc es murex ngs")
"""They run the text that they are given; the rules do not read their languages."""
_EVALUATING = names("eval source . trap alias")
_SENDING = names("nc ncat netcat socat telnet curl wget mail sendmail ssh xh dig nslookup")
_PRINTS_NAMES = names("echo printf wc ls file stat basename dirname [ test read")
_PLAIN_SOURCES = names("cat echo printf yes true")
_SAYS_VERSION = {("--version",), ("--test",), ("-V",), ("--help",), ("-v",), ("-h",)}
_MAX_FILES = 1000

_INSTALLED = re.compile(
    r"/(?:usr/|opt/|nix/)?(?:local/)?s?bin/[^/]+$|/(?:opt|nix|snap)/|(?:~|\$HOME|/root|/home/\w+)/(?:\.\w+|go|\.local)/bin/[^/]+$"
)
"""Paths of installed programs."""

# fmt: off
_PATTERNS: tuple[tuple[re.Pattern[str], Finding], ...] = (
    (re.compile(r"\$\{!?\w{1,99}(?:\[[^\]\n]{0,99}\])?@P\}"),
     Finding("HIGH", "Expands a text as a prompt, which runs commands.")),
    (re.compile(r"\$\{(?:%s):?=|\b(?:for|select)\s{1,9}(?:%s)\b" % (("|".join(sorted(RUN_BY_SHELL)),) * 2)),
     Finding("HIGH", "Sets a variable by which other programs run code unasked.")),
    (re.compile(r"/dev/(?:tcp|udp)/"), Finding("HIGH", "Opens a network connection from the shell.")),
    (re.compile(r"\b(?:drop|truncate)\s{1,9}(?:table|database|schema)\b", re.IGNORECASE),
     Finding("HIGH", "Deletes a database or a table.")),
)
# fmt: on

_ANSWER = re.compile(r"(?:C-.|[yYnNqQ]|yes|no|\d{0,9})\n?")
"""A key name, or a word that answers a question."""


def command_findings(text: str, *, workdir: str, unreadable: Literal["MEDIUM", "HIGH"] = "HIGH") -> list[Finding]:
    """Findings in a shell text, each once; unreadable is the risk of one that cannot be parsed."""
    rules = _Rules(workdir, unreadable)
    rules.patterns(text)
    rules.shell(text, cwd=workdir, depth=0)
    return list(rules.found)


def input_findings(text: str, *, workdir: str) -> list[Finding]:
    """Findings in input for a program that waits for it: the program may be a shell or an editor."""
    if _ANSWER.fullmatch(text):
        return []
    findings = command_findings(text, workdir=workdir, unreadable="MEDIUM")
    return findings or [Finding("MEDIUM", "Input for a program that may run it.")]


def cell_findings(code: str, *, workdir: str) -> list[Finding]:
    """Findings in an IPython cell, each once."""
    rules = _Rules(workdir)
    rules.patterns(code)
    if len(code) > MAX_CHARS:
        rules.note(Finding("HIGH", f"It has {len(code)} characters; rules read no more than {MAX_CHARS}."))
    rules.code(read_cell(code[:MAX_CHARS]), code[:MAX_CHARS], like=SimpleCommand("", cwd=workdir), depth=0)
    return list(rules.found)


class _Rules:
    """One analysis, with a budget for texts in texts."""

    def __init__(self, workdir: str, unreadable: Literal["MEDIUM", "HIGH"] = "HIGH") -> None:
        self._unreadable = unreadable
        self.found: dict[Finding, None] = {}
        self._workdir = workdir
        self._texts = 0
        self._work = 0
        self._files: dict[str, tuple[str | None, bool]] = {}
        """Files that the text writes: the contents if known, and whether they are decoded or downloaded."""

    def note(self, *findings: Finding) -> None:
        """Add findings."""
        self.found.update(dict.fromkeys(findings))

    def patterns(self, text: str) -> None:
        """Apply the rules that need no parser."""
        self.note(*(finding for pattern, finding in _PATTERNS if pattern.search(text)))
        self.note(*secret_findings(text))

    def shell(self, text: str, *, cwd: str, depth: int, variables: Mapping[str, str] | None = None) -> None:
        """Check all commands of a shell text."""
        self._texts += 1
        if depth > _MAX_DEPTH or self._texts > _MAX_TEXTS:
            self.note(Finding("HIGH", "It has more texts in texts than the rules read."))
            return
        try:
            commands, functions, arithmetic = parse_commands(text, cwd=cwd, variables=variables)
        except UnreadableError as error:
            self.note(Finding(self._unreadable, f"The rules cannot read the command: {error}."))
            return
        self.note(*arithmetic)
        for name in sorted(filter(usage_of, functions)):
            self.note(Finding("MEDIUM", f"Gives the name {quoted(name)} another meaning."))
        for command in commands:
            self.command(command, functions, depth)

    def code(self, reading: CodeReading, code: str, *, like: SimpleCommand, depth: int) -> None:
        """Add the findings in Python code and check the commands that it runs."""
        self.note(*reading.findings)
        for text in reading.texts:
            self.shell(text, cwd=like.cwd, depth=depth + 1)
        if any(finding.what.startswith(("Runs programs", "Code that", "Does what")) for finding in reading.findings):
            self._each(approximate_commands(code[:MAX_CHARS], like), _MAX_DEPTH)

    def command(self, command: SimpleCommand, functions: frozenset[str], depth: int) -> None:
        """Check one command and the commands that it runs."""
        self.note(*simple_findings(command, workdir=self._workdir))
        self.note(*read_findings(command.inputs))
        self._work += 1
        if self._work > _MAX_WORK:
            self.note(Finding("HIGH", f"It runs more than {_MAX_WORK} commands, which the rules do not read."))
            return
        self._place_in_text(command)
        variables = Arguments(None, [*variable_arguments(command)])
        if variables.items:
            self.note(*word_findings(command, variables, workdir=self._workdir))
        if command.program.startswith("python -m ") and usage_of(command.program) is None:
            module = command.program.removeprefix("python -m ")
            if usage_of(module) is not None:
                self.command(command.running([module, *command.arguments]), functions, depth)
                return
        if command.program:
            self._program(command, functions, depth)
        if is_interpreter(command.program) or runs_input(command):
            self._interpreter(command)
        for inner in takewhile(lambda _: self._texts <= _MAX_TEXTS, inner_of(command)):  # more are noted
            self._inner(inner, command, functions, depth)
        self._keep_files(command)

    def _program(self, command: SimpleCommand, functions: frozenset[str], depth: int) -> None:
        """Check what the program is, and its words by the table."""
        if command.computes:
            self.note(Finding("HIGH", f"The program itself is computed: {quoted(command.path)}."))
            return
        # a workspace file runs unchecked, as tests do; one that the text wrote is checked
        is_script = "/" in command.path and self._script(command.path, command)
        arguments = arguments_of(command)
        is_function = command.program in functions and not command.wrapped_by
        if is_function or (is_script and arguments.usage is None):
            self._each(hazards_in(command), depth)
            return
        self.note(*word_findings(command, arguments, workdir=self._workdir))
        if "://" in command.path:
            self.note(Finding("HIGH", f"Runs what it downloads: {quoted(command.path)}."))
        elif "/" in command.path and not is_script and not _INSTALLED.match(command.path):
            self.note(Finding("MEDIUM", f"Runs {quoted(command.path)}, which is not a file of the workspace."))
        is_unknown = arguments.usage is None and not is_ruled(command.program)
        is_fed = command.stdin is not None or not command.fed.isdisjoint(_FOREIGN | {"echo", "printf"})
        if is_unknown:
            self.note(Finding("MEDIUM", f"The rules do not know {quoted(command.program)}."))
        is_fed = is_fed and not _ANSWER.fullmatch(command.stdin or "-")
        if (is_unknown and command.program in _OTHER_SHELLS) or (is_fed and _is_unjudged(arguments)):
            self.note(Finding("HIGH", f"Gives {command.program}, which the rules do not know, a text that it may run."))
        if arguments.usage is None or any(arguments.of_kind("asks", "command", UNKNOWN)):
            self._each(hazards_in(command), depth)

    def _inner(self, inner: InnerCommand, outer: SimpleCommand, functions: frozenset[str], depth: int) -> None:
        if inner.command is not None:
            if len(inner.command.wrapped_by) > MAX_WRAPPED:
                self.note(Finding("HIGH", "It has more programs that run programs than the rules read."))
            elif inner.language == "options":
                self.note(*simple_findings(inner.command, workdir=self._workdir))
                self.note(*options_findings(inner.command, workdir=self._workdir))
                for further in inner_of(inner.command):
                    self._inner(further, inner.command, functions, depth + 1)
            else:
                self.command(inner.command, functions, depth)
        elif any(word and word in inner.text for word in outer.computed):
            self.note(Finding("HIGH", f"Runs a text that the shell computes ({outer.program})."))
        elif inner.language == "shell":
            self._shell_inside(inner.text, outer, depth)
        elif inner.language == "python":
            self.code(read_python(inner.text), inner.text, like=outer, depth=depth)
        elif not is_harmless(inner.text, outer):
            self.note(Finding("HIGH", f"Code for {outer.program}, which the rules cannot read."))
            self._each(approximate_commands(inner.text[:MAX_CHARS], outer), _MAX_DEPTH)

    def _shell_inside(self, text: str, outer: SimpleCommand, depth: int) -> None:
        operands = outer.operands[1:]
        names = {"@": " ".join(operands)[:1000], **{str(number): word for number, word in enumerate(operands[:8])}}
        if text in {COMPUTED, ""} or re.fullmatch(r"\$\{?\w+(?:\.\.\.)?\}?", text):
            self.note(Finding("HIGH", f"Runs a text that the shell computes ({outer.program})."))
            return
        self.shell(text, cwd=outer.cwd, depth=depth + 1, variables=names)

    def _each(self, commands: Iterable[SimpleCommand], depth: int) -> None:
        """Check commands that might be run: only HIGH findings count."""
        for number, command in enumerate(commands):
            if number > MAX_CHARS // 64:
                return
            findings = [*simple_findings(command, workdir=self._workdir)]
            findings += word_findings(command, arguments_of(command), workdir=self._workdir, is_guess=True)
            self.note(*(finding for finding in findings if finding.risk == "HIGH"))
            if depth < _MAX_DEPTH and is_interpreter(command.program):
                for inner in inner_of(command):
                    self._inner(inner, command, frozenset(), depth + 1)

    def _script(self, path: str, command: SimpleCommand) -> bool:
        if "://" in path:
            return False
        full = command.full(path)
        if full in self._files:
            text, foreign = self._files[full]
            if foreign:
                self.note(Finding("HIGH", f"Runs {quoted(path)}, which it downloads or decodes."))
            elif text is None:
                self.note(Finding("MEDIUM", f"Runs {quoted(path)}, which it computes."))
            elif PYTHONS.fullmatch(command.program) or path.endswith(".py"):
                self.code(read_python(text), text, like=command, depth=_MAX_DEPTH - 1)
            elif command.program not in {"node", "perl", "ruby"}:
                self.shell(text, cwd=command.cwd, depth=_MAX_DEPTH - 1)
            else:
                self._each(approximate_commands(text[:MAX_CHARS], command), _MAX_DEPTH)
            return True
        return not set(full) & set("$`*?") and is_inside(full, self._workdir) and "/.git/" not in full

    def _interpreter(self, command: SimpleCommand) -> None:
        script = script_of(command)
        for item in arguments_of(command).of_kind("preload"):
            self._script(item.text, command)
        if script.file and not self._script(script.file, command):
            risk: Literal["MEDIUM", "HIGH"] = "HIGH" if set(script.file) & set("$`") else "MEDIUM"
            self.note(Finding(risk, f"Runs {quoted(script.file)}, which is not a file of the workspace."))
        if runs_input(command) and command.arguments[:1] not in _SAYS_VERSION:
            if command.computed:
                self.note(Finding("HIGH", f"Runs a text that the shell computes ({command.program})."))
            elif command.stdin is None:
                self.note(Finding("MEDIUM", f"Starts {command.program}, which runs what it reads."))
            elif not PYTHONS.fullmatch(command.program):
                self.note(Finding("MEDIUM", f"Gives {command.program} a text to run."))

    def _place_in_text(self, command: SimpleCommand) -> None:
        """Check what the command reads through a pipe and which program runs its output."""
        name, sources = command.program, command.fed
        listed = ", ".join(sorted(map(quoted, sources))[:5])
        if sources and runs_input(command):
            if sources & DOWNLOADERS:
                self.note(Finding("HIGH", f"Runs what it downloads with {name}."))
            elif sources & (_DECODERS - {"printf"}):
                self.note(Finding("HIGH", f"Runs what it decodes with {name}."))
            elif sources - _PLAIN_SOURCES or command.stdin is None or re.search(r"[\\%$]", command.stdin):
                self.note(Finding("HIGH", f"Runs what {listed} writes with {name}."))
            else:
                self.note(Finding("MEDIUM", f"Runs what another program writes with {name}."))
        if sources and (name in _SENDING or "s_client" in command.arguments):
            self.note(Finding("HIGH", f"Sends the output of {listed} out with {name}."))
        if any(source.endswith(" ~") for source in sources) and _opens_names(command):
            self.note(Finding("HIGH", f"Hands all that {listed} lists to {name}, keys and passwords included."))
        is_run = command.consumer in _EVALUATING or is_interpreter(command.consumer)
        if is_run and name in DOWNLOADERS | _DECODERS:
            self.note(Finding("HIGH", f"Runs what it {'downloads' if name in DOWNLOADERS else 'decodes'}."))
        if name in {"source", "."} and command.operands and not self._script(command.operands[0], command):
            computed = bool(set(command.operands[0]) & set("$`"))
            self.note(Finding("HIGH" if computed else "MEDIUM", f"Runs {quoted(command.operands[0])} in this shell."))

    def _keep_files(self, command: SimpleCommand) -> None:
        """Remember the files that the command writes, for a later command that runs them."""
        name = command.program
        decoded = command.fed & (DOWNLOADERS | {"base64", "base32", "xxd", "openssl", "gunzip", "uudecode"})
        text = command.stdin if name in {"cat", "tee"} else None
        if name in {"echo", "printf"}:
            text = " ".join(command.operands)
        targets = list(command.written)
        if name in DOWNLOADERS:
            targets += map(basename, command.operands[:4])
        if name in {"tee", "cp", "mv", "curl", "wget", "install", "dd", "touch"}:
            targets += [word.removeprefix("of=") for word in command.operands[-2:]]
        for target in map(command.full, targets[:16]):
            if len(self._files) < _MAX_FILES:
                before, was_foreign = self._files.get(target, ("", False))
                whole = None if text is None or before is None else before + text
                self._files[target] = (whole, was_foreign or name in _FOREIGN or bool(decoded))


def _opens_names(command: SimpleCommand) -> bool:
    """Whether the command may open files whose names it gets from another one."""
    receiver = (*arguments_of(command).command[:1], command.program)[0]
    is_given = command.program in {"xargs", "parallel"} or not command.computed.isdisjoint(command.arguments)
    return is_given and receiver not in _PRINTS_NAMES


def _is_unjudged(arguments: Arguments) -> bool:
    """Whether the table does not say what the program does with its input."""
    usage = arguments.usage
    return usage is None or ("--pager" not in usage.options and not {"asks*", "unknown*"}.isdisjoint(usage.operands))
