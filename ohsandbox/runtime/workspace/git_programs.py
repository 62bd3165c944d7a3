"""What git on this machine, run by this person in a workspace, reads and runs there, by its settings and hooks.

The settings are those of the person, by git's own word, and of each repository that git finds in the workspace or above
it. An include whose condition does not hold now counts as well: the sandbox could make it hold.
"""

# ruff: noqa: PTH100, PTH112, PTH113, PTH114, PTH116, PTH118, PTH120, PTH111, PTH208 - paths are texts, as configuration holds them
from __future__ import annotations

import contextlib
import os
import re
import shlex
import stat
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from ohsandbox import host_programs
from ohsandbox.runtime.workspace import git_layout
from ohsandbox.runtime.workspace.git_settings import ENVIRONMENT, Names, Setting, names_of, read_settings

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

_TIMEOUT_S = 10.0
"""`git config --list` takes 3 ms; a home on a network may be slow."""
_MAX_INCLUDES = 1000
"""Maximum number of files read of one repository; git itself stops at a depth of 10."""
_MAX_COMMAND_CHARS = 64 * 1024
"""Longest command that shlex splits: it takes time quadratic in a word."""
_OF_A_REPOSITORY = frozenset({"GIT_DIR", "GIT_WORK_TREE", "GIT_COMMON_DIR", "GIT_CONFIG"})
_NO_TRACES = dict.fromkeys(("GIT_TRACE", "GIT_TRACE2", "GIT_TRACE2_EVENT", "GIT_TRACE2_PERF"), "0")
"""A setting `trace2.eventTarget` would have git write a file."""
_PACKAGES = frozenset({"node_modules", ".venv", "venv", ".tox", ".nox", "site-packages"})
"""Directories that package managers replace as a whole: a mount in one breaks `npm install` and `pip install`."""
_INTERPRETERS = re.compile(r"(?:ba|da|z|k)?sh|\.|source|(?:python|pypy|node|perl|ruby|php|deno|bun|lua)[0-9.]*|pwsh")
_WRAPPERS = frozenset({"exec", "env", "command", "nice", "time", "sudo", "!", "if", "then", "else", "do", "while", "{"})
_WORD = re.compile(r"[^\s'\"=;|&()<>`$]+")
_TOP = re.compile(
    r"\$\(\s*(?:git rev-parse --show-toplevel|pwd)\s*\)|`\s*(?:git rev-parse --show-toplevel|pwd)\s*`"
    r"|\$(?:PWD|GIT_WORK_TREE)\b|\$\{(?:PWD|GIT_WORK_TREE)\}"
)
"""What a shell replaces by the top of the working tree, where git runs programs."""
_VARIABLE = re.compile(r"\$\w+|\$\{[^{}]*\}")
_UPWARD = re.compile(r"\A(?:\.{0,2}/)+")
_OPERAND = re.compile(r"\s-\S+\s+([^\s'\"=;|&()<>`$]+)|\s-[A-Za-z]([^\s'\"=;|&()<>`$]+)")
"""A word that an option takes: `ssh -F config`, `sed -fscript`."""
_MAX_BASES = 20
"""Directories named by a command or a script (`cd scripts && ./x`) to which its words are taken as relative."""
_MODULE = re.compile(r"\s-m\s*([A-Za-z_][\w.]*)")
_NO_PATH = re.compile(r"[-$%*?{}`]|.*[$%*?`\n]|[A-Za-z][\w+.-]*:")
"""Options, patterns, placeholders and URLs: words that are no paths as they stand."""


_HELD = (
    "# git on this machine {verb} this file, which was not there. While a sandbox of ohsandbox works here, nothing\n"
    "# else can be put in its place; the file goes with the sandbox. If there is none (`ohsandbox ps`), remove it.\n"
)
HELD_FILE = _HELD.format(verb="reads").encode()
"""Content of a file that `guard` creates where git would read settings."""
HELD_PROGRAM = (_HELD.format(verb="runs") + "exit 127\n").encode()
"""Content of a file that `guard` creates in place of a program: as a script it fails as a missing program does, so that
a filter does not store an empty file."""


class Repository(NamedTuple):
    """A repository that git may use, by absolute paths."""

    directory: str
    """Its `.git` directory, or a worktree's part of one."""
    trees: tuple[str, ...]
    """The top directories of its working trees: bases of relative paths, and where git runs programs."""


class NamedPath(NamedTuple):
    """A path of the workspace that git reads or runs."""

    path: str
    """Path below the workspace; empty for the workspace itself."""
    names: Names
    """COMMAND, DIRECTORY or FILE."""
    reason: str
    """The setting, such as "core.hooksPath = .githooks", or the hook."""
    may_be_created: bool = True
    """Whether a file that fails may stand there while it is missing; otherwise a program would take it for its own."""


def repositories(
    workspace: str, directories: Iterable[str], pointers: Mapping[str, str | None]
) -> tuple[Repository, ...]:
    """Return the repositories of a workspace, those above it, and that of GIT_DIR.

    Args:
        workspace: a real path.
        directories: the git directories in it, as paths below it.
        pointers: its `.git` files with their targets (`git_layout.pointed`).
    """
    trees: dict[str, set[str]] = {os.path.normpath(f"{workspace}/{path}"): set() for path in directories}
    for root, pointer, target in [
        *((workspace, path, target) for path, target in pointers.items()),
        *((str(above), ".git", git_layout.pointed(str(above), ".git")) for above in Path(workspace).parents),
    ]:
        if target:
            directory = os.path.normpath(os.path.join(root, target))
            trees.setdefault(directory, set()).add(os.path.dirname(f"{root}/{pointer}"))
    trees |= {f"{above}/.git": set() for above in Path(workspace).parents if (above / ".git").is_dir()}
    if directory := os.environ.get("GIT_DIR", ""):
        tree = os.environ.get("GIT_WORK_TREE", workspace)
        trees.setdefault(os.path.abspath(directory), set()).add(os.path.abspath(tree))
    for directory, own in trees.items():
        if directory.endswith("/.git"):
            own.add(directory.removesuffix("/.git"))
        settings = read_settings(_read(f"{directory}/config"))
        named = [setting.value for setting in settings if setting.key == "core.worktree"]
        own.update(os.path.normpath(os.path.join(directory, tree)) for tree in named)
        if not own:  # a bare repository, in which git runs hooks
            own.add(directory)
    return tuple(Repository(directory, tuple(sorted(own))) for directory, own in trees.items())


def repositories_beside(directories: Iterable[str]) -> Iterator[Repository]:
    """Yield the repositories at the top of other directories of a sandbox, and those above them."""
    for directory in directories:
        pointer = git_layout.pointed(directory, ".git")
        own = [".git"] if os.path.isdir(f"{directory}/.git") else []
        yield from repositories(directory, own, {".git": pointer} if pointer else {})


def named_paths(workspace: str, found: Iterable[Repository]) -> list[NamedPath]:
    """Return the paths of a workspace that git reads or runs for a person in these repositories, existing or not."""
    found = list(found)
    names = _Names(workspace)
    everywhere = sorted({tree for repository in found for tree in repository.trees})
    if not any(f"{workspace}/".startswith(f"{tree}/") for tree in everywhere):
        everywhere.append(workspace)  # outside of a repository, git runs programs where it was started
    for file, setting in _person_settings():
        names.add_link(Names.FILE, file)
        names.add(setting, os.path.dirname(file), everywhere)
    for kind, variables in ENVIRONMENT.items():
        for variable in variables:
            if value := os.environ.get(variable):
                names.add_value(kind, variable, value, everywhere)
    for repository in found:
        common = _common_directory(repository.directory)
        names.add_link(Names.DIRECTORY, f"{common}/hooks")
        # a worktree's part has no hooks of its own, and its trees are bases for what the repository's settings name
        for file in (f"{common}/config", f"{repository.directory}/config.worktree"):
            names.add_link(Names.FILE, file)
            for source, setting in _with_includes(file):
                names.add(setting, os.path.dirname(source), repository.trees)
        names.add_hooks(f"{common}/hooks", repository.trees)
    return names.paths


class _Names:
    """The paths of a workspace that settings name."""

    def __init__(self, workspace: str) -> None:
        self.workspace = workspace
        self.paths: list[NamedPath] = []
        self._hooks: set[tuple[str, ...]] = set()

    def add(self, setting: Setting, directory: str, trees: Iterable[str]) -> None:
        """Add what a setting in a file of a directory names."""
        kind = names_of(setting.key, setting.subsection)
        name = setting.key.replace(".", f".{setting.subsection}.", 1) if setting.subsection else setting.key
        if setting.key in {"include.path", "includeif.path"}:
            self.add_value(kind, name, setting.value, [directory])
        elif setting.key.startswith("alias.") and not setting.value.startswith("!"):
            self._add_existing(setting.value, f"{name} = {setting.value}", trees, executable=True)  # rebase -x tools/x
        elif setting.key.startswith("url."):
            self.add_value(kind, name, setting.subsection.partition("ext::")[2], trees)
        elif kind is Names.NOTHING and setting.value.startswith("ext::"):  # gitremote-ext(1)
            self.add_value(Names.COMMAND, name, setting.value.removeprefix("ext::"), trees)
        elif kind is not Names.NOTHING:
            self.add_value(kind, name, setting.value, trees)

    def add_link(self, kind: Names, place: str) -> None:
        """Add where a file or directory of git outside of the workspace leads, if that is in the workspace."""
        if not os.path.normpath(place).startswith(f"{self.workspace}/"):
            self.paths += [NamedPath(path, kind, f"{place!r} leads there") for path in self._below(place)]

    def add_value(self, kind: Names, name: str, value: str, trees: Iterable[str]) -> None:
        """Add what a value names, relative to each of the directories."""
        reason = f"{name} = {value}"
        if kind is Names.FILE:
            for path in _absolute(value, trees):
                self.paths += [NamedPath(inner, kind, reason) for inner in self._below(path) if inner]
            return
        if kind is Names.DIRECTORY:
            for path in _absolute(value, trees):
                self.add_hooks(path, trees)
                # husky: `.husky/_/pre-commit` runs `.husky/pre-commit`
                below = self._below(path.removesuffix("/_"), holds_workspace=name != "core.hookspath")
                self.paths += [NamedPath(inner, kind, reason) for inner in below]
            return
        command = _TOP.sub(".", value)
        for word in sorted(set(command_programs(command)) if kind is Names.COMMAND else ()):
            for path in _absolute(word, trees):
                self.paths += [NamedPath(inner, Names.COMMAND, reason) for inner in self._below(path) if inner]
        for path in _absolute(value, trees):  # a name may hold blanks
            if os.path.isfile(path):
                self.paths += [NamedPath(inner, Names.COMMAND, reason) for inner in self._below(path) if inner]
        self._add_existing(value, reason, trees)
        self._add_modules(value, reason, trees)

    def add_hooks(self, directory: str, trees: Iterable[str]) -> None:
        """Add the targets of hooks that are links, and the executable files that scripts among the hooks name."""
        if (key := (directory, *trees)) in self._hooks:
            return
        self._hooks.add(key)
        hooks: list[str] = []
        with contextlib.suppress(OSError):
            hooks = [f"{directory}/{name}" for name in os.listdir(directory) if not name.endswith(".sample")]
        for hook in hooks:
            reason = f"the hook {hook!r}"
            if os.path.islink(hook):
                self.paths += [NamedPath(path, Names.COMMAND, reason) for path in self._below(hook) if path]
            text = _read(hook)
            if "\0" not in text:  # git passes what has no "#!" to a shell
                self._add_modules(text, reason, trees)
                self._add_existing(text, reason, trees, executable=True)

    def _add_existing(self, text: str, reason: str, trees: Iterable[str], *, executable: bool = False) -> None:
        """Add the files that a command or a script names, as far as they exist.

        A word may be relative to a directory that the text names (`cd scripts && ./x`), or stand behind what only a
        shell knows (`"$DIR"/../scripts/x`). Of a script, whose words are of any kind, only executable files count and
        those that it gives to an interpreter.
        """
        text, trees = _TOP.sub(".", text.removeprefix("#!")), list(trees)
        scripts = {word for line in text.splitlines() for word in command_programs(line)}
        words = set(_WORD.findall(_VARIABLE.sub("", text)))
        operands = {"".join(pair) for pair in _OPERAND.findall(text)}
        bases = [
            place
            for word in sorted(words)
            for place in _absolute(_UPWARD.sub("", word, count=1), trees)
            if os.path.isdir(place) and self._below(place)
        ]
        paths = {word for word in words if "/" in word or "." in word}  # others: programs of PATH, and words of a text
        names = scripts | (words if executable else paths | operands)
        for word in names:
            for name in {word, _UPWARD.sub("", word, count=1)}:
                for path in _absolute(name, [*trees, *bases[:_MAX_BASES]]):
                    if os.path.isfile(path) and (not executable or word in scripts or os.access(path, os.X_OK)):
                        self.paths += [NamedPath(inner, Names.COMMAND, reason) for inner in self._below(path) if inner]

    def _add_modules(self, text: str, reason: str, trees: Iterable[str]) -> None:
        """Add the files by which a tree would provide a module that `python -m` runs: it looks there first."""
        for module in set(_MODULE.findall(text)) if "python" in text.lower() else ():
            path = module.replace(".", "/")
            for name in (f"{path}.py", f"{path}/__init__.py", f"{path}/__main__.py"):
                for place in _absolute(name, trees):
                    self.paths += [
                        NamedPath(inner, Names.COMMAND, reason, may_be_created=False) for inner in self._below(place)
                    ]

    def _below(self, path: str, *, holds_workspace: bool = False) -> set[str]:
        """Return a path as paths below the workspace: as it is written, and with its links resolved."""
        below = set()
        for place in (os.path.normpath(path), os.path.realpath(path)):
            if place == self.workspace or (holds_workspace and self.workspace.startswith(f"{place.rstrip('/')}/")):
                below.add("")
            elif place.startswith(f"{self.workspace}/"):
                below.add(place.removeprefix(f"{self.workspace}/"))
        return below


def is_held(workspace: str, path: str) -> bool:
    """Whether a path of the workspace is a file that `guard` created in place of a missing one."""
    text = git_layout.read_small(workspace, path)
    return text is not None and text.encode("utf-8", "surrogateescape") in {HELD_FILE, HELD_PROGRAM}


def package_directory(path: str) -> str:
    """Return the directory of packages in which a path lies ("node_modules", ".venv"), or ""."""
    parts = path.split("/")
    depth = next((index for index, part in enumerate(parts) if part in _PACKAGES), None)
    return "" if depth is None else "/".join(parts[: depth + 1])


def command_programs(text: str) -> Iterator[str]:
    """Yield the paths that a shell command runs: programs with a slash in their name, and scripts of interpreters."""
    lexer = shlex.shlex(text.removeprefix("!"), posix=True, punctuation_chars=";|&(){}\n")
    lexer.whitespace_split = True
    lexer.commenters = ""
    try:
        words = list(lexer) if len(text) <= _MAX_COMMAND_CHARS else text.split()
    except ValueError:  # an open quote
        words = text.split()
    is_first, is_script = True, False
    for word in words:
        if set(word) <= set(";|&(){}\n"):
            is_first, is_script = True, False
        elif is_first and (word in _WRAPPERS or re.match(r"\w+=", word)):
            continue
        elif is_first:
            is_first = False
            is_script = bool(_INTERPRETERS.fullmatch(word.rpartition("/")[2]))
            if "/" in word and not _NO_PATH.match(word):
                yield word
        elif is_script and " " in word:  # sh -c 'tools/x %A'
            yield from command_programs(word)
        elif is_script and (word.startswith("-m") or not word.startswith("-")):  # -m: a module of Python
            is_script = False
            if not _NO_PATH.match(word):
                yield word


def _absolute(value: str, directories: Iterable[str]) -> Iterator[str]:
    """Yield the absolute paths that a value means in each of the directories."""
    value = value.removeprefix(":(optional)")
    if value.startswith("~"):
        value = os.path.expanduser(value)
    if value.startswith("/"):
        yield value
    elif value and not value.startswith(("~", "%(prefix)")) and "\0" not in value:
        for directory in directories:
            yield f"{directory}/{value}"


def _common_directory(directory: str) -> str:
    """Return the repository of a git directory: itself, or that of which it is a worktree's part."""
    common = _read(f"{directory}/commondir").strip()
    return os.path.normpath(os.path.join(directory, common)) if common else directory


def _with_includes(file: str, seen: set[str] | None = None) -> Iterator[tuple[str, Setting]]:
    """Yield the settings of a file and of those that it includes, whatever their conditions, each with its file."""
    seen = set() if seen is None else seen
    if file in seen or len(seen) > _MAX_INCLUDES:
        return
    seen.add(file)
    for setting in read_settings(_read(file)):
        yield file, setting
        if setting.key in {"include.path", "includeif.path"}:
            for included in _absolute(setting.value, [os.path.dirname(file)]):
                yield from _with_includes(os.path.normpath(included), seen)


def _person_settings() -> list[tuple[str, Setting]]:
    """Return the settings of the person, the system and the environment, each with its file."""
    environment = {name: value for name, value in os.environ.items() if name not in _OF_A_REPOSITORY}
    listed = b""
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):  # also where git is missing
        listed = host_programs.run(
            ["git", "--no-pager", "config", "--list", "--show-origin", "--includes", "-z"],
            cwd="/",
            env={**environment, "GIT_CEILING_DIRECTORIES": "/", "LC_ALL": "C", **_NO_TRACES},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_TIMEOUT_S,
            check=False,
        ).stdout
    fields = listed.decode("utf-8", "surrogateescape").split("\0")
    settings: list[tuple[str, Setting]] = []
    for origin, pair in zip(fields[::2], fields[1::2], strict=False):
        name, has_value, value = pair.partition("\n")
        section, _, rest = name.partition(".")
        subsection, _, last = rest.rpartition(".")
        file = origin.removeprefix("file:") if origin.startswith("file:") else "/"
        settings.append((file, Setting(f"{section}.{last}".lower(), value if has_value else "true", subsection)))
    # what git does not list: includes whose condition does not hold, the files of the person who started sudo, and all
    # if git is not there
    files = {file for file, _ in settings}
    homes = {os.path.expanduser(f"~{name}") for name in ("", os.environ.get("SUDO_USER", ""))}
    unread = {f"{home}/{name}" for home in homes for name in (".gitconfig", ".config/git/config")}
    for file, setting in settings:
        if setting.key in {"include.path", "includeif.path"}:
            unread |= {os.path.normpath(path) for path in _absolute(setting.value, [os.path.dirname(file)])}
    seen = set(files)
    for file in sorted(unread - files):
        settings += _with_includes(file, seen)
    return settings


def _read(file: str) -> str:
    """Return the first 256 KiB of a regular file as text; empty if it cannot be read."""
    with contextlib.suppress(OSError, ValueError):
        if stat.S_ISREG(os.stat(file).st_mode):
            descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            try:
                return os.read(descriptor, git_layout.MAX_SMALL_FILE).decode("utf-8", "surrogateescape")
            finally:
                os.close(descriptor)
    return ""
