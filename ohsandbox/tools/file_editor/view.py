"""The output of `view`: a text file, an image, a directory, a part of a file that is too large to transfer."""

from __future__ import annotations

import base64
from collections import Counter
from importlib.resources import files
from typing import TYPE_CHECKING

from ohsandbox.content import image_type
from ohsandbox.errors import ToolError
from ohsandbox.runtime.files.text import read_part
from ohsandbox.tools.file_editor.definition import MAX_FILE_BYTES, MAX_IMAGE_BYTES
from ohsandbox.tools.file_editor.lines import numbered, split_lines

if TYPE_CHECKING:
    from ohsandbox.content import OutputLimits
    from ohsandbox.runtime.base import Runtime
    from ohsandbox.runtime.files.text import Document

LIST_TIMEOUT_S = 10.0
"""Limit for listing a directory; a longer listing is a task for a shell."""
MAX_ENTRIES = 1_000
"""Limit of a directory's entries, both levels together."""
_MAX_INNER_ENTRIES = 100
"""Limit per subdirectory: one `node_modules` must not displace the rest."""
MAX_NAMED = 10
"""Limit of named directories with omitted entries."""

_LIST_LIMIT_BYTES = 4 * 1024 * 1024
_LIST = files("ohsandbox.tools.file_editor").joinpath("list.sh").read_text("utf-8")


def image_url(data: bytes, path: str) -> str | None:
    """The data URL of an image, detected by its first bytes, not its name; None for other files.

    Raises:
        ToolError: it is too large to be shown.
    """
    if b"\0" not in data[:1024]:
        return None  # a text may begin with GIF89a
    is_bmp = data.startswith(b"BM") and data[6:10] == bytes(4)
    kind = "image/bmp" if is_bmp else image_type(data)
    if kind is not None and len(data) > MAX_IMAGE_BYTES:
        raise ToolError(
            f"Image {path!r} has {len(data)} bytes, at most {MAX_IMAGE_BYTES} can be shown. Make a smaller copy first."
        )
    return kind and f"data:{kind};base64,{base64.b64encode(data).decode()}"


def text_view(document: Document, path: str, view_range: tuple[int, ...] | None, limits: OutputLimits) -> str:
    """The numbered lines below a line that states their range, the total and the file's remarks.

    Raises:
        ToolError: the file has no such lines.
    """
    lines = split_lines(document.shown)
    first, last = view_range or (1, -1)
    last = len(lines) if last == -1 else min(last, len(lines))
    remarks = f" ({'; '.join(document.remarks)})" if document.remarks else ""
    if not lines and first == 1:
        return f"{path} is empty: it has no lines{remarks}."
    if first > len(lines):
        raise ToolError(f"{path!r} has {len(lines)} lines; view_range starts at {first}. Start lower.")
    numbered_lines = numbered(lines[first - 1 : last], first=first, limit_chars=limits.max_chars)
    is_open = last == len(lines) and not document.shown.endswith("\n")
    note = "\n[The last line does not end with a newline.]" if is_open else ""
    return f"Lines {first}-{last} of {len(lines)} in {path}{remarks}:\n{numbered_lines}{note}"


def part_view(runtime: Runtime, path: str, view_range: tuple[int, ...] | None, limits: OutputLimits) -> str:
    """Lines of a file that is too large to read whole.

    Raises:
        ToolError: see `read_part`.
    """
    first = view_range[0] if view_range else 1
    part = read_part(runtime, path, view_range, limit_chars=limits.max_chars)
    numbered_lines = numbered(split_lines(part.text), first=first, limit_chars=limits.max_chars)
    return (
        f"{path} has {part.size_bytes} bytes and cannot be edited here, where {MAX_FILE_BYTES} is the most. Its lines "
        f"from {first} on, up to {limits.max_chars} characters; view_range shows others:\n{numbered_lines}"
    )


def directory_view(runtime: Runtime, path: str, limits: OutputLimits) -> str:
    """The entries two levels deep, a directory with `/` behind its name, a symlink with `@`.

    Raises:
        ToolError: it cannot be read.
    """
    result = runtime.run(["sh", "-c", _LIST, "sh", path], timeout_s=LIST_TIMEOUT_S, limit_bytes=_LIST_LIMIT_BYTES)
    if result.timed_out:
        raise ToolError(f"Directory {path!r} was not listed in {LIST_TIMEOUT_S:.0f} s. Use ls in execute_bash.")
    if result.exit_code:
        raise ToolError(f"Directory {path!r} cannot be listed: permission denied. Use a path that this user may read.")
    *entries, hidden = result.stdout.decode("utf-8", "surrogateescape").split("\0")
    lines, left_out = _bounded([(entry[:1], entry[1:]) for entry in entries], limits)
    if result.truncated:
        left_out.append("more entries than can be listed: use find in execute_bash")
    elif hidden not in ("", "0"):
        left_out.append(f"{hidden} hidden in {path}: ls -A shows them")
    note = "".join(f"\n[... {omission} ...]" for omission in left_out)
    kinds = "directories end in /, symlinks in @"
    return f"{path}, two levels deep ({kinds}):\n" + "\n".join(lines or ["(no entries)"]) + note


def _bounded(entries: list[tuple[str, str]], limits: OutputLimits) -> tuple[list[str], list[str]]:
    """The lines to show, and the omissions: entries of the second level are omitted before those of the first.

    Entries are pairs of kind and name, which has a `/` between the levels.
    """
    inner = Counter(name.rpartition("/")[0] for _, name in entries)
    outer = inner.pop("", 0)
    most = min(_MAX_INNER_ENTRIES, max(0, MAX_ENTRIES - outer) // max(1, len(inner)))
    shown_lines: list[str] = []
    counts: Counter[str] = Counter()
    room = limits.max_chars
    for index, (kind, name) in enumerate(entries):
        parent, slash, _ = name.rpartition("/")
        counts[parent] += 1
        if slash and counts[parent] > most:
            continue
        line = _quoted(name) + {"d": "/", "l": "@"}.get(kind, "")
        room -= len(line) + 1
        if room < 0 or len(shown_lines) == MAX_ENTRIES:
            return shown_lines, [f"{len(entries) - index} more entries, from {_quoted(name)} on: use ls or find"]
        shown_lines.append(line)
    crowded = {parent: count - most for parent, count in inner.items() if count > most}
    if len(crowded) > MAX_NAMED:
        return shown_lines, [f"{sum(crowded.values())} more in {len(crowded)} of the directories: view one of them"]
    return shown_lines, [f"{count} more in {_quoted(name)}/: view it" for name, count in crowded.items()]


def _quoted(name: str) -> str:
    """The name; quoted for a shell if it has control characters or invalid bytes."""
    if name.isprintable():
        return name
    raw = "".join(
        char
        if char.isprintable() and char not in "'\\"
        else "".join(f"\\x{byte:02x}" for byte in char.encode("utf-8", "surrogateescape"))
        for char in name
    )
    return f"$'{raw}'"
