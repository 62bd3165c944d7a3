"""Rules for single commands: the table `program_rules.txt`, and functions where targets decide the risk."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, cast

from ohsandbox.conversation.approvals.rules import Finding, names, quoted
from ohsandbox.conversation.approvals.rules.git import git_findings, subcommand
from ohsandbox.conversation.approvals.rules.known_programs import UNKNOWN, arguments_of
from ohsandbox.conversation.approvals.rules.network import NETWORK, address_findings
from ohsandbox.conversation.approvals.rules.paths import is_home, is_wide, place_findings, secret_findings
from ohsandbox.conversation.approvals.rules.shell_words import COMPUTED
from ohsandbox.conversation.approvals.rules.variables import variable_findings
from ohsandbox.conversation.approvals.rules.words import write_findings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ohsandbox.conversation.approvals.rules.shell_syntax import SimpleCommand


class Rule(NamedTuple):
    """A line of the table `program_rules.txt`."""

    programs: str
    risk: Literal["MEDIUM", "HIGH"]
    what: str
    options: str = ""
    letters: str = ""
    words: str = ""
    text: re.Pattern[str] | None = None

    @property
    def is_plain(self) -> bool:
        """Whether the rule has no condition."""
        return not (self.options or self.letters or self.words or self.text)

    def holds(self, command: SimpleCommand) -> bool:
        """Whether the rule applies to the command."""
        return (
            self.is_plain
            or (self.options != "" and command.has(*self.options.split()))
            or not set(self.letters).isdisjoint(command.flags)
            or not names(self.words).isdisjoint(command.operands[:4])
            or (self.text is not None and self.text.search(_text(command)) is not None)
        )

    def finding(self, command: SimpleCommand) -> Finding:
        """Create the rule's finding for the command."""
        words = quoted(" ".join([command.program, *command.operands[:2]]))
        return Finding(self.risk, self.what.format(name=command.program, command=words))


_PUBLISHES = "Changes what others use or see: {command}."


def _by_program() -> dict[str, list[Rule]]:
    table: dict[str, list[Rule]] = {}
    text = Path(__file__).with_name("program_rules.txt").read_text(encoding="utf-8")
    for section in text.split("\n\n")[1:]:
        head, *lines = section.strip("\n").split("\n")
        risk, _, what = head.partition(" ")
        for line in lines:
            programs, *conditions = line.strip(" ").split(" | ")
            given: dict[str, Any] = dict(condition.split("=", 1) for condition in conditions)
            pattern = re.compile(given.pop("text")) if "text" in given else None
            rule = Rule(programs, cast("Literal['MEDIUM', 'HIGH']", risk), what, **given, text=pattern)
            git = "git " if programs.startswith("git ") else ""
            for name in programs.removeprefix(git).split():
                table.setdefault(git + name, []).append(rule)
    return table


_BY_PROGRAM = _by_program()

_AWK_RUNS = re.compile(r"\bsystem\b|\bgetline\b|(?<!\|)\|(?!\|)|@")
_AWK_WRITES = re.compile(r"\bprintf?\b(?:[^;}\n]{0,200}>{1,2}(?!=)|[^;}\n]{200})")
_AWK_TARGET = re.compile(r">\s{0,9}\"([^\"\\\n]{1,999})\"")
_SED_PLAIN = re.compile(
    r"[\s;{}]{0,99}(?:(?:\d{1,9}|\$|/(?:[^/\\\n]|\\.)*/I?)(?:,[+~]?(?:\d{1,9}|\$|/(?:[^/\\\n]|\\.)*/I?))?\s{0,4}!?\s{0,4}\{?\s{0,4})?"
    r"(?:[pdq=DNGHhgx]|\d{0,9}q|s(?P<end>[^\w\s\\])(?:(?!(?P=end))[^\\\n]|\\.)*(?P=end)"
    r"(?:(?!(?P=end))[^\\\n]|\\.)*(?P=end)[gpiIm\d]{0,9}(?:\s{0,4}w\s{0,4}+(?P<s>[^\n;}]{1,999}+))?|y/[^/]*/[^/]*/|"
    r"[aic]\\?[^;\n]*|:\s{0,4}\w+|[btT]\s{0,4}\w*|[wW]\s{0,4}+(?P<w>[^\n;}]{1,999}+))?\s{0,8}(?=[;\n}]|$)"
)
"""One sed command without `e`, up to a `;`, a `}` or the end of the line; groups `s` and `w`: files that it writes."""


_MAX_SED_CHARS = 4000


def is_ruled(program: str) -> bool:
    """Whether rules of their own know the program, beside the table."""
    return bool(_rules_of(program))


def simple_findings(command: SimpleCommand, *, workdir: str) -> Iterator[Finding]:
    """Findings in one command, regardless of other commands."""
    name = command.program
    part = subcommand(command) if name == "git" else command
    rules = [rule for rule in _rules_of(part.program) if rule.holds(part)]
    yield from (rule.finding(part) for rule in rules if rule.what != _PUBLISHES or not _is_dry_run(part))
    if name in _BY_TARGET:
        yield from _BY_TARGET[name](command, workdir)
    if name in NETWORK:
        yield from address_findings(command)
    yield from secret_findings(" ".join(command.arguments))
    yield from variable_findings(command)
    for target in command.written:
        yield from write_findings(target, command, workdir=workdir)


def _is_dry_run(command: SimpleCommand) -> bool:
    """Whether the program only says what it would do; an unknown option might take `--dry-run` for its value."""
    items = arguments_of(command).items
    dry_runs = [item.text for item in items if item.kind == "dry"]
    is_known = not any(item.kind.startswith(UNKNOWN) for item in items)
    return (
        bool(dry_runs)
        and is_known
        and set(dry_runs) <= {"", "client", "server", "true"}
        and {"false", "none", "null"}.isdisjoint(command.arguments)  # nopt takes `--dry-run false`
        # what the shell computes, or the name of a file, may be an option that cancels it
        and command.splits.isdisjoint(command.arguments)
        and not any(set("$`*?[").intersection(word) or COMPUTED in word for word in command.arguments)
    )


def _rules_of(program: str) -> list[Rule]:
    """Return the program's rules; `mkfs.ext4`, which has none, gets the unconditional HIGH rules of `mkfs`."""
    stem = [rule for rule in _BY_PROGRAM.get(program.split(".", 1)[0], ()) if rule.is_plain and rule.risk == "HIGH"]
    return _BY_PROGRAM.get(program, stem)


def _text(command: SimpleCommand) -> str:
    return "\0".join(["", *command.arguments, *([] if command.stdin is None else [command.stdin]), ""])


# --- programs whose targets decide --------------------------------------------------------------------


def _rm(command: SimpleCommand, workdir: str) -> Iterator[Finding]:
    recursive = bool(set(command.flags) & {"r", "R"}) or command.has("--recursive")
    if command.has("--no-preserve-root"):
        yield Finding("HIGH", "Deletes the root directory.")
    for target in command.operands:
        path = command.full(target)
        if recursive and is_wide(path, workdir=workdir):
            yield Finding("HIGH", f"Deletes {quoted(target)} as a tree, which is more than the workspace's own files.")
        elif recursive and path[:1] in {"$", "`"}:
            yield Finding("HIGH", f"Deletes as a tree what {quoted(path)} stands for; if empty, perhaps all.")
        else:
            yield from place_findings(path, workdir=workdir)
    if recursive or any(re.fullmatch(r"(?:.*/)?[*?\[\]a-zA-Z!-]*\*", target) for target in command.operands):
        yield Finding("MEDIUM", "Deletes a whole tree, or all files of a directory.")
    elif any(re.search(r"[$`]", target) for target in command.operands):
        yield Finding("MEDIUM", "Deletes what the shell computes.")
    if {"xargs", "fd", "fdfind", "parallel"} & set(command.wrapped_by):
        yield Finding("MEDIUM", "Deletes what another program lists.")


def _change_rights(command: SimpleCommand, workdir: str) -> Iterator[Finding]:
    recursive = "R" in command.flags or command.has("--recursive")
    mode, *targets = command.operands or [""]
    for target in map(command.full, targets):
        if recursive and is_wide(target, workdir=workdir):
            yield Finding("HIGH", f"Changes the rights of {quoted(target)} as a tree.")
        elif is_wide(target, workdir=workdir):
            yield from place_findings(target, workdir=workdir)
    if command.program == "chmod" and re.fullmatch(r"[ugoa]*[+=][rwx]*s[rwx]*|0?[2-7]\d{3}", mode):
        yield Finding("HIGH", "Lets a program run with its owner's rights (setuid, setgid).")


def _find(command: SimpleCommand, workdir: str) -> Iterator[Finding]:
    if command.has("-delete") or ("rm" in command.arguments and command.has("-exec", "-execdir")):
        targets = [command.full(target) for target in command.operands[:1]]
        wide = any(is_wide(target, workdir=workdir) and target.rstrip("/") != workdir for target in targets)
        wide = wide and not command.operands[0].startswith(".")
        yield Finding("HIGH" if wide else "MEDIUM", "Deletes what `find` finds.")
    starts = [item.text for item in arguments_of(command).of_kind("read") if not item.option]
    runs = any(arguments_of(command).of_kind("argv"))
    if (runs or command.consumer not in {"", "echo", "printf", "wc", "ls", "file", "stat"}) and any(
        map(is_home, starts)
    ):
        yield Finding("HIGH", f"Hands all of {quoted(' '.join(starts))} on, keys and passwords included.")
    if runs:
        words = {word.rsplit("/", 1)[-1] for word in command.arguments}
        runs_shell = not words.isdisjoint(
            {"sh", "bash", "dash", "zsh", "ksh", "ash", "xargs", "eval", "python", "perl"}
        )
        if runs_shell and any("{}" in word and re.search(r"[\s;|&$(]", word) for word in command.arguments):
            yield Finding("HIGH", "Puts the names that `find` finds into a shell's text.")
        elif runs_shell and "{}" in command.arguments:
            yield Finding("MEDIUM", "Runs a shell for what `find` finds.")


def _sed(command: SimpleCommand, workdir: str) -> Iterator[Finding]:
    for script in [item.text for item in arguments_of(command).of_kind("pattern")]:
        yield from _computed_program(script, command)
        at = 0
        while at < min(len(script), _MAX_SED_CHARS):
            match = _SED_PLAIN.match(script, at)
            if match is None or match.end() == at:
                break
            at = match.end() + 1
            if target := (match["s"] or match["w"] or "").strip():
                yield from write_findings(target, command, workdir=workdir)
                yield Finding("MEDIUM", f"A sed script that writes {quoted(target)}.")
        if at < len(script):
            yield Finding("HIGH", "A sed script that may run commands.")


def _computed_program(program: str, command: SimpleCommand) -> Iterator[Finding]:
    """Findings for a program of sed or awk of which the shell computes all (HIGH) or a part."""
    if program in command.computed:
        is_whole = re.fullmatch(r"\$\w+|\$\{[^}]*\}|\$\(\.\.\.\)", program) is not None
        yield Finding("HIGH" if is_whole else "MEDIUM", f"Runs a text that the shell computes ({command.program}).")


def _awk(command: SimpleCommand, workdir: str) -> Iterator[Finding]:
    text = " ".join(command.operands)
    yield from _computed_program(next(iter(command.operands), ""), command)
    if _AWK_RUNS.search(text):
        yield Finding("HIGH", "An awk program that may run commands.")
    elif _AWK_WRITES.search(text):
        targets = _AWK_TARGET.findall(text)
        is_plain = len(targets) == len(re.findall(r">(?!=)", text.replace(">>", ">")))
        yield Finding("MEDIUM" if is_plain else "HIGH", "An awk program that may write files.")
        for target in targets:
            yield from write_findings(target, command, workdir=workdir)
    if re.search(r"\0(?:-[fE]|--file|--exec|(?:-i|--include)(?![\0=]?inplace\0))", _text(command)):
        yield Finding("MEDIUM", "An awk program of a file, which the rules do not read.")


def _perl(command: SimpleCommand, _workdir: str) -> Iterator[Finding]:
    """perlfunc(1), open: `<>` opens names with two arguments, so `x|` and `|x` are commands, and `>x` is written."""
    for item in arguments_of(command).of_kind("read", "script"):
        if re.match(r"\s{0,9}(?:\||\+?>)|.*\|\s{0,9}\Z", item.text, re.DOTALL):
            yield Finding("HIGH", f"Has perl run a command or write a file: {quoted(item.text)}.")
        elif item.text in command.computed or re.match(r"[*?\[]", item.text):
            yield Finding("MEDIUM", f"Has perl open a computed name, which may be a command: {quoted(item.text)}.")


def _move(command: SimpleCommand, workdir: str) -> Iterator[Finding]:
    for target in command.operands[:-1]:
        if is_wide(command.full(target), workdir=workdir):
            yield Finding("HIGH", f"Moves {quoted(target)} away.")
        yield from (finding for finding in place_findings(command.full(target), workdir=workdir) if ".git" in target)


def _kill(command: SimpleCommand, _workdir: str) -> Iterator[Finding]:
    words = [*command.arguments]
    if words[:1] in (["-0"], ["-l"], ["-L"]) or words[:2] in (["-s", "0"], ["-n", "0"]):
        return
    if words[:1] in (["-s"], ["-n"]):
        words = words[2:]
    elif len(words) > 1 and words[0].startswith("-"):
        words = words[1:]
    others = [word for word in words if word != "--" and not re.fullmatch(r"%[\w%+-]*|\$!", word)]
    if others:
        yield Finding("HIGH", f"Ends a process that is no job of this shell: {quoted(' '.join(others))}.")


def _link(command: SimpleCommand, workdir: str) -> Iterator[Finding]:
    for target in command.operands[:-1] or command.operands:
        if list(place_findings(command.full(target), workdir=workdir)):
            yield Finding("MEDIUM", f"Makes a link to {quoted(target)}, which is outside the workspace.")


def _change_directory(command: SimpleCommand, workdir: str) -> Iterator[Finding]:
    for target in command.operands[:1]:
        inside = command.full(target).rstrip("/") + "/x"
        if any(
            finding.risk == "HIGH" and "outside" not in finding.what
            for finding in place_findings(inside, workdir=workdir)
        ):
            yield Finding("HIGH", f"Goes to {quoted(target)}, whose files run by themselves.")
        elif list(place_findings(inside, workdir=workdir)):
            yield Finding("MEDIUM", f"Leaves the workspace: {quoted(target)}.")


_BY_TARGET: dict[str, Callable[[SimpleCommand, str], Iterator[Finding]]] = {
    "rm": _rm,
    "rimraf": lambda command, workdir: _rm(command._replace(arguments=("-r", *command.arguments)), workdir),
    "git": git_findings,
    "mv": _move,
    "perl": _perl,
    "ln": _link,
    "kill": _kill,
    **dict.fromkeys(("chmod", "chown", "chgrp"), _change_rights),
    **dict.fromkeys(("find", "fd", "fdfind"), _find),
    **dict.fromkeys(("sed", "gsed"), _sed),
    **dict.fromkeys(("awk", "gawk", "mawk", "nawk"), _awk),
    **dict.fromkeys(("cd", "pushd"), _change_directory),
}
