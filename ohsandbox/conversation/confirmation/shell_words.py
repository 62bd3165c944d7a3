"""The simple commands of a shell text: rough, for rules. What it cannot read it splits at blanks."""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_PUNCTUATION = ";&|()<>\n"
_LEADING = frozenset(
    {"if", "then", "elif", "else", "while", "until", "do", "for", "in", "{", "}", "!", "time", "coproc"}
)
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*\+?=")
_ROUGH = re.compile(r"[;&|()<>\n]+|[^\s;&|()<>]+")
_WRAPPERS: dict[str, frozenset[str]] = {
    "env": frozenset({"-u", "--unset", "-C", "-S"}),
    "nohup": frozenset(),
    "nice": frozenset({"-n"}),
    "ionice": frozenset({"-c", "-n"}),
    "setsid": frozenset(),
    "stdbuf": frozenset({"-i", "-o", "-e"}),
    "command": frozenset(),
    "builtin": frozenset(),
    "exec": frozenset({"-a"}),
    "timeout": frozenset({"-k", "-s"}),
    "xargs": frozenset({"-I", "-n", "-P", "-d", "-L", "-a", "-E", "-s"}),
    "busybox": frozenset(),
    "unbuffer": frozenset(),
    "chroot": frozenset(),
}
"""Programs that run another, and their options that take a word."""
_ONE_WORD_FIRST = frozenset({"timeout", "chroot"})


class Simple(NamedTuple):
    """One command."""

    program: str
    """Without its directory."""
    arguments: tuple[str, ...]
    before: str
    """The punctuation before it: "|", "&&", "$(", ...; "" for the first."""
    written: tuple[str, ...] = ()
    """Targets of its output redirections."""
    wrapped_by: tuple[str, ...] = ()

    @property
    def flags(self) -> str:
        """The letters of its short options."""
        words = [word[1:] for word in self.arguments if word.startswith("-") and not word.startswith("--")]
        return "".join(words)

    @property
    def operands(self) -> list[str]:
        """What is no option."""
        return [word for word in self.arguments if not word.startswith("-")]

    def has(self, *options: str) -> bool:
        """Whether one of the long options (or exact words) is there."""
        return any(word.split("=", 1)[0] in options for word in self.arguments)


def simple_commands(text: str) -> list[Simple]:
    """The commands in text, in order; those in `$(...)`, backquotes and groups as well, where they are not quoted."""
    text = re.sub(r"\$\{?IFS\}?(?![A-Za-z_])", " ", text.replace("\\\n", " "))
    found: list[Simple] = []
    before, words = "", []
    for token in [*_tokens(text), ";"]:
        if not _is_punctuation(token):
            words.append(token)
        elif token.strip("\n") in {">", ">>", ">|", "&>", "&>>", ">&", "<", "<<", "<<<", "<>"}:
            words.append(token.strip("\n"))
        else:
            found += _made(words, before)
            before, words = _joined(words, token), []
    return found


def _joined(words: Sequence[str], token: str) -> str:
    return f"${token}" if words and words[-1].endswith("$") and token.startswith("(") else token.strip("\n") or "\n"


def _made(words: Sequence[str], before: str) -> Iterator[Simple]:
    """The command of the words, without assignments, keywords and redirections; one that runs another is that other."""
    argv, written = _without_redirections([word.replace("`", "") for word in words])
    while argv and (argv[0] in _LEADING or _ASSIGNMENT.match(argv[0]) or argv[0] in {"$", ""}):
        argv = argv[1:]
    wrapped: list[str] = []
    while argv and _name(argv[0]) in _WRAPPERS:
        wrapped.append(_name(argv[0]))
        argv = _unwrapped(argv)
    if argv:
        yield Simple(_name(argv[0]), tuple(argv[1:]), before, tuple(written), tuple(wrapped))
    elif written or wrapped:
        yield Simple(wrapped[-1] if wrapped else "", (), before, tuple(written), tuple(wrapped[:-1]))


def _unwrapped(argv: list[str]) -> list[str]:
    name, rest = _name(argv[0]), argv[1:]
    while rest and (rest[0].startswith("-") or (name == "env" and _ASSIGNMENT.match(rest[0]))):
        rest = rest[2:] if rest[0] in _WRAPPERS[name] else rest[1:]
    return rest[1:] if name in _ONE_WORD_FIRST else rest


def _without_redirections(words: Sequence[str]) -> tuple[list[str], list[str]]:
    argv: list[str] = []
    written: list[str] = []
    rest = iter(words)
    for word in rest:
        if word.startswith((">", "&>")):
            target = next(rest, "")
            if not (word == ">&" and target.isdigit()):
                written.append(target)
            if argv and argv[-1].isdigit():
                argv.pop()  # the descriptor of `2>`
        elif word.startswith("<"):
            next(rest, "")
        else:
            argv.append(word)
    return argv, written


def _name(word: str) -> str:
    return word.rsplit("/", 1)[-1]


def _tokens(text: str) -> list[str]:
    try:
        return _lexed(text)
    except ValueError:  # an apostrophe in a here-document
        return [token for line in text.split("\n") for token in (*_line_tokens(line), "\n")]


def _line_tokens(line: str) -> list[str]:
    try:
        return _lexed(line)
    except ValueError:
        return [token.replace("'", "").replace('"', "") for token in _ROUGH.findall(line)]


def _lexed(text: str) -> list[str]:
    lexer = shlex.shlex(text, posix=True, punctuation_chars=_PUNCTUATION)
    lexer.whitespace = " \t\r"
    lexer.whitespace_split = True
    lexer.commenters = ""
    return list(lexer)


def _is_punctuation(token: str) -> bool:
    return bool(token) and all(character in _PUNCTUATION for character in token)
