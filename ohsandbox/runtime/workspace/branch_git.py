"""git with a configuration of ours alone: in trees of ours, and in a person's repository, whose own runs nothing."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from ohsandbox.errors import UsageError
from ohsandbox.paths import subdirectory
from ohsandbox.private_files import write_atomically
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
"""The configuration of each git of ours, in the place of the person's and the system's. A file above the threshold is
read piece by piece, and compared as a whole."""
_OVERRIDE = {
    "core.hooksPath": "/dev/null", "core.fsmonitor": "false", "submodule.recurse": "false",
    "diff.ignoreSubmodules": "all", "diff.external": "", "commit.gpgSign": "false", "gc.auto": "0",
    "maintenance.auto": "false", "fetch.fsckObjects": "true", "log.showSignature": "false",
    "merge.verifySignatures": "false", "core.alternateRefsCommand": "false", "gpg.program": "false",
    "gpg.openpgp.program": "false", "gpg.x509.program": "false", "gpg.ssh.program": "false",
    "gpg.ssh.defaultKeyCommand": "false",
}  # fmt: skip
"""Over the configuration of the person's own repository, where git has to read it: somebody else may have made that."""
_NAMES_PROGRAM = (
    (re.compile(r"\Afilter\..*\.(?:clean|smudge|process)", re.DOTALL), ""),
    (re.compile(r"\A(?:filter\..*\.required|merge\..*\.driver)", re.DOTALL), "false"),
    (re.compile(r"\Abranch\..*\.mergeoptions", re.DOTALL), ""),
)
"""The same for settings with names of somebody's choice. A merge driver that fails is a conflict."""
_PARTIAL = re.compile(r"\A(?:extensions\.partialclone|remote\..*\.(?:promisor|partialclonefilter))", re.DOTALL)
"""git fetches what such a repository lacks by itself, with the programs that its configuration names."""
OWN_AUTHOR = {"NAME": "ohsandbox", "EMAIL": "ohsandbox@localhost"}
"""Who commits what a sandbox left uncommitted, and in the place of a person without a name."""


def in_repository(repository: Path, arguments: Sequence[str]) -> str:
    """Run git in the person's repository, without hooks and what its configuration would have it run.

    Raises:
        UsageError: it failed.
    """
    person = {
        name: of_person(key) or OWN_AUTHOR[name] for name, key in (("NAME", "user.name"), ("EMAIL", "user.email"))
    }
    return text(arguments, repository, tamed(repository) | authorship(person))


def authorship(facts: Mapping[str, str]) -> dict[str, str]:
    """The variables of an author and committer, of NAME, EMAIL and DATE."""
    return {f"GIT_{role}_{what}": fact for role in ("AUTHOR", "COMMITTER") for what, fact in facts.items()}


def tamed(repository: Path) -> dict[str, str]:
    """Variables with which git works in that tree, and its configuration runs nothing.

    Raises:
        UsageError: it is a partial clone, or its configuration cannot be read.
    """
    where = {"GIT_DIR": str(repository / ".git"), "GIT_WORK_TREE": str(repository)}  # whatever core.worktree says
    names = [os.fsdecode(one) for one in run(["config", "--list", "--name-only", "-z"], repository, where).split(b"\0")]
    if any(_PARTIAL.fullmatch(name) for name in names):
        raise UsageError(
            f"A branch of {str(repository)!r} cannot be shared: it is a partial clone. Remedy: clone it whole."
        )
    settings = [*_OVERRIDE.items()]
    settings += [(name, value) for name in names for pattern, value in _NAMES_PROGRAM if pattern.fullmatch(name)]
    for number, (name, value) in enumerate(settings):
        where |= {f"GIT_CONFIG_KEY_{number}": name, f"GIT_CONFIG_VALUE_{number}": value}
    return where | {"GIT_CONFIG_COUNT": str(len(settings))}


def of_person(key: str) -> str:
    """A value of the person's own configuration, so that commits of the sandbox have their name."""
    home = str(Path.home())
    own = {"HOME": home, "XDG_CONFIG_HOME": os.environ.get("XDG_CONFIG_HOME", f"{home}/.config")}
    own["GIT_CONFIG_GLOBAL"] = os.environ.get("GIT_CONFIG_GLOBAL", f"{home}/.gitconfig")
    code, output = git.call(["config", "--global", "--get", key], directory=Path("/"), environment=own)
    return output.decode("utf-8", "replace").strip() if code == 0 else ""


def text(arguments: Sequence[str], directory: Path, where: Mapping[str, str] | None = None) -> str:
    """The output of `run` as text, without the blanks around it."""
    return run(arguments, directory, where).decode("utf-8", "surrogateescape").strip()


def run(
    arguments: Sequence[str], directory: Path, where: Mapping[str, str] | None = None, *, stdin: bytes = b""
) -> bytes:
    """The output of git with our configuration alone.

    Raises:
        UsageError: it failed.
    """
    code, output = git.call(arguments, directory=directory, environment=environment(where or {}), stdin=stdin)
    if code:
        words = next((word for word in arguments if re.fullmatch(r"[a-z][a-z-]+", word)), "git")
        raise failed(words, directory)
    return output


def environment(where: Mapping[str, str]) -> dict[str, str]:
    """The variables of each git of ours."""
    config = subdirectory(BRANCHES) / "gitconfig"
    if not config.is_file() or config.read_bytes() != _CONFIG:
        write_atomically(config, _CONFIG)
    return {
        "GIT_CONFIG_GLOBAL": str(config),
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_ALLOW_PROTOCOL": "file",  # over what a repository's own configuration allows
        "GIT_NO_LAZY_FETCH": "1",
        **where,
    }


def failed(words: str, directory: Path) -> UsageError:
    """The error of a git that failed; what it printed is foreign text, and is not told."""
    return UsageError(f"`git {words}` failed in {str(directory)!r}. Remedy: look at it there.")
