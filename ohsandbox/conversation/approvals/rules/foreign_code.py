"""Recognises short code of Node.js, Perl, Ruby, PHP and Lua that only computes and prints."""

from __future__ import annotations

import re

from ohsandbox.conversation.approvals.rules import known_names

_STRING = re.compile(r"'[^'\\\n#$@`]*'|\"[^\"\\\n#$@`]*\"")
_JSON_FILE = re.compile(r"\brequire\s{0,3}\(\s{0,3}(?:'\./[\w./-]+\.json'|\"\./[\w./-]+\.json\")\s{0,3}\)")
_SUBSTITUTION = re.compile(r"^\s{0,3}(?:s|tr|y)(?P<end>[/|#,])(?:(?!(?P=end))[^\\\n(@$]|\\[^\n])*(?P=end)"
                           r"(?:(?!(?P=end))[^\\\n@`(]|\\[1-9nt/.])*(?P=end)[gimsx]*\s{0,3};?\s{0,3}$")  # fmt: skip
_DEFAULT_VARIABLE = re.compile(r"\$[_\d]\b")
"""Perl's `$_` and `$1`."""
_MATCH = re.compile(r"(?<=[\s(~!])/(?:[^/\\\n@$(#`]|\\[\w.])+/[gimsx]*(?=[\s;)]|$)")
"""A pattern that a text is matched with: no expansion and no group, which may hold code."""
_OTHER_CHARS = re.compile(r"[\w\s.,;:()+\-*<>=!?]*")


def is_harmless(code: str, program: str) -> bool:
    """Whether the code has no names but those known to be harmless, and strings without expansions."""
    if program == "perl" and _SUBSTITUTION.match(code):
        return True
    harmless = known_names(f"code of {program}")
    rest = _STRING.sub(" 0 ", _JSON_FILE.sub(" 0 ", code))
    if program == "perl":
        rest = _DEFAULT_VARIABLE.sub(" 0 ", rest)
    if program in {"perl", "ruby"}:
        rest = _MATCH.sub(" 0 ", rest)
    is_plain = bool(harmless) and _OTHER_CHARS.fullmatch(rest) is not None
    return (
        is_plain
        and "require" not in rest
        and all(name in harmless | known_names("code of any") for name in re.findall(r"[A-Za-z_]\w*", rest))
    )
