"""`.gitignore` files, read as ripgrep reads them, so that a sandbox without it gives the same answer."""

from __future__ import annotations

import re
from collections import defaultdict
from typing import NamedTuple

from ohsandbox.tools.search.globs import class_regex

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


def _rule_regex(glob: str) -> str | None:
    out: list[str] = []
    depth = i = 0
    while i < len(glob):
        char = glob[i]
        if char == "*":
            i = _star(glob, i, out, depth)
        elif char == "[":
            found = class_regex(glob, i)
            if found is None or _has_reversed_range(glob[i + 1 : found[1] - 1]):
                return None
            out.append(found[0])
            i = found[1]
        elif char == "\\":
            if i + 1 == len(glob):
                return None
            out.append(re.escape(glob[i + 1]))
            i += 2
        else:
            depth += {"{": 1, "}": -1}.get(char, 0)
            if depth < 0:
                return None
            out.append(_plain(char, depth))
            i += 1
    return None if depth else "".join(out)


def _plain(char: str, depth: int) -> str:
    if char == "," and depth:
        return "|"
    return {"?": "[^/]", "{": "(?:", "}": ")"}.get(char) or re.escape(char)


def _star(glob: str, start: int, out: list[str], depth: int) -> int:
    """The stars at start: `**` that fills a component matches any number of them; every other run is one star."""
    end = start
    while glob[end : end + 1] == "*":
        end += 1
    before, after = glob[:start][-1:], glob[end : end + 1]
    opens = before in ("", "/") or (depth > 0 and before in ("{", ","))
    closes = after in ("", "/") or (depth > 0 and after in ("}", ","))
    if end - start != 2 or not (opens and closes):  # noqa: PLR2004 - the two stars
        out.append("[^/]*")
        return end
    if after == "/":
        out.append("(?:.*/)?")
        return end + 1
    out.append(".*")
    return end


def _has_reversed_range(body: str) -> bool:
    return any(body[k + 1] == "-" and body[k] > body[k + 2] for k in range(len(body) - 2))


class _Index:
    """The rules that can match a directory, or a file, arranged for a fast answer."""

    def __init__(self, rules: list[tuple[int, Rule]]) -> None:
        self._names: dict[str, int] = {}
        self._suffixes: dict[str, int] = {}
        by_regex: dict[bool, list[tuple[int, str]]] = defaultdict(list)
        for number, rule in rules:
            if not rule.anchored and not _WILD.search(rule.glob):
                self._names[rule.glob] = number
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
        if self._suffixes and (dot := name.rfind(".")) >= 0:
            best = max(best, self._suffixes.get(name[dot:], -1))
        if self._wild is not None:
            best = max(best, self._wild.last(name))
        if self._paths is not None:
            best = max(best, self._paths.last(place.prefix + path[place.start :]))
        return best


class _Regexes:
    """Numbered regexes; one that joins them all tells first whether any matches."""

    def __init__(self, numbered: list[tuple[int, str]]) -> None:
        self._each = [(number, re.compile(regex, re.DOTALL)) for number, regex in reversed(numbered)]
        joined = "|".join(f"(?:{regex})" for _, regex in numbered)
        self._any = re.compile(joined, re.DOTALL)

    def last(self, text: str) -> int:
        if self._any.fullmatch(text) is None:
            return -1
        return next((number for number, regex in self._each if regex.fullmatch(text)), -1)


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

    def kept(self, found: list[tuple[str, str]]) -> list[tuple[str, str]]:
        """Of pairs of anything and a file's path, relative to root, those that are not ignored."""
        return [pair for pair in found if not self._ignores(pair[1])] if self.rules else found

    def _ignores(self, path: str) -> bool:
        """Whether the file is ignored, or lies in a directory that is."""
        if not path.isascii():
            path = bytes_as_characters(path)
        parent = path[: max(path.rfind("/"), 0)]
        if self._excludes(parent):
            return True
        for place in self._chains.get(parent) or self._chain(parent):
            number = place.file.files.last(path, place)
            if number >= 0:
                return not place.file.rules[number].negated
        return False

    def _excludes(self, directory: str) -> bool:
        known = self._excluded.get(directory)
        if known is None:
            parent = directory[: max(directory.rfind("/"), 0)]
            known = self._excludes(parent) or self._decides_against(directory, parent)
            self._excluded[directory] = known
        return known

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
                _Place(file, self._root[end + 1 :] + "/" if end < len(self._root) else "", max(end - len(self._root), 0))
                for end in ends
                if (file := self._by_directory.get(absolute[:end])) is not None
            ]
        return self._chains[directory]
