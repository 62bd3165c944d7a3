"""Findings for the words of a command by their kinds: what is unknown, evaluated, or written outside the workspace."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ohsandbox.conversation.approvals.rules import Finding, known_names, quoted
from ohsandbox.conversation.approvals.rules.known_programs import (
    FREE,
    UNKNOWN,
    arguments_of,
    usage_of,
)
from ohsandbox.conversation.approvals.rules.paths import is_home, is_inside, is_wide, place_findings, secret_of_word
from ohsandbox.conversation.approvals.rules.shell_words import COMPUTED
from ohsandbox.conversation.approvals.rules.variables import RUN_BY_SHELL
from ohsandbox.conversation.approvals.rules.wrappers import approximate_commands

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ohsandbox.conversation.approvals.rules.known_programs import Argument, Arguments
    from ohsandbox.conversation.approvals.rules.shell_syntax import SimpleCommand

STDIN = re.compile(r"-|/dev/(?:stdin|fd/\d+|tty)|/proc/(?:self|\d+|\$\$)/fd/\d+|.*\$\(\.\.\.\).*", re.DOTALL)
"""Paths of text that comes from a command or a pipe."""

_REMOTE = re.compile(
    r"(?:[\w./@\[\],-]{1,200}?\s{0,3}@\s{0,3})?"
    r"(?:(?:git\+)?(?:https?|ftp|ssh|git)://(?!(?:localhost|127\.0\.0\.1)(?::\d+)?(?:[/?#]|$))|git\+\S|"
    r"(?:npm|jsr|github|gitlab|bitbucket|gist):\S)|git@[\w.-]+:\S"
)
"""Addresses of what is downloaded, also the short ones of npm and Deno, and after a package's name and `@`."""

_PACKAGE = re.compile(r"(?P<name>@?[^@\s\[\]=<>~!]+)(?:\[[\w,-]*\])?(?:@[\w.^~*+-]+|\s{0,3}[=<>~!]=[\w.*+=<>~!, ]*)?")
"""A package's name, its extras, and a version that is no address of another package."""

_MODULE = re.compile(r"@?\w[\w-]*(?:/\w[\w.-]*)*")
"""A module of a package that is installed, as Node resolves a bare name."""

_MODULE_FILE = re.compile(r"\./(?:[\w@-][\w@.-]*/)*[\w@-][\w@.-]*")
"""A module by a path below the working directory."""

_HOSTED = re.compile(r"(?:@?[\w.-]{1,214}(?:/[\w.-]{1,214})?@)?\w[\w.-]*/\w[\w.-]*(?:#\S*)?")
"""A package as OWNER/NAME, also after a name and `@`: npm and its kin take it from GitHub. A directory is `./NAME`."""

_PACKAGES = known_names("packages")

_BY_KIND = {
    "runs": Finding("HIGH", "Lets {name} run code, or a program, that its words name: {words}."),
    "anywhere": Finding("HIGH", "Lets {name} write wherever what it reads says, or on another machine: {words}."),
    "download": Finding("HIGH", "Lets {name} run what it downloads: {words}."),
    "package": Finding("MEDIUM", "Runs a package that it may download first: {words}."),
    "asks": Finding("MEDIUM", "The rules do not judge {words} of {name}."),
    "sets": Finding("HIGH", "Sets {words}, by which other programs run code unasked."),
}
"""Findings that need no more than the kind of a word."""

_CODE = re.compile(r"[;|&`!<>{}\n\\]|\$\(|\w\s{0,3}\(|^\+\S|\w\s{1,3}/")
"""Text that may be code of some language, a shell command with a path, or an editor's command."""

_EVALUATES = re.compile(
    r"(?!--dry-run)--?(?:\w+-){0,4}(?:eval|exec|execute|command|cmd|shell|script|hook|program|pager|editor|plugin|preload|wrapper|rsh|"
    r"invoke|require|run|pre|post|init|expr|ex|startup|on-\w+)(?:-\w+){0,4}(?:[=:]|$)|-[a-zA-Z]*[ecE]$"
)
"""Options whose name says that their value is run."""

_PLAIN_VALUE = re.compile(r"[\w./-]*\.\w+|\d[\d.,:-]*")
"""A file's name or numbers, as in `-c settings.toml` and `-c 1,3`."""

_PROSE = re.compile(r"-m|--(?:message|title|description|comment|body|subject)")
"""Options whose value is a sentence for people."""

_ADDRESSES = known_names("address options")
"""Options whose value is a part of an address, as `/app/`, that looks like a path."""

_SYSTEM = re.compile(
    r"~|\.\.|/(?:bin|boot|dev|etc|home|lib\w*|media|mnt|opt|proc|root|run|sbin|srv|sys|tmp|usr|var)(?:/|$)"
)
"""Beginnings of paths that are no part of an address."""

_ELSEWHERE = re.compile(r"(?:^-\w|^|[=:,@])((?:/|~|\.\.(?:/|$)|\$HOME\b|\$\{HOME\}).*)", re.DOTALL)
"""Group 1 is a path in a word, after an option or a separator."""

_DIRECTORIES = known_names("directory options")
"""Options that name the directory where a program works."""

_TREES = {"grep": "rR", "egrep": "rR", "fgrep": "rR", "cp": "rRa", "diff": "r", "zip": "r"}
"""Letters without which these programs read no whole directory."""


def word_findings(
    command: SimpleCommand, arguments: Arguments, *, workdir: str, is_guess: bool = False
) -> Iterator[Finding]:
    """Findings in the command's words, each by its kind; is_guess: only of words whose kind is known."""
    for number, item in enumerate(arguments.items):
        if item.kind not in FREE and (secret := secret_of_word(item.text)):
            yield Finding("HIGH", f"Touches keys or passwords: {quoted(secret)}.")
        if not item.kind.startswith(UNKNOWN):
            yield from _known(item, command, arguments, workdir=workdir)
        elif not is_guess:
            before = arguments.items[number - 1].text if number else ""
            yield from _unknown(item, before, command, arguments, workdir=workdir)
    if not is_guess:
        yield from _usage_findings(command, arguments, workdir=workdir)


def _usage_findings(command: SimpleCommand, arguments: Arguments, *, workdir: str) -> Iterator[Finding]:
    usage = arguments.usage
    if usage is not None and not {"asks*", "hosted*", "unknown*"}.isdisjoint(usage.operands):
        yield Finding("MEDIUM", f"What {usage.name} does, the rules do not judge.")
    if usage is not None and usage.has_dangers and any(word in command.splits for word in command.arguments):
        yield Finding("MEDIUM", f"Words that the shell computes may be options of {usage.name}.")
    if (usage is None or usage.writes_here) and command.cwd not in {"", workdir}:
        for finding in place_findings(command.cwd.rstrip("/") + "/file", workdir=workdir):
            if finding.risk == "HIGH":
                yield Finding("HIGH", f"Lets {command.program} work in {quoted(command.cwd)}, outside the workspace.")


def _known(item: Argument, command: SimpleCommand, arguments: Arguments, *, workdir: str) -> Iterator[Finding]:
    name = command.program if arguments.usage is None else arguments.usage.name
    name = item.option if item.option.startswith("$") else name
    kind = _closer_kind(item)
    if kind in _BY_KIND:
        words = quoted(f"{item.option} {item.text}".strip())
        yield _BY_KIND[kind]._replace(what=_BY_KIND[kind].what.format(name=name, words=words))
    elif kind == "removed" and is_wide(command.full(item.text), workdir=workdir):
        yield Finding("HIGH", f"Deletes {quoted(item.text)}, which is more than the workspace's own files.")
    elif paths := _written(item, arguments, command):
        for path in paths:
            yield from write_findings(path, command, workdir=workdir)
    elif kind == "project" or (kind == "script" and item.text != "-") or (kind == "goal" and item.text[:1] in "/~."):
        yield from _project(item, name, command, workdir=workdir)
    elif kind == "tree" and is_home(item.text) and _reads_tree(command):
        yield Finding("HIGH", f"Reads all of {quoted(item.text)}, keys and passwords included.")


def _closer_kind(item: Argument) -> str:
    """The kind of an argument, by its text where that decides."""
    kind, text = item.kind, item.text
    is_remote = _REMOTE.match(text) is not None
    match = _PACKAGE.fullmatch(text)
    package = match["name"] if match else text
    is_download = (
        (kind == "package" and usage_of(package) is None and package not in _PACKAGES)
        or (kind in {"project", "script", "plugin"} and (is_remote or "://" in text))
        or (kind in {"asks", "hosted"} and is_remote and not item.option)
        or (kind == "hosted" and _HOSTED.fullmatch(text))
    )
    if is_download:
        return "download"
    if kind == "preload" and _MODULE_FILE.fullmatch(text):
        kind = "script"
    if (kind == "tool" and re.search(r"[\s/$]", text)) or (kind == "preload" and not _MODULE.fullmatch(text)):
        return "runs"
    if kind == "archive" and re.match(r"[^/]+:", text):
        return "anywhere"
    if (
        (kind == "plugin" and not text.startswith("no:"))
        or (kind == "assign" and item.option[:1] == "-" and "=-" in text)
        or (kind == "read" and is_remote)
    ):
        return "asks"
    if kind == "name" and text in RUN_BY_SHELL:
        return "sets"
    return "" if item.kind == "asks" and not item.option else kind


def options_findings(command: SimpleCommand, *, workdir: str) -> Iterator[Finding]:
    """Findings in options that another program hands on: in those that the table knows, and in paths."""
    arguments = arguments_of(command)
    yield from word_findings(command, arguments, workdir=workdir, is_guess=True)
    for item in arguments.items:
        is_elsewhere = item.kind in {"project", "script"} and any(_project(item, "", command, workdir=workdir))
        if item.kind == "preload" or is_elsewhere:  # every later program of this kind would run it
            yield Finding("HIGH", f"Has {command.program} run code that no command names: {quoted(item.text)}.")
        if item.kind.startswith(UNKNOWN) or not item.option:
            for path in re.split(r"[=,]", item.text):
                if path.startswith(("/", "~", "..")):
                    yield from write_findings(path, command, workdir=workdir)


def read_findings(paths: Iterable[str]) -> Iterator[Finding]:
    """Findings for files that are read: keys and passwords."""
    for path in paths:
        if secret := secret_of_word(path):
            yield Finding("HIGH", f"Touches keys or passwords: {quoted(secret)}.")


def write_findings(path: str, command: SimpleCommand, *, workdir: str) -> Iterator[Finding]:
    """Findings for a path that the command writes."""
    if path == "-":
        return
    if path.startswith(("|", "!")):  # strace(1), -o
        yield Finding("HIGH", f"Runs a command instead of writing a file: {quoted(path)}.")
    yield from place_findings(command.full(path), workdir=workdir)
    if path.startswith(("$", "`")) and not path.startswith(("$HOME", "${HOME")):
        yield Finding("MEDIUM", f"Writes to a path that the shell computes: {quoted(path)}.")


def _written(item: Argument, arguments: Arguments, command: SimpleCommand) -> list[str]:
    """The paths that an argument has its program write."""
    text = item.text
    if item.kind == "write":
        return [text]
    if item.kind == "mount":  # `-v SOURCE:TARGET`, `--mount type=bind,source=SOURCE,target=TARGET`
        source = re.search(r"(?:source|src)=([^,]+)", text)
        path = source[1] if source else text.partition(":")[0]
        return [path] if path[:1] in {"/", "~", ".", "$"} else []
    option, _, value = text.partition("=")
    is_address = option in _ADDRESSES and not _SYSTEM.match(value)
    if (item.kind == "report" and not is_address) or (item.kind == "assign" and item.option.startswith("-")):
        return [path for path in re.split(r"[:=,]", text) if path[:1] in {"/", "~", "."}]
    if command.program == "dd" and text.startswith("of="):
        return [text.removeprefix("of=")]
    if item.kind == "archive":
        letters = set(command.arguments[0] + command.flags)
        if arguments.has("--create", "--append", "--update", "--delete") or letters & set("cruA"):
            return [text]
    return []


def _unknown(
    item: Argument, before: str, command: SimpleCommand, arguments: Arguments, *, workdir: str
) -> Iterator[Finding]:
    name = command.program if arguments.usage is None else arguments.usage.name
    word = item.text
    name, is_variable = (item.option, True) if item.option.startswith("$") else (name, False)
    plain = word.replace(COMPUTED, "") if is_variable else word  # the commands of `$(...)` are judged on their own
    is_judged = arguments.usage is None or "unknown*" in arguments.usage.operands
    is_prose = _PROSE.fullmatch(before) and next(approximate_commands(word, command), None) is None
    is_code = _CODE.search(re.sub(r"^\w+://|\$\{\w+\.\.\.\}", "", plain)) or (
        is_judged and not item.option and not is_prose and re.search(r"\s", word)
    )
    if not item.option and _REMOTE.match(word):
        yield Finding("HIGH", f"Gives {name} an address, of which it may run what it downloads: {quoted(word)}.")
    option, equals, value = word.partition("=") if word.startswith("-") else (before, "=", word)
    if is_code or (equals and _EVALUATES.match(option) and not _PLAIN_VALUE.fullmatch(value)):
        yield Finding("HIGH", f"Gives {name} a text that it may run: {quoted(word)}.")
        return
    if is_variable:
        yield Finding("MEDIUM", f"The rules do not know {quoted(word)} of {name}.")
        return
    paths = () if option in _ADDRESSES else _paths(word)
    found = (each for path in paths for each in place_findings(command.full(path), workdir=workdir))
    if any(finding.risk == "HIGH" for finding in found):
        yield Finding("HIGH", f"Lets {name} do something unknown with {quoted(word)}, outside the workspace.")
    else:
        yield Finding("MEDIUM", f"The rules do not know {quoted(word)} of {name}.")


def _paths(word: str) -> Iterator[str]:
    word = re.sub(r"\b\w{1,30}://", "", word)
    if found := _ELSEWHERE.search(word):
        yield found[1]
    if not word.startswith("-") or "=" in word:
        yield word.partition("=")[2] or word


def _project(item: Argument, name: str, command: SimpleCommand, *, workdir: str) -> Iterator[Finding]:
    path = command.full(item.text)
    if STDIN.fullmatch(item.text):
        yield Finding("HIGH", f"Lets {name} run what a command or a text gives it.")
    elif not path.startswith("$PWD/") and not is_inside(path.rstrip("/"), workdir):
        yield Finding("MEDIUM", f"Has {name} work by files outside the workspace: {quoted(item.text)}.")
        if item.option in _DIRECTORIES and not path.startswith(("$", "`")):
            yield from place_findings(path.rstrip("/") + "/file", workdir=workdir)


def _reads_tree(command: SimpleCommand) -> bool:
    letters = _TREES.get(command.program)
    return letters is None or bool(set(letters) & set(command.flags)) or command.has("--recursive", "--archive")
