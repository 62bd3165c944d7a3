"""Finds the text to replace: exactly one exact match; otherwise reports the places or near misses."""

from __future__ import annotations

import difflib
import re
import unicodedata
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from ohsandbox.errors import ToolError
from ohsandbox.tools.file_editor.lines import end_near, line_of, split_lines, with_ends_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ohsandbox.tools.file_editor.text import Document

MAX_LINES_NAMED = 10
"""Limit of line numbers reported for a text; more mean that the text is too short."""

MAX_HINT_CHARS = 2_000_000
"""Limit of files searched for near misses: folding 2 MB costs about 0.1 s."""

MAX_QUOTED_CHARS = 600
"""The part of the file that a hint quotes: enough for typical model errors, short in the context."""

CLOSE_LINES = 2_000
CLOSE_CHARS = 100
"""Limits of the search for a similar line, in lines and in characters of each: 0.4 s of difflib at worst."""

_LOOKS_LIKE = str.maketrans(
    {
        **dict.fromkeys("\u2018\u2019\u201a\u201b\u2032\u00b4\u02bc", "'"),
        **dict.fromkeys("\u201c\u201d\u201e\u201f\u2033\u00ab\u00bb", '"'),
        **dict.fromkeys("\u2010\u2011\u2012\u2013\u2014\u2015\u2212\u00ad", "-"),
        **dict.fromkeys("\u200b\u200c\u200d\u200e\u200f\u2060\ufeff", ""),
        "\u00d7": "x",
        **dict(zip("асеорхуіјѕԁһӏАВСЕНІЈКМОРЅТХУ", "aceopxyijsdhlABCEHIJKMOPSTXY", strict=True)),  # noqa: RUF001
        **dict(zip("αονρυΑΒΕΖΗΙΚΜΝΟΡΤΥΧ", "aovpuABEZHIKMNOPTYX", strict=True)),  # noqa: RUF001
    }
)
"""Look-alikes that NFKD does not unify: typographic signs, Cyrillic and Greek letters."""

_NUMBERS = re.compile(r"^ *\d+\t", re.MULTILINE)


class Match(NamedTuple):
    """The only match, as indices, and its replacement."""

    start: int
    end: int
    new: str


def match_once(document: Document, old: str, new: str) -> Match:
    """Find old, and convert new to the line ends and undecoded bytes of the file.

    Line ends need not match: if the file has CRLF, a line feed in old matches both, unless old itself
    contains a carriage return; then both texts are literal.

    Raises:
        ToolError: old has no match (with a hint), or more than one (with the lines).
    """
    text = document.shown
    places = [*islice(_places(text, old, is_crlf=document.has_crlf), MAX_LINES_NAMED + 1)]
    if not places:
        raise ToolError(
            f"old_str is not in the file, which has {document.line_count} lines; nothing was changed. "
            f"{explain_miss(text, old)}"
        )
    if len(places) > 1:
        raise ToolError(_say_all(document, old, places))
    [(start, end)] = places
    if document.has_crlf and "\r" not in old:
        new = with_ends_of(text[start:end], new, end=end_near(text, end))
    return Match(start, end, _with_bytes_of(document.text[start:end], text[start:end], new))


def is_in(document: Document, old: str) -> bool:
    """Whether old has a match."""
    return next(_places(document.shown, old, is_crlf=document.has_crlf), None) is not None


def _places(text: str, old: str, *, is_crlf: bool) -> Iterator[tuple[int, int]]:
    """Every match, also overlapping ones, in time linear in the text (no pattern: files may be hostile)."""
    is_loose = is_crlf and "\n" in old and "\r" not in old
    plain = text.replace("\r\n", "\n") if is_loose else text
    at = plain.find(old)
    start, before = 0, 0
    while at >= 0:
        start, before = (_advance(text, start, at - before), at) if is_loose else (at, at)
        yield start, _advance(text, start, len(old)) if is_loose else start + len(old)
        at = plain.find(old, at + 1)


def _advance(text: str, start: int, count: int) -> int:
    """The index count characters after start; CRLF counts as one."""
    end = start
    while count:
        counted, end = max(start, end - 1), end + count
        count = text.count("\r\n", counted, end)
    return end + (end > start and text[end - 1 : end + 1] == "\r\n")


def _say_all(document: Document, old: str, places: list[tuple[int, int]]) -> str:
    text = document.shown
    plain, wanted = (part.replace("\r\n", "\n") for part in (text, old))
    count = max(plain.count(wanted), len(places))
    lines = [*dict.fromkeys(str(line_of(text, start)) for start, _ in places[:MAX_LINES_NAMED])]
    named = ", ".join([*lines, "..."] if count > MAX_LINES_NAMED else lines)
    return (
        f"old_str is in the file {count} times, on line{'s' * (named != lines[0])} {named}; nothing was changed. "
        "Add the lines before or after the one you mean, so that it is unique."
    )


def _with_bytes_of(real: str, shown: str, new: str) -> str:
    """Replace the placeholder characters in new by the file's own bytes.

    Raises:
        ToolError: it has more or fewer of them than old had.
    """
    if real == shown:
        return new
    kept = [char for char, sign in zip(real, shown, strict=True) if sign == "\ufffd"]
    if new.count("\ufffd") not in (0, len(kept)):
        raise ToolError(
            f"old_str holds {len(kept)} and new_str {new.count(chr(0xFFFD))} of the signs \ufffd that stand for bytes "
            "which are not UTF-8; nothing was changed. Keep all of them in new_str, or none."
        )
    queue = iter(kept)
    return re.sub("\ufffd", lambda _: next(queue), new)


# --- near misses ------------------------------------------------------------------------------


def explain_miss(text: str, old: str) -> str:
    """One or two sentences for the model: the text closest to old, and the remedy."""
    if len(text) > MAX_HINT_CHARS:
        return "The file is too large to look for what comes close: search it with grep -n in execute_bash."
    plain = old.replace("\r\n", "\n")
    if "\r" in old and plain in text:
        return f"It differs in line ends only: old_str has CRLF, line {_line(text, plain)} of the file has LF."
    without = _NUMBERS.sub("", plain)
    if without != plain and _flexible(text, without):
        return "old_str holds the line numbers that `view` prints; leave out numbers and tabs."
    return _by_blanks(text, plain) or _by_look(text, plain) or _by_lines(text, plain)


def _by_blanks(text: str, old: str) -> str | None:
    found = _flexible(text, old)
    if found is None:
        return None
    was, wanted = text[found[0] : found[1]].split("\n"), old.strip().split("\n")
    indent = old[: len(old) - len(old.lstrip())].rpartition("\n")[2]
    is_indented_alike = text.endswith(indent, 0, found[0])
    if is_indented_alike and [part.rstrip() for part in was] == [part.rstrip() for part in wanted]:
        what = "in blanks at the end of a line, or in line breaks around it"
    elif [part.strip() for part in was] == [part.strip() for part in wanted]:
        what = f"in indentation (tabs or blanks){_tabs(text[text.rfind(chr(10), 0, found[0]) + 1 : found[1]], old)}"
    else:
        what = "in blanks or line breaks"
    return f"On line {line_of(text, found[0])} the file differs {what}. It has exactly: {_quoted(text, *found)}"


def _tabs(real: str, old: str) -> str:
    if ("\t" in real) == ("\t" in old):
        return ""
    return ": the file has tabs" if "\t" in real else ": the file has blanks, no tabs"


def _by_look(text: str, old: str) -> str | None:
    folded, wanted = _fold(text), _fold(old)
    found = _flexible(folded, wanted)
    if found is None:
        other = _flexible(folded.lower(), wanted.lower())
        if other is None:
            return None
        return f"On line {line_of(folded.lower(), other[0])} it is there in other letter case; copy it from there."
    first, last = line_of(folded, found[0]), line_of(folded, found[1])
    strange = _strange("\n".join(split_lines(text)[first - 1 : last]), old)
    return f"Line {first} of the file looks the same and has other characters{strange}. Copy it from `view`."


def _strange(real: str, old: str) -> str:
    """The names of characters that only one of them contains."""
    named = [
        f"{who} has U+{ord(char):04X} {unicodedata.name(char, 'unnamed')}"
        for who, one, other in (("the file", real, old), ("old_str", old, real))
        for char in sorted(set(one) - set(other))
        if not char.isascii()
    ]
    return f": {', '.join(named[:4])}" if named else ""


def _by_lines(text: str, old: str) -> str:
    """The place with the most consecutive equal lines, or a line similar to the first one."""
    lines = [line.strip() for line in split_lines(text)]
    wanted = [line.strip() for line in split_lines(old.strip("\n"))]
    first = wanted[0] if wanted else ""
    best, at = 0, 0
    for start in [number for number, line in enumerate(lines) if first and line == first][:100]:
        run = next((k for k, line in enumerate(wanted) if lines[start + k : start + k + 1] != [line]), len(wanted))
        best, at = max((best, at), (run, start))
    if best:
        there = repr(lines[at + best])[:200] if at + best < len(lines) else "the file's end"
        return (
            f"Its beginning is on line {at + 1}; line {at + best + 1} is {there}, where old_str has "
            f"{wanted[best]!r:.200}. View that part and copy it."
        )
    close = difflib.get_close_matches(first[:CLOSE_CHARS], [line[:CLOSE_CHARS] for line in lines[:CLOSE_LINES]], n=1)
    if close:
        number = next(n for n, line in enumerate(lines, 1) if line[:CLOSE_CHARS] == close[0])
        return f"Line {number} comes closest to its first line: {close[0]!r:.200}. View that part and copy it."
    return "Nothing in the file comes close; view it, or check the path."


def _flexible(text: str, old: str) -> tuple[int, int] | None:
    """The indices of the first match of old, with all runs of blanks treated as equal."""
    plain, wanted = " ".join(text.split()), " ".join(old.split())
    at = plain.find(wanted)
    if at < 0 or not wanted:
        return None
    return _index_in(text, plain, at), _index_in(text, plain, at + len(wanted) - 1) + 1


def _index_in(text: str, plain: str, at: int) -> int:
    """The index in text that corresponds to plain[at]; plain is the words of text with one blank between them."""
    word = next(islice(re.finditer(r"\S+", text), plain.count(" ", 0, at), None))
    return word.start() + at - (plain.rfind(" ", 0, at) + 1)


def _fold(text: str) -> str:
    """Unify look-alike signs and letters and drop accents. Line feeds are preserved.

    Works by character: normalizing a whole text is quadratic in the length of a run of combining marks.
    """
    return text if text.isascii() else text.translate({ord(char): _fold_char(char) for char in set(text)})


def _fold_char(char: str) -> str:
    if char.isspace():
        return char
    parts = unicodedata.normalize("NFKD", char).translate(_LOOKS_LIKE)
    return "".join(part for part in parts if not unicodedata.combining(part))


def _line(text: str, part: str) -> int:
    return line_of(text, text.index(part))


def _quoted(text: str, start: int, end: int) -> str:
    """The whole lines of the place as a literal, which distinguishes blanks, tabs and line breaks."""
    start, end = text.rfind("\n", 0, start) + 1, text.find("\n", end)
    real = text[start : len(text) if end < 0 else end].replace("\r\n", "\n").removesuffix("\r")
    more = f" ({len(real) - MAX_QUOTED_CHARS} more characters)" if len(real) > MAX_QUOTED_CHARS else ""
    return f"{real[:MAX_QUOTED_CHARS]!r}{more}"
