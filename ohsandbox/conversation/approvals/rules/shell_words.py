"""Words of a shell's syntax tree: brace expansion, quote removal, the values of variables, and field splitting."""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    _Node = Mapping[str, Any]

_MAX_BRACES = 64

_OPEN, _CLOSE, _COMMA, _SPLIT = "\ue000", "\ue001", "\ue002", "\ue003"
"""Placeholders for `{`, `}`, `,` outside quotes, and for a place where the shell splits a word; no result has them."""

SENTINELS = str.maketrans({_OPEN: "{", _CLOSE: "}", _COMMA: ",", _SPLIT: " "})
_BRACES = str.maketrans({"{": _OPEN, "}": _CLOSE, ",": _COMMA})
_GROUP = re.compile(f"{_OPEN}([^{_OPEN}{_CLOSE}]*){_CLOSE}")
_UNQUOTED_ESCAPE = re.compile(r"\\(\n|.)|([{},])", re.DOTALL)
_QUOTED_ESCAPE = re.compile(r"\\([$`\"\\\n])")
_ANSI_C = re.compile(r"\\(x[0-9A-Fa-f]{1,2}|u[0-9A-Fa-f]{1,4}|U[0-9A-Fa-f]{1,8}|[0-7]{1,3}|c.|.)", re.DOTALL)
_ANSI_C_LETTERS = dict(zip("abeEfnrtv", "\a\b\x1b\x1b\f\n\r\t\v", strict=True))
COMPUTED = "$(...)"
"""Placeholder for a command substitution in a word."""


def fields(word: Mapping[str, Any], variables: Mapping[str, str]) -> list[str]:
    """Expand a word to fields: brace expansion, quote removal and field splitting."""
    fields: list[str] = []
    for text in _expanded(expanded_text(word.get("Parts"), variables)):
        fields += [piece.translate(SENTINELS) for piece in text.split(_SPLIT) if piece or _SPLIT not in text]
    return fields


def plain(word: Mapping[str, Any] | None, variables: Mapping[str, str]) -> str:
    """Expand a word without field splitting."""
    return expanded_text((word or {}).get("Parts"), variables).translate(SENTINELS)


def expanded_text(
    parts: Sequence[Mapping[str, Any]] | None, variables: Mapping[str, str], *, quoted: bool = False
) -> str:
    """Expand the parts of a word, without field splitting; what is unknown stays as `$NAME` or COMPUTED."""
    return "".join(_part(part, variables, quoted=quoted) for part in parts or ())


def _part(part: Mapping[str, Any], variables: Mapping[str, str], *, quoted: bool) -> str:
    kind, value = part.get("Type"), part.get("Value", "")
    if kind == "Lit":
        return _QUOTED_ESCAPE.sub(_escaped, value) if quoted else _UNQUOTED_ESCAPE.sub(_escaped, value)
    if kind == "SglQuoted":
        return _ANSI_C.sub(_ansi_c_character, value) if part.get("Dollar") else str(value)
    if kind == "DblQuoted":
        return expanded_text(part.get("Parts"), variables, quoted=True)
    if kind == "ParamExp":
        return _parameter(part, variables, quoted=quoted)
    if kind == "ExtGlob":
        return "*"
    return COMPUTED


def _escaped(match: re.Match[str]) -> str:
    if match[1] is None:
        return match[0].translate(_BRACES)
    return "" if match[1] == "\n" else match[1]


def _parameter(part: Mapping[str, Any], variables: Mapping[str, str], *, quoted: bool) -> str:
    name = (part.get("Param") or {}).get("Value", "")
    changed = [key for key in part if key not in {"Type", "Short", "Param", "Exp"} and part[key]]
    expansion = part.get("Exp") or {}
    value: str | None = None
    if not changed and (not expansion or expansion.get("Op") in {":-", "-", ":=", "="}):
        value = variables.get(name)
        if value is None and expansion and variables:
            value = plain(expansion.get("Word"), variables)
    if name == "IFS" and value is None:
        value = " "
    if value is None:
        return f"${name}" if not changed and not expansion else f"${{{name}...}}"
    return value if quoted and name != "@" else re.sub(r"\s+", _SPLIT, value)


def _ansi_c_character(match: re.Match[str]) -> str:
    code = match[1]
    if code[0] in "xuU" and len(code) > 1:
        number = int(code[1:], 16)
        return chr(number) if number <= sys.maxunicode else "\ufffd"
    if code[0] in "01234567":
        return chr(int(code, 8) & 0xFF)
    if code[0] == "c" and len(code) > 1:
        return chr(ord(code[1]) & 0x1F)
    return _ANSI_C_LETTERS.get(code, code)


def _expanded(text: str) -> list[str]:
    """The brace expansions of text; more than _MAX_BRACES give one computed word."""
    if _OPEN not in text:
        return [text]
    waiting = [text]
    done: list[str] = []
    for _ in range(4 * _MAX_BRACES):
        if not waiting:
            return done
        word = waiting.pop(0)
        group = _GROUP.search(word)
        if group is None:
            done.append(word)
        elif _COMMA in group[1]:
            waiting += [word[: group.start()] + choice + word[group.end() :] for choice in group[1].split(_COMMA)]
        else:
            inside = f"${{{group[1]}}}" if ".." in group[1] else f"{{{group[1]}}}"
            waiting.append(word[: group.start()] + inside + word[group.end() :])
        if len(waiting) + len(done) > _MAX_BRACES:
            break
    return ["$" + text[:200]]


_LIVE = frozenset({"ParamExp", "CmdSubst", "ArithmExp", "ProcSubst"})


def computed_words(words: Sequence[_Node], chosen: Mapping[str, str]) -> tuple[frozenset[str], frozenset[str]]:
    """The texts of words in which the shell expands something, and of those where it does so outside of quotes."""
    computed: set[str] = set()
    splits: set[str] = set()
    for word in words:
        parts = word.get("Parts") or ()
        live = [part.get("Type") for part in parts if part.get("Type") in _LIVE]
        bare = bool(set(live) & {"ParamExp", "CmdSubst"})
        if live or any(inner.get("Type") in _LIVE for part in parts for inner in part.get("Parts") or ()):
            texts = {text for text in [*fields(word, chosen), plain(word, chosen)] if "$" in text}
            computed |= texts
            splits |= texts if bare else set()
    return frozenset(computed), frozenset(splits)


def input_of(redirection: _Node) -> _Node:
    """The word of a here-string, or the text of a here-document in which the shell expands something."""
    if redirection.get("Op") in {"<<<", "<"}:
        return redirection.get("Word") or {}
    end = (redirection.get("Word") or {}).get("Parts") or ()
    is_quoted = any(part.get("Type") != "Lit" or "\\" in part.get("Value", "") for part in end)
    return {} if is_quoted else {"Parts": [{"Type": "DblQuoted", **(redirection.get("Hdoc") or {})}]}
