"""Glob patterns as the tools promise them: `*`, `?`, `[a-z]`, `{a,b}`, and `**` for any directories."""

from __future__ import annotations

import re
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

from ohsandbox.errors import ToolError

MAX_ALTERNATIVES = 200
"""Brace alternatives in all: more than anyone writes, and `find` takes one test for each."""

_MAGIC = re.compile(r"[*?\[{\\]")
_PLAIN_NAME = re.compile(r"[A-Za-z0-9._+@=, -]")
"""What stands for itself in `find -name` as in the globs of `rg --type-add`."""


class Glob(NamedTuple):
    """A pattern for files below a directory."""

    prefix: str
    """The directories that it names without a wildcard, "" for none; the search begins there."""
    regex: re.Pattern[str]
    """Fully matches the path of a wanted file, relative to prefix."""
    names: tuple[str, ...]
    """Patterns of `*` and plain characters, one of which each wanted file's name matches; empty where any may."""
    depth: int | None
    """How many levels below prefix a wanted file can lie; None without limit."""
    dotted: bool
    """It names something hidden, so hidden files have to be looked at."""


@lru_cache(maxsize=64)
def compile_glob(pattern: str, *, hidden: bool) -> Glob:
    """The pattern, relative to some directory. A wildcard matches no leading dot unless hidden.

    Raises:
        ToolError: it has more than MAX_ALTERNATIVES, is empty, or has `..` behind a wildcard.
    """
    paths = [_components(path) for path in expand_braces(pattern)]
    prefix = _common_prefix(paths)
    paths = [path[len(prefix) :] for path in paths]
    if any(part == ".." for path in paths for part in path):
        raise ToolError(f"Pattern {pattern!r} has '..' after a wildcard. Give the directory with `path`.")
    if not all(paths):
        raise ToolError(f"Pattern {pattern!r} names no file. Try {'**/*'!r}.")
    depths = [len(path) for path in paths]
    return Glob(
        "/".join(prefix),
        re.compile("|".join(_path_regex(path, hidden=hidden) for path in paths), re.DOTALL),
        _names(paths),
        None if any("**" in path for path in paths) else max(depths),
        any(part.startswith((".", "\\.")) for path in paths for part in path),
    )


def expand_braces(pattern: str) -> list[str]:
    """`a{b,c}` is `ab` and `ac`; braces nest, and those without a comma or a partner stand for themselves.

    Raises:
        ToolError: more than MAX_ALTERNATIVES.
    """
    done: list[str] = []
    rest = [pattern]
    while rest:
        if len(done) + len(rest) > MAX_ALTERNATIVES:
            raise ToolError(f"Pattern {pattern!r} has over {MAX_ALTERNATIVES} alternatives in braces. Use fewer.")
        current = rest.pop()
        found = _first_braces(current)
        if found is None:
            done.append(current)
            continue
        start, end, options = found
        rest.extend(current[:start] + option + current[end:] for option in reversed(options))
    return list(dict.fromkeys(done))


def _first_braces(pattern: str) -> tuple[int, int, list[str]] | None:
    """Where the first braces with a comma stand, and what they offer."""
    opened: list[list[int]] = []  # of each open brace its place and those of its commas
    best: list[int] | None = None
    i = 0
    while i < len(pattern):
        char = pattern[i]
        if char == "\\":
            i += 1
        elif char == "{":
            opened.append([i])
        elif char == "," and opened:
            opened[-1].append(i)
        elif char == "}" and opened:
            closed = [*opened.pop(), i]
            if len(closed) > 2 and (best is None or closed[0] < best[0]):  # noqa: PLR2004 - a comma between the two
                best = closed
            if not opened and best is not None:
                break
        i += 1
    if best is None:
        return None
    return best[0], best[-1] + 1, [pattern[a + 1 : b] for a, b in pairwise(best)]


def _components(path: str) -> tuple[str, ...]:
    """Without empty ones and `.`, and with runs of `**` as one."""
    parts: list[str] = []
    for part in path.split("/"):
        if part not in ("", ".") and not (part == "**" and parts[-1:] == ["**"]):
            parts.append(part)
    return tuple(parts)


def _common_prefix(paths: list[tuple[str, ...]]) -> tuple[str, ...]:
    """The leading directories that all share and that hold no wildcard; never `.git`, which is not searched."""
    shared: list[str] = []
    for parts in zip(*(path[:-1] for path in paths), strict=False):
        if len(set(parts)) > 1 or _MAGIC.search(parts[0]) or parts[0] == ".git":
            break
        shared.append(parts[0])
    return tuple(shared)


def _path_regex(path: tuple[str, ...], *, hidden: bool) -> str:
    step = "[^/]+/" if hidden else r"(?!\.)[^/]+/"
    return path_regex([None if part == "**" else _name_regex(part, hidden=hidden) for part in path], step=step)


def path_regex(parts: list[str | None], *, step: str) -> str:
    """The regex of a path by those of its components; None is `**`, any number of step.

    What stands between two `**` is fixed at the first place that fits, and that will always do. Else a hostile tree
    could keep the match busy for years.
    """
    runs: list[list[str]] = [[]]
    for part in parts:
        if part is None:
            runs.append([])
        else:
            runs[-1].append(part)
    if len(runs) == 1:
        return "/".join(runs[0])
    head = "".join(f"{part}/" for part in runs[0])
    middle = "".join(f"(?>(?:{step})*?{'/'.join(run)}/)" for run in runs[1:-1] if run)
    last = "/".join(runs[-1]) or step[:-1]
    return f"{head}{middle}(?:{step})*{last}"


def _name_regex(part: str, *, hidden: bool) -> str:
    tokens: list[str | None] = []
    i = 0
    while i < len(part):
        token, i = _token(part, i)
        tokens.append(token)
    guard = r"(?!\.)" if not hidden and part[0] in "*?[" else ""
    return guard + name_regex(tokens)


def name_regex(tokens: list[str | None]) -> str:
    """The regex of a name by those of its characters; None is `*`. As for paths, the first place that fits will do."""
    pieces: list[str] = [""]
    for token in tokens:
        if token is None:
            pieces.append("")
        else:
            pieces[-1] += token
    if len(pieces) == 1:
        return pieces[0]
    middle = "".join(f"(?>[^/]*?{piece})" for piece in pieces[1:-1] if piece)
    return f"(?=[^/]){pieces[0]}{middle}[^/]*{pieces[-1]}"  # `*` alone is no empty name


def _token(part: str, i: int) -> tuple[str | None, int]:
    """The regex of the token at i (None for a star), and where the next begins."""
    char = part[i]
    if char == "*":
        return None, i + 1
    if char == "?":
        return "[^/]", i + 1
    if char == "\\" and i + 1 < len(part):
        return re.escape(part[i + 1]), i + 2
    if char == "[" and (found := class_regex(part, i)) is not None:
        return found
    return re.escape(char), i + 1


def class_regex(text: str, start: int) -> tuple[str, int] | None:
    """The regex of the bracket expression that begins at start, and where it ends; None where it never closes."""
    i = start + 1
    negated = text[i : i + 1] in ("!", "^") and text[i : i + 1] != ""
    i += negated
    end = text.find("]", i + 1)
    if end < 0:
        return None
    body, items = text[i:end], ""
    k = 0
    while k < len(body):
        if k + 2 < len(body) and body[k + 1] == "-":
            if body[k] <= body[k + 2]:
                items += f"{re.escape(body[k])}-{re.escape(body[k + 2])}"
            k += 3
        else:
            items += re.escape(body[k])
            k += 1
    if not items:
        return ("[^/]" if negated else "(?!)"), end + 1
    return (f"[^/{_set(items)}]" if negated else f"(?!/)[{_set(items)}]"), end + 1


def _set(items: str) -> str:
    """Items in which `re` sees no operator of a future version: `--`, `&&`, `~~`, `||`, and `[`."""
    return re.sub(r"(?<!\\)([&~|\[])", r"\\\1", items)


def _names(paths: list[tuple[str, ...]]) -> tuple[str, ...]:
    """What `find -name` and `rg --type-add` can sort out beforehand."""
    names = {_loose_name(path[-1]) for path in paths}
    return () if "*" in names else tuple(sorted(names))


def _loose_name(part: str) -> str:
    """A pattern of `*` and plain characters that matches all that part matches."""
    loose = ""
    i = 0
    while i < len(part):
        if part[i] == "\\" and i + 1 < len(part):
            loose, i = loose + (part[i + 1] if _PLAIN_NAME.match(part[i + 1]) else "*"), i + 2
        elif part[i] == "[" and (found := class_regex(part, i)) is not None:
            loose, i = loose + "*", found[1]
        else:
            loose, i = loose + (part[i] if _PLAIN_NAME.match(part[i]) else "*"), i + 1
    return re.sub(r"\*+", "*", loose)
