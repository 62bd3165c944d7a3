"""Recognises short code of Node.js, Perl, Ruby, PHP and Lua that only computes and prints."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ohsandbox.conversation.approvals.rules import known_names
from ohsandbox.conversation.approvals.rules.known_programs import arguments_of

if TYPE_CHECKING:
    from ohsandbox.conversation.approvals.rules.shell_syntax import SimpleCommand

_STRING = re.compile(r"'(?:[^'\\\n#$@`]|\\[nt])*'|\"(?:[^\"\\\n#$@`]|\\[nt])*\"")
_JSON_FILE = re.compile(r"\brequire\s{0,3}\(\s{0,3}(?:'\./[\w./-]+\.json'|\"\./[\w./-]+\.json\")\s{0,3}\)")
_RENAMES = frozenset({"rename", "prename", "file-rename"})
_RENAMING = re.compile(
    r"s/\\\.\w+\$/\.(?!pth/)\w+/i?|s/(?:[^\\\n(@$/]|\\[^\n/]|\$(?=/))+/(?!\w*pth/)\w[\w-]*/[gi]{0,2}|"
    r"(?:y|tr)/(?:A-Z/a-z|a-z/A-Z)/|\.\w+"
)
"""Substitutions of Perl that put no dot at the beginning of a name that has none there, nor `/`.

Of an extension, or by a text without dots that is not empty; for rename(1) of util-linux the first of two texts.
"""
_SUBSTITUTION = re.compile(
    r"^\s{0,3}(?:s|tr|y)(?P<end>[/|#,])(?:(?!(?P=end))[^\\\n(@$]|\\[^\n]|\((?![?*])|\(\?[:=!]|\$(?=\)|(?P=end)))*(?P=end)"
    r"(?:(?!(?P=end))[^\\\n@$]|\\[1-9nt/.]|\$(?:[1-9&](?!\d|\[|\{|->)|\{[1-9]\}(?!\[|\{|->)))*(?P=end)[gimsx]*\s{0,3};?\s{0,3}$"
)
"""One substitution of Perl. perlop(1): `$x[...]`, `${...}`, `@...` and `(?{...})` in its parts hold code."""
_NAME = re.compile(r"(?<![.\w])[A-Za-z_]\w*")
_BOUND = re.compile(r"(?:\A|[;\n])[ \t]{0,9}const\s{1,9}(\w+)\s{0,9}=")
"""A name that JavaScript binds: it may be used, though not as the name of a property (`x.constructor`)."""
_UNBOUND = re.compile(r"\.\s|\bfor\b|\brequire\b|\bvar\b|<!--|-->")
"""Where a name may be a property's, bound in a loop alone, or, with `var`, that of the global object.

`let` before the end of a line may be a name, too, and after `<!--` and `-->` there may be a comment.
"""
_DEFAULT_VARIABLE = re.compile(r"\$[_\d]\b")
"""Perl's `$_` and `$1`."""
_MATCH = re.compile(r"(?<=[\s(~!])/(?:[^/\\\n@$(#`]|\\[\w.])+/[gimsx]*(?=[\s;)]|$)")
"""A pattern that a text is matched with: no expansion and no group, which may hold code."""
_OTHER_CHARS = re.compile(r"[\w\s.,;:()+\-*<>=!?]*")


def is_harmless(code: str, command: SimpleCommand) -> bool:
    """Whether the command's code has no names but those known to be harmless, and strings without expansions."""
    program = command.program
    if program in _RENAMES:
        names = [item.text for item in arguments_of(command).of_kind("write")]
        if code.startswith("."):
            text, *names = names or [""]
            if not re.fullmatch(r"\.(?!pth$)\w+", text):
                return False
        is_plain = bool(names) and not any(re.search(r"(?:^|/)\.|[$`]", name) for name in names)
        return is_plain and _RENAMING.fullmatch(code) is not None
    if program == "perl" and _SUBSTITUTION.match(code):
        return True
    harmless = known_names(f"code of {program}")
    rest = _STRING.sub(" 0 ", _JSON_FILE.sub(" 0 ", code))
    if program == "perl":
        rest = _DEFAULT_VARIABLE.sub(" 0 ", rest)
    if program in {"perl", "ruby"}:
        rest = _MATCH.sub(" 0 ", rest)
    if "const" in harmless and not _UNBOUND.search(rest):
        bound = frozenset(_BOUND.findall(rest))
        rest = _NAME.sub(lambda name: " 0 " if name[0] in bound else name[0], rest)
    is_plain = bool(harmless) and _OTHER_CHARS.fullmatch(rest) is not None
    return (
        is_plain
        and "require" not in rest
        and all(name in harmless | known_names("code of any") for name in re.findall(r"[A-Za-z_]\w*", rest))
    )
