"""Applies patches inside a sandbox with its git or its `patch`; never on this machine."""

from __future__ import annotations

import re
import shlex

GIT = "git -c core.fsmonitor= -c core.hooksPath=/dev/null -c safe.directory='*'"
"""git, in a repository that an agent may have configured: no program that its configuration names is started."""
NOT_APPLIED = 114
"""Exit code of `apply_script`: the patch does not apply. No shell and no signal gives it."""
NO_PROGRAM = 115
"""Exit code of `apply_script`: the image has neither git nor patch."""
_HEADER = re.compile(r"(?:---|\+\+\+|rename from|rename to|copy to) (.*)")
_ESCAPE = re.compile(r"\\([0-7]{3}|.)")
_ESCAPED = {"n": b"\n", "t": b"\t", "r": b"\r", "a": b"\a", "b": b"\b", "f": b"\f", "v": b"\v"}


def with_final_newline(patch: str) -> str:
    """Return the patch with a newline at its end; git calls a patch without one corrupt."""
    return patch if not patch or patch.endswith("\n") else f"{patch}\n"


def apply_script(path: str) -> str:
    """Return a shell script that applies the patch at path to the working directory, in the ways SWE-bench tries.

    It prints which way it was. A way that fails leaves nothing behind.
    """
    file = shlex.quote(path)
    return f"""\
if command -v git >/dev/null; then
  {GIT} apply --whitespace=nowarn {file} && echo "applied by git apply" && exit 0
  {GIT} apply --whitespace=nowarn --3way {file} && echo "applied by git apply --3way" && exit 0
  {GIT} rev-parse --git-dir >/dev/null 2>&1 && {GIT} checkout -q HEAD -- . 2>/dev/null
fi
if command -v patch >/dev/null; then
  patch --batch --forward --fuzz=5 -p1 --dry-run -i {file} && patch --batch --forward --fuzz=5 -p1 -i {file} \\
    && echo "applied by patch --fuzz=5" && exit 0
fi
command -v git >/dev/null || command -v patch >/dev/null || exit {NO_PROGRAM}
exit {NOT_APPLIED}
"""


def changed_paths(patch: str) -> list[str]:
    """Return the files that a patch of git changes, makes or removes, by both names where it renames."""
    paths: dict[str, None] = {}
    in_header = False
    for line in patch.split("\n"):
        if line.startswith("diff --git "):
            in_header = True
        elif line.startswith("@@"):
            in_header = False
        elif in_header and (header := _HEADER.fullmatch(line.rstrip("\r"))):
            # a tab ends a name with a space in it
            name = _unquoted(header[1].split("\t")[0])
            is_path = line.startswith(("---", "+++"))
            if not is_path or name.startswith(("a/", "b/")):
                paths.setdefault(name[2:] if is_path else name)
    return list(paths)


def _unquoted(name: str) -> str:
    """Decode a name as git writes it: quoted, with octal escapes, where it holds other than plain ASCII."""
    if not (name.startswith('"') and name.endswith('"')):
        return name

    def character(match: re.Match[bytes]) -> bytes:
        escaped = match[1].decode()
        return bytes([int(escaped, 8)]) if len(escaped) > 1 else _ESCAPED.get(escaped, escaped.encode())

    raw = name[1:-1].encode("utf-8", "surrogateescape")
    return re.sub(_ESCAPE.pattern.encode(), character, raw).decode("utf-8", "surrogateescape")
