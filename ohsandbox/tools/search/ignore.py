"""`.gitignore` files for a sandbox without `rg`: `pathspec` translates the rules, and the last that matches decides."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from ohsandbox.tools.search.globs import translate

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import regex

    from ohsandbox.tools.search.globs import MatchBudget

NAME = ".gitignore"

_MAX_PRUNED = 200
"""`find` runs each test on every directory; ignored entries that are not pruned are dropped later."""

_PLAIN = re.compile(r"[A-Za-z0-9._+@=, /-]+")
_SUFFIX = re.compile(r"\*\.[A-Za-z0-9_+@=, -]+")


class _IgnoreRule(NamedTuple):
    """One line of an ignore file."""

    name: str
    """The rule without `!` and the slashes at both ends."""
    excludes: bool
    anchored: bool
    """It matches the path below the ignore file's directory, else only the name."""
    regex: str


def parse(text: bytes) -> list[_IgnoreRule]:
    """The rules, in order; each byte of a line is one character, since `?` and classes match bytes."""
    rules = []
    for raw in text.removeprefix(b"\xef\xbb\xbf").split(b"\n"):
        line = raw.decode("latin-1").rstrip("\r")
        translated = translate(f"{line}/*" if line.endswith("/**") else line)
        if translated is not None:
            name = line.rstrip().removeprefix("!")
            anchored = "/" in name.rstrip("/").removeprefix("**/")
            rules.append(_IgnoreRule(name.strip("/"), translated[1], anchored, translated[0]))
    return rules


class _IgnoreFile:
    """The rules of one file; sets answer for plain names and `*.suffix`, which most rules are."""

    def __init__(self, rules: list[_IgnoreRule], budget: MatchBudget) -> None:
        self._rules = rules
        self._budget = budget
        self._compiled: dict[str, regex.Pattern[str]] = {}
        self._plain = {rule.name for rule in rules if _PLAIN.fullmatch(rule.name)}
        self._suffixes = {rule.name[1:] for rule in rules if _SUFFIX.fullmatch(rule.name) and not rule.anchored}
        general_rules = [rule for rule in rules if rule.name not in self._plain and rule.name[1:] not in self._suffixes]
        self._any_name = self._joined([rule for rule in general_rules if not rule.anchored])
        self._any_path = self._joined([rule for rule in general_rules if rule.anchored])

    def decision(self, path: str) -> bool | None:
        """Whether the path, relative to the file's directory, is excluded; None if no rule matches."""
        name = path[path.rfind("/", 0, -1) + 1 :]
        plain_name = name.rstrip("/")
        may_match = (
            plain_name in self._plain
            or plain_name[plain_name.rfind(".") :] in self._suffixes
            or path.rstrip("/") in self._plain
            or (self._any_name is not None and self._budget.matches(self._any_name, name))
            or (self._any_path is not None and self._budget.matches(self._any_path, path))
        )
        if not may_match:
            return None
        return next((rule.excludes for rule in reversed(self._rules) if self._matches(rule, path, name)), None)

    def _matches(self, rule: _IgnoreRule, path: str, name: str) -> bool:
        if rule.regex not in self._compiled:
            self._compiled[rule.regex] = self._budget.compile(rule.regex)
        return self._budget.matches(self._compiled[rule.regex], path if rule.anchored else name)

    def _joined(self, rules: list[_IgnoreRule]) -> regex.Pattern[str] | None:
        return self._budget.compile("|".join(rule.regex for rule in rules)) if rules else None


class IgnoreTree:
    """All ignore files that apply below a root."""

    def __init__(self, root: str, texts: Mapping[str, bytes], budget: MatchBudget) -> None:
        """texts: the content of each ignore file by its absolute path, in root, below and above.

        Raises:
            ToolError: the time is used up.
        """
        self._root = _bytes_as_characters(root.rstrip("/"))
        self.rules = {path[: -len(NAME) - 1]: rules for path, text in texts.items() if (rules := parse(text))}
        """The rules by the directories of their ignore files."""
        self._files = {
            _bytes_as_characters(directory): _IgnoreFile(rules, budget) for directory, rules in self.rules.items()
        }
        self._places: dict[str, list[tuple[_IgnoreFile, int]] | None] = {"": self._above()}
        """By directory, relative to root: the ignore files that apply in it, the nearest first, each with the length of
        its own directory's path; None if the directory is excluded."""

    def kept(self, found: list[tuple[str, str]]) -> list[tuple[str, str]]:
        """Filter pairs of any value and a file's path, relative to root: drops ignored files.

        Raises:
            ToolError: the time is used up.
        """
        return [pair for pair in found if not self._ignores(pair[1])] if self.rules else found

    def _ignores(self, path: str) -> bool:
        if not path.isascii():
            path = _bytes_as_characters(path)
        parent = path[: max(path.rfind("/"), 0)]
        places = self._places[parent] if parent in self._places else self._enter(parent)
        return places is None or self._decision(path, places)

    def _enter(self, directory: str) -> list[tuple[_IgnoreFile, int]] | None:
        """Fill in directory and its parents from the top; no recursion, since a path may have 2,000 components."""
        unknown = []
        while directory not in self._places:
            unknown.append(directory)
            directory = directory[: max(directory.rfind("/"), 0)]
        places = self._places[directory]
        for name in reversed(unknown):
            if places is not None:
                places = None if self._decision(f"{name}/", places) else self._here(name) + places
            self._places[name] = places
        return places

    def _decision(self, path: str, places: list[tuple[_IgnoreFile, int]]) -> bool:
        absolute = f"{self._root}/{path}"
        for file, length in places:
            decision = file.decision(absolute[length + 1 :])
            if decision is not None:
                return decision
        return False

    def _here(self, directory: str) -> list[tuple[_IgnoreFile, int]]:
        absolute = f"{self._root}/{directory}".rstrip("/")
        return [(self._files[absolute], len(absolute))] if absolute in self._files else []

    def _above(self) -> list[tuple[_IgnoreFile, int]]:
        ends = [len(self._root), *(i for i in range(len(self._root) - 1, -1, -1) if self._root[i] == "/")]
        return [(self._files[self._root[:end]], end) for end in dict.fromkeys(ends) if self._root[:end] in self._files]


def _bytes_as_characters(text: str) -> str:
    return text if text.isascii() else text.encode("utf-8", "surrogateescape").decode("latin-1")


def prunes(rules: Mapping[str, list[_IgnoreRule]], root: str) -> list[tuple[str, ...]]:
    """Tests of `find .` in root, each true only of directories that are certainly ignored.

    rules: those of the ignore files known so far, by the absolute directory of each. A file found later can still
    re-include a directory with `!`: compare what this returns then.
    """
    taken_back = {rule.name.rpartition("/")[2] for each in rules.values() for rule in each if not rule.excludes}
    if not all(_PLAIN.fullmatch(name) for name in taken_back):
        return []
    tests = (
        test
        for directory, each in rules.items()
        for rule in each
        if rule.excludes and _PLAIN.fullmatch(rule.name) and rule.name.rpartition("/")[2] not in taken_back
        for test in _tests(rule, directory, root.rstrip("/"))
    )
    return list(dict.fromkeys(tests))[:_MAX_PRUNED]


def _tests(rule: _IgnoreRule, directory: str, root: str) -> Iterator[tuple[str, ...]]:
    subdirectory = directory[len(root) + 1 :] if directory.startswith(f"{root}/") else ""
    path = f"{directory}/{rule.name}"
    if not _PLAIN.fullmatch(subdirectory or "."):
        return
    if not rule.anchored:
        yield (*(("-path", f"./{subdirectory}/*") if subdirectory else ()), "-name", rule.name)
    elif path.startswith(f"{root}/"):
        yield ("-path", f"./{path[len(root) + 1 :]}")
