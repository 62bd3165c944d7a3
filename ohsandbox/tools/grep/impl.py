"""Implementation of `grep`: one call finds the matching files, another reads the lines of the shown ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ohsandbox.errors import file_error
from ohsandbox.tool import ToolExecutor
from ohsandbox.tools.grep.definition import GrepAction, GrepObservation
from ohsandbox.tools.search.globs import compile_glob
from ohsandbox.tools.search.lines import FileLines, Matches, read_matches
from ohsandbox.tools.search.regexes import Regex
from ohsandbox.tools.search.script import LIMIT_S
from ohsandbox.tools.search.show import (
    MAX_CHARS,
    counted,
    fitting,
    is_binary,
    left_out,
    shown_lines,
    shown_path,
    warnings,
)
from ohsandbox.tools.search.walk import Listing, Query, absolute, list_files

if TYPE_CHECKING:
    from ohsandbox.runtime.base import Runtime


class GrepExecutor(ToolExecutor[GrepAction, GrepObservation]):
    """Searches the text of a runtime's files."""

    def __init__(self, runtime: Runtime, *, limit_s: float = LIMIT_S) -> None:
        """limit_s: the search stops after this many seconds and reports its matches so far."""
        self._runtime = runtime
        self._limit_s = limit_s

    def __call__(self, action: GrepAction) -> GrepObservation:
        """Find the lines.

        Raises:
            SandboxFileError: path is missing, is neither file nor directory, or may not be read.
            ToolError: the pattern or include is malformed, or the sandbox lacks a program.
            SandboxUnavailable: the sandbox is gone.
        """
        regex = Regex(action.pattern, action.ignore_case)
        path = absolute(self._runtime.workdir, action.path)
        listing = self._listing(action, path, regex)
        if action.mode == "files" and not listing.is_file:
            return self._files(action, path, listing)
        matches = read_matches(
            self._runtime,
            [path] if listing.is_file else listing.files[: action.max_files],
            regex,
            context=action.context,
            only_counts=action.mode != "lines",
            limit_s=self._limit_s,
        )
        if listing.is_file:
            if matches.unreadable:
                raise file_error(13, "The file may not be read by this user", action.path)
            listing = listing._replace(files=[file.path for file in matches.files])
        listing = listing._replace(
            stopped=listing.stopped or matches.stopped, unreadable=listing.unreadable or matches.unreadable
        )
        if action.mode == "files":
            return self._files(action, path, listing)
        return self._lines(action, path, listing, matches)

    def _listing(self, action: GrepAction, path: str, regex: Regex) -> Listing:
        include = action.include or "*"
        glob = compile_glob(include if "/" in include else f"**/{include}", hidden=action.hidden)
        query = Query(path, glob, hidden=action.hidden, ignored=action.ignored, regex=regex)
        return list_files(self._runtime, query, limit_s=self._limit_s)

    def _files(self, action: GrepAction, path: str, listing: Listing) -> GrepObservation:
        total = len(listing.files)
        shown = fitting([shown_path(file) for file in listing.files[: action.max_files]], limit_chars=MAX_CHARS)
        lines = [f"{counted(total, 'file')} with a match for {action.pattern!r}, newest first:"]
        lines += shown
        if len(shown) < total:
            lines.append(f"[The newest {len(shown)} of {counted(total, 'file')} are listed. {_narrower(action)}]")
        return self._answer(action, path, listing, lines, None)

    def _lines(self, action: GrepAction, path: str, listing: Listing, matches: Matches) -> GrepObservation:
        total, looked_into = len(listing.files), len(matches.files)
        count = sum(file.total for file in matches.files)
        said = f"{counted(count, 'matching line')} in {counted(looked_into, 'file')}, newest file first"
        if total > action.max_files:
            said = f"{counted(total, 'file')} match; the newest {looked_into:,} hold {counted(count, 'matching line')}"
        blocks = [_block(file, only_count=action.mode == "counts") for file in matches.files]
        shown = fitting([line for block in blocks for line in block], limit_chars=MAX_CHARS)
        lines = [f"{said}:", *shown]
        gone = min(total, action.max_files) - looked_into
        if gone:
            lines.append(
                f"[{counted(gone, 'file')} matched at first, but no line did then: changed, removed, or binary.]"
            )
        cut = _cut(action, matches, blocks, len(shown))
        if cut or total > action.max_files:
            lines.append(f"[{cut}{_narrower(action)}]")
        return self._answer(action, path, listing, lines, count)

    def _answer(
        self, action: GrepAction, path: str, listing: Listing, lines: list[str], count: int | None
    ) -> GrepObservation:
        total = len(listing.files)
        if not total:
            lines = [
                f"No line matches {action.pattern!r} in {shown_path(path)}{_among(action)}.{_advice(action, listing)}"
            ]
        lines += warnings(listing, self._limit_s)
        return GrepObservation(
            text="\n".join(lines), total_files=total, total_lines=count, complete=not listing.stopped
        )


def _block(file: FileLines, *, only_count: bool) -> list[str]:
    name = shown_path(file.path)
    if only_count:
        return [f"{name}: {file.total}"]
    if is_binary(file):
        return [f"{name}: binary file, {counted(file.total, 'matching line')} not shown"]
    return [name, *shown_lines(file)]


def _cut(action: GrepAction, matches: Matches, blocks: list[list[str]], shown: int) -> str:
    """Describe the missing matches of the read files if only the first lines of all blocks are shown."""
    if action.mode == "counts":
        whole = sum(1 for _ in blocks)
        return f"{shown:,} of {whole:,} files shown. " if shown < whole else ""
    told = files = 0
    for file, block in zip(matches.files, blocks, strict=True):
        if shown <= 0:
            break
        files += 1
        told += (
            file.total if len(block) == 1 else sum(1 for line in block[1:shown] if line.partition(" ")[0].endswith(":"))
        )
        shown -= len(block)
    count = sum(file.total for file in matches.files)
    if told == count:
        return ""
    return f"{told:,} of {counted(count, 'matching line')} and {files:,} of {len(blocks):,} files shown. "


def _among(action: GrepAction) -> str:
    return f", files {action.include!r}" if action.include else ""


def _narrower(action: GrepAction) -> str:
    return "Narrow `pattern`, `path` or `include`" + (", or use `mode`: files." if action.mode == "lines" else ".")


def _advice(action: GrepAction, listing: Listing) -> str:
    return "" if listing.is_file else left_out(hidden=action.hidden, ignored=action.ignored)
