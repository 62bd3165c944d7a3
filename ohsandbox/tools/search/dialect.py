r"""The regular expressions that `grep` promises, parsed once, so that every engine means the same by them.

Python's, Rust's and POSIX's syntaxes agree on most of what people write and differ on the rest (`\d`, `{` as itself,
`(?:`, Unicode, case). A tree of a few node types is what all engines can do; `printer` writes it down for each.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from ohsandbox.errors import ToolError

MAX_REPEAT = 255
"""POSIX promises no more (RE_DUP_MAX)."""
MAX_SIZE = 2_000
"""Characters after all counted repetitions are written out: more makes engines slow, or makes them give up."""
MAX_DEPTH = 50
"""Groups in groups."""
LAST = 0x10FFFF

Ranges = tuple[tuple[int, int], ...]


class Chars(NamedTuple):
    """One character out of a set of code points: sorted ranges that do not touch; never a newline or NUL."""

    ranges: Ranges


class Anchor(NamedTuple):
    """A place between characters: `^`, `$`, `b` (word boundary), `B` (none)."""

    kind: str


class Sequence(NamedTuple):
    """One after another."""

    parts: tuple[Node, ...]


class Choice(NamedTuple):
    """One of them."""

    options: tuple[Node, ...]


class Repeat(NamedTuple):
    """Between least and most times; most None is without limit."""

    node: Node
    least: int
    most: int | None


Node = Chars | Anchor | Sequence | Choice | Repeat

_COUNT = re.compile(r"\{(\d*+)(,?)(\d*)\}")
_GROUP = re.compile(r"\?(?::|P?<[A-Za-z_]\w*>)")
_FLAGS = re.compile(r"\(\?([ims]+)\)")
_HEX = re.compile(r"x([0-9A-Fa-f]{2})|u([0-9A-Fa-f]{4})|U([0-9A-Fa-f]{8})|[xu]\{([0-9A-Fa-f]{1,8})\}")
_CONTROLS = {"t": "\t", "r": "\r", "f": "\f", "v": "\v", "a": "\a", "e": "\x1b"}
_POSIX = {
    "alnum": "a-zA-Z0-9", "alpha": "a-zA-Z", "blank": " \t", "cntrl": "\x01-\x1f\x7f-\x7f", "digit": "0-9",
    "graph": "!-~", "lower": "a-z", "print": " -~", "punct": "!-/:-@[-`{-~", "space": " \t\r\f\v", "upper": "A-Z",
    "xdigit": "0-9A-Fa-f", "word": "a-zA-Z0-9_",
}  # fmt: skip


def _ranges_of(spec: str) -> Ranges:
    return tuple(
        (ord(found[1] or found[3]), ord(found[2] or found[3])) for found in re.finditer(r"(?s)(.)-(.)|(.)", spec)
    )


def normal(ranges: Ranges) -> Ranges:
    """Sorted, joined, without newline and NUL."""
    joined: list[tuple[int, int]] = []
    for low, high in sorted(ranges):
        if joined and low <= joined[-1][1] + 1:
            joined[-1] = (joined[-1][0], max(high, joined[-1][1]))
        else:
            joined.append((low, high))
    out: list[tuple[int, int]] = []
    for low, high in joined:
        pieces = [(max(low, 1), min(high, 9)), (max(low, 11), high)]
        out.extend(piece for piece in pieces if piece[0] <= piece[1])
    return tuple(out)


def inverted(ranges: Ranges) -> Ranges:
    """Every other code point, surrogates apart."""
    out, start = [], 1
    for low, high in sorted((*ranges, (0xD800, 0xDFFF))):
        if start < low:
            out.append((start, low - 1))
        start = max(start, high + 1)
    if start <= LAST:
        out.append((start, LAST))
    return normal(tuple(out))


_CLASSES = {"d": normal(_ranges_of("0-9")), "w": normal(_ranges_of("a-zA-Z0-9_")), "s": normal(_ranges_of(" \t\r\f\v"))}
_CLASSES.update({name.upper(): inverted(ranges) for name, ranges in [*_CLASSES.items()]})
ANY = Chars(inverted(()))


def parse(pattern: str, *, ignore_case: bool) -> Node:
    """The tree of a pattern.

    Raises:
        ToolError: it is malformed, or asks for what the dialect has not: lookaround, backreferences, several lines.
    """
    flags = _FLAGS.match(pattern)
    parser = _Parser(pattern, ignore_case=ignore_case or bool(flags and "i" in flags[1]))
    parser.at = flags.end() if flags else 0
    node = parser.choice(0)
    if parser.at < len(pattern):
        raise parser.refusal("there is a ')' without '('; a literal one is '\\)'")
    if _size(node) > MAX_SIZE:
        raise parser.refusal(f"its repetitions come to over {MAX_SIZE} characters; use * or +")
    return node


class _Parser:
    def __init__(self, pattern: str, *, ignore_case: bool) -> None:
        self.text = pattern
        self.at = 0
        self._fold = ignore_case

    def refusal(self, why: str) -> ToolError:
        return ToolError(f"Invalid regex {self.text!r}: {why}.")

    def _peek(self, count: int = 1) -> str:
        return self.text[self.at : self.at + count]

    def _take(self) -> str:
        self.at += 1
        return self.text[self.at - 1]

    def choice(self, depth: int) -> Node:
        """Up to `)` or the end."""
        if depth > MAX_DEPTH:
            raise self.refusal(f"groups are nested over {MAX_DEPTH} deep")
        options = [self._sequence(depth)]
        while self._peek() == "|":
            self.at += 1
            options.append(self._sequence(depth))
        return options[0] if len(options) == 1 else Choice(tuple(options))

    def _sequence(self, depth: int) -> Node:
        parts: list[Node] = []
        while self._peek() not in ("", "|", ")"):
            start = self.at
            node = self._atom(depth)
            node = self._repeated(node, start)
            before = len(parts)
            while before and _is_disordered(parts[before - 1], node):
                before -= 1
            parts.insert(before, node)
        return parts[0] if len(parts) == 1 else Sequence(tuple(parts))

    def _atom(self, depth: int) -> Node:
        char = self._take()
        if char == "(":
            return self._group(depth)
        if char == "[":
            return self._class()
        if char == ".":
            return ANY
        if char in "^$":
            return Anchor(char)
        if char == "\\":
            return self._escape()
        if char in "*+?" or (char == "{" and self._count(self.at - 1)):
            raise self.refusal(f"there is nothing before {char!r} to repeat; a literal one is '\\{char}'")
        return self._literal(char)

    def _literal(self, char: str) -> Chars:
        if char == "\n":
            raise self.refusal("lines are searched one by one, so a newline never matches")
        if char == "\0":
            raise self.refusal("NUL cannot be searched for")
        return Chars(self._folded(((ord(char), ord(char)),)))

    def _folded(self, ranges: Ranges) -> Ranges:
        """With the other case of letters; of ranges only ASCII's, of single characters any."""
        if not self._fold:
            return normal(ranges)
        more: list[tuple[int, int]] = []
        for low, high in ranges:
            for first, last, shift in ((65, 90, 32), (97, 122, -32)):
                if max(low, first) <= min(high, last):
                    more.append((max(low, first) + shift, min(high, last) + shift))
            if low == high > 127:  # noqa: PLR2004 - the last of ASCII
                more.extend((ord(c), ord(c)) for c in (chr(low).lower(), chr(low).upper()) if len(c) == 1)
        return normal((*ranges, *more))

    def _group(self, depth: int) -> Node:
        start = self.at - 1
        if self._peek() == "?":
            found = _GROUP.match(self.text, self.at)
            if found is None:
                raise self._group_refusal()
            self.at = found.end()
        node = self.choice(depth + 1)
        if self._peek() != ")":
            raise self.refusal(f"the '(' at character {start + 1} is never closed; a literal one is '\\('")
        self.at += 1
        return node

    def _group_refusal(self) -> ToolError:
        for start, why in (
            ("?=", "lookahead is not supported"), ("?!", "lookahead is not supported"),
            ("?<=", "lookbehind is not supported"), ("?<!", "lookbehind is not supported"),
            ("?>", "atomic groups are not supported"), ("?P=", "backreferences are not supported"),
        ):  # fmt: skip
            if self.text.startswith(start, self.at):
                return self.refusal(f"{why}; search for the plain part and sort out what comes back")
        return self.refusal(f"'({self._peek(3)}' is not supported; write (...), (?:...), or (?i) at the very beginning")

    def _escape(self) -> Node:
        if not self._peek():
            raise self.refusal("it ends in a single backslash; a literal one is '\\\\'")
        char = self._take()
        if char in _CLASSES:
            return Chars(_CLASSES[char])
        if char in "bB":
            return Anchor(char)
        if char in "AzZ":
            return Anchor("^" if char == "A" else "$")
        return self._literal(self._escaped_char(char))

    def _escaped_char(self, char: str) -> str:
        """What a backslash and char stand for, as one character."""
        if char in _CONTROLS:
            return _CONTROLS[char]
        if char in "xuU" and (found := _HEX.match(self.text, self.at - 1)):
            self.at = found.end()
            code = int(next(part for part in found.groups() if part), 16)
            if code > LAST or 0xD800 <= code <= 0xDFFF:  # noqa: PLR2004 - the surrogates
                raise self.refusal(f"'\\{found[0]}' is no character")
            return chr(code)
        if char == "n":
            return "\n"
        if char in "123456789":
            raise self.refusal("backreferences are not supported; write out what may repeat")
        if char in "<>":
            raise self.refusal(f"'\\{char}' means a word's edge to some and {char!r} to others; write \\b or {char}")
        if char in "pP":
            raise self.refusal(f"'\\{char}' (Unicode classes) is not supported; write [...] with ranges")
        if char.isalnum():
            raise self.refusal(f"'\\{char}' is not supported")
        return char

    def _class(self) -> Chars:
        start = self.at
        negated = self._peek() == "^"
        self.at += negated
        ranges: list[tuple[int, int]] = []
        first = True
        while first or self._peek() != "]":
            if not self._peek():
                raise self.refusal(f"the '[' at character {start} is never closed; a literal one is '\\['")
            ranges.extend(self._class_item())
            first = False
        self.at += 1
        chosen = self._folded(tuple(ranges))
        found = inverted(chosen) if negated else chosen
        if not found:
            raise self.refusal(f"the class at character {start} can match nothing: lines hold no newline")
        return Chars(found)

    def _class_item(self) -> Ranges:
        if self._peek(2) == "[:" and (found := re.match(r"\[:(\w+):\]", self.text[self.at :])):
            if found[1] not in _POSIX:
                raise self.refusal(f"there is no class {found[0]}")
            self.at += found.end()
            return _ranges_of(_POSIX[found[1]])
        low = self._class_char()
        if not isinstance(low, str):
            return low
        if self._peek() != "-" or self._peek(2) in ("-", "-]"):
            return ((ord(low), ord(low)),)
        self.at += 1
        high = self._class_char()
        if not isinstance(high, str) or high < low:
            raise self.refusal(f"the range that begins with {low!r} ends before it begins")
        return ((ord(low), ord(high)),)

    def _class_char(self) -> str | Ranges:
        char = self._take()
        if char != "\\":
            return char
        if not self._peek():
            raise self.refusal("it ends in a single backslash; a literal one is '\\\\'")
        char = self._take()
        if char in _CLASSES:
            return _CLASSES[char]
        return "\b" if char == "b" else self._escaped_char(char)

    def _count(self, start: int) -> re.Match[str] | None:
        """`{2}`, `{2,}`, `{,3}`, `{2,3}`; every other brace stands for itself, as in `func() {`."""
        found = _COUNT.match(self.text, start)
        return found if found and (found[1] or found[3]) else None

    def _repeated(self, node: Node, start: int) -> Node:
        """The node with the quantifier that follows it; a lazy one finds the same lines."""
        bounds = self._quantifier()
        if bounds is None:
            return node
        if isinstance(node, Anchor):
            raise self.refusal(f"{self.text[start : self.at]!r} repeats a place, not a character")
        if self._peek() == "?":
            self.at += 1
        if self._peek() in ("*", "+", "?") or (self._peek() == "{" and self._count(self.at)):
            raise self.refusal(f"{self.text[start : self.at + 1]!r} repeats a repetition; put the inner one in (...)")
        return repeat(node, *bounds)

    def _quantifier(self) -> tuple[int, int | None] | None:
        simple: dict[str, tuple[int, int | None]] = {"*": (0, None), "+": (1, None), "?": (0, 1)}
        if self._peek() in simple:
            return simple[self._take()]
        found = self._count(self.at) if self._peek() == "{" else None
        if found is None:
            return None
        self.at = found.end()
        low = int(found[1] or 0) if len(found[1]) < 6 else MAX_REPEAT + 1  # noqa: PLR2004 - no number is that long
        high = None if found[2] and not found[3] else int((found[3] or found[1])[:6])
        if low > MAX_REPEAT or (high or 0) > MAX_REPEAT:
            raise self.refusal(f"{found[0]} repeats over {MAX_REPEAT} times; use * or +")
        if high is not None and high < low:
            raise self.refusal(f"{found[0]} has its larger number first")
        return low, high


def repeat(node: Node, least: int, most: int | None) -> Repeat:
    """The repetition, without repetitions in one without end that add nothing: `(a|(b*|c?)?)*` is `(a|b|c)*`.

    On the first, glibc's regexec, which busybox's grep is, uses up the memory of the sandbox with a line of ten.
    """
    if most is not None:
        return Repeat(node, least, most)
    return Repeat(_once(node), 0 if _may_be_empty(node) else least, None)


def _once(node: Node) -> Node:
    """What repeated without end gives the same lines, and repeats less itself."""
    if isinstance(node, Repeat) and node.least <= 1 and node.most != 0:
        return _once(node.node)
    if isinstance(node, Choice):
        options = tuple(_once(option) for option in node.options if option != Sequence(()))
        return Choice(options) if options else node
    if isinstance(node, Sequence) and node.parts and all(map(_may_be_empty, node.parts)):
        return Choice(tuple(map(_once, node.parts)))
    return node


def _may_be_empty(node: Node) -> bool:
    """Whether it matches nothing, anywhere; a place is no such thing."""
    if isinstance(node, Repeat):
        return node.least == 0 or _may_be_empty(node.node)
    if isinstance(node, Choice):
        return any(map(_may_be_empty, node.options))
    return isinstance(node, Sequence) and all(map(_may_be_empty, node.parts))


def _is_disordered(first: Node, second: Node) -> bool:
    r"""Whether two places that are one should be exchanged: rg 13 misses lines for `\b^` and `$^`; `$` takes `\r`."""
    places = "^bB$"
    return (
        isinstance(first, Anchor)
        and isinstance(second, Anchor)
        and {first.kind, second.kind} != {"b", "B"}
        and places.index(second.kind) < places.index(first.kind)
    )


def _size(node: Node) -> int:
    """Characters after repetitions are written out."""
    if isinstance(node, Sequence):
        return sum(map(_size, node.parts))
    if isinstance(node, Choice):
        return sum(map(_size, node.options))
    if isinstance(node, Repeat):
        return max(node.least, node.most or 1) * _size(node.node)
    return 1
