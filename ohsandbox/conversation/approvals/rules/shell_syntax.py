"""All simple commands of a shell text, at any depth, by the parser of `shfmt` (mvdan/sh).

The parser is a child process with a time limit: this process neither hangs nor crashes on any text.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.metadata
import posixpath
import signal
import subprocess
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ohsandbox import host_programs
from ohsandbox.conversation.approvals.rules import Finding, names
from ohsandbox.conversation.approvals.rules.arithmetic import Arithmetic
from ohsandbox.conversation.approvals.rules.paths import is_home
from ohsandbox.conversation.approvals.rules.shell_words import (
    COMPUTED,
    SENTINELS,
    computed_words,
    expanded_text,
    fields,
    input_of,
    plain,
)
from ohsandbox.strict_json import load_json

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

MAX_CHARS = 64 * 1024
"""Limit of a text. Its syntax tree is up to 600 times as long; parsing any 64 KiB took under 4 s on a loaded
machine."""

_PARSE_S = 10.0

MAX_COMMANDS = 5_000
"""Limit of commands in a text; each counts once more for each value of its variables that is tried. Each takes 0.2
ms."""

_MAX_WORDS = 5_000
"""Limit of words in one command, its redirections included."""

_MAX_CANDIDATES = 8
"""Limit of the values of a variable that are tried."""

_MAX_FED = 32
_MAX_FUNCTIONS = 16
"""Limit of functions that are followed from one that runs beside others."""

_MAX_DIRECTORY_CHARS = 512
"""Limit of a tracked directory: rules on paths would take longer with each `cd`."""

_OUTPUT = frozenset({">", ">>", ">|", ">!", ">>!", "&>", "&>>", "<>", ">&"})
_LISTERS = names("find fd fdfind ls tree du")
"""Programs that print the names of files."""

_PIPES = frozenset({"|", "|&"})


class UnreadableError(ValueError):
    """The text could not be parsed; the message says why."""


class SimpleCommand(NamedTuple):
    """One command: its words after quote removal; expansions stay as `$NAME` or `$(...)`."""

    program: str
    """The program's name without its directory; "" if there are only assignments or redirections."""
    arguments: tuple[str, ...] = ()
    written: tuple[str, ...] = ()
    """Targets of the command's output redirections."""
    inputs: tuple[str, ...] = ()
    """Files of its input redirections."""
    assigned: tuple[tuple[str, str], ...] = ()
    """Variables set before the command, or by it."""
    cwd: str = ""
    """The command's working directory; "" if unknown."""
    fed: frozenset[str] = frozenset()
    """Programs whose output the command reads through a pipe."""
    stdin: str | None = None
    """The command's standard input, if the text contains it."""
    consumer: str = ""
    """The program that receives the command's output as a word."""
    wrapped_by: tuple[str, ...] = ()
    path: str = ""
    """The program as written."""
    computed: frozenset[str] = frozenset()
    """Words, and text of standard input, with something that the shell expands; a quoted `$X` is none."""
    splits: frozenset[str] = frozenset()
    """Those of them that may become several words, or options."""

    @property
    def flags(self) -> str:
        """The letters of its short options."""
        return "".join(word[1:] for word in self.arguments if word.startswith("-") and not word.startswith("--"))

    @property
    def operands(self) -> list[str]:
        """Arguments that are not options."""
        return [word for word in self.arguments if not word.startswith("-")]

    @property
    def pairs(self) -> list[tuple[str, str]]:
        """Each argument with the next one; the last with ""."""
        return list(zip(self.arguments, [*self.arguments[1:], ""], strict=False))

    @property
    def computes(self) -> bool:
        """Whether the program's name is an expansion."""
        return self.program != "[" and bool(set(self.program) & set("$`*?["))

    def has(self, *options: str) -> bool:
        """Whether an argument is one of the long options (or exact words)."""
        return any(is_option(word, options) for word in self.arguments)

    def full(self, path: str) -> str:
        """Resolve path against the command's working directory; an unknown result begins with `$`."""
        if path.startswith(("~", "$", "`")):
            return path
        return posixpath.normpath(posixpath.join(self.cwd or "$PWD", path)) + "/" * path.endswith("/")

    def running(self, argv: Sequence[str]) -> SimpleCommand:
        """Return this command with argv in place of its program and arguments."""
        wrapped = (*self.wrapped_by, self.program)
        computed = self.computed.union(word for word in argv if COMPUTED in word)
        return self._replace(
            program=argv[0] if argv[0].startswith("python -m ") else basename(argv[0]),
            path=argv[0],
            arguments=tuple(argv[1:]),
            wrapped_by=wrapped,
            written=(),
            computed=computed,
        )


def is_option(word: str, options: Collection[str]) -> bool:
    """Whether the word is one of the options; a long one may be abbreviated (getopt_long(3))."""
    name = word.split("=", 1)[0]
    if name in options:
        return True
    return name[:2] == "--" and len(name) > len("--") and any(option.startswith(name) for option in options)


class Reading(NamedTuple):
    """Commands of a text, the names of functions that it defines, and findings in its arithmetic and functions."""

    commands: list[SimpleCommand]
    functions: frozenset[str]
    arithmetic: tuple[Finding, ...] = ()


def parse_commands(text: str, *, cwd: str, variables: Mapping[str, str] | None = None) -> Reading:
    """Parse the commands of a text, in order; if it contains values of their variables, also once with each value.

    Raises:
        UnreadableError: it is not a shell text, too long, too deep, or has more than MAX_COMMANDS commands.
    """
    reader = _TreeWalker(cwd, variables or {})
    reader.walk(_syntax_tree(text))
    return Reading(reader.commands, frozenset(reader.functions), reader.findings())


def basename(word: str) -> str:
    """A program's name without its directory."""
    return word.rsplit("/", 1)[-1]


# --- parser -----------------------------------------------------------------------------------------


def _syntax_tree(text: str) -> Any:
    if len(text) > MAX_CHARS:
        raise UnreadableError(f"it has {len(text)} characters, and the rules read no more than {MAX_CHARS}")
    if "\0" in text:
        raise UnreadableError("it holds a NUL")
    data = text.translate(SENTINELS).encode("utf-8", "replace")
    argv = [_shfmt(), "--to-json", "--language-dialect=bash"]
    pipe = subprocess.PIPE
    try:
        process = host_programs.start(argv, stdin=pipe, stdout=pipe, stderr=pipe, cwd="/", env={})
    except OSError as error:
        raise UnreadableError(f"the parser shfmt cannot be started: {error.strerror}") from None
    timer = threading.Timer(_PARSE_S, process.kill)  # `communicate` with a time limit ends by polling: 0.5 ms or more
    timer.start()
    with process:
        try:
            tree, errors = process.communicate(data)
        finally:
            timer.cancel()
    if process.returncode == -signal.SIGKILL:
        raise UnreadableError(f"its parser was stopped after {_PARSE_S:.0f} s")
    if process.returncode != 0:
        error_line = errors.decode("utf-8", "replace").strip().split("\n", 1)[0]
        raise UnreadableError(f"it is not a complete shell command ({error_line[:200]})")
    try:
        return load_json(tree, object_hook=_without_position)
    except ValueError:
        raise UnreadableError("it is nested too deep") from None


def _without_position(node: dict[str, Any]) -> dict[str, Any] | None:
    """None for a position in the text; a slice, `${x:1}`, has an `Offset` as well, which is a word."""
    return None if isinstance(node.get("Offset"), int) else node


@functools.cache
def _shfmt() -> str:
    """Return the path of shfmt: that of the package `shfmt-py`, otherwise of PATH.

    Raises:
        UnreadableError: neither has shfmt.
    """
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        for file in importlib.metadata.files("shfmt-py") or []:
            if file.name == "shfmt" and (binary := Path(str(file.locate()))).is_file():
                return str(binary.resolve())
    if on_path := host_programs.find_program("shfmt"):
        return on_path
    raise UnreadableError("the parser shfmt is missing: `pip install shfmt-py`")


# --- commands ---------------------------------------------------------------------------------------


class _Pipe:
    """The state of a pipeline whose stages are visited in order."""

    def __init__(self, upstream: frozenset[str] = frozenset(), text: str | None = None) -> None:
        self.upstream, self.text = upstream, text
        self.current: set[str] = set()
        self.said: str | None = None

    def next_stage(self) -> None:
        if len(self.upstream) < _MAX_FED:
            self.upstream |= self.current
        self.text = self.said if len(self.current) == 1 else None
        self.current, self.said = set(), None


class _Context(NamedTuple):
    """The context of a node in the text."""

    directory: list[str]
    """One item, which `cd` replaces for all commands of the same shell."""
    pipe: _Pipe | None = None
    consumer: str = ""
    inside: frozenset[str] = frozenset()
    """The functions of which it is in the body."""
    is_aside: bool = False
    """Whether it runs beside other commands of the function: in a pipe, or in the background."""

    def subshell(self, pipe: _Pipe | None = None) -> _Context:
        return self._replace(directory=list(self.directory), pipe=pipe or self.pipe)


_Node = dict[str, Any]
_Visit = tuple[Any, _Context | _Pipe]
"""A part of the tree with its context, or a pipe between two stages."""


class _TreeWalker:
    """Collects commands; iterative, so that depth costs nothing."""

    def __init__(self, cwd: str, variables: Mapping[str, str]) -> None:
        self.commands: list[SimpleCommand] = []
        self.functions: set[str] = set()
        self._values: dict[str, list[str]] = {name: [value] for name, value in variables.items()}
        self._cwd = cwd
        self._arithmetic = Arithmetic()
        self._calls: dict[str, set[str]] = {}
        """The programs that each function runs."""
        self._asides: set[tuple[str, str]] = set()
        """Functions, each with a program that it runs beside others."""

    def findings(self) -> tuple[Finding, ...]:
        is_bomb = any(name in self._called_by(program) for name, program in self._asides if program in self.functions)
        bombs = [Finding("HIGH", "Looks like a fork bomb.")] if is_bomb else []
        return (*bombs, *self._arithmetic.findings(self._values))

    def _called_by(self, name: str) -> set[str]:
        """The function and those that it calls, also by way of others, as far as _MAX_FUNCTIONS."""
        reached = [name]
        for caller in reached:
            if len(reached) < _MAX_FUNCTIONS:
                reached += (self._calls.get(caller, set()) & self.functions).difference(reached)
        return {*reached}

    def walk(self, tree: Any) -> None:
        stack: list[_Visit] = [(tree, _Context([self._cwd]))]
        while stack:
            node, at = stack.pop()
            if isinstance(at, _Pipe):
                at.next_stage()
            elif isinstance(node, list):
                stack += [(item, at) for item in reversed(node)]
            elif isinstance(node, dict):
                stack += reversed(list(self._visited(node, at)))
            if len(self.commands) > MAX_COMMANDS:
                raise UnreadableError(f"it has more than {MAX_COMMANDS} commands")

    def _visited(self, node: _Node, at: _Context) -> Iterator[_Visit]:
        kind = node.get("Type")
        self._arithmetic.look(node)
        if "Cmd" in node or "Redirs" in node:
            yield from self._statement(node, at)
        elif kind == "BinaryCmd" and node.get("Op") in _PIPES:
            yield from _stages(node, at)
        elif kind in {"Subshell", "CmdSubst"}:
            yield node.get("Stmts"), at.subshell()
        elif kind == "ProcSubst":
            pipe = _Pipe(frozenset({at.consumer} - {""})) if node["Op"] == ">(" else None
            yield node.get("Stmts"), at.subshell(pipe)._replace(is_aside=True)
        else:
            if kind == "FuncDecl":
                name = (node.get("Name") or {}).get("Value", "")
                self.functions.add(name)
                at = at._replace(
                    inside=frozenset({*at.inside, name} if len(at.inside) < _MAX_FED else at.inside), is_aside=False
                )
            elif kind == "CoprocClause":
                at = at._replace(is_aside=True)
            elif kind == "WordIter":
                at = at._replace(consumer="for")
            elif kind == "ForClause":
                self._loop(node.get("Loop") or {})
            yield from ((value, at) for value in node.values() if isinstance(value, dict | list))

    def _statement(self, node: _Node, at: _Context) -> Iterator[_Visit]:
        """A command with its redirections; commands nested in its words and texts come after it."""
        command, redirections = node.get("Cmd") or {}, node.get("Redirs") or []
        if node.get("Background"):
            at = at.subshell()._replace(is_aside=True)
        if command.get("Type") in {None, "CallExpr", "DeclClause"}:
            program = self._simple(command, redirections, at)
            for name in at.inside:
                self._calls.setdefault(name, set()).add(program)
            self._asides |= {(name, program) for name in at.inside} if at.is_aside else set()
            self._arithmetic.look(command)
            parts = [command.get("Assigns"), command.get("Args"), redirections]
            yield parts, at._replace(consumer=program or at.consumer)
            return
        if redirections:
            self._simple({}, redirections, at)
            if (text := _stdin(redirections, {})) is not None:
                at = at._replace(pipe=_Pipe(text=text))
        yield command, at
        yield redirections, at

    def _simple(self, command: _Node, redirections: list[_Node], at: _Context) -> str:
        """Store the command as written and with the values of its variables; returns its program's name."""
        if len(command.get("Args") or ()) + len(redirections) > _MAX_WORDS:
            raise UnreadableError(f"one of its commands has more than {_MAX_WORDS} words")
        simple = as_written = _simple_command(command, redirections, at, {})
        self.commands.append(simple)
        for number in range(self._choices(command, redirections)):
            chosen = {name: values[number % len(values)] for name, values in self._values.items()}
            simple = _simple_command(command, redirections, at, chosen)
            if simple != self.commands[-1]:
                self.commands.append(simple)
        simple = self.commands[-1]
        if at.pipe is not None:
            lists_home = as_written.program in _LISTERS and any(map(is_home, as_written.operands))
            at.pipe.current.add(f"{as_written.program} ~" if lists_home else as_written.program)
            at.pipe.said = simple.stdin if simple.program == "cat" else None
            if simple.program in {"echo", "printf"}:
                at.pipe.said = " ".join(simple.arguments)
        self._arithmetic.reads(simple.program, simple.arguments)
        if simple.program in {"cd", "pushd"}:
            at.directory[0] = _directory(simple)
        for name, value in simple.assigned:
            values = self._values.setdefault(name, [])
            if len(values) < _MAX_CANDIDATES and value not in values:
                values.append(value[:1000])
        if simple.program == "set" and simple.arguments:
            self._values["@"] = [" ".join(simple.arguments[simple.arguments[0] == "--" :])[:1000]]
        return as_written.program

    def _choices(self, command: _Node, redirections: list[_Node]) -> int:
        """Number of further readings with values of variables; 0 without variables."""
        words = [*(command.get("Args") or ()), *(item.get("Word") or {} for item in redirections)]
        parts = [part for word in words for part in word.get("Parts") or ()]
        parts += [inner for outer in parts for inner in outer.get("Parts") or ()]
        names = {(part.get("Param") or {}).get("Value", "") for part in parts if part.get("Type") == "ParamExp"}
        return max((len(self._values.get(name, ())) for name in names), default=0)

    def _loop(self, loop: _Node) -> None:
        if name := (loop.get("Name") or {}).get("Value"):
            items = [field for word in (loop.get("Items") or ())[:_MAX_CANDIDATES] for field in fields(word, {})]
            self._values[name] = [*self._values.get(name, ()), *items][:_MAX_CANDIDATES] or [""]


def _simple_command(
    command: _Node, redirections: list[_Node], at: _Context, chosen: Mapping[str, str]
) -> SimpleCommand:
    """The command with these values of variables."""
    declares = command.get("Type") == "DeclClause"
    assigns = command.get("Assigns") or (command.get("Args") if declares else ()) or ()
    if declares:
        argv = [(command.get("Variant") or {}).get("Value", "")]
        argv += [plain(item.get("Value"), chosen) for item in assigns if not item.get("Name")]
    else:
        argv = [field for word in command.get("Args") or () for field in fields(word, chosen)]
    written = [
        target
        for item in redirections
        if item.get("Op") in _OUTPUT
        for target in fields(item.get("Word") or {}, chosen)
        if not ((item.get("Op") == ">&" and target.strip("-").isdigit()) or target == "-")
    ]
    text = _stdin(redirections, chosen)
    computed, splits = computed_words([*(command.get("Args") or ()), *map(input_of, redirections)], chosen)
    return SimpleCommand(
        program=basename(argv[0]) if argv else "",
        arguments=tuple(argv[1:]),
        written=tuple(written),
        inputs=tuple(
            target
            for item in redirections
            if item.get("Op") == "<"
            for target in fields(item.get("Word") or {}, chosen)
        ),
        assigned=tuple(pair for item in assigns if (pair := _assigned(item, chosen))[0]),
        cwd=at.directory[0],
        fed=at.pipe.upstream if at.pipe else frozenset(),
        stdin=text if text is not None else at.pipe.text if at.pipe else None,
        consumer=at.consumer,
        path=argv[0] if argv else "",
        computed=computed,
        splits=splits,
    )


def _stages(node: _Node, at: _Context) -> Iterator[_Visit]:
    """The stages of a pipeline, in order, with the pipe between them to mark the next stage."""
    stages = [node.get("Y")]
    first = node.get("X") or {}
    while (first.get("Cmd") or {}).get("Op") in _PIPES and not first.get("Redirs"):
        stages.append(first["Cmd"].get("Y"))
        first = first["Cmd"].get("X") or {}
    pipe = _Pipe(at.pipe.upstream, at.pipe.text) if at.pipe else _Pipe()
    at = at._replace(is_aside=True)
    yield first, at.subshell(pipe)
    for stage in reversed(stages):
        yield None, pipe
        yield stage, at.subshell(pipe)


def _assigned(item: Mapping[str, Any], chosen: Mapping[str, str]) -> tuple[str, str]:
    name = (item.get("Name") or {}).get("Value", "")
    if array := item.get("Array"):
        return name, " ".join(plain(element.get("Value"), chosen) for element in array.get("Elems") or ())
    return name, plain(item.get("Value"), chosen)


def _stdin(redirections: Sequence[Mapping[str, Any]], chosen: Mapping[str, str]) -> str | None:
    """The text of the here-document or here-string, or None."""
    for item in redirections:
        if item.get("Op") in {"<<", "<<-"}:
            body = (item.get("Hdoc") or {}).get("Parts") or ()
            end = (item.get("Word") or {}).get("Parts") or ()
            if any(part.get("Type") != "Lit" or "\\" in part.get("Value", "") for part in end):
                return "".join(part.get("Value", "") for part in body)
            return expanded_text(body, chosen, quoted=True).translate(SENTINELS)
        if item.get("Op") == "<<<":
            return plain(item.get("Word"), chosen)
    return None


def _directory(command: SimpleCommand) -> str:
    """The directory after `cd`; "" if unknown."""
    targets = command.operands
    if not targets:
        return "~" if "-" not in command.arguments else ""
    path = command.full(targets[0])
    return "" if "$" in path or "`" in path or len(path) > _MAX_DIRECTORY_CHARS else path
