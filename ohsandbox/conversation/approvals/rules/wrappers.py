"""Programs that run other programs: which argv or text they run."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Literal, NamedTuple

from ohsandbox.conversation.approvals.rules import names, names_by_program
from ohsandbox.conversation.approvals.rules.known_programs import arguments_of
from ohsandbox.conversation.approvals.rules.shell_syntax import SimpleCommand, basename
from ohsandbox.conversation.approvals.rules.shell_words import COMPUTED

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ohsandbox.conversation.approvals.rules.known_programs import Arguments

SHELLS = frozenset({"sh", "bash", "dash", "zsh", "ksh", "ash", "fish", "rbash", "mksh"})
PYTHONS = re.compile(r"(?:i?python|pypy)[\d.]*")
_CODE_OPTION = {
    "perl": "eEmM", "ruby": "e", "node": "ep", "nodejs": "ep", "bun": "e", "deno": "", "php": "rBRE", "lua": "e",
    "luajit": "e", "Rscript": "e", "R": "e", "julia": "eE", "osascript": "e", "tclsh": "", "expect": "c", "groovy": "e",
    "scala": "e", "elixir": "e", "erl": "", "ghc": "e", "guile": "c", "sbcl": "", "emacs": "", "pwsh": "cC",
}  # fmt: skip
"""Interpreters of languages that the rules cannot read, with the letters of the options that take code."""

_CODE_WORDS_OF = names_by_program({
    "deno": "eval", "erl": "-eval", "sbcl emacs": "--eval", "node": "--eval --print", "bun": "--eval",
})  # fmt: skip

Language = Literal["shell", "python", "foreign"]

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

_JOINS_WORDS = names("eval watch parallel hyperfine entr tmux screen npm pnpm yarn composer git")
"""Programs that run their operands together as one shell text."""


def is_interpreter(program: str) -> bool:
    """Whether the program runs code from its arguments or from stdin."""
    return program in SHELLS or program in _CODE_OPTION or PYTHONS.fullmatch(program) is not None


def inner_of(command: SimpleCommand) -> Iterator[InnerCommand]:
    """The code and commands that a command runs, as far as its words show."""
    name = command.program
    arguments = arguments_of(command)
    if name == "alias":
        yield from (InnerCommand("shell", word.split("=", 1)[-1]) for word in command.operands)
    elif is_interpreter(name):
        yield from _of_interpreter(command)
    elif name in {"find", "fd", "fdfind"}:
        yield from _of_find(command, arguments)
    else:
        shell = [item.text for item in arguments.of_kind("shell")]
        if name in _JOINS_WORDS:
            shell = [" ".join(shell), *(text for text in shell if " " in text)]
        yield from (InnerCommand("shell", text) for text in shell if text)
        yield from (InnerCommand("python", item.text) for item in arguments.of_kind("python"))
        yield from (InnerCommand("foreign", item.text) for item in arguments.of_kind("code"))
    if name == "ssh" and len(command.operands) > 1:
        yield InnerCommand("shell", " ".join(command.operands[1:]))
    if arguments.command:
        yield InnerCommand("shell", "", command.running(_with_input(name, arguments)))


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


def _of_interpreter(command: SimpleCommand) -> Iterator[InnerCommand]:
    script = script_of(command)
    if command.program in SHELLS:
        language: Language = "shell"
    else:
        language = "python" if PYTHONS.fullmatch(command.program) else "foreign"
    yield from (InnerCommand(language, code) for code in script.code)
    if command.stdin is not None and script.reads_stdin:
        yield InnerCommand(language, command.stdin)


class _InterpreterScript(NamedTuple):
    """The code, file or module that an interpreter runs, by its arguments."""

    code: tuple[str, ...] = ()
    file: str = ""
    module: str = ""

    @property
    def reads_stdin(self) -> bool:
        """Whether it runs its stdin, or is interactive."""
        return not (self.code or self.file or self.module)


def script_of(command: SimpleCommand) -> _InterpreterScript:
    """The code, file or module that an interpreter runs."""
    if command.program in SHELLS:
        return _shell_script(command.arguments)
    if PYTHONS.fullmatch(command.program):
        return _python_script(command.arguments)
    code = tuple(_foreign_code(command))
    operands = [word for word in command.operands if word not in {"run", "eval"}]
    return _InterpreterScript(code, "" if code or not operands else operands[0])


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


def _python_script(arguments: Sequence[str]) -> _InterpreterScript:
    """`python -h`: -c and -m take the rest of their word or the next word, and end the options."""
    words = iter(arguments)
    for word in words:
        if not word.startswith("-") or word == "-":
            return _InterpreterScript(file="" if word == "-" else word)
        for number, letter in enumerate(word[1:], 2):
            if word.startswith("--"):
                break
            if letter in "cm":
                value = word[number:] or next(words, "")
                return _InterpreterScript(code=(value,)) if letter == "c" else _InterpreterScript(module=value or "?")
            if letter in "WX":
                next(words, "") if not word[number:] else ""
                break
    return _InterpreterScript()


def _foreign_code(command: SimpleCommand) -> Iterator[str]:
    letters, words = _CODE_OPTION[command.program], _CODE_WORDS_OF.get(command.program, frozenset())
    for word, following in command.pairs:
        if word.split("=", 1)[0] in words:
            yield word.split("=", 1)[1] if "=" in word else following
        elif word.startswith("-") and not word.startswith("--"):
            at = (
                len(word) - 1
                if word[-1] in letters
                else min((word.index(c) for c in letters if c in word[1:]), default=0)
            )
            if at > 0:
                yield word[at + 1 :] or following
