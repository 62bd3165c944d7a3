"""Programs that run other programs: which argv or text they run."""

from __future__ import annotations

import functools
import re
from typing import TYPE_CHECKING, Literal, NamedTuple, cast

from ohsandbox.conversation.approvals.rules import names
from ohsandbox.conversation.approvals.rules.known_programs import OPTIONS, arguments_of, usage_of
from ohsandbox.conversation.approvals.rules.shell_syntax import SimpleCommand, basename
from ohsandbox.conversation.approvals.rules.shell_words import COMPUTED
from ohsandbox.conversation.approvals.rules.variables import variable_arguments

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ohsandbox.conversation.approvals.rules.known_programs import Arguments

SHELLS = frozenset({"sh", "bash", "dash", "zsh", "ksh", "ash", "fish", "rbash", "mksh"})
PYTHONS = re.compile(r"(?:i?python|pypy)[\d.]*")
Language = Literal["shell", "python", "code", "options"]

_WORDS = re.compile(r"[\s'\"]+")
_LINKER_WORDS = re.compile(r"[\s'\",]+")
"""What is between the words of options that are handed on; gcc(1), -Wl: commas, too."""

_CODE_OPTIONS = frozenset({"-c", "-e", "--code", "--command", "--eval", "--execute"})
_FRAMEWORKS = names("manage.py django-admin artisan rails")
_CONSOLES = names("shell shell_plus dbshell tinker console c dbconsole db repl")
"""Sub-commands of frameworks' scripts that run what they read."""
_CALL = re.compile(r"\w\s{0,3}\(|`|\$\(|;")

MAX_WRAPPED = 16


class InnerCommand(NamedTuple):
    """Something that a command runs: code or another command."""

    language: Language
    text: str
    """Code, or "" if `command` is run."""
    command: SimpleCommand | None = None


_FIND_RUNS = frozenset({"-exec", "-execdir", "-ok", "-okdir"})
_FD_RUNS = frozenset({"-x", "-X", "--exec", "--exec-batch"})
_MAX_START_CHARS = 512
"""Limit of a start directory of `find` that is put into its commands, where it may occur thousands of times."""

_HAZARDS = SHELLS | names("rm dd mkfs shred curl wget nc ncat sudo su eval git chmod chown mv tee ssh scp find kill")
"""Names searched for among the words of a program that may run another."""

_MAX_HAZARDS = 3


@functools.lru_cache(256)
def is_interpreter(program: str) -> bool:
    """Whether the program runs code from its arguments or from stdin."""
    if program in SHELLS or program == "parallel":
        return True
    usage = usage_of(program)
    return usage is not None and "script" in usage.operands[:2] and not {"code", "python"}.isdisjoint(usage.kinds)


def runs_input(command: SimpleCommand) -> bool:
    """Whether the command runs its stdin, or is interactive: an interpreter alone, or a framework's console."""
    is_alone, name = False, command.program
    if is_interpreter(name):
        script = script_of(command)
        usage = arguments_of(command).usage
        is_alone, name = not any(script) and (usage is None or usage.outer is None), basename(script.file)
    is_script = "/" in command.path and name == command.program
    words = command.operands if name in _FRAMEWORKS else command.operands[:1] if is_script else ()
    is_given_code = any(word.split("=", 1)[0] in _CODE_OPTIONS for word in command.arguments)
    return is_alone or not (is_given_code or _CONSOLES.isdisjoint(words))


def inner_of(command: SimpleCommand) -> Iterator[InnerCommand]:
    """The code, commands and options that a command hands on, as far as its words and variables show."""
    name = command.program
    arguments = arguments_of(command)
    items = [*arguments.items, *variable_arguments(command)]
    if name == "alias":
        yield from (InnerCommand("shell", word.split("=", 1)[-1]) for word in command.operands)
    elif name in {"find", "fd", "fdfind"}:
        yield from _of_find(command, arguments)
    elif name in SHELLS:
        yield from (InnerCommand("shell", code) for code in script_of(command).code)
    joined = [item.text for item in items if item.kind == "shell" and not item.option]
    if len(joined) > 1 and (arguments.usage is None or "shell" not in arguments.usage.operands):
        yield InnerCommand("shell", " ".join(joined))
        items = [item for item in items if item.text not in joined or " " in item.text]
    for item in items:
        if item.kind == "code" or (item.kind in {"shell", "python"} and item.text):
            yield InnerCommand(cast("Language", item.kind), item.text)
        elif item.kind.startswith(OPTIONS):
            program = item.kind.removeprefix(OPTIONS).split("_")
            words = (_LINKER_WORDS if item.option.endswith(",") else _WORDS).split(item.text)
            argv = [" ".join(program[:2]), *program[2:], *filter(None, words)]
            yield InnerCommand("options", "", command.running(argv)._replace(assigned=()))
    yield from _code_for_script(command)
    if command.stdin is not None and runs_input(command):
        is_sql = not {"dbshell", "dbconsole", "db"}.isdisjoint(command.operands)
        yield InnerCommand("code" if is_sql else _language(name), command.stdin)
    if arguments.command:
        yield InnerCommand("shell", "", command.running(_with_input(name, arguments)))


def _code_for_script(command: SimpleCommand) -> Iterator[InnerCommand]:
    """Code that a script of the workspace is given to run: `manage.py shell -c`, `artisan tinker --execute=`."""
    if is_interpreter(command.program):
        is_script = script_of(command).file != ""
    else:
        is_script = "/" in command.path and usage_of(command.program) is None
    if not is_script:
        return
    for word, following in command.pairs:
        option, equals, value = word.partition("=")
        text = value if equals else following
        if option in _CODE_OPTIONS and _CALL.search(text):
            is_python = PYTHONS.fullmatch(command.program) or command.program.endswith(".py")
            yield InnerCommand("python" if is_python else "code", text)


def _language(program: str) -> Language:
    is_python = PYTHONS.fullmatch(program) or program in {"manage.py", "django-admin"}
    return "shell" if program in SHELLS | {"parallel"} else "python" if is_python else "code"


def _with_input(name: str, arguments: Arguments) -> Sequence[str]:
    """The argv that a program runs; words that it takes from its input are computed ones."""
    if name != "xargs":
        return arguments.command
    replaced = [item.text or "{}" for item in arguments.items if item.option in {"-I", "-i", "--replace"}]
    if not replaced:
        return [*arguments.command, COMPUTED]
    return [word.replace(replaced[-1], COMPUTED) for word in arguments.command]


def hazards_in(command: SimpleCommand) -> Iterator[SimpleCommand]:
    """Commands that begin at a word of command that names one of HAZARDS."""
    count = 0
    for number, word in enumerate(command.arguments[:1000]):
        if basename(word) in _HAZARDS:
            yield command.running(command.arguments[number:])
            count += 1
            if count == _MAX_HAZARDS:
                return


def approximate_commands(code: str, like: SimpleCommand) -> Iterator[SimpleCommand]:
    """Commands in code of any language: from each name of HAZARDS to the end of its statement."""
    for sentence in re.split(r"[;|&\n(){}`!]+", re.sub(r"[\"',\[\]\\]+", " ", code)):
        words = sentence.split()
        starts = [number for number, word in enumerate(words) if basename(word) in _HAZARDS]
        for number in starts[:_MAX_HAZARDS]:
            yield like.running(words[number:])


def _of_find(command: SimpleCommand, arguments: Arguments) -> Iterator[InnerCommand]:
    """The command of each `-exec`: together no longer than the whole command."""
    is_find = command.program == "find"
    starts = _FIND_RUNS if is_find else _FD_RUNS
    operands = [item.text for item in arguments.of_kind("read") if not item.option]
    start = next(iter(operands), ".")
    start = "$PWD" if len(start) > _MAX_START_CHARS else start
    argv: list[str] | None = None
    for word in (*command.arguments, ";"):
        if argv is not None and (word in {";", "+"} or word in starts):
            if argv and not is_find and not any("{}" in each for each in command.arguments):
                argv.append(f"{start.rstrip('/')}/{{}}")  # as fd does
            if argv:
                yield InnerCommand("shell", "", command.running(argv))
            argv = None
        if word in starts:
            argv = []
        elif argv is not None:
            argv.append(word.replace("{}", f"{start.rstrip('/')}/{{}}"))


class _InterpreterScript(NamedTuple):
    """The code, file or module that an interpreter runs, by its arguments."""

    code: tuple[str, ...] = ()
    file: str = ""
    module: str = ""


def script_of(command: SimpleCommand) -> _InterpreterScript:
    """The code, file or module that an interpreter runs."""
    if command.program in SHELLS:
        return _shell_script(command.arguments)
    arguments = arguments_of(command)
    code = tuple(item.text for item in arguments.of_kind("code", "python", "shell"))
    files = [item.text for item in arguments.of_kind("script", "project") if not item.option]
    return _InterpreterScript(code, "".join(files).removeprefix("-"), "".join(arguments.command[:1]))


def _shell_script(arguments: Sequence[str]) -> _InterpreterScript:
    """POSIX `sh`: with -c the first operand is the code, otherwise the file."""
    at, with_code, from_stdin = 0, False, False
    while at < len(arguments) and arguments[at][:1] in {"-", "+"} and len(arguments[at]) > 1:
        word = arguments[at]
        at += 1
        if word == "--":
            break
        short = not word.startswith("--")
        with_code = with_code or (short and "c" in word)
        from_stdin = from_stdin or (short and "s" in word)
        if word in {"--rcfile", "--init-file"} or (short and word[-1] in "oO"):
            at += 1
    rest = [word for word in arguments[at:] if word != "-"]
    if with_code:
        return _InterpreterScript(tuple(rest[:1]))
    return _InterpreterScript(file="" if from_stdin or not rest else rest[0])
