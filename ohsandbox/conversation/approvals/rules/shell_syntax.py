"""All simple commands of a shell text, at any depth, by the parser of `shfmt` (mvdan/sh).

The parser is a child process with a time limit: this process neither hangs nor crashes on any text.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.metadata
import json
import posixpath
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

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
_MAX_DIRECTORY_CHARS = 512
"""Limit of a tracked directory: rules on paths would take longer with each `cd`."""

_MAX_BRACES = 64

_OPEN, _CLOSE, _COMMA, _SPLIT = "\ue000", "\ue001", "\ue002", "\ue003"
"""Placeholders for `{`, `}`, `,` outside quotes, and for a place where the shell splits a word; no result has them."""

_SENTINELS = str.maketrans({_OPEN: "{", _CLOSE: "}", _COMMA: ",", _SPLIT: " "})
_BRACES = str.maketrans({"{": _OPEN, "}": _CLOSE, ",": _COMMA})
_GROUP = re.compile(f"{_OPEN}([^{_OPEN}{_CLOSE}]*){_CLOSE}")
_UNQUOTED_ESCAPE = re.compile(r"\\(\n|.)|([{},])", re.DOTALL)
_QUOTED_ESCAPE = re.compile(r"\\([$`\"\\\n])")
_ANSI_C = re.compile(r"\\(x[0-9A-Fa-f]{1,2}|u[0-9A-Fa-f]{1,4}|U[0-9A-Fa-f]{1,8}|[0-7]{1,3}|c.|.)", re.DOTALL)
_ANSI_C_LETTERS = dict(zip("abeEfnrtv", "\a\b\x1b\x1b\f\n\r\t\v", strict=True))
_OUTPUT = frozenset({">", ">>", ">|", ">!", ">>!", "&>", "&>>", "<>", ">&"})
_PIPES = frozenset({"|", "|&"})

COMPUTED = "$(...)"
"""Placeholder for a command substitution in a word."""


class UnreadableError(ValueError):
    """The text could not be parsed; the message says why."""


class SimpleCommand(NamedTuple):
    """One command: its words after quote removal; expansions stay as `$NAME` or `$(...)`."""

    program: str
    """The program's name without its directory; "" if there are only assignments or redirections."""
    arguments: tuple[str, ...] = ()
    written: tuple[str, ...] = ()
    """Targets of the command's output redirections."""
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
        return bool(set(self.program) & set("$`*?["))

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
        return self._replace(
            program=basename(argv[0]), path=argv[0], arguments=tuple(argv[1:]), wrapped_by=wrapped, written=()
        )


def is_option(word: str, options: Collection[str]) -> bool:
    """Whether the word is one of the options; a long one may be abbreviated (getopt_long(3))."""
    name = word.split("=", 1)[0]
    if name in options:
        return True
    return name[:2] == "--" and len(name) > len("--") and any(option.startswith(name) for option in options)


class Reading(NamedTuple):
    """Commands of a text, and the names of functions that it defines."""

    commands: list[SimpleCommand]
    functions: frozenset[str]


def parse_commands(text: str, *, cwd: str, variables: Mapping[str, str] | None = None) -> Reading:
    """Parse the commands of a text, in order; if it contains values of their variables, also once with each value.

    Raises:
        UnreadableError: it is not a shell text, too long, too deep, or has more than MAX_COMMANDS commands.
    """
    reader = _TreeWalker(cwd, variables or {})
    reader.walk(_syntax_tree(text))
    return Reading(reader.commands, frozenset(reader.functions))


def basename(word: str) -> str:
    """A program's name without its directory."""
    return word.rsplit("/", 1)[-1]


# --- parser -----------------------------------------------------------------------------------------


def _syntax_tree(text: str) -> Any:
    if len(text) > MAX_CHARS:
        raise UnreadableError(f"it has {len(text)} characters, and the rules read no more than {MAX_CHARS}")
    if "\0" in text:
        raise UnreadableError("it holds a NUL")
    data = text.translate(_SENTINELS).encode("utf-8", "replace")
    argv = [_shfmt(), "--to-json", "--language-dialect=bash"]
    try:
        done = subprocess.run(argv, input=data, capture_output=True, timeout=_PARSE_S, check=False, cwd="/", env={})
    except subprocess.TimeoutExpired:
        raise UnreadableError(f"its parser was stopped after {_PARSE_S:.0f} s") from None
    except OSError as error:
        raise UnreadableError(f"the parser shfmt cannot be started: {error.strerror}") from None
    if done.returncode != 0:
        error_line = done.stderr.decode("utf-8", "replace").strip().split("\n", 1)[0]
        raise UnreadableError(f"it is not a complete shell command ({error_line[:200]})")
    try:
        return json.loads(done.stdout, object_hook=lambda node: None if "Offset" in node else node)
    except (ValueError, RecursionError):
        raise UnreadableError("it is nested too deep") from None


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
    if on_path := shutil.which("shfmt"):
        return on_path
    raise UnreadableError("the parser shfmt is missing: `pip install shfmt-py`")


# --- words ------------------------------------------------------------------------------------------


def _fields(word: Mapping[str, Any], variables: Mapping[str, str]) -> list[str]:
    """Expand a word to fields: brace expansion, quote removal and field splitting."""
    fields: list[str] = []
    for text in _expanded(_text(word.get("Parts"), variables)):
        fields += [piece.translate(_SENTINELS) for piece in text.split(_SPLIT) if piece or _SPLIT not in text]
    return fields


def _plain(word: Mapping[str, Any] | None, variables: Mapping[str, str]) -> str:
    """Expand a word without field splitting."""
    return _text((word or {}).get("Parts"), variables).translate(_SENTINELS)


def _text(parts: Sequence[Mapping[str, Any]] | None, variables: Mapping[str, str], *, quoted: bool = False) -> str:
    return "".join(_part(part, variables, quoted=quoted) for part in parts or ())


def _part(part: Mapping[str, Any], variables: Mapping[str, str], *, quoted: bool) -> str:
    kind, value = part.get("Type"), part.get("Value", "")
    if kind == "Lit":
        return _QUOTED_ESCAPE.sub(_escaped, value) if quoted else _UNQUOTED_ESCAPE.sub(_escaped, value)
    if kind == "SglQuoted":
        return _ANSI_C.sub(_ansi_c_character, value) if part.get("Dollar") else str(value)
    if kind == "DblQuoted":
        return _text(part.get("Parts"), variables, quoted=True)
    if kind == "ParamExp":
        return _parameter(part, variables, quoted=quoted)
    if kind == "ExtGlob":
        return "*"
    return COMPUTED


def _escaped(match: re.Match[str]) -> str:
    if match[1] is None:
        return match[0].translate(_BRACES)
    return "" if match[1] == "\n" else match[1]


def _parameter(part: Mapping[str, Any], variables: Mapping[str, str], *, quoted: bool) -> str:
    name = (part.get("Param") or {}).get("Value", "")
    changed = [key for key in part if key not in {"Type", "Short", "Param", "Exp"} and part[key]]
    expansion = part.get("Exp") or {}
    value: str | None = None
    if not changed and (not expansion or expansion.get("Op") in {":-", "-", ":=", "="}):
        value = variables.get(name)
        if value is None and expansion and variables:
            value = _plain(expansion.get("Word"), variables)
    if name == "IFS" and value is None:
        value = " "
    if value is None:
        return f"${name}" if not changed and not expansion else f"${{{name}...}}"
    return value if quoted and name != "@" else re.sub(r"\s+", _SPLIT, value)


def _ansi_c_character(match: re.Match[str]) -> str:
    code = match[1]
    if code[0] in "xuU" and len(code) > 1:
        number = int(code[1:], 16)
        return chr(number) if number <= sys.maxunicode else "\ufffd"
    if code[0] in "01234567":
        return chr(int(code, 8) & 0xFF)
    if code[0] == "c" and len(code) > 1:
        return chr(ord(code[1]) & 0x1F)
    return _ANSI_C_LETTERS.get(code, code)


def _expanded(text: str) -> list[str]:
    """The brace expansions of text; more than _MAX_BRACES give one computed word."""
    if _OPEN not in text:
        return [text]
    waiting = [text]
    done: list[str] = []
    for _ in range(4 * _MAX_BRACES):
        if not waiting:
            return done
        word = waiting.pop(0)
        group = _GROUP.search(word)
        if group is None:
            done.append(word)
        elif _COMMA in group[1]:
            waiting += [word[: group.start()] + choice + word[group.end() :] for choice in group[1].split(_COMMA)]
        else:
            inside = f"${{{group[1]}}}" if ".." in group[1] else f"{{{group[1]}}}"
            waiting.append(word[: group.start()] + inside + word[group.end() :])
        if len(waiting) + len(done) > _MAX_BRACES:
            break
    return ["$" + text[:200]]


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
        if "Cmd" in node or "Redirs" in node:
            yield from self._statement(node, at)
        elif kind == "BinaryCmd" and node.get("Op") in _PIPES:
            yield from _stages(node, at)
        elif kind in {"Subshell", "CmdSubst"}:
            yield node.get("Stmts"), at.subshell()
        elif kind == "ProcSubst":
            yield node.get("Stmts"), at.subshell(_Pipe(frozenset({at.consumer} - {""})) if node["Op"] == ">(" else None)
        else:
            if kind == "FuncDecl":
                self.functions.add((node.get("Name") or {}).get("Value", ""))
            elif kind == "ForClause":
                self._loop(node.get("Loop") or {})
            yield from ((value, at) for value in node.values() if isinstance(value, dict | list))

    def _statement(self, node: _Node, at: _Context) -> Iterator[_Visit]:
        """A command with its redirections; commands nested in its words and texts come after it."""
        command, redirections = node.get("Cmd") or {}, node.get("Redirs") or []
        if node.get("Background"):
            at = at.subshell()
        if command.get("Type") in {None, "CallExpr", "DeclClause"}:
            program = self._simple(command, redirections, at)
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
            at.pipe.current.add(as_written.program)
            at.pipe.said = simple.stdin if simple.program == "cat" else None
            if simple.program in {"echo", "printf"}:
                at.pipe.said = " ".join(simple.arguments)
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
            items = [field for word in (loop.get("Items") or ())[:_MAX_CANDIDATES] for field in _fields(word, {})]
            self._values[name] = [*self._values.get(name, ()), *items][:_MAX_CANDIDATES] or [""]


def _simple_command(
    command: _Node, redirections: list[_Node], at: _Context, chosen: Mapping[str, str]
) -> SimpleCommand:
    """The command with these values of variables."""
    declares = command.get("Type") == "DeclClause"
    assigns = command.get("Assigns") or (command.get("Args") if declares else ()) or ()
    if declares:
        argv = [(command.get("Variant") or {}).get("Value", "")]
        argv += [_plain(item.get("Value"), chosen) for item in assigns if not item.get("Name")]
    else:
        argv = [field for word in command.get("Args") or () for field in _fields(word, chosen)]
    written = [
        target
        for item in redirections
        if item.get("Op") in _OUTPUT
        for target in _fields(item.get("Word") or {}, chosen)
        if not ((item.get("Op") == ">&" and target.strip("-").isdigit()) or target == "-")
    ]
    text = _stdin(redirections, chosen)
    return SimpleCommand(
        program=basename(argv[0]) if argv else "",
        arguments=tuple(argv[1:]),
        written=tuple(written),
        assigned=tuple(pair for item in assigns if (pair := _assigned(item, chosen))[0]),
        cwd=at.directory[0],
        fed=at.pipe.upstream if at.pipe else frozenset(),
        stdin=text if text is not None else at.pipe.text if at.pipe else None,
        consumer=at.consumer,
        path=argv[0] if argv else "",
    )


def _stages(node: _Node, at: _Context) -> Iterator[_Visit]:
    """The stages of a pipeline, in order, with the pipe between them to mark the next stage."""
    stages = [node.get("Y")]
    first = node.get("X") or {}
    while (first.get("Cmd") or {}).get("Op") in _PIPES and not first.get("Redirs"):
        stages.append(first["Cmd"].get("Y"))
        first = first["Cmd"].get("X") or {}
    pipe = _Pipe(at.pipe.upstream, at.pipe.text) if at.pipe else _Pipe()
    yield first, at.subshell(pipe)
    for stage in reversed(stages):
        yield None, pipe
        yield stage, at.subshell(pipe)


def _assigned(item: Mapping[str, Any], chosen: Mapping[str, str]) -> tuple[str, str]:
    name = (item.get("Name") or {}).get("Value", "")
    if array := item.get("Array"):
        return name, " ".join(_plain(element.get("Value"), chosen) for element in array.get("Elems") or ())
    return name, _plain(item.get("Value"), chosen)


def _stdin(redirections: Sequence[Mapping[str, Any]], chosen: Mapping[str, str]) -> str | None:
    """The text of the here-document or here-string, or None."""
    for item in redirections:
        if item.get("Op") in {"<<", "<<-"}:
            body = (item.get("Hdoc") or {}).get("Parts") or ()
            end = (item.get("Word") or {}).get("Parts") or ()
            if any(part.get("Type") != "Lit" or "\\" in part.get("Value", "") for part in end):
                return "".join(part.get("Value", "") for part in body)
            return _text(body, chosen, quoted=True).translate(_SENTINELS)
        if item.get("Op") == "<<<":
            return _plain(item.get("Word"), chosen)
    return None


def _directory(command: SimpleCommand) -> str:
    """The directory after `cd`; "" if unknown."""
    targets = command.operands
    if not targets:
        return "~" if "-" not in command.arguments else ""
    path = command.full(targets[0])
    return "" if "$" in path or "`" in path or len(path) > _MAX_DIRECTORY_CHARS else path
