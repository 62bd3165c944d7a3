"""`.gitignore` files, read as ripgrep reads them, so that a sandbox without it gives the same answer."""

from __future__ import annotations

import re
from collections import defaultdict
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

from ohsandbox.tools.search.globs import MAX_ALTERNATIVES, class_regex, name_regex, path_regex

NAME = ".gitignore"

_WILD = re.compile(r"[*?\[{\\]")
_SUFFIX = re.compile(r"\*(\.[^*?\[{\\./]+)")
"""`*.ext`: the commonest pattern there is; found by a look-up."""


class Rule(NamedTuple):
    """One line of an ignore file."""

    glob: str
    """What the file's bytes say, each byte one character; without `!`, leading and trailing slash."""
    negated: bool
    only_directories: bool
    anchored: bool
    """It is matched against the whole path below the ignore file's directory, else against the name alone."""

    @property
    def regex(self) -> str | None:
        """None where ripgrep finds the glob malformed and skips the line."""
        return _rule_regex(self.glob)


def parse(text: bytes) -> list[Rule]:
    """The rules, in order. Reading stops at a line that is no UTF-8, as ripgrep's does."""
    rules = []
    for raw in text.removeprefix(b"\xef\xbb\xbf").split(b"\n"):
        try:
            line = raw.decode()
        except UnicodeDecodeError:
            break
        rule = _parse_line(line)
        if rule is not None and rule.regex is not None:
            rules.append(rule)
    return rules


def _parse_line(line: str) -> Rule | None:
    if line.startswith("#"):
        return None
    if not line.endswith("\\ "):
        line = line.rstrip()
    if not line:
        return None
    negated = anchored = False
    if line.startswith(("\\!", "\\#")):
        line = line[1:]
    else:
        negated = line.startswith("!")
        line = line[negated:]
        anchored = line.startswith("/")
        line = line[anchored:]
    only_directories = line.endswith("/")
    if only_directories:
        line = line[:-1].removesuffix("\\")
    if line.startswith("**/") and "/" not in line[3:]:
        line, anchored = line[3:], False
    anchored = anchored or "/" in line
    if line.endswith("/**"):
        line += "/*"
    return Rule(bytes_as_characters(line), negated, only_directories, anchored)


def bytes_as_characters(text: str) -> str:
    """Each byte of the text's UTF-8 as one character: ripgrep's `?` and classes match bytes."""
    return text if text.isascii() else text.encode("utf-8", "surrogateescape").decode("latin-1")


@lru_cache(maxsize=4096)
def _rule_regex(glob: str) -> str | None:
    tokens = _tokens(glob)
    options = None if tokens is None else _without_braces(tokens)
    return None if options is None else "|".join(_option_regex(option) for option in options)


def _tokens(glob: str) -> list[str] | None:
    """Regexes of single characters, and as they are `*`, `/`, `{`, `}`, and the commas in braces."""
    tokens: list[str] = []
    depth = i = 0
    while i < len(glob):
        char, piece, i = glob[i], "", i + 1
        if char == "[":
            found = class_regex(glob, i - 1)
            if found is None or _has_reversed_range(glob[i : found[1] - 1]):
                return None
            piece, i = found
        elif char == "\\":
            if i == len(glob):
                return None
            piece, i = _literal(glob[i]), i + 1
        else:
            depth += {"{": 1, "}": -1}.get(char, 0)
            piece = char if char in "*/{}" or (char == "," and depth) else _literal(char)
            piece = "[^/]" if char == "?" else piece
        if depth < 0:
            return None
        tokens.append(piece)
    return None if depth else tokens


def _literal(char: str) -> str:
    """Never one of the bare operators, which are one character long."""
    return f"(?:{re.escape(char)})" if char in "*/{}," else re.escape(char)


def _without_braces(tokens: list[str]) -> list[list[str]] | None:
    """Every choice that the braces leave; None when there are more than MAX_ALTERNATIVES."""
    done: list[list[str]] = []
    rest = [tokens]
    while rest:
        current = rest.pop()
        if len(done) + len(rest) > MAX_ALTERNATIVES:
            return None
        if "}" not in current:
            done.append(current)
            continue
        end = current.index("}")
        start = max(i for i in range(end) if current[i] == "{")
        commas = [start, *(i for i in range(start, end) if current[i] == ","), end]
        rest += [[*current[:start], *current[a + 1 : b], *current[end + 1 :]] for a, b in pairwise(commas)]
    return done


def _option_regex(tokens: list[str]) -> str:
    parts: list[list[str]] = [[]]
    for piece in tokens:
        if piece == "/":
            parts.append([])
        else:
            parts[-1].append(piece)
    names = [
        None if part == ["*", "*"] else name_regex([None if piece == "*" else piece for piece in part])
        for part in parts
    ]
    return path_regex(names, step="[^/]+/")


def _has_reversed_range(body: str) -> bool:
    return any(body[k + 1] == "-" and body[k] > body[k + 2] for k in range(len(body) - 2))


class _Index:
    """The rules that can match a directory, or a file, arranged for a fast answer."""

    def __init__(self, rules: list[tuple[int, Rule]]) -> None:
        self._names: dict[str, int] = {}
        self._suffixes: dict[str, int] = {}
        self._literal_paths: dict[str, int] = {}
        by_regex: dict[bool, list[tuple[int, str]]] = defaultdict(list)
        for number, rule in rules:
            if not _WILD.search(rule.glob):
                (self._literal_paths if rule.anchored else self._names)[rule.glob] = number
            elif not rule.anchored and (suffix := _SUFFIX.fullmatch(rule.glob)):
                self._suffixes[suffix[1]] = number
            else:
                by_regex[rule.anchored].append((number, rule.regex or "(?!)"))
        self._wild = _Regexes(by_regex[False]) if by_regex[False] else None
        self._paths = _Regexes(by_regex[True]) if by_regex[True] else None

    def last(self, path: str, place: _Place) -> int:
        """The number of the last rule that matches path, which is relative to the root; -1 for none."""
        name = path[path.rfind("/") + 1 :]
        best = self._names.get(name, -1)
        if self._suffixes and (found := self._suffixes.get(name[name.rfind(".") :], -1)) > best:
            best = found
        if self._wild is not None and (found := self._wild.last(name)) > best:
            best = found
        if self._literal_paths or self._paths is not None:
            below = place.prefix + path[place.start :]
            best = max(best, self._literal_paths.get(below, -1))
            if self._paths is not None:
                best = max(best, self._paths.last(below))
        return best


class _Regexes:
    """Numbered regexes; one that joins them all tells first whether any matches."""

    def __init__(self, numbered: list[tuple[int, str]]) -> None:
        self._each = [*reversed(numbered)]
        joined = "|".join(f"(?:{regex})" for _, regex in numbered)
        self._any = re.compile(joined, re.DOTALL)

    def last(self, text: str) -> int:
        if self._any.fullmatch(text) is None:
            return -1
        return next((number for number, regex in self._each if re.fullmatch(regex, text, re.DOTALL)), -1)


class _IgnoreFile:
    """One ignore file's rules; the last one that matches decides."""

    def __init__(self, rules: list[Rule]) -> None:
        self.rules = rules
        self.directories = _Index([*enumerate(rules)])
        self.files = _Index([(number, rule) for number, rule in enumerate(rules) if not rule.only_directories])


class _Place(NamedTuple):
    """An ignore file as a directory below it sees it."""

    file: _IgnoreFile
    prefix: str
    """Goes before a path that is relative to the root: what leads from the ignore file's directory down to the root."""
    start: int
    """Where in a path relative to the root the one relative to the ignore file's directory begins."""


class IgnoreTree:
    """All ignore files that count below a root."""

    def __init__(self, root: str, texts: dict[str, bytes]) -> None:
        """texts: the content of each ignore file by its absolute path, in root, below and above."""
        self._root = bytes_as_characters(root.rstrip("/"))
        self.rules = {path[: -len(NAME) - 1]: rules for path, text in texts.items() if (rules := parse(text))}
        """By the directories that the ignore files stand in."""
        self._by_directory = {bytes_as_characters(name): _IgnoreFile(rules) for name, rules in self.rules.items()}
        self._chains: dict[str, list[_Place]] = {}
        self._excluded: dict[str, bool] = {"": False}
        self._places_of_files: dict[str, list[_Place] | None] = {}
        """By directory: the ignore files that count for a file in it, the nearest first; None where it is excluded."""

    def kept(self, found: list[tuple[str, str]]) -> list[tuple[str, str]]:
        """Of pairs of anything and a file's path, relative to root, those that are not ignored."""
        return [pair for pair in found if not self._ignores(pair[1])] if self.rules else found

    def _ignores(self, path: str) -> bool:
        """Whether the file is ignored, or lies in a directory that is."""
        if not path.isascii():
            path = bytes_as_characters(path)
        parent = path[: max(path.rfind("/"), 0)]
        try:
            places = self._places_of_files[parent]
        except KeyError:
            places = self._places_of_files[parent] = None if self._excludes(parent) else self._chain(parent)
        if places is None:
            return True
        for place in places:
            number = place.file.files.last(path, place)
            if number >= 0:
                return not place.file.rules[number].negated
        return False

    def _excludes(self, directory: str) -> bool:
        unknown = []
        while directory not in self._excluded:
            unknown.append(directory)
            directory = _parent(directory)
        for name in reversed(unknown):  # no recursion: a path may have 2,000 components
            parent = _parent(name)
            self._excluded[name] = self._excluded[parent] or self._decides_against(name, parent)
        return self._excluded[unknown[0] if unknown else directory]

    def _decides_against(self, directory: str, parent: str) -> bool:
        for place in self._chain(parent):
            number = place.file.directories.last(directory, place)
            if number >= 0:
                return not place.file.rules[number].negated
        return False

    def _chain(self, directory: str) -> list[_Place]:
        """The ignore files that count in directory, the nearest first."""
        if directory not in self._chains:
            absolute = f"{self._root}/{directory}".rstrip("/")
            ends = [len(absolute), *(i for i in range(len(absolute) - 1, -1, -1) if absolute[i] == "/")]
            self._chains[directory] = [
                _Place(
                    file, self._root[end + 1 :] + "/" if end < len(self._root) else "", max(end - len(self._root), 0)
                )
                for end in ends
                if (file := self._by_directory.get(absolute[:end])) is not None
            ]
        return self._chains[directory]


def _parent(path: str) -> str:
    return path[: max(path.rfind("/"), 0)]
