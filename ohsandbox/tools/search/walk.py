"""Lists the wanted files of a sandbox: one call with `rg`, two with POSIX tools, with equal results."""

from __future__ import annotations

import posixpath
from operator import itemgetter
from typing import TYPE_CHECKING, NamedTuple

from ohsandbox.errors import ToolError, file_error
from ohsandbox.tools.search.globs import MatchBudget
from ohsandbox.tools.search.ignore import NAME, IgnoreTree, prunes
from ohsandbox.tools.search.script import LIMIT_S, RG_OPTIONS, UNREADABLE, ScriptReply, engine_of, run_job

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ohsandbox.runtime.base import Runtime
    from ohsandbox.tools.search.globs import Glob
    from ohsandbox.tools.search.regexes import Regex

_PSEUDO = ("proc", "sys", "dev")
"""Directories below / that hold no files written by users."""

_ENDLESS = ("pagemap", "mem", "kcore", "kmsg", "kpage*")
"""Files of /proc that are not text, and whose reading never ends or blocks."""

_REPORT = ("-exec", "sh", "-c", 'printf "${token}i%s\\0" "$@" >&3', "sh", "{}", "+")
_MATCH_ODD = """\
for file do
  if grep -q "$letters" -e "$pattern" -- "$file"; then
    printf '%sm%s %s\\n\\0' "$token" "$(stat -c %y "$file")" "$file" >&3
  fi
done"""
"""Shell code for names with a newline, which the output of `grep -l` cannot represent."""

_REFUSALS = {
    101: (2, "No such file or directory"),
    102: (20, "It is a file, and a directory is needed"),
    103: (22, "It is neither a directory nor a regular file"),
    104: (13, "The directory may not be entered"),
}
"""Exit codes of the script's `enter`: errno and message."""
IS_FILE, NO_PREFIX = 102, 105


class Query(NamedTuple):
    """The criteria of a search."""

    path: str
    """An absolute directory."""
    glob: Glob
    hidden: bool = False
    """Whether to include hidden files, except `.git`, which is never searched."""
    ignored: bool = False
    """Whether to include files that .gitignore excludes."""
    regex: Regex | None = None
    """A line of the file must match it; None selects every file."""

    @property
    def hidden_walked(self) -> bool:
        """Whether the search must enter hidden directories."""
        return self.hidden or self.glob.dotted

    @property
    def pseudo(self) -> tuple[str, ...]:
        """Directories directly below the searched one to skip."""
        return _PSEUDO if posixpath.normpath(f"/{self.path}/{self.glob.prefix}") == "/" else ()

    @property
    def endless(self) -> tuple[str, ...]:
        """Names of files that must not be read."""
        below_proc = posixpath.normpath(f"{self.path}/").startswith("/proc")
        return _ENDLESS if below_proc and self.regex is not None else ()


class Listing(NamedTuple):
    """The wanted files."""

    files: list[str]
    """Absolute and physical, newest first; of one age by name. Undecodable bytes as surrogate escapes."""
    stopped: bool = False
    """The limit of time or size was reached: there may be more files."""
    unreadable: bool = False
    """Some directories or files could not be read."""
    is_file: bool = False
    """path is a file, and nothing was listed."""


Found = tuple[str, str]
"""A time, which sorts as text, and a path relative to the searched directory; a plain tuple: there may be many."""


def absolute(workdir: str, path: str) -> str:
    """Return the path, from workdir, without `.` and doubled slashes; `..` stays, since a symlink may precede it."""
    parts = posixpath.join(workdir, path).split("/")
    return "/" + "/".join(part for part in parts if part not in ("", "."))


def list_files(runtime: Runtime, query: Query, *, limit_s: float = LIMIT_S) -> Listing:
    """List all wanted files.

    Raises:
        SandboxFileError: ENOENT, EACCES or EINVAL of path.
        ToolError: as `run_job`.
    """
    walk = _by_rg if engine_of(runtime).has_rg else _by_posix
    return walk(runtime, query, limit_s)


def _by_rg(runtime: Runtime, query: Query, limit_s: float) -> Listing:
    options = [*RG_OPTIONS, *(("--hidden", "-g", "!.git") if query.hidden_walked else ())]
    options += [word for name in query.pseudo for word in ("-g", f"!/{name}")]
    options += [word for name in query.endless for word in ("-g", f"!{name}")]
    options += ["--no-ignore"] if query.ignored else []
    options += ["--max-depth", str(query.glob.depth)] if query.glob.depth else []
    options += [word for name in query.glob.names for word in ("--type-add", f"ohsandbox:{name}")]
    options += ["-t", "ohsandbox"] if query.glob.names else []
    reply = _find(runtime, "rg", query, options, limit_s)
    root, files = _entered(reply, query)
    if root is None:
        return Listing([], is_file=reply.exit_code == IS_FILE)
    return _listing(root, query, files, reply)


def _by_posix(runtime: Runtime, query: Query, limit_s: float) -> Listing:
    root, texts, budget = None, dict[str, bytes](), MatchBudget()
    if not query.ignored:
        looked = run_job(runtime, "look", query.path, query.glob.prefix, limit_s=limit_s)
        root, _ = _entered(looked, query)
        texts = _contents(looked, looked.stdout.partition("\0")[2])
    while True:
        skipped = prunes(IgnoreTree(root or "/", texts, budget).rules, root or "/")
        reply = _find(runtime, "posix", query, _tests(query, skipped), limit_s)
        root, files = _entered(reply, query)
        if root is None:
            return Listing([], is_file=reply.exit_code == IS_FILE)
        base = root.rstrip("/")
        met = [path for text in reply.texts("i") if (path := f"{base}/{text[2:]}") not in texts]
        if met:  # unreadable files stay empty
            contents = run_job(runtime, "contents", *met)
            texts |= dict.fromkeys(met, b"") | _contents(contents, contents.stdout)
        tree = IgnoreTree(root, texts, budget)
        if set(skipped) <= set(prunes(tree.rules, root)):
            return _listing(root, query, tree.kept(files), reply)


def _find(runtime: Runtime, engine: str, query: Query, options: Sequence[str], limit_s: float) -> ScriptReply:
    location = (query.path, query.glob.prefix)
    if query.regex is None:
        return run_job(runtime, f"{engine}-list", *location, *options, limit_s=limit_s)
    return run_job(runtime, f"{engine}-match", *location, *query.regex.words(engine), *options, limit_s=limit_s)


def _entered(reply: ScriptReply, query: Query) -> tuple[str | None, list[Found]]:
    """The searched directory and the files found; None if path is a file, or prefix does not exist.

    Raises:
        SandboxFileError: path is neither file nor directory, or cannot be entered.
    """
    if reply.exit_code in (IS_FILE, NO_PREFIX):
        return None, []
    if reply.exit_code in _REFUSALS:
        raise file_error(*_REFUSALS[reply.exit_code], query.path)
    root, _, records = reply.stdout.partition("\0")
    start = " ./" if "find" in reply.statuses else f" {root.rstrip('/')}/"
    files = [_split(record, start) for record in records.split(reply.token)[1:]]
    return root, files + [_split(record, start) for record in reply.texts("m")]


def _split(record: str, start: str) -> Found:
    when, _, path = record.partition(start)
    return when, path[:-1]


def _tests(query: Query, skipped: Iterable[tuple[str, ...]]) -> list[str]:
    """The arguments of `find .`: files to print, directories to skip, and ignore files to report.

    No `-exec ... +` stands in parentheses: there busybox 1.37 never runs what it has collected. Each test costs 0.2 us
    a file, so the most selective ones come first.
    """
    hidden = query.hidden_walked
    names = [word for name in query.glob.names for word in ("-o", "-name", name)][1:]
    tests = ["-type", "f", *(["(", *names, ")"] if names else []), "!", "-name", ".git" if hidden else ".*"]
    tests += [word for name in query.endless for word in ("!", "-name", name)]
    odd = [*tests, "-path", "*\n*", "-exec", "sh", "-c", _MATCH_ODD, "sh", "{}", "+", "-o"]
    not_entered = [("-name", ".git" if hidden else ".?*"), *(("-path", f"./{name}") for name in query.pseudo), *skipped]
    either = [word for test in not_entered for word in ("-o", *test)][1:]
    report = [] if query.ignored else ["-type", "f", "-name", NAME, *_REPORT, "!", "-name", NAME, "-o"]
    return [
        *(["-maxdepth", str(query.glob.depth)] if query.glob.depth else []),
        *(report if hidden else []),
        *([] if query.regex is None else odd),
        *[*tests, "-print0", "-o"],
        *([] if hidden else report),
        *["-type", "d", "!", "-name", ".", "(", *either, ")", "-prune"],
    ]


def _contents(reply: ScriptReply, text: str) -> dict[str, bytes]:
    """Parse text: names that end in NUL, a token, then every line of each file after its name and a colon."""
    names, _, lines = text.partition(reply.token)
    paths = names.split("\0")[:-1]
    contents = dict.fromkeys(paths, b"")
    position = 0
    for path in paths:
        while lines.startswith(f"{path}:", position):
            end = lines.find("\n", position + len(path)) + 1 or len(lines)
            contents[path] += lines[position + len(path) + 1 : end].encode("utf-8", "surrogateescape")
            position = end
    return contents


def _listing(root: str, query: Query, files: list[Found], reply: ScriptReply) -> Listing:
    """Sort the files; first drops those that `find` and `rg` could not exclude by name."""
    budget = MatchBudget()
    matching = sorted([file for file in files if query.glob.matches(file[1], budget)], key=itemgetter(1))
    matching.sort(key=itemgetter(0), reverse=True)
    if reply.stopped and not root:
        raise ToolError(f"Directory {query.path!r} did not answer in time. Search a smaller one.")
    base = root.rstrip("/")
    unreadable = reply.statuses.get("find") == 1 or reply.statuses.get("rg") == UNREADABLE
    return Listing([f"{base}/{path}" for _, path in matching], reply.stopped or reply.truncated, unreadable=unreadable)
