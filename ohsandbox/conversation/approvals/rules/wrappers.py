"""Programs that run other programs: which argv or text they run."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Literal, NamedTuple

from ohsandbox.conversation.approvals.rules import names, names_by_program
from ohsandbox.conversation.approvals.rules.shell_syntax import SimpleCommand, basename, is_option

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

SHELLS = frozenset({"sh", "bash", "dash", "zsh", "ksh", "ash", "fish", "rbash", "mksh"})
PYTHONS = re.compile(r"(?:i?python|pypy)[\d.]*")
_CODE_OPTION = {
    "perl": "eEpnM", "ruby": "e", "node": "ep", "nodejs": "ep", "bun": "e", "deno": "", "php": "rBRE", "lua": "e",
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


_ARGV = {
    program: (frozenset(options.split()), operands)
    for programs, (options, operands) in {
        "env": ("-u --unset -C --chdir", 0),
        "nohup setsid command builtin busybox toybox unbuffer valgrind dbus-run-session docker podman kubectl "
        "cross-env": ("", 0),
        "nice": ("-n --adjustment", 0),
        "ionice": ("-c -n -p --class --classdata", 0),
        "stdbuf": ("-i -o -e", 0),
        "exec": ("-a", 0),
        "timeout gtimeout": ("-k -s --kill-after --signal", 1),
        "xargs": ("-I -n -P -d -L -a -E -s --max-args --max-procs --delimiter --arg-file --replace", 0),
        "chroot taskset pipenv pdm rye bundle mise rustup": ("", 1),
        "time": ("-f -o --format --output", 0),
        "strace": ("-e -o -p -s -u -E -P -a -b -I -O -S -X", 0),
        "ltrace": ("-e -o -p -s -u -a -l -n", 0),
        "flock": ("-w -E --timeout --wait --conflict-exit-code", 1),
        "sudo": ("-u -g -h -p -C -r -t -U -D -T -R --user --group --host --prompt --chdir --chroot", 0),
        "doas": ("-u -C", 0),
        "pkexec": ("--user", 0),
        "setpriv": ("--reuid --regid --groups --inh-caps --bounding-set", 0),
        "unshare": ("--setgroups -S -G -R -w", 0),
        "nsenter": ("-t --target -S -G", 0),
        "chrt": ("-T -P -D", 1),
        "prlimit": ("-p --pid", 0),
        "perf": ("-e -o -F", 1),
        "systemd-run": ("-p --property --unit -u --slice -E --setenv", 0),
        "xvfb-run": ("-n -s -e -f --server-args --server-num", 0),
        "fakeroot": ("-s -i", 0),
        "proot": ("-r -b -w", 0),
        "ssh": ("-b -c -D -E -e -F -I -i -J -L -l -m -O -o -p -Q -R -S -W -w", 1),
        "npx pnpx": ("-p --package -c --call", 0),
        "bunx": ("-p --package", 0),
        "uvx": ("--from --with -p --python", 0),
        "pipx": ("--spec", 1),
        "dotenv": ("-f", 0),
        "poetry": ("-C --directory", 1),
        "uv": ("--with --python -p --project --directory --extra --group", 1),
        "hatch": ("-e --env", 1),
        "conda": ("-n --name -p --prefix", 1),
        "micromamba": ("-n -p", 1),
    }.items()
    for program in programs.split()
}  # fmt: skip
"""Programs followed by an argv: their options that take a word, and the number of operands before the argv."""

_RUNS = {"poetry", "uv", "pipenv", "pdm", "hatch", "rye", "bundle", "conda", "micromamba", "mise", "rustup"}
"""Programs that run what follows `run`, `exec`, `x` or `--`, and nothing else."""

_TEXT = frozenset({"watch", "parallel", "hyperfine", "entr", "tmux", "screen", "at", "batch", "nix-shell", "script"})
"""Programs whose operands, joined or single, are shell commands."""

_TEXT_OPTION = {
    "su": "-c", "runuser": "-c", "flock": "-c", "script": "-c", "npx": "-c", "env": "-S", "nix-shell": "--run",
    "mapfile": "-C", "readarray": "-C", "compgen": "-C", "complete": "-C",
}  # fmt: skip
"""Options whose argument is a shell command."""

_LONG_TEXT_OPTION = frozenset(
    {"--command", "--call", "--split-string", "--session-command", "--to-command", "--filter"}
)

_FIND_RUNS = frozenset({"-exec", "-execdir", "-ok", "-okdir"})
_FD_RUNS = frozenset({"-x", "-X", "--exec", "--exec-batch"})
_MAX_START_CHARS = 512
"""Limit of a start directory of `find` that is put into its commands, where it may occur thousands of times."""

_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")

_HAZARDS = SHELLS | names("rm dd mkfs shred curl wget nc ncat sudo su eval git chmod chown mv tee ssh scp find kill")
"""Names searched for among the words of a program that may run another."""

_MAX_HAZARDS = 3


def is_interpreter(program: str) -> bool:
    """Whether the program runs code from its arguments or from stdin."""
    return program in SHELLS or program in _CODE_OPTION or PYTHONS.fullmatch(program) is not None


def is_wrapper(program: str) -> bool:
    """Whether the program is known to run another one."""
    return program in _ARGV or program in _TEXT or program in _TEXT_OPTION


def inner_of(command: SimpleCommand) -> Iterator[InnerCommand]:
    """The code and commands that a command runs, as far as its words show."""
    name = command.program
    if name == "eval":
        yield InnerCommand("shell", " ".join(command.arguments))
    elif name in {"trap", "alias"}:
        texts = command.operands if name == "alias" else command.operands[:1]
        yield from (InnerCommand("shell", word.split("=", 1)[-1]) for word in texts)
    elif is_interpreter(name):
        yield from _of_interpreter(command)
    elif name in {"find", "fd", "fdfind"}:
        yield from _of_find(command)
    if name in _TEXT:
        yield InnerCommand("shell", " ".join(command.operands))
        yield from (InnerCommand("shell", word) for word in command.operands if " " in word)
    yield from (InnerCommand("shell", text) for text in _text_options(command))
    if name in _ARGV:
        yield from _of_argv(command)


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


def _text_options(command: SimpleCommand) -> Iterator[str]:
    option = _TEXT_OPTION.get(command.program)
    for word, following in command.pairs:
        if option and (word == option or (word.startswith(option) and not option.startswith("--"))):
            yield word.removeprefix(option) or following
        elif is_option(word, _LONG_TEXT_OPTION):
            yield word.split("=", 1)[1] if "=" in word else following


def _of_argv(command: SimpleCommand) -> Iterator[InnerCommand]:
    name, rest = command.program, list(command.arguments)
    options, skipped = _ARGV[name]
    if name in {"docker", "podman", "kubectl"}:
        return  # the beginning of the argv is not known: see `hazards_in`
    if name in _RUNS and not set(rest) & {"run", "exec", "x", "--"}:
        return
    if name == "command" and {"-v", "-V"} & set(rest[:1]):
        return
    rest = _after_options(rest, options, assignments=name in {"env", "sudo", "cross-env", "doas"})
    for _ in range(skipped):
        rest = _after_options(rest[1:], options, assignments=False)
    if name == "ssh" and rest:
        yield InnerCommand("shell", " ".join(rest))
    elif rest:
        yield InnerCommand("shell", "", command.running(rest))


def _after_options(words: Sequence[str], with_value: frozenset[str], *, assignments: bool) -> list[str]:
    rest = list(words)
    at = 0
    while at < len(rest) and (rest[at].startswith("-") or (assignments and _ASSIGNMENT.match(rest[at]))):
        if rest[at] == "--":
            return rest[at + 1 :]
        at += 2 if rest[at] in with_value else 1
    return rest[at:]


def _of_find(command: SimpleCommand) -> Iterator[InnerCommand]:
    """The command of each `-exec`: together no longer than the whole command."""
    starts = _FIND_RUNS if command.program == "find" else _FD_RUNS
    start = next(iter(command.operands), "") if command.program == "find" else ""
    start = start if start and command.arguments[0] == start else "."
    start = "$PWD" if len(start) > _MAX_START_CHARS else start
    argv: list[str] | None = None
    for word in (*command.arguments, ";"):
        if argv is not None and (word in {";", "+"} or word in starts):
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
            at = min((word.index(letter) for letter in letters if letter in word[1:]), default=0)
            if at:
                yield word[at + 1 :] or following
