"""Quoting of shell words on one line, and shells that read their script from stdin."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ohsandbox.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable

NEWLINE = "ohs_nl='\n'"
"""Run once by every shell that reads words of `quote`."""

_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
"""A name that POSIX lets a shell export (XBD 3.230)."""


def quote(text: str | bytes) -> bytes:
    """Quote text as one shell word without a newline, for a shell that has run NEWLINE.

    Raises:
        UsageError: text holds a NUL, which no argument or command can.
    """
    raw = text.encode("utf-8", "surrogateescape") if isinstance(text, str) else text
    if b"\0" in raw:
        raise UsageError("A command, argument or path contains a NUL byte. Pass such data on stdin or in a file")
    return b"'" + raw.replace(b"'", b"'\\''").replace(b"\n", b"'\"$ohs_nl\"'") + b"'"


def quote_all(words: Iterable[str]) -> bytes:
    """Quote each word; join them with blanks."""
    return b" ".join(quote(word) for word in words)


def check_env_names(names: Iterable[str]) -> None:
    """Refuse names that a shell cannot export.

    Raises:
        UsageError: there is one; the message names the first.
    """
    for name in names:
        if not _ENV_NAME.fullmatch(name):
            raise UsageError(f"Environment name {name!r} is invalid: use letters, digits and underscores")


SCRIPT_LOST = 97
"""Exit code of a shell from `told` that could not read its script; none of our scripts uses it."""
_END = "#ohs-end"
_READER = (
    "ohs_x=$(dd bs=SIZE count=1 iflag=fullblock 2>/dev/null);"
    'case $ohs_x in "")ohs_no_dd=yes;ohs_nl=$(printf "\\n.");ohs_nl=${ohs_nl%.};while IFS= read -r ohs_l;'
    'do ohs_x=$ohs_x$ohs_l$ohs_nl;[ "$ohs_l" != "END" ]||break;done;esac;'
    'case $ohs_x in *"END"*)eval "$ohs_x";;*)exit LOST;esac'
)
"""dd reads exactly the script, in 1 ms. Without dd, `read` reads it byte by byte, 0.1 s for 15 KB."""


def told(script: str, *arguments: str) -> tuple[list[str], bytes]:
    """The argv of a shell that reads its script from stdin, and the script; `ps` inside then shows one short line.

    The script may read what follows on stdin. The shell exits with SCRIPT_LOST if the script does not arrive.
    """
    raw = f"{script}\n{_END}\n".encode("utf-8", "surrogateescape")
    reader = _READER.replace("SIZE", str(len(raw))).replace("END", _END).replace("LOST", str(SCRIPT_LOST))
    return ["/bin/sh", "-c", reader, *arguments], raw
