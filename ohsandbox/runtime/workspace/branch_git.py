"""Running git with our own configuration: in our trees, and in a person's repository without running its programs."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from ohsandbox import host_programs
from ohsandbox.errors import UsageError
from ohsandbox.paths import subdirectory
from ohsandbox.private_files import read_regular, write_atomically
from ohsandbox.runtime.workspace import git

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

BRANCHES = "branches"
"""Below the state directory: a directory for each tree, with its record."""
_CONFIG = b"""[safe]
\tdirectory = *
[core]
\thooksPath = /dev/null
\tfsmonitor = false
\tattributesFile = /dev/null
\tuntrackedCache = false
\tbigFileThreshold = 32m
[protocol]
\tallow = never
[protocol "file"]
\tallow = always
[submodule]
\trecurse = false
[fetch]
\trecurseSubmodules = false
\tfsckObjects = true
[gc]
\tauto = 0
[maintenance]
\tauto = false
[commit]
\tgpgSign = false
[advice]
\tdetachedHead = false
"""
"""The configuration of each git that we run, instead of the person's and the system's. git reads a file above the
threshold in pieces, and compares it as binary."""
_OVERRIDE = {
    "core.hooksPath": "/dev/null", "core.fsmonitor": "false", "submodule.recurse": "false",
    "diff.ignoreSubmodules": "all", "diff.external": "", "commit.gpgSign": "false", "gc.auto": "0",
    "maintenance.auto": "false", "fetch.fsckObjects": "true", "log.showSignature": "false",
    "merge.verifySignatures": "false", "core.alternateRefsCommand": "false", "gpg.program": "false",
    "gpg.openpgp.program": "false", "gpg.x509.program": "false", "gpg.ssh.program": "false",
    "gpg.ssh.defaultKeyCommand": "false",
}  # fmt: skip
"""Settings that override those of the person's repository, which git has to read and somebody else may have written."""
_NAMES_PROGRAM = (
    (re.compile(r"\Afilter\..*\.(?:clean|smudge|process)", re.DOTALL), ""),
    (re.compile(r"\A(?:filter\..*\.required|merge\..*\.driver)", re.DOTALL), "false"),
    (re.compile(r"\Abranch\..*\.mergeoptions", re.DOTALL), ""),
)
"""Patterns of settings with freely chosen names, and the value that overrides them. A failing merge driver makes a
conflict."""
_PARTIAL = re.compile(r"\A(?:extensions\.partialclone|remote\..*\.(?:promisor|partialclonefilter))", re.DOTALL)
"""Settings of a partial clone: git fetches its missing objects unasked, with the programs that the settings name."""
OWN_AUTHOR = {"NAME": "ohsandbox", "EMAIL": "ohsandbox@localhost"}
"""Author of the commits with a sandbox's uncommitted files, and of commits for a person without a configured name."""


def in_repository(repository: Path, arguments: Sequence[str]) -> str:
    """Run git in the person's repository, without hooks and programs of its configuration; return its output.

    Raises:
        UsageError: git failed, or the repository is a partial clone.
    """
    person = {
        name: of_person(key) or OWN_AUTHOR[name] for name, key in (("NAME", "user.name"), ("EMAIL", "user.email"))
    }
    return text(arguments, repository, safe_environment(repository) | authorship(person))


def authorship(facts: Mapping[str, str]) -> dict[str, str]:
    """Return git's variables for author and committer; facts has values of NAME, EMAIL and DATE."""
    return {f"GIT_{role}_{what}": fact for role in ("AUTHOR", "COMMITTER") for what, fact in facts.items()}


def safe_environment(repository: Path) -> dict[str, str]:
    """Return the variables with which git works in a repository's tree and runs no program of its configuration.

    Raises:
        UsageError: it is a partial clone, or its configuration cannot be read.
    """
    host_programs.exclude_workspace(repository)
    where = {"GIT_DIR": str(repository / ".git"), "GIT_WORK_TREE": str(repository)}  # whatever core.worktree says
    names = [os.fsdecode(one) for one in run(["config", "--list", "--name-only", "-z"], repository, where).split(b"\0")]
    if any(_PARTIAL.fullmatch(name) for name in names):
        raise UsageError(f"A branch of {str(repository)!r} cannot be shared: it is a partial clone. Clone it whole.")
    settings = [*_OVERRIDE.items()]
    settings += [(name, value) for name in names for pattern, value in _NAMES_PROGRAM if pattern.fullmatch(name)]
    for number, (name, value) in enumerate(settings):
        where |= {f"GIT_CONFIG_KEY_{number}": name, f"GIT_CONFIG_VALUE_{number}": value}
    return where | {"GIT_CONFIG_COUNT": str(len(settings))}


def of_person(key: str) -> str:
    """Return a value of the person's own configuration, such as their name for commits; "" if it is not set."""
    home = str(Path.home())
    own = {"HOME": home, "XDG_CONFIG_HOME": os.environ.get("XDG_CONFIG_HOME", f"{home}/.config")}
    own["GIT_CONFIG_GLOBAL"] = os.environ.get("GIT_CONFIG_GLOBAL", f"{home}/.gitconfig")
    code, output = git.call(["config", "--global", "--get", key], directory=Path("/"), environment=own)
    return output.decode("utf-8", "replace").strip() if code == 0 else ""


def text(arguments: Sequence[str], directory: Path, where: Mapping[str, str] | None = None) -> str:
    """Return the output of `run` as text, without white space at both ends; raises as `run`."""
    return run(arguments, directory, where).decode("utf-8", "surrogateescape").strip()


def run(
    arguments: Sequence[str], directory: Path, where: Mapping[str, str] | None = None, *, stdin: bytes = b""
) -> bytes:
    """Run git with our configuration alone and the variables of where; return its output.

    Raises:
        UsageError: git failed, or as `git.call`.
    """
    code, output = git.call(arguments, directory=directory, environment=environment(where or {}), stdin=stdin)
    if code:
        words = next((word for word in arguments if re.fullmatch(r"[a-z][a-z-]+", word)), "git")
        raise failed(words, directory)
    return output


def environment(where: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of each git that we run, and those of where; writes our configuration file if needed."""
    config = subdirectory(BRANCHES) / "gitconfig"
    try:
        is_there = read_regular(config) == _CONFIG
    except OSError:
        is_there = False
    if not is_there:
        write_atomically(config, _CONFIG)
    return {
        "GIT_CONFIG_GLOBAL": str(config),
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_ALLOW_PROTOCOL": "file",  # over what a repository's own configuration allows
        "GIT_NO_LAZY_FETCH": "1",
        **where,
    }


def failed(words: str, directory: Path) -> UsageError:
    """Return the error for a failed git command; it does not quote git's output, which is foreign text."""
    return UsageError(f"`git {words}` failed in {str(directory)!r}. Look at it there.")
