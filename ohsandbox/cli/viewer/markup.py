"""Foreign text as data for the page: Markdown as trees of a few elements, program output as coloured pieces."""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING, Any

from ohsandbox.cli.rendering.text import output, safe

if TYPE_CHECKING:
    from collections.abc import Iterable

    from markdown_it import MarkdownIt
    from markdown_it.token import Token

Node = str | list[Any]
"""A text, or an element: its name, its attributes, then its nodes."""

MAX_MARKDOWN_CHARS = 100_000
"""Longest message that is rendered; a longer one is shown as it was written."""
_MAX_PIECES = 5000
"""Largest number of coloured pieces of an output; one with more is shown without colours."""
_HUES = ("black", "red", "green", "yellow", "blue", "magenta", "cyan", "white")
_SGR = re.compile(r"\x1b\[([0-9;:]{0,64})m")
_LINK = re.compile(r"https?://[^\s]+", re.IGNORECASE)
_CUBE_FIRST, _GREY_FIRST, _BRIGHT_FIRST = 16, 232, 8
_SATURATED = 64
"""Smallest difference between colour components (of 255) for a hue; less is grey and shown as plain text."""


# --- Markdown -------------------------------------------------------------------------------------


def markdown_elements(raw: str) -> list[Node]:
    """Convert foreign Markdown to elements: no raw HTML, no images that would be loaded, only http and https links.

    Hidden characters are spelled out and secrets masked before parsing, so that Markdown cannot undo either.
    """
    text = safe(raw).strip("\n")
    if len(text) > MAX_MARKDOWN_CHARS:
        return [["pre", {}, text]]
    root: list[Any] = ["div", {}]
    _build(_parser().parse(text), root)
    return root[2:]


@cache
def _parser() -> MarkdownIt:
    from markdown_it import MarkdownIt  # noqa: PLC0415 - 0.1 s, for those who look

    parser = MarkdownIt("commonmark", {"html": False}).enable(["table", "strikethrough"])
    setattr(parser, "validateLink", lambda url: _LINK.fullmatch(url) is not None)  # noqa: B010 - as its pages say
    return parser


def _build(tokens: Iterable[Token], root: list[Any]) -> None:
    """Add the tokens' elements to root."""
    stack = [root]
    for token in tokens:
        if token.type == "inline":
            _build(token.children or [], stack[-1])
        elif token.hidden:  # a paragraph of a tight list
            continue
        elif token.nesting > 0:
            element: list[Any] = [token.tag, _attributes(token)]
            stack[-1].append(element)
            stack.append(element)
        elif token.nesting < 0:
            stack.pop()
        else:
            stack[-1].append(_leaf(token))


def _attributes(token: Token) -> dict[str, Any]:
    if token.tag == "a":
        return {"href": str(token.attrs["href"])}
    if token.tag == "ol" and isinstance(start := token.attrs.get("start"), int):
        return {"start": start}
    return {}


def _leaf(token: Token) -> Node:
    match token.type:
        case "fence" | "code_block":
            return ["pre", {"lang": token.info.split()[0][:30]} if token.info.strip() else {}, token.content]
        case "code_inline":
            return ["code", {}, token.content]
        case "image":
            return f"[image: {token.content or 'without a text'}, {token.attrs.get('src', '')}]"
        case "softbreak":
            return "\n"
        case "hardbreak" | "hr":
            return [token.tag, {}]
        case _:
            return token.content


# --- program output -------------------------------------------------------------------------------


def output_elements(raw: str) -> str | list[list[str]]:
    """Convert a program's output: its text, or pieces (classes, text) if it set colours.

    Only hue, bold, faint, italic and underline are kept; without background and concealment nothing can hide. All
    other controls are dropped, as in a terminal of ours. The pieces together are that terminal's text, or there are
    none: a colour may stand within a secret, or within a control.
    """
    text, raw = output(raw), raw.replace("\r\n", "\n")
    if "\x1b[" not in raw:
        return text
    pieces: list[list[str]] = []
    style, at = _Style(), 0
    for match in [*_SGR.finditer(raw), None]:
        end = len(raw) if match is None else match.start()
        if shown := output(raw[at:end]):
            if pieces and pieces[-1][0] == style.classes:
                pieces[-1][1] += shown
            else:
                pieces.append([style.classes, shown])
        if match is not None:
            style.set(match[1])
            at = match.end()
    if len(pieces) > _MAX_PIECES or "".join(shown for _, shown in pieces) != text or {*_classes(pieces)} == {""}:
        return text
    return pieces


def cut_pieces(pieces: Iterable[list[str]], length: int) -> list[list[str]]:
    """Return the pieces of the first length characters."""
    pieces_kept = []
    for classes, text in pieces:
        if length > 0:
            pieces_kept.append([classes, text[:length]])
        length -= len(text)
    return pieces_kept


def _classes(pieces: Iterable[list[str]]) -> Iterable[str]:
    return (classes for classes, _ in pieces)


class _Style:
    """The state set by SGR sequences (ECMA-48 8.3.117), as classes of the page's style sheet."""

    def __init__(self) -> None:
        self._hue = ""
        self._marks: set[str] = set()

    @property
    def classes(self) -> str:
        return " ".join([*([f"c-{self._hue}"] if self._hue else []), *sorted(self._marks)])

    def set(self, parameters: str) -> None:
        codes = [int(code[:4]) if code else 0 for code in re.split("[;:]", parameters)]
        while codes:
            code = codes.pop(0)
            if code in {38, 48}:
                hue = _extended(codes)
                self._hue = hue if code == 38 else self._hue  # noqa: PLR2004 - 48 is the background
            else:
                self._one(code)

    def _one(self, code: int) -> None:
        marks = {1: "bold", 2: "faint", 3: "italic", 4: "underline"}
        ends = {22: {"bold", "faint"}, 23: {"italic"}, 24: {"underline"}}
        if code == 0:
            self._hue, self._marks = "", set()
        elif code in marks:
            self._marks.add(marks[code])
        elif code in ends:
            self._marks -= ends[code]
        elif 30 <= code <= 37 or 90 <= code <= 97:  # noqa: PLR2004 - and the bright ones, of aixterm
            self._hue = _HUES[code % 10]
        elif code == 39:  # noqa: PLR2004 - the default
            self._hue = ""


def _extended(codes: list[int]) -> str:
    """Return the hue nearest to `5;N` or `2;R;G;B`; remove those codes from codes."""
    kind = codes.pop(0) if codes else 0
    if kind == 5 and codes:  # noqa: PLR2004 - of a palette
        number = codes.pop(0)
        if number < _CUBE_FIRST:
            return _HUES[number % _BRIGHT_FIRST]
        if number >= _GREY_FIRST:
            return ""
        number -= _CUBE_FIRST
        return _nearest(number // 36 * 51, number // 6 % 6 * 51, number % 6 * 51)
    if kind == 2 and len(codes) >= 3:  # noqa: PLR2004 - red, green and blue
        red, green, blue = codes[:3]
        del codes[:3]
        return _nearest(red, green, blue)
    return ""


def _nearest(red: int, green: int, blue: int) -> str:
    parts = (red, green, blue)
    if max(parts) - min(parts) < _SATURATED:
        return ""
    middle = (max(parts) + min(parts)) / 2
    return _HUES[(red > middle) + 2 * (green > middle) + 4 * (blue > middle)]
