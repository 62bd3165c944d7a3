r"""Regular expressions: ripgrep gets them as they are, `grep -E` with the few forms that it would misread rewritten.

POSIX leaves `\d` and `(?:` undefined (XBD 9.4): GNU grep takes `\d` for a `d`, and an answer would be silently wrong.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from ohsandbox.errors import ToolError

_TOKEN = re.compile(
    r"\\.|\[\^?+\]?+(?:\[:\w++:\]|\\.|[^\]\\])*+(?:\]|\\?$)|\(\?.?|[*+?}]\?|[^\\\[(*+?}]++|.", re.DOTALL
)
_IN_CLASS = re.compile(r"\[:\w+:\]|\\.|[^\\]", re.DOTALL)
_CLASSES = {"d": "0-9", "w": "[:alnum:]_", "s": "[:space:]"}
_CHARACTERS = {"t": "\t", "r": "\r", "f": "\f", "v": "\v", "a": "\a"}


class Regex(NamedTuple):
    """The pattern to search for."""

    pattern: str
    ignore_case: bool = False

    def words(self, engine: str) -> tuple[str, str]:
        """The options, as one word, and the pattern for `rg` or `posix`.

        Raises:
            ToolError: the pattern holds a newline, or syntax that `grep -E` does not support.
        """
        if "\n" in self.pattern:
            raise self._refusal("a newline", "Search for a part of one line: lines are searched one by one")
        pattern, folds = self.pattern, self.ignore_case
        if engine == "rg":
            return "-i" if folds else "-s", pattern
        if pattern.startswith("(?i)"):
            pattern, folds = pattern[4:], True
        return f"-sE{'i' if folds else ''}", "".join(map(self._posix, _TOKEN.findall(pattern)))

    def _posix(self, token: str) -> str:
        if token.startswith("[") and token.endswith("]"):
            return self._posix_class(token)
        if token.startswith("\\"):
            return self._posix_escape(token)
        if token.startswith("(?"):
            if token != "(?:":  # noqa: S105 - a piece of a pattern
                raise self._refusal(f"{token!r}", "Use plain groups: lookarounds and flags need ripgrep")
            return "("
        return token[0] if len(token) == 2 and token[1] == "?" else token  # noqa: PLR2004 - a lazy repetition

    def _posix_escape(self, token: str) -> str:
        letter = token[1:]
        if letter.lower() in _CLASSES:
            return f"[{'^' if letter.isupper() else ''}{_CLASSES[letter.lower()]}]"
        if letter in _CHARACTERS:
            return _CHARACTERS[letter]
        if letter.isalpha() and letter not in "bB":
            raise self._refusal(f"{token!r}", "Write the characters themselves, or [...]")
        return token

    def _posix_class(self, token: str) -> str:
        """Rewrite a bracket expression for POSIX, which has no escapes: `]` first, `^` not first, `-` last."""
        negation = "^" if token[1] == "^" else ""
        items, moved = "", ""
        for item in _IN_CLASS.findall(token[1 + len(negation) : -1]):
            if item in ("\\]", "\\^", "\\-", "]"):
                moved += item[-1]
            elif item.startswith("\\") and item[1] in _CLASSES:
                items += _CLASSES[item[1]]
            elif item.startswith("\\"):
                if item[1].isalpha() and item[1] not in _CHARACTERS:
                    raise self._refusal(f"{item!r} in [...]", "Write the characters themselves")
                items += _CHARACTERS.get(item[1], item[1])
            else:
                items += item
        inside = ("]" if "]" in moved else "") + items
        last = "".join(sorted(set(moved) - {"]"}, reverse=bool(inside or negation)))  # ^- behind something, else -^
        return "\\^" if f"{negation}{inside}{last}" == last == "^" else f"[{negation}{inside}{last}]"

    def _refusal(self, feature: str, remedy: str) -> ToolError:
        return ToolError(f"Invalid pattern {self.pattern!r}: this sandbox's search cannot do {feature}. {remedy}.")
