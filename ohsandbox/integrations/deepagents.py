"""A sandbox as the backend of LangChain's deepagents: `create_deep_agent(model, backend=OhsandboxBackend(runtime))`."""

from __future__ import annotations

import base64
import errno
import posixpath
import re
import shlex
from typing import TYPE_CHECKING

from deepagents.backends.protocol import (
    FILE_NOT_FOUND,
    INVALID_PATH,
    IS_DIRECTORY,
    PERMISSION_DENIED,
    DeleteResult,
    EditResult,
    ExecuteResponse,
    FileData,
    FileDownloadResponse,
    FileInfo,
    FileUploadResponse,
    GlobResult,
    GrepMatch,
    GrepResult,
    LsResult,
    ReadResult,
    SandboxBackendProtocol,
    WriteResult,
)
from deepagents.backends.utils import (
    EMPTY_CONTENT_WARNING,
    EMPTY_OLD_STRING_ERROR,
    compile_grep_include_glob,
    perform_string_replacement,
    slice_read_response,
)

from ohsandbox.errors import SandboxFileError, ToolError, UsageError
from ohsandbox.integrations.commands import LineResult, arun_line, run_line
from ohsandbox.runtime.aio import waited
from ohsandbox.tools.search.globs import compile_glob
from ohsandbox.tools.search.lines import read_matches
from ohsandbox.tools.search.regexes import Regex
from ohsandbox.tools.search.walk import Query, list_files

if TYPE_CHECKING:
    from ohsandbox.runtime import Runtime

DEFAULT_TIMEOUT_S = 1800.0
"""Default time limit: half an hour is longer than most test suites; deepagents lets a model ask for up to an hour."""

MAX_OUTPUT_BYTES = 4 * 1024 * 1024
"""Maximum size of a command's output; deepagents itself moves output that is too long for a model into a file."""

MAX_BINARY_BYTES = 500 * 1024
"""Maximum size of a binary file that is shown to a model; the same limit as in deepagents' own sandboxes."""

MAX_GLOB_MATCHES = 10_000
"""Maximum number of matches, as in deepagents' own sandboxes."""

_EVERY_FILE = compile_glob("**/*", hidden=True)
_SPECIAL = re.compile(r"[\\.^$|?*+()\[\]{}]")
_CODES = {errno.ENOENT: FILE_NOT_FOUND, errno.EACCES: PERMISSION_DENIED, errno.EPERM: PERMISSION_DENIED,
          errno.EISDIR: IS_DIRECTORY, errno.ENOTDIR: INVALID_PATH, errno.EINVAL: INVALID_PATH}  # fmt: skip


class OhsandboxBackend(SandboxBackendProtocol):
    """The files and commands of a started runtime; images need `/bin/sh` and no Python.

    Each command runs in a shell of its own, in the runtime's working directory, so calls may run side by side. Errors
    caused by the model are in the `error` of a result; a sandbox that is gone raises `SandboxUnavailable`.
    """

    def __init__(self, runtime: Runtime, *, timeout_s: float = DEFAULT_TIMEOUT_S) -> None:
        """Use a runtime, which the caller has to close.

        Args:
            runtime: the started runtime.
            timeout_s: time limit for commands that name none.
        """
        self._runtime, self._timeout_s = runtime, timeout_s

    @property
    def id(self) -> str:
        """The sandbox's id, as shown by `ohsandbox ps`."""
        return self._runtime.id

    # --- commands -----------------------------------------------------------------------------

    def execute(self, command: str, *, timeout: int | None = None) -> ExecuteResponse:
        """Run a line in a new shell (bash if it exists), both streams in one; exit code 124 at the timeout.

        Args:
            command: any shell input.
            timeout: time limit in seconds; 0 for none, None for the backend's own.
        """
        limit_s = self._limit_s(timeout)
        return _response(run_line(self._runtime, command, timeout_s=limit_s, limit_bytes=MAX_OUTPUT_BYTES))

    async def aexecute(self, command: str, *, timeout: int | None = None) -> ExecuteResponse:  # noqa: ASYNC109 - the host's signature
        """Do the same as `execute`, awaited; cancelling the task ends the command and all processes that it started."""
        limit_s = self._limit_s(timeout)
        return _response(await arun_line(self._runtime, command, timeout_s=limit_s, limit_bytes=MAX_OUTPUT_BYTES))

    def _limit_s(self, timeout: int | None) -> float | None:
        return self._timeout_s if timeout is None else timeout or None

    # --- files --------------------------------------------------------------------------------

    def ls(self, path: str) -> LsResult:
        """Return the entries of a directory, sorted by name."""
        try:
            entries = self._runtime.list_dir(path)
        except (SandboxFileError, UsageError) as error:
            return LsResult(error=f"Path '{path}': {_reason(error)}")
        return LsResult(
            entries=[
                FileInfo(
                    path=posixpath.join(path, entry.name),
                    is_dir=entry.kind == "directory",
                    size=entry.size_bytes,
                    modified_at=entry.modified_at.isoformat(),
                )
                for entry in entries
            ]
        )

    def read(self, file_path: str, offset: int = 0, limit: int = 2000) -> ReadResult:
        """Return lines of a text file, or all of another file in base64; offset counts from 0."""
        try:
            data = self._runtime.read_bytes(file_path)
        except (SandboxFileError, UsageError) as error:
            return ReadResult(error=f"File '{file_path}': {_reason(error)}")
        if not data:
            return ReadResult(file_data=FileData(content=EMPTY_CONTENT_WARNING, encoding="utf-8"))
        text = _text(data)
        if text is not None:
            return _page(text, offset, limit, file_path)
        if len(data) > MAX_BINARY_BYTES:
            too_large = f"Binary file exceeds maximum preview size of {MAX_BINARY_BYTES} bytes"
            return ReadResult(error=f"File '{file_path}': {too_large}")
        return ReadResult(file_data=FileData(content=base64.b64encode(data).decode(), encoding="base64"))

    def write(self, file_path: str, content: str) -> WriteResult:
        """Write a whole file atomically, as UTF-8, replacing an existing one; missing directories are created."""
        [response] = self.upload_files([(file_path, content.encode())])
        if response.error:
            return WriteResult(error=f"File '{file_path}' cannot be written: {response.error}")
        return WriteResult(path=file_path)

    def edit(self, file_path: str, old_string: str, new_string: str, replace_all: bool = False) -> EditResult:  # noqa: FBT001, FBT002 - the host's signature
        """Replace an exact text, which must be unique unless replace_all; CRLF line ends are kept."""
        if not old_string:
            return EditResult(error=EMPTY_OLD_STRING_ERROR)
        try:
            text = _text(self._runtime.read_bytes(file_path))
            if text is None:
                return EditResult(error=f"Error: File '{file_path}' is not a text file")
            if old_string not in text and "\r\n" in text:
                old_string, new_string = (one.replace("\r\n", "\n").replace("\n", "\r\n")
                                          for one in (old_string, new_string))  # fmt: skip
            count = text.count(old_string)
            if count > 1 and not replace_all:
                return EditResult(
                    error=f"Error: String '{old_string}' appears multiple times, {count} in all. Use replace_all=True, "
                    "or give more of the text around it."
                )
            replaced = perform_string_replacement(text, old_string, new_string, replace_all)
            if isinstance(replaced, str):
                return EditResult(error=replaced)
            self._runtime.write_bytes(file_path, replaced[0].encode())
        except (SandboxFileError, UsageError) as error:
            return EditResult(error=f"Error: File '{file_path}': {_reason(error)}")
        return EditResult(path=file_path, occurrences=count)

    def delete(self, file_path: str) -> DeleteResult:
        """Remove a file, or a directory with its contents."""
        path = shlex.quote(file_path)
        exists = f"{{ test -e {path} || test -L {path}; }}"
        ended = self.execute(f"{exists} || {{ echo 'no such file'; exit 1; }}; rm -rf -- {path}")
        if ended.exit_code != 0:
            return DeleteResult(error=f"Error: '{file_path}' not found or not deleted: {ended.output.strip()}")
        return DeleteResult(path=file_path)

    def upload_files(self, files: list[tuple[str, bytes]]) -> list[FileUploadResponse]:
        """Write each file, creating missing directories; errors are in each file's own response."""
        return [FileUploadResponse(path=path, error=self._upload(path, data)) for path, data in files]

    def _upload(self, path: str, data: bytes) -> str | None:
        if not path.startswith("/"):
            return INVALID_PATH
        try:
            self._runtime.write_bytes(path, data)
        except (SandboxFileError, UsageError) as error:
            return _reason(error)
        return None

    def download_files(self, paths: list[str]) -> list[FileDownloadResponse]:
        """Read each file; errors are in each file's own response."""
        return [self._download(path) for path in paths]

    def _download(self, path: str) -> FileDownloadResponse:
        if not path.startswith("/"):
            return FileDownloadResponse(path=path, error=INVALID_PATH)
        try:
            return FileDownloadResponse(path=path, content=self._runtime.read_bytes(path))
        except (SandboxFileError, UsageError) as error:
            return FileDownloadResponse(path=path, error=_reason(error))

    # --- search -------------------------------------------------------------------------------

    def glob(self, pattern: str, path: str | None = None) -> GlobResult:
        """Return the files whose path below path matches, newest first; `.git` is left out."""
        root = path or self._runtime.workdir
        try:
            matches = compile_grep_include_glob(pattern)
            listing = list_files(self._runtime, Query(root, _EVERY_FILE, hidden=True, ignored=True))
        except (ToolError, ValueError) as error:
            return GlobResult(error=str(error))
        top = self._physical(root)
        found = [file for file in listing.files if matches(posixpath.relpath(file, top))]
        cut = listing.stopped or len(found) > MAX_GLOB_MATCHES
        return GlobResult(
            matches=[
                FileInfo(path=posixpath.join(root, posixpath.relpath(file, top)), is_dir=False)
                for file in found[:MAX_GLOB_MATCHES]
            ],
            truncated=cut or listing.unreadable,
            truncation_reason="budget" if cut else "unreadable" if listing.unreadable else None,
        )

    def grep(
        self, pattern: str, path: str | None = None, glob: str | None = None, *, max_count: int | None = None
    ) -> GrepResult:
        """Return the lines that contain a literal text, newest file first; long ones are cut, `.git` is left out."""
        root = path or self._runtime.workdir
        regex = Regex(_SPECIAL.sub(r"\\\g<0>", pattern))
        try:
            matches = compile_grep_include_glob(glob) if glob else None
            listing = list_files(self._runtime, Query(root, _EVERY_FILE, hidden=True, ignored=True, regex=regex))
            top = self._physical(posixpath.dirname(root) if listing.is_file else root)
            files = [root] if listing.is_file else listing.files
            files = [file for file in files if matches is None or matches(posixpath.relpath(file, top))]
            read = read_matches(self._runtime, files, regex)
        except (ToolError, ValueError) as error:
            return GrepResult(error=f"Path '{root}': {error}")
        found = [
            GrepMatch(path=posixpath.join(root, posixpath.relpath(file.path, top)), line=line.number, text=line.text)
            for file in read.files
            for line in file.lines
        ]
        cut = max_count is not None and len(found) > max_count
        lost = sum(file.total for file in read.files) > len(found)
        return GrepResult(matches=found[:max_count], truncated=cut or lost or listing.stopped or read.stopped)

    # --- async --------------------------------------------------------------------------------

    als = waited(ls)
    aread = waited(read)
    awrite = waited(write)
    aedit = waited(edit)
    adelete = waited(delete)
    aglob = waited(glob)
    agrep = waited(grep)
    aupload_files = waited(upload_files)
    adownload_files = waited(download_files)

    def _physical(self, path: str) -> str:
        """Return the directory's path without symlinks, which prefixes the paths that the search reports."""
        ended = self._runtime.run(["sh", "-c", 'cd -- "$1" && pwd -P', "sh", path])
        return ended.stdout.decode("utf-8", "surrogateescape").removesuffix("\n") or path


def _response(ended: LineResult) -> ExecuteResponse:
    return ExecuteResponse(output=ended.output, exit_code=ended.exit_code, truncated=ended.truncated)


def _text(data: bytes) -> str | None:
    """Decode as UTF-8; return None if that fails."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None


def _page(text: str, offset: int, limit: int, path: str) -> ReadResult:
    """Return some lines, without the line end of the last."""
    page = slice_read_response(FileData(content=text, encoding="utf-8"), offset, limit)
    if page.error is not None:
        return ReadResult(error=f"File '{path}': {page.error}")
    if page.file_data is not None and page.start_line is not None:
        page.file_data["content"] = page.file_data["content"].removesuffix("\n")
    return page


def _reason(error: SandboxFileError | UsageError) -> str:
    """Return a matching error code of deepagents, else the sandbox's message."""
    number = error.errno if isinstance(error, SandboxFileError) else errno.EINVAL
    return _CODES.get(number or 0) or str(error)
