"""Recognises short code of Node.js, Perl, Ruby, PHP and Lua that only computes and prints."""

from __future__ import annotations

import re

from ohsandbox.conversation.approvals.rules import names, names_by_program

_COMMON = names("print puts p echo if unless and or not for in while true false null nil length")

_HARMLESS = names_by_program({
    "node nodejs bun tsx ts-node": """
        console log error JSON stringify parse process version versions argv platform arch env PATH NODE_ENV Object keys
        values entries Math max min floor round ceil PI Array from isArray map filter join split slice sort reverse
        includes indexOf toUpperCase toLowerCase trim Number String parseInt parseFloat Date now let const var new
        typeof undefined dependencies devDependencies scripts name main repeat padStart padEnd toFixed concat
    """,
    "perl": """
        printf uc lc ucfirst reverse sort keys values join split chomp defined next last my ne eq lt gt le ge x
        BEGIN END
    """,
    "ruby": """
        printf upcase downcase reverse sort sum max min join split map to_i to_s to_f size count first last chomp strip
        uniq each do end RUBY_VERSION RUBY_PLATFORM RUBY_ENGINE
    """,
    "php": """
        phpversion PHP_VERSION PHP_EOL PHP_OS strlen strtoupper strtolower json_encode print_r var_dump count
        PHP_INT_MAX
    """,
    "lua luajit": "_VERSION tostring tonumber string upper lower format rep math floor sqrt pi",
})  # fmt: skip
"""Names that run and write nothing, whatever they are given."""

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
    known = _COMMON | _HARMLESS.get(program, frozenset())
    rest = _STRING.sub(" 0 ", _JSON_FILE.sub(" 0 ", code))
    if program == "perl":
        rest = _DEFAULT_VARIABLE.sub(" 0 ", rest)
    if program in {"perl", "ruby"}:
        rest = _MATCH.sub(" 0 ", rest)
    is_plain = program in _HARMLESS and _OTHER_CHARS.fullmatch(rest) is not None
    return is_plain and "require" not in rest and all(name in known for name in re.findall(r"[A-Za-z_]\w*", rest))
