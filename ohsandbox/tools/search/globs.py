"""Glob patterns: `*`, `?`, `[a-z]`, `{a,b}`, and `**` for any directories; `pathspec` translates them.

A translated pattern backtracks: `*a*a*a*b` takes years on a name of 255 characters. Therefore all matches of a search
share a time limit, and `regex` runs the patterns, since its matches can be stopped.
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from pydantic import AfterValidator, PlainSerializer

from ohsandbox.errors import ToolError

if TYPE_CHECKING:
    import regex

_MAX_ALTERNATIVES = 200
"""Total brace alternatives: more than needed in practice, and `find` gets one test for each."""

_MATCHING_LIMIT_S = 5.0
"""Limit for all matches of one search on the host, and for no other part of it; 20,000 paths take 0.1 s. Matching holds
the GIL."""

_WILDCARD = re.compile(r"[*?\[\\]")
_BRACES = re.compile(r"(?<!\\)\{([^{},]*+(?:,[^{},]*+)++)\}")
_NOT_PLAIN = re.compile(r"\\.|[^A-Za-z0-9._+@=, -]", re.DOTALL)
"""Parts of a name that `find -name` and the globs of `rg --type-add` may read differently, such as bytes above
ASCII."""
_EVERYTHING = {".": ".+", "(?:/)": ".+/"}
"""pathspec's translations of `*` and `*/`: it searches for them anywhere."""


def _check_no_nul(text: str) -> str:
    if "\0" in text:
        raise ValueError("Paths and patterns cannot contain NUL")
    return text


PathText = Annotated[str, AfterValidator(_check_no_nul)]
"""Text that can be a program's argument (no NUL)."""
FoundPath = Annotated[
    str,
    PlainSerializer(lambda path: path.encode("utf-8", "surrogateescape").decode("utf-8", "replace"), when_used="json"),
]
"""A path as the sandbox has it, unquoted: undecodable bytes as surrogate escapes, and as U+FFFD in JSON."""


class MatchBudget:
    """The time limit that all matches of one search, and the compilation of their patterns, share."""

    def __init__(self, limit_s: float = _MATCHING_LIMIT_S) -> None:
        self._left_s = limit_s

    def check(self) -> None:
        """Raise once the time is used up.

        Raises:
            ToolError: the time is used up.
        """
        if self._left_s <= 0:
            raise ToolError(
                "Matching the files' names took too long. Use a pattern with fewer wildcards, or `ignored`: true, "
                "which skips the rules of .gitignore."
            )

    def matches(self, pattern: regex.Pattern[str], text: str) -> bool:
        """Whether the whole text matches; raises as `check`."""
        self.check()
        began = time.monotonic()
        try:
            return pattern.fullmatch(text, timeout=self._left_s) is not None
        except TimeoutError:
            self._left_s = 0.0
            self.check()
            raise
        finally:
            self._left_s -= time.monotonic() - began

    def compile(self, text: str) -> regex.Pattern[str]:
        """Compile the pattern; raises as `check`."""
        import regex  # noqa: PLC0415 - takes 50 ms, and few conversations search

        self.check()
        began = time.monotonic()
        try:
            return regex.compile(text, regex.DOTALL)
        finally:
            self._left_s -= time.monotonic() - began


@dataclass(frozen=True, kw_only=True)
class Glob:
    """A pattern for files below a directory."""

    prefix: str
    """Leading directories without a wildcard, "" for none; the search begins there."""
    names: tuple[str, ...]
    """Globs of `*` and plain characters; each wanted file's name matches one of them; empty allows any name."""
    depth: int | None
    """Maximum levels of a wanted file below prefix; None: no limit."""
    dotted: bool
    """Whether it names hidden files, so that the search must visit them."""
    _paths: regex.Pattern[str] | None
    """None: every file with a name in names is wanted, in any directory."""
    _hidden: regex.Pattern[str] | None
    """Names of hidden files and directories that are wanted; None wants all."""

    def matches(self, path: str, budget: MatchBudget) -> bool:
        """Whether a path, relative to prefix and with a name that names allows, is wanted; raises as `check`."""
        if self._paths is not None and not budget.matches(self._paths, path):
            return False
        if self._hidden is None or not (path.startswith(".") or "/." in path):
            return True
        return all(budget.matches(self._hidden, part) for part in path.split("/") if part.startswith("."))


def compile_glob(pattern: str, *, hidden: bool) -> Glob:
    """Compile a pattern that is relative to some directory. A wildcard matches a leading dot only if hidden is set.

    Raises:
        ToolError: it has more than MAX_ALTERNATIVES, is empty or malformed, or has `..` after a wildcard.
    """
    paths = [_components(path) for path in expand_braces(pattern)]
    prefix = _common_prefix(paths)
    paths = [path[len(prefix) :] for path in paths]
    if any(part == ".." for path in paths for part in path):
        raise ToolError(f"Pattern {pattern!r} has '..' after a wildcard. Give the directory with `path`.")
    if not all(paths):
        raise ToolError(f"Pattern {pattern!r} names no file. Try {'**/*'!r}.")
    dotted = {part for path in paths for part in path if part.startswith((".", "\\."))}
    names = {_loose_name(path[-1]) for path in paths}
    by_name = all(path == ("**", _loose_name(path[-1])) for path in paths)
    return Glob(
        prefix="/".join(prefix),
        names=() if "*" in names else tuple(sorted(names)),
        depth=None if any("**" in path for path in paths) else max(map(len, paths)),
        dotted=bool(dotted),
        _paths=None if by_name else _compiled(pattern, ["/" + "/".join(path) for path in paths]),
        _hidden=None if hidden else _compiled(pattern, [f"/{part}" for part in dotted]),
    )


def expand_braces(pattern: str) -> list[str]:
    """Expand `a{b,c}` to `ab` and `ac`; braces nest, and those without a comma or a partner stand for themselves.

    Raises:
        ToolError: more than MAX_ALTERNATIVES.
    """
    expanded: list[str] = []
    pending = [pattern]
    while pending:
        if len(expanded) + len(pending) > _MAX_ALTERNATIVES:
            raise ToolError(f"Pattern {pattern!r} has over {_MAX_ALTERNATIVES} alternatives in braces. Use fewer.")
        current = pending.pop()
        match = _BRACES.search(current)
        if match is None:
            expanded.append(current)
        else:
            options = reversed(match[1].split(","))
            pending.extend(current[: match.start()] + option + current[match.end() :] for option in options)
    return list(dict.fromkeys(expanded))


def translate(pattern: str) -> tuple[str, bool] | None:
    """Translate a rule of .gitignore to a regex for paths (directories end in `/`), and whether it excludes.

    None for a comment, an empty line and a malformed rule. The whole path must match, so `a/**` has to be `a/**/*`.
    """
    from pathspec.patterns.gitignore import GitIgnorePatternError  # noqa: PLC0415 - most runs search for nothing
    from pathspec.patterns.gitignore.spec import GitIgnoreSpecPattern  # noqa: PLC0415 - most runs search for nothing

    try:
        translated, excludes = GitIgnoreSpecPattern.pattern_to_regex(pattern)
    except GitIgnorePatternError:
        return None
    if translated is None or excludes is None or ("[" in pattern and not _is_valid(translated)):
        return None
    translated = translated.replace("(?P<ps_d>", "(?:")
    return _EVERYTHING.get(translated, translated), excludes


def _is_valid(pattern: str) -> bool:
    import regex  # noqa: PLC0415 - takes 50 ms, and few conversations search

    try:
        regex.compile(pattern)
    except regex.error:  # a malformed range such as [z-a]
        return False
    return True


def _compiled(pattern: str, globs: list[str]) -> regex.Pattern[str]:
    import regex  # noqa: PLC0415 - takes 50 ms, and few conversations search

    translated = [translate(glob[:-1] + "\\ " if glob.endswith(" ") else glob) for glob in globs]
    if None in translated:
        raise ToolError(f"Invalid pattern {pattern!r}. Close each `[`, or write `\\[` for the character.")
    return regex.compile("|".join(pattern[0] for pattern in translated if pattern) or "(?!)", regex.DOTALL)


def _components(path: str) -> tuple[str, ...]:
    """Split a path without empty parts and `.`; runs of `**` become one, and a `**` at the end becomes `**/*`."""
    parts: list[str] = []
    for part in path.split("/"):
        if part not in ("", ".") and not (part == "**" and parts[-1:] == ["**"]):
            parts.append(part)
    return (*parts, "*") if parts[-1:] == ["**"] else tuple(parts)


def _common_prefix(paths: list[tuple[str, ...]]) -> tuple[str, ...]:
    """The common leading directories without a wildcard; never `.git`, which is not searched."""
    shared: list[str] = []
    for parts in zip(*(path[:-1] for path in paths), strict=False):
        if len(set(parts)) > 1 or _WILDCARD.search(parts[0]) or parts[0] == ".git":
            break
        shared.append(parts[0])
    return tuple(shared)


def _loose_name(part: str) -> str:
    """A pattern of `*` and plain characters that matches all that part matches."""
    start, end = part.find("["), part.rfind("]")
    if 0 <= start < end:
        part = f"{part[:start]}*{part[end + 1 :]}"
    return re.sub(r"\*+", "*", _NOT_PLAIN.sub("*", part))
