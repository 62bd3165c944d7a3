r"""Foreign text as a person reviews it before a decision: nothing is deleted, and no character goes unseen.

A character that a terminal does not show as itself stands as its code point, `\u{202e}`; a text that spells the same
in letters stands as `\u{5c}u{202e}`, so the two can be told apart. A long run of blanks is counted: `\u{20*300}`.
Program output is another matter, see `runtime.shell.terminal`: there the last state of a line is what was meant.
"""

from __future__ import annotations

import re
import unicodedata
from itertools import groupby
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_MAX_BLANKS = 64
"""More in a row are counted instead: deeper indentation is rare, and eighty push what follows into the next row."""
_MAX_EMPTY_LINES = 5
"""More in a row are counted instead, so that none push the end of a text out of sight."""
_MARKS = "\u0300-\u036f\u0483-\u0489\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20ff\ufe20-\ufe2f"
_HIDDEN = re.compile(
    "["
    "\x00-\x08\x0b-\x1f\x7f-\xa0\xad"  # C0 but tab and newline, DEL, C1, no-break space, soft hyphen
    "\u034f\u0600-\u0605\u061c\u06dd\u070f\u0890\u0891\u08e2"  # joiner, marks that format Arabic and Syriac
    "\u115f\u1160\u1680\u17b4\u17b5\u180b-\u180f"  # fillers, blanks and selectors of Hangul, Ogham, Khmer, Mongolian
    "\u2000-\u200f\u2028-\u202f\u205f-\u206f"  # blanks, zero width, separators, bidirectional marks
    "\u2800\u3000\u3164\uffa0"  # braille blank, ideographic space, Hangul fillers
    "\ud800-\udfff\ue000-\uf8ff"  # lone surrogates; private use: whatever a font makes of it
    "\ufe00-\ufe0f\ufeff\ufff0-\ufffb\ufffe\uffff"
    "\U0001107f\U000110bd\U000110cd\U00013430-\U0001345f\U0001bca0-\U0001bca3\U0001d173-\U0001d17a"
    "\U000e0000-\U0010ffff"  # tags, more selectors, private use
    f"]|(?<=[{_MARKS}]{{2}})[{_MARKS}]"  # the third mark over one letter, which begins to cover other lines
)
"""Categories Cc, Cf, Cs, Co, Zl, Zp and Zs, and Default_Ignorable_Code_Point, of Unicode 15.1; a test compares them."""
_EMOJI = "\xa9\xae\u203c\u2049\u2122\u2139\u2190-\u21ff\u2300-\u27bf\u2900-\u297f\u2b00-\u2bff\u3030\u303d\u3297\u3299"
_EMOJI += "\U0001f000-\U0001faff"
_AS_EMOJI = re.compile(
    f"(?<=[{_EMOJI}])\ufe0f(?:\u200d(?=[{_EMOJI}]))?|(?<=[{_EMOJI}])\u200d(?=[{_EMOJI}])|(?<=[0-9#*])\ufe0f(?=\u20e3)"
)
"""What makes emoji of symbols, as UTS 51 has it: one selector or joiner after a symbol that is seen."""
_SPELT = re.compile(r"\\(?=u\{[0-9a-f]{1,6}(?:\*\d{1,9})?\})", re.IGNORECASE)
_BLANKS = re.compile(rf"[ \t]{{{_MAX_BLANKS + 1},}}")
_WORD = re.compile(r"[^\W\d_]+")
_JOINED = re.compile(r"\w+")
_LATIN = re.compile("[A-Za-z]")
_OTHER = re.compile("[\u0370-\u03ff\u0400-\u052f\u0531-\u0587\u1f00-\u1fff]")
_CYRILLIC = re.compile("[\u0400-\u052f]")
_ALIKE = frozenset(
    "\u0430\u0435\u043e\u0440\u0441\u0443\u0445\u0455\u0456\u0458\u0475\u04af\u04bb\u04cf\u0501\u051b\u051d"
    "\u0405\u0406\u0408\u0410\u0412\u0415\u041a\u041c\u041d\u041e\u0420\u0421\u0422\u0423\u0425\u0474\u04ae\u04c0"
    "\u050c\u051a\u051c\u0391\u0392\u0395\u0396\u0397\u0399\u039a\u039c\u039d\u039f\u03a1\u03a4\u03a5\u03a7\u037f"
    "\u03b1\u03b3\u03b9\u03ba\u03bd\u03bf\u03c1\u03c5\u03f2\u03f3\u03f9\u0555\u0578\u057d\u0585\u0570"
)
"""Letters of Cyrillic, Greek and Armenian that are drawn as Latin ones (UTS 39, confusables)."""
_NAMED = 3
"""Most kinds of characters that a sentence names."""
_CONCEALS = "It holds characters that cannot be seen"
_MIXES = "It holds words that mix look-alike letters"


def visible(text: str) -> str:
    """Return the text with every character that would not be seen spelt out; newlines and tabs stay."""
    if "\\" in text:
        text = _SPELT.sub(r"\\u{5c}", text)
    if not text.isascii():
        text = _spell_look_alikes(text)
    emoji = _emoji_in(text)
    text = _HIDDEN.sub(lambda match: match[0] if match.start() in emoji else _unicode_escape(match), text)
    text = _BLANKS.sub(lambda match: "".join(_counted(*run) for run in groupby(match[0])), text)
    return _count_empty_lines(text)


def on_one_line(shown: str) -> str:
    """Return the output of `visible` with newlines and tabs spelt out as well."""
    return shown.replace("\n", r"\u{a}").replace("\t", r"\u{9}")


def concealed_in(text: str) -> list[str]:
    """Return sentences for a person about characters that are not seen as themselves; empty for nearly every text."""
    if text.isascii() and text.isprintable():
        return []
    emoji = _emoji_in(text)
    hidden = dict.fromkeys(match[0] for match in _HIDDEN.finditer(text) if match.start() not in emoji)
    sentences: list[str] = []
    if hidden:
        more = f" and {len(hidden) - _NAMED} more kinds" if len(hidden) > _NAMED else ""
        sentences.append(f"{_CONCEALS}: {_names(hidden)}{more}.")
    if (mixed := next(_mixed(text), None)) is not None:
        sentences.append(f"{_MIXES}: {_names(dict.fromkeys(_OTHER.findall(mixed[0])))} among Latin ones.")
    return sentences


def _emoji_in(text: str) -> set[int]:
    """Positions of hidden characters that only make emoji of symbols."""
    if text.isascii():
        return set()
    return {position for match in _AS_EMOJI.finditer(text) for position in range(*match.span())}


def _unicode_escape(match: re.Match[str]) -> str:
    return rf"\u{{{ord(match[0]):x}}}"


def _counted(character: str, run: Iterator[str]) -> str:
    count = sum(1 for _ in run)
    return rf"\u{{{ord(character):x}{f'*{count}' if count > 1 else ''}}}"


def _count_empty_lines(text: str) -> str:
    if "\n" * 2 not in text and not re.search(r"\n[ \t]+\n", text):
        return text
    lines: list[str] = []
    for is_empty, run in groupby(text.split("\n"), key=lambda line: not line.strip(" \t")):
        group = [*run]
        if is_empty and len(group) > _MAX_EMPTY_LINES:
            group = [rf"\u{{a*{len(group)}}}"]
        lines += group
    return "\n".join(lines)


def _mixed(text: str) -> Iterator[re.Match[str]]:
    for word in _JOINED.finditer(text):
        if word[0].isascii() or not _LATIN.search(word[0]):
            continue
        foreign_letters = _OTHER.findall(word[0])
        parts = _WORD.findall(word[0])
        if foreign_letters and (
            _ALIKE.issuperset(foreign_letters) or any(_LATIN.search(p) and _CYRILLIC.search(p) for p in parts)
        ):
            yield word


def _spell_look_alikes(text: str) -> str:
    pieces: list[str] = []
    position = 0
    for word in _mixed(text):
        pieces += [text[position : word.start()], _OTHER.sub(_unicode_escape, word[0])]
        position = word.end()
    return "".join([*pieces, text[position:]])


def _names(characters: Iterable[str]) -> str:
    """Code points and names of the first few characters."""
    controls = {"\r": "CARRIAGE RETURN", "\x1b": "ESCAPE", "\x00": "NUL", "\x08": "BACKSPACE", "\x7f": "DELETE"}
    return ", ".join(
        f"U+{ord(character):04X} {controls.get(character) or unicodedata.name(character, '')}".strip()
        for character in [*characters][:_NAMED]
    )
