"""Changes as a patch that `git apply` accepts.

git compares copies with numbers as names, so that neither file names nor a `.gitattributes` of the agent affect the
diff that a user sees; the names are inserted afterwards.
"""

from __future__ import annotations

import re
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from ohsandbox.errors import UsageError
from ohsandbox.runtime.workspace import git

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from ohsandbox.timetravel.snapshots.manifest import FileChange, FileEntry

_COMPARE = (
    "-c", "core.quotePath=false", "-c", "core.fileMode=true", "diff", "--no-index", "--no-prefix", "--no-renames",
    "--no-ext-diff", "--no-textconv", "--no-color", "--binary", "--full-index", "--", "a", "b",
)  # fmt: skip

_BEGINNING = re.compile(rb"^diff --git [ab]/(\d{7}) [ab]/\1\n", re.MULTILINE)
"""The first line of a file's patch. No line of a hunk or a binary patch matches: hunk lines begin with a sign, binary
ones are base 85."""

_PLAIN = re.compile(rb"[^\x00-\x1f\x7f-\xff\"\\]*")
_ESCAPES = {0x22: b'\\"', 0x5C: b"\\\\", 0x07: b"\\a", 0x08: b"\\b", 0x09: b"\\t", 0x0A: b"\\n", 0x0B: b"\\v"}
_ESCAPES |= {0x0C: b"\\f", 0x0D: b"\\r"}


class _FilePatch(NamedTuple):
    """The patch of one file; a file that became a symlink, or the reverse, has two."""

    path: str
    text: bytes


def patch_of(changes: Sequence[FileChange], content: Callable[[str], bytes]) -> list[_FilePatch]:
    """Return the patches of the changes, one per file; directories have none.

    Args:
        changes: the result of `changes_between`.
        content: returns a file's content by its SHA-256.

    Raises:
        UsageError: git is not installed, or failed.
    """
    file_changes = [change for change in changes if not change.is_of_directories]
    if not file_changes:
        return []
    with tempfile.TemporaryDirectory(prefix="ohsandbox-diff-") as name:
        directory = Path(name)
        for side in ("a", "b"):
            (directory / side).mkdir()
        for number, change in enumerate(file_changes):
            for side, entry in (("a", change.old), ("b", change.new)):
                _lay(directory / side / f"{number:07}", entry, content)
        code, output = git.call(_COMPARE, directory=directory)
    if code > 1:
        raise UsageError(f"git could not compare the files (exit code {code}). Check `git --version`: 2.20 is enough.")
    return list(_parts(output, file_changes))


def _lay(path: Path, entry: FileEntry | None, content: Callable[[str], bytes]) -> None:
    if entry is None or entry.kind == "dir":
        return
    if entry.kind == "link":
        path.symlink_to(entry.what)
        return
    path.write_bytes(content(entry.what))
    path.chmod(0o755 if entry.mode & 0o100 else 0o644)


def _parts(output: bytes, changes: Sequence[FileChange]) -> Iterator[_FilePatch]:
    beginnings = [*_BEGINNING.finditer(output)]
    ends = [*(match.start() for match in beginnings[1:]), len(output)]
    for match, end in zip(beginnings, ends, strict=True):
        path = changes[int(match[1])].path
        yield _FilePatch(path, _named(output[match.end() : end], path))


def _named(text: bytes, path: str) -> bytes:
    """Return one file's patch with its name inserted."""
    name = path.encode("utf-8", "surrogateescape")
    old, new = git_quoted(b"a/" + name), git_quoted(b"b/" + name)
    head = b"diff --git %s %s\n" % (old, new)
    lines = re.findall(rb"[^\n]*\n|[^\n]+", text)
    for number, line in enumerate(lines):
        if line.startswith((b"@@ ", b"GIT binary patch")):
            return head + b"".join(lines[number:])
        if line.startswith(b"--- ") and not line.startswith(b"--- /dev/null"):
            line = b"--- " + _with_line_end(old)  # noqa: PLW2901 - the line with the name
        elif line.startswith(b"+++ ") and not line.startswith(b"+++ /dev/null"):
            line = b"+++ " + _with_line_end(new)  # noqa: PLW2901 - as above
        head += line
    return head


def _with_line_end(name: bytes) -> bytes:
    """Return the name with the line's end; after a name with a space comes a tab, which patch(1) needs."""
    return name + (b"\t\n" if b" " in name and not name.startswith(b'"') else b"\n")


def git_quoted(name: bytes) -> bytes:
    """Return a path as git writes it: as a C string if it has control characters, quotes or bytes over 127."""
    if _PLAIN.fullmatch(name):
        return name
    return b'"' + b"".join(_escaped(byte) for byte in name) + b'"'


def _escaped(byte: int) -> bytes:
    if byte in _ESCAPES:
        return _ESCAPES[byte]
    return bytes([byte]) if 0x20 <= byte < 0x7F else b"\\%03o" % byte  # noqa: PLR2004 - printable ASCII
