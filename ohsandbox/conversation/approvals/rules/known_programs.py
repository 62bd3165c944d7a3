"""The table of known programs, `known_programs.txt`, and the kinds that it gives to the words of a command."""

from __future__ import annotations

import fnmatch
import functools
import re
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from ohsandbox.conversation.approvals.rules.shell_syntax import SimpleCommand

UNKNOWN = "unknown"
"""The kind of a word that the table does not have."""

FREE = frozenset({"", "text", "pattern", "number"})
"""Kinds of words that are neither paths nor code."""

OPTIONS = "options:"
"""Beginning of the kind of words that another program reads as its options; its name follows, `_` for a blank."""

_OPERANDS_BY_OPTION = {"edits": "write", "removes": "removed"}
"""Kinds of options that say what becomes of the files that are read, with the kind that these get."""

_VERSION = re.compile(r"(?<=[a-z+])-?\d+(?:\.\d+)*$")
"""What follows a program's name in `python3.12` and `gcc-13`."""

_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*\+?=")
_NUMBER = re.compile(r"[\w.+%:,@/$(){}-]*")
_ENTRY = re.compile(r"(?P<names>\S+(?: [^\s(]\S*)*)\s+\((?P<operands>[^)]*)\)(?P<options>.*)", re.DOTALL)


class ProgramUsage(NamedTuple):
    """One entry of the table."""

    name: str
    operands: tuple[str, ...]
    """Kinds; one may end in `*`."""
    options: Mapping[str, str]
    """Kinds of the options' values; "" for an option without one."""
    beginnings: tuple[tuple[str, str], ...]
    """Beginnings of options with their kinds, longest first."""
    any_option: bool
    writes_here: bool
    changes: bool
    """Whether it changes something beside the files that its words name."""
    outer: ProgramUsage | None = None
    """The program's entry, for a sub-command."""

    @property
    def kinds(self) -> set[str]:
        """The kinds of its options' values."""
        return set(self.options.values())

    @property
    def has_dangers(self) -> bool:
        """Whether one of its options writes a file, or runs something."""
        return not self.kinds <= FREE


class Argument(NamedTuple):
    """A word of a command, or the value of its option, with its kind."""

    kind: str
    text: str
    option: str = ""


class Arguments(NamedTuple):
    """The words of a command by the table."""

    usage: ProgramUsage | None
    """None for an unknown program."""
    items: list[Argument]
    command: tuple[str, ...] = ()
    """The argv that the program runs."""

    def of_kind(self, *kinds: str) -> Iterator[Argument]:
        """The arguments of these kinds."""
        return (item for item in self.items if item.kind in kinds)

    def has(self, *options: str) -> bool:
        """Whether one of the options is given."""
        return any(item.option in options for item in self.items)


def arguments_of(command: SimpleCommand) -> Arguments:
    """Give a kind to each word of the command."""
    return _arguments(command.program, command.arguments)


@functools.lru_cache(64)
def _arguments(program: str, words: tuple[str, ...]) -> Arguments:
    usage = usage_of(program)
    if usage is None:
        return Arguments(None, [Argument(UNKNOWN, word) for word in words])
    return _TableReader(usage, _with_hyphen(program, words)).read()


def usage_of(name: str) -> ProgramUsage | None:
    """The entry of a program, or of a program and its sub-command."""
    table = _table()
    return table.get(name) or table.get(_VERSION.sub("", name))


@functools.lru_cache(1000)
def variable_kinds(name: str) -> tuple[str, ...]:
    """The kinds of a variable's value; none for a variable without an entry."""
    if (usage := _table().get(f"$ {name}")) is not None:
        return usage.operands
    patterns = (usage for usage in _patterns() if fnmatch.fnmatchcase(name, usage.name[2:]))
    return next((usage.operands for usage in patterns), ())


def variables_of_kind(kind: str) -> frozenset[str]:
    """The variables of which a value is of the kind, without those that only a pattern names."""
    table = _table().items()
    return frozenset(name[2:] for name, use in table if name[0] == "$" and "*" not in name and kind in use.operands)


@functools.cache
def _patterns() -> list[ProgramUsage]:
    return [usage for name, usage in _table().items() if name.startswith("$ ") and "*" in name]


def _with_hyphen(program: str, arguments: tuple[str, ...]) -> list[str]:
    """The arguments; `tar xf a` as `tar -x -f a`: each letter that takes a word takes the next one."""
    words = [*arguments]
    if program not in {"tar", "ar", "jar"} or not words or words[0][:1] in {"-", ""}:
        return words
    letters, rest = words[0], words[1:]
    joined: list[str] = []
    for letter in letters:
        takes = program == "tar" and letter in "fCTXIFbLVKNg"
        joined += [f"-{letter}", *(rest[:1] if takes else [])]
        rest = rest[1:] if takes else rest
    return joined + rest


class _TableReader:
    """Reads the words of one command from left to right."""

    def __init__(self, usage: ProgramUsage, words: Sequence[str]) -> None:
        self._usage = usage
        self._words = words
        self._at = 0
        self._items: list[Argument] = []
        self._operands: list[str] = []
        self._command: tuple[str, ...] = ()

    def read(self) -> Arguments:
        is_over = False
        while self._at < len(self._words):
            word = self._words[self._at]
            self._at += 1
            if word == "--" and not is_over:
                is_over = True
                if (kind := self._looked_up(word)[0]).startswith(OPTIONS):
                    self._items.append(Argument(kind, " ".join(self._words[self._at :])))
                    break
            elif is_over and ("=" in word or word[:1] == "-") and self._usage.operands[-1:] in {("text*",), ("goal*",)}:
                self._items.append(Argument("report", word))
            elif not is_over and self._is_option(word):
                self._option(word)
            elif self._operand(word):
                break
        self._items += self._kinds_of_operands()
        return Arguments(self._usage, self._items, self._command)

    def _is_option(self, word: str) -> bool:
        if word in self._usage.options or (word[:1] != "-" and word.partition("=")[0] in self._usage.options):
            return True
        return (word[:1] == "-" and word != "-") or (
            word[:1] in {"+", "@"} and any(beginning == word[0] for beginning, _ in self._usage.beginnings)
        )

    def _operand(self, word: str) -> bool:
        """Take a word that is no option; returns whether all the words have been read with it."""
        kinds = self._usage.operands
        if kinds[:1] in {("sub",), ("sub?",)} and not self._operands:
            part = usage_of(f"{self._usage.name} {word}")
            if part is not None:
                self._usage = part._replace(outer=self._usage)
                return False
            if kinds == ("sub",):
                self._items.append(Argument("unknown sub-command", word))
                self._usage = self._usage._replace(operands=(f"{UNKNOWN}*",))
                return False
            kinds = kinds[1:]
            self._usage = self._usage._replace(operands=kinds)
        runs = next((kind for kind in kinds if kind in {"command", "package"}), None)
        if runs is not None:
            before = kinds[: kinds.index(runs)]
            if "assign*" in before and _ASSIGNMENT.match(word):
                self._items.append(Argument("assign", word))
                return False
            if len(self._operands) >= sum(not kind.endswith("*") for kind in before):
                self._command = tuple(self._words[self._at - 1 :])
                self._items += [Argument(runs, word)] if runs == "package" else []
                return True
        self._operands.append(word)
        if kinds[:1] in {("script",), ("shell*",), ("code*",)}:
            self._operands += self._words[self._at :]
            return True
        return False

    def _option(self, word: str) -> None:
        kind, value, option = self._looked_up(word)
        if kind == "argv":
            start = self._at
            while self._at < len(self._words) and self._words[self._at] not in {";", "+"}:
                self._at += 1
            self._items.append(Argument(kind, " ".join(self._words[start : self._at]), option))
            self._at += 1
            return
        is_optional, kind = kind.endswith("?"), kind.removesuffix("?")
        if kind not in {"", UNKNOWN} and value is None and not is_optional:
            value = self._words[self._at] if self._at < len(self._words) else ""
            self._at += 1
        if kind == "number" and not _NUMBER.fullmatch(value or ""):
            kind = UNKNOWN
        self._items.append(Argument(kind, value or ("" if kind != UNKNOWN else word), option))
        if kind == "module":
            self._command = (f"python -m {value}", *self._words[self._at :])
            self._at = len(self._words)
        elif kind == "python" and self._usage.operands[:1] == ("script",):
            self._items += [Argument("read", rest) for rest in self._words[self._at :]]
            self._at = len(self._words)

    def _looked_up(self, word: str) -> tuple[str, str | None, str]:
        """The kind, the value if it is part of the word, and the option."""
        usage: ProgramUsage | None = self._usage
        any_option = False
        while usage is not None:
            if found := _in_usage(word, usage):
                return found
            any_option |= usage.any_option
            usage = usage.outer
        return "" if any_option else UNKNOWN, None, word.split("=", 1)[0]

    def _kinds_of_operands(self) -> Iterator[Argument]:
        kinds, words = self._usage.operands, self._operands
        if kinds[:1] == ("pattern",) and any(
            item.kind == "pattern" or item.option in {"-f", "--file", "--from-file", "--files"} for item in self._items
        ):
            kinds = kinds[1:]
        if kinds[:1] in {("script",), ("code",)} and any(item.kind == "code" for item in self._items):
            kinds = kinds[1:]
        if kinds[-1:] == ("write",) and any(item.option in {"-t", "--target-directory"} for item in self._items):
            kinds = kinds[:-1]
        star = next((number for number, kind in enumerate(kinds) if kind.endswith("*")), None)
        if star is None:
            last, more = len(kinds), [UNKNOWN] * (len(words) - len(kinds))
        else:
            after = len(kinds) - star - 1 if len(words) >= len(kinds) else 0
            last, more = star, [kinds[star][:-1]] * (len(words) - star - after)
            more += list(kinds[len(kinds) - after :]) if after else []
        changed = {item.kind for item in self._items} & set(_OPERANDS_BY_OPTION)
        turned = (
            {"read": _OPERANDS_BY_OPTION[min(changed)], "tree": _OPERANDS_BY_OPTION[min(changed)]} if changed else {}
        )
        return (
            Argument(turned.get(kind, kind), word) for kind, word in zip([*kinds[:last], *more], words, strict=False)
        )


def _in_usage(word: str, usage: ProgramUsage) -> tuple[str, str | None, str] | None:
    options = usage.options
    name, equals, value = word.partition("=")
    for option in (word, name):
        if option in options:
            return options[option] or ("text" if option != word else ""), None if option == word else value, option
    if name[:2] == "--" and len(name) > len("--"):
        for option, kind in options.items():  # getopt_long(3): a long option may be abbreviated
            if kind not in FREE and option.startswith(name):
                return kind, value if equals else None, option
    for beginning, kind in usage.beginnings:
        if word.startswith(beginning) and (word != beginning or not kind):
            return kind, word[len(beginning) :].removeprefix("="), beginning
    return _joined(word, usage)


def _joined(word: str, usage: ProgramUsage) -> tuple[str, str | None, str] | None:
    """`-xzf NAME`: letters, of which the last may take the rest of the word, or the next one."""
    if word[:2] == "--" or (word[1:].isdigit() and "-#" in usage.options):
        return None if word[:2] == "--" else ("", None, word)
    for at, letter in enumerate(word[1:], 2):
        kind = usage.options.get(f"-{letter}")
        if kind:
            return kind, word[at:] or None, f"-{letter}"
        if kind is None and not usage.any_option:
            return None
    return None if usage.any_option else ("", None, word)


@functools.cache
def _table() -> Mapping[str, ProgramUsage]:
    text = Path(__file__).with_suffix(".txt").read_text(encoding="utf-8")
    lines = "\n".join(line for line in text.split("\n") if line and not line.startswith("#"))
    table: dict[str, ProgramUsage] = {}
    for entry in re.split(r"\n(?=\S)", lines):
        match = _ENTRY.match(entry)
        if match is None:
            raise ValueError(f"known_programs.txt: an entry without operands: {entry!r}")
        alternatives = [word.split("/") for word in match["names"].split()]
        names = [""]
        for choices in alternatives:
            names = [f"{name} {choice}".strip() for name in names for choice in choices]
        for name in names:
            table[name] = _usage(name, match["operands"].split(), match["options"].split())
    return table


def _usage(name: str, operands: list[str], words: list[str]) -> ProgramUsage:
    options: dict[str, str] = {}
    beginnings: list[tuple[str, str]] = []
    for word in words:
        option, equals, kind = word.rpartition("=")
        option, kind = (option, kind) if equals else (word, "")
        if option.startswith("-["):
            options.update({f"-{letter}": "" for letter in option[2:-1]})
        elif option.endswith("*"):
            beginnings.append((option[:-1], kind))
        elif option not in {"any", "here", "changes"}:
            options[option] = kind
    return ProgramUsage(
        name,
        tuple(operands),
        options,
        tuple(sorted(beginnings, key=lambda pair: -len(pair[0]))),
        "any" in words,
        "here" in words,
        not {"here", "changes"}.isdisjoint(words),
    )
