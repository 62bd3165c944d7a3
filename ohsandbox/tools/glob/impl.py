"""Implementation of `glob`: `search.walk` finds the files; a limited number is listed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ohsandbox.errors import file_error
from ohsandbox.tool import ToolExecutor
from ohsandbox.tools.glob.definition import GlobAction, GlobObservation
from ohsandbox.tools.search.globs import compile_glob
from ohsandbox.tools.search.script import LIMIT_S
from ohsandbox.tools.search.show import MAX_CHARS, counted, fitting, left_out, shown_path, warnings
from ohsandbox.tools.search.walk import Query, absolute, list_files

if TYPE_CHECKING:
    from ohsandbox.runtime.base import Runtime


class GlobExecutor(ToolExecutor[GlobAction, GlobObservation]):
    """Finds files of a runtime."""

    def __init__(self, runtime: Runtime, *, limit_s: float = LIMIT_S) -> None:
        """limit_s: the search stops after this many seconds and reports its matches so far."""
        self._runtime = runtime
        self._limit_s = limit_s

    def __call__(self, action: GlobAction) -> GlobObservation:
        """List the files.

        Raises:
            SandboxFileError: path is missing, is a file, or cannot be entered.
            ToolError: the pattern is malformed, or the sandbox lacks a program.
            SandboxUnavailable: the sandbox is gone.
        """
        anywhere = action.pattern.startswith("/")
        path = "/" if anywhere else absolute(self._runtime.workdir, action.path)
        glob = compile_glob(action.pattern, hidden=action.hidden)
        query = Query(path, glob, hidden=action.hidden, ignored=action.ignored)
        listing = list_files(self._runtime, query, limit_s=self._limit_s)
        if listing.is_file:
            raise file_error(20, "It is a file; give a directory, or read it with file_read", action.path)
        total = len(listing.files)
        files = fitting([shown_path(file) for file in listing.files[: action.max_files]], limit_chars=MAX_CHARS)
        where = "" if anywhere else f" in {shown_path(path)}"
        lines = [f"{counted(total, 'file')} match{'es' if total == 1 else ''} {action.pattern!r}{where}"]
        if not total:
            lines = [f"No file matches {action.pattern!r}{where}.{_advice(action)}"]
        elif total > 1:
            lines[0] += ", newest first:"
        else:
            lines[0] += ":"
        lines += files
        if len(files) < total:
            lines.append(
                f"[The newest {len(files)} of {counted(total, 'file')} are listed. Narrow `pattern` or `path`"
                f"{', or raise `max_files`' if len(files) == action.max_files else ''}.]"
            )
        lines += warnings(listing, self._limit_s)
        return GlobObservation(text="\n".join(lines), files=tuple(files), total=total, complete=not listing.stopped)


def _advice(action: GlobAction) -> str:
    deeper = (
        "" if "/" in action.pattern or "**" in action.pattern else f" Below it look with {'**/' + action.pattern!r}."
    )
    return deeper + left_out(hidden=action.hidden, ignored=action.ignored)
