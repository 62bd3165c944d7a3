"""Finds the text to replace: exactly one exact match; otherwise reports the places or near misses."""

from __future__ import annotations

import difflib
import re
import unicodedata
from bisect import bisect_left
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from ohsandbox.errors import ToolError
from ohsandbox.tools.file_editor.lines import end_near, line_number_at, split_lines, with_ends_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ohsandbox.runtime.files.text import Document

_MAX_LINES_NAMED = 10
"""Limit of line numbers reported for a text; more mean that the text is too short."""
_MAX_HINT_CHARS = 2_000_000
"""Limit of files searched for near misses: folding 2 MB costs about 0.1 s."""
MAX_QUOTED_CHARS = 600
"""The part of the file that a hint quotes: enough for typical model errors, short in the context."""
_CLOSE_LINES = 2_000
_CLOSE_CHARS = 100
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
    places = [*islice(_places(document, old), _MAX_LINES_NAMED + 1)]
    if not places:
        raise ToolError(
            f"old_str is not in the file, which has {document.line_count} lines; nothing was changed. "
            f"{explain_miss(text, old)}"
        )
    if len(places) > 1:
        plain, plain_old = (part.replace("\r\n", "\n") for part in (text, old))
        count = max(plain.count(plain_old), len(places))
        lines = [*dict.fromkeys(str(line_number_at(text, start)) for start, _ in places[:_MAX_LINES_NAMED])]
        numbers = ", ".join([*lines, "..."] if count > _MAX_LINES_NAMED else lines)
        raise ToolError(
            f"old_str is in the file {count} times, on line{'s' * (numbers != lines[0])} {numbers}; nothing was "
            "changed. Add the lines before or after the one you mean, so that it is unique."
        )
    [(start, end)] = places
    if document.has_crlf and "\r" not in old:
        new = with_ends_of(text[start:end], new, end=end_near(text, end))
    return Match(start, end, _with_bytes_of(document.text[start:end], text[start:end], new))


def is_in(document: Document, old: str) -> bool:
    """Whether old has a match."""
    return next(_places(document, old), None) is not None


def _places(document: Document, old: str) -> Iterator[tuple[int, int]]:
    """Every match, also overlapping ones, in time linear in the text (no pattern of old: files may be hostile)."""
    text = plain = document.shown
    returns: list[int] | None = []
    if document.has_crlf and "\n" in old and "\r" not in old:  # the match is sought without carriage returns
        plain = text.replace("\r\n", "\n")
        # the index in plain of the line feed behind each carriage return; None where all line feeds have one
        is_mixed = len(text) - len(plain) < plain.count("\n")
        returns = [match.start() - k for k, match in enumerate(re.finditer("\r\n", text))] if is_mixed else None

    def index_in_text(position: int) -> int:
        return position + (plain.count("\n", 0, position) if returns is None else bisect_left(returns, position))

    position = plain.find(old)
    while position >= 0:
        yield index_in_text(position), index_in_text(position + len(old))
        position = plain.find(old, position + 1)


def _with_bytes_of(real: str, decoded: str, new: str) -> str:
    """Replace the placeholder characters in new by the file's own bytes.

    Raises:
        ToolError: it has more or fewer of them than old had.
    """
    if real == decoded:
        return new
    signs = [char for char, sign in zip(real, decoded, strict=True) if sign == "\ufffd"]
    if new.count("\ufffd") not in (0, len(signs)):
        raise ToolError(
            f"old_str holds {len(signs)} and new_str {new.count(chr(0xFFFD))} of the signs \ufffd that stand for bytes "
            "which are not UTF-8; nothing was changed. Keep all of them in new_str, or none."
        )
    queue = iter(signs)
    return re.sub("\ufffd", lambda _: next(queue), new)


# --- near misses ------------------------------------------------------------------------------


def explain_miss(text: str, old: str) -> str:
    """One or two sentences for the model: the text closest to old, and the remedy."""
    if len(text) > _MAX_HINT_CHARS:
        return "The file is too large to look for what comes close: search it with grep -n in execute_bash."
    plain = old.replace("\r\n", "\n")
    if "\r" in old and plain in text:
        line = line_number_at(text, text.index(plain))
        return f"It differs in line ends only: old_str has CRLF, line {line} of the file has LF."
    without = _NUMBERS.sub("", plain)
    if without != plain and _flexible(text, without):
        return "old_str holds the line numbers that `view` prints; leave out numbers and tabs."
    unescaped = plain.replace("\\n", "\n").replace("\\t", "\t").replace('\\"', '"')
    if unescaped != plain and _flexible(text, unescaped):
        return "old_str holds escape sequences (backslash and n, t or a quote) where the file has the characters."
    return _by_blanks(text, plain) or _by_look(text, plain) or _by_lines(text, plain)


def _by_blanks(text: str, old: str) -> str | None:
    span = _flexible(text, old)
    if span is None:
        return None
    was, wanted_lines = text[span[0] : span[1]].split("\n"), old.strip().split("\n")
    start, end = text.rfind("\n", 0, span[0]) + 1, text.find("\n", span[1])
    indent = old[: len(old) - len(old.lstrip())].rpartition("\n")[2]
    is_indented_alike = text.endswith(indent, 0, span[0])
    if is_indented_alike and [part.rstrip() for part in was] == [part.rstrip() for part in wanted_lines]:
        difference = "in blanks at the end of a line, or in line breaks around it"
    elif [part.strip() for part in was] == [part.strip() for part in wanted_lines]:
        has_tabs = "\t" in text[start : span[1]]
        difference = "in indentation (tabs or blanks)"
        if has_tabs != ("\t" in old):
            difference += ": the file has tabs" if has_tabs else ": the file has blanks, no tabs"
    else:
        difference = "in blanks or line breaks"
    # the whole lines as a literal, which distinguishes blanks, tabs and line breaks
    real = text[start : len(text) if end < 0 else end].replace("\r\n", "\n").removesuffix("\r")
    more = f" ({len(real) - MAX_QUOTED_CHARS} more characters)" if len(real) > MAX_QUOTED_CHARS else ""
    quoted = f"{real[:MAX_QUOTED_CHARS]!r}{more}"
    return f"On line {line_number_at(text, span[0])} the file differs {difference}. It has exactly: {quoted}"


def _by_look(text: str, old: str) -> str | None:
    folded, folded_old = _fold(text), _fold(old)
    span = _flexible(folded, folded_old)
    if span is None:
        lower_span = _flexible(folded.lower(), folded_old.lower())
        if lower_span is None:
            return None
        number = line_number_at(folded.lower(), lower_span[0])
        return f"On line {number} it is there in other letter case; copy it from there."
    first, last = line_number_at(folded, span[0]), line_number_at(folded, span[1])
    real = "\n".join(split_lines(text)[first - 1 : last])
    strange = [
        f"{who} has U+{ord(char):04X} {unicodedata.name(char, 'unnamed')}"
        for who, text_of_one, text_of_other in (("the file", real, old), ("old_str", old, real))
        for char in sorted(set(text_of_one) - set(text_of_other))
        if not char.isascii()
    ]
    character_list = f": {', '.join(strange[:4])}" if strange else ""
    return f"Line {first} of the file looks the same and has other characters{character_list}. Copy it from `view`."


def _by_lines(text: str, old: str) -> str:
    """The place with the most consecutive equal lines, or a line similar to the first one."""
    lines = [line.strip() for line in split_lines(text)]
    wanted_lines = [line.strip() for line in split_lines(old.strip("\n"))]
    first = wanted_lines[0] if wanted_lines else ""
    best, start_at = 0, 0
    for start in [number for number, line in enumerate(lines) if first and line == first][:100]:
        run = next(
            (k for k, line in enumerate(wanted_lines) if lines[start + k : start + k + 1] != [line]), len(wanted_lines)
        )
        best, start_at = max((best, start_at), (run, start))
    if best:
        next_line = repr(lines[start_at + best])[:200] if start_at + best < len(lines) else "the file's end"
        return (
            f"Its beginning is on line {start_at + 1}; line {start_at + best + 1} is {next_line}, where old_str has "
            f"{wanted_lines[best]!r:.200}. View that part and copy it."
        )
    close = difflib.get_close_matches(first[:_CLOSE_CHARS], [line[:_CLOSE_CHARS] for line in lines[:_CLOSE_LINES]], n=1)
    if close:
        number = next(n for n, line in enumerate(lines, 1) if line[:_CLOSE_CHARS] == close[0])
        return f"Line {number} comes closest to its first line: {close[0]!r:.200}. View that part and copy it."
    return "Nothing in the file comes close; view it, or check the path."


def _flexible(text: str, old: str) -> tuple[int, int] | None:
    """The indices of the first match of old, with all runs of blanks treated as equal."""
    plain, plain_old = " ".join(text.split()), " ".join(old.split())
    position = plain.find(plain_old)
    if position < 0 or not plain_old:
        return None
    return _index_in(text, plain, position), _index_in(text, plain, position + len(plain_old) - 1) + 1


def _index_in(text: str, plain: str, position: int) -> int:
    """The index in text that corresponds to plain[at]; plain is the words of text with one blank between them."""
    word = next(islice(re.finditer(r"\S+", text), plain.count(" ", 0, position), None))
    return word.start() + position - (plain.rfind(" ", 0, position) + 1)


def _fold(text: str) -> str:
    """Unify look-alike signs and letters and drop accents. Line feeds are preserved.

    Works by character: normalizing a whole text is quadratic in the length of a run of combining marks.
    """

    def fold(char: str) -> str:
        if char.isspace():
            return char
        parts = unicodedata.normalize("NFKD", char).translate(_LOOKS_LIKE)
        return "".join(part for part in parts if not unicodedata.combining(part))

    return text if text.isascii() else text.translate({ord(char): fold(char) for char in set(text)})
