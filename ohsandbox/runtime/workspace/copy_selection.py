"""Selection of a directory's files for a copy that an agent works on: those that git would track, without secrets.

`git ls-files` evaluates `.gitignore`, in a repository of our own with a copy of the directory's index: git reads no
configuration of that directory, and runs nothing in it.
"""

from __future__ import annotations

import fnmatch
import os
import tempfile
from pathlib import Path
from typing import NamedTuple

from ohsandbox.errors import UsageError
from ohsandbox.private_files import read_regular
from ohsandbox.runtime.workspace import git
from ohsandbox.runtime.workspace.git_layout import MAX_INDEX_BYTES, parents_of, read_small
from ohsandbox.runtime.workspace.git_settings import read_settings

SECRET_NAMES = (
    ".env", ".env.*", "*.env", ".envrc", "*.pem", "*.key", "*.p12", "*.pfx", "*.jks", "*.keystore", "*.kdbx", "*.ppk",
    "id_rsa*", "id_dsa*", "id_ecdsa*", "id_ed25519*", "*credentials", "*credentials.*", "client_secret*.json",
    "service*account*.json", "secret.*", "secrets.*", "*-secret.*", "*-secrets.*",
    ".secrets", ".netrc", "_netrc", ".pgpass", ".my.cnf", ".npmrc", ".yarnrc.yml",
    ".pypirc", ".git-credentials", ".htpasswd", ".dockercfg", ".dockerconfigjson", ".vault-token", ".terraformrc",
    "*.tfstate", "*.tfstate.backup", "*.auto.tfvars", "terraform.tfvars", "kubeconfig", "*.kubeconfig", ".boto",
    ".s3cfg", "*.keytab", "*.ovpn", ".*_history", ".gitconfig", ".claude.json",
)  # fmt: skip
"""Patterns of file names that look like secrets, case-insensitive."""
_SECRET_DIRECTORIES = frozenset({".aws", ".azure", ".docker", ".gcloud", ".gnupg", ".kube", ".ssh", ".terraform"})
_NO_SECRETS = (
    ".env.example", ".env.sample", ".env.template", ".env.dist", ".env.defaults", "*.pub", "*.md", "*.rst", "*.html",
    "*.css", "*.py", "*.pyi", "*.js", "*.jsx", "*.ts", "*.tsx", "*.go", "*.rs", "*.rb", "*.java", "*.kt", "*.swift",
    "*.c", "*.cc", "*.cpp", "*.h", "*.hpp", "*.cs", "*.php", "*.scala", "*.ex", "*.exs", "*.lua", "*.sh",
)  # fmt: skip
"""Exceptions from SECRET_NAMES."""

_GIT_PARTS = frozenset({"HEAD", "index", "logs", "objects", "packed-refs", "refs", "shallow"})
"""Parts of a `.git` to copy. Its configuration, which may hold tokens, and its hooks are meant for this machine."""
MAX_GIT_BYTES = 512 * 1024**2
MAX_NAMES = 200_000

_IGNORED, _SECRET, _OVER = "ignored by git", "looks like a secret", "over 512 MiB"
_TIMEOUT_S = 60.0


class _CopySelection(NamedTuple):
    """The selected files of a directory."""

    paths: frozenset[str]
    """Files, symlinks and the directories that contain them, below the directory."""
    left_out: dict[str, str]
    """The reason for each other path; a directory left out as a whole has one entry, with a trailing slash."""
    has_git: bool
    """Whether parts of its `.git` are selected."""


def select_files(root: Path, *, everything: bool = False) -> _CopySelection:
    """Select files of a directory. everything includes ignored files and those that look like secrets.

    Raises:
        UsageError: it holds over 200,000 names; or git, which reads the ignore rules, is not installed or failed.
    """
    walk = _SelectionWalk(str(root), None if everything else _tracked(root))
    walk.into("")
    has_git = (root / ".git").is_dir() and not (root / ".git").is_symlink()
    if has_git and (why := _why_without_git(root)):
        walk.left_out[".git/"], has_git = why, False
    paths = walk.paths | (_parts_of_git(str(root)) if has_git else set())
    return _CopySelection(
        frozenset(paths | {parent for path in paths for parent in parents_of(path)}), walk.left_out, has_git
    )


def tracked_or_new(root: Path) -> frozenset[str]:
    """Return the files below a directory outside of any repository that its `.gitignore` files do not match.

    Raises:
        UsageError: git is not installed, failed, or did not end in time.
    """
    return frozenset(_list(root, root, None))


def _tracked(root: Path) -> set[str]:
    """Return the files that git tracks or would track, nested repositories included."""
    found: set[str] = set()
    below = [root]
    while below:
        directory = below.pop()
        top = next((one for one in (directory, *directory.parents) if os.path.lexists(one / ".git")), directory)
        for name in _list(directory, top, _index_of(top)):
            path = directory / name
            if name.endswith("/") or (path.is_dir() and not path.is_symlink()):  # a nested repository
                if path != directory and os.path.lexists(path / ".git"):
                    below.append(path)
            else:
                found.add(str(path.relative_to(root)))
    return found


def _list(directory: Path, top: Path, index: bytes | None) -> list[str]:
    with tempfile.TemporaryDirectory(prefix="ohsandbox-copy-") as name:
        ours = Path(name)
        for part in ("objects", "refs", "info"):
            (ours / part).mkdir()
        (ours / "HEAD").write_text("ref: refs/heads/main\n", encoding="ascii")
        if index is not None:
            (ours / "index").write_bytes(index)
            if exclude := read_small(str(top), ".git/info/exclude"):
                (ours / "info" / "exclude").write_text(exclude, encoding="utf-8", errors="surrogateescape")
        environment = {"GIT_DIR": name, "GIT_WORK_TREE": str(top), "GIT_ALLOW_PROTOCOL": "none"}
        if personal := os.environ.get("XDG_CONFIG_HOME") or os.environ.get("HOME"):
            place = Path(personal) if os.environ.get("XDG_CONFIG_HOME") else Path(personal) / ".config"
            environment["XDG_CONFIG_HOME"] = str(place)  # for git/ignore in it, to which `.gitignore` files add
        what = ("-c", "core.fsmonitor=", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
        code, output = git.call(what, directory=directory, environment=environment, timeout_s=_TIMEOUT_S)
    if code:
        raise UsageError(
            f"git could not list the files of {str(directory)!r} (exit code {code}). Repair its index with "
            "`git status`, or take everything along with --copy-all (copy='all')."
        )
    return [os.fsdecode(path) for path in output.split(b"\0") if path]


def _index_of(top: Path) -> bytes | None:
    """Return a repository's index; the pointer of a worktree or a submodule is followed, since it is only read."""
    place = top / ".git"
    if place.is_file() and (pointer := read_small(str(top), ".git")) and pointer.startswith("gitdir:"):
        place = top / pointer.removeprefix("gitdir:").strip()
    try:
        return read_regular(place / "index", limit_bytes=MAX_INDEX_BYTES, follow=True)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise UsageError(
            f"The index of the repository {str(top)!r} cannot be read: {error.strerror}. Repair it with `git status`, "
            "or take everything along with --copy-all (copy='all')."
        ) from None


class _SelectionWalk:
    """Sorts the paths below a directory into selected ones and others."""

    def __init__(self, root: str, tracked: set[str] | None) -> None:
        """Start with the tracked paths; None selects everything."""
        self.paths: set[str] = set()
        self.left_out: dict[str, str] = {}
        self._root = root
        self._tracked = tracked
        self._wanted = {parent for path in tracked or () for parent in parents_of(path)}

    def into(self, prefix: str) -> None:
        """Sort all paths below a directory of root, except `.git`."""
        below = [prefix]
        while below:
            directory = below.pop()
            with os.scandir(f"{self._root}/{directory}") as entries:
                for entry in entries:
                    path, is_directory = directory + entry.name, entry.is_dir(follow_symlinks=False)
                    if entry.name == ".git":
                        continue
                    if why := self._why_not(path, entry.name, is_directory=is_directory):
                        self.left_out[f"{path}/" if is_directory else path] = why
                        continue
                    self.paths.add(path)
                    if is_directory:
                        below.append(f"{path}/")
            if len(self.paths) + len(self.left_out) > MAX_NAMES:
                raise UsageError(f"{self._root!r} holds over {MAX_NAMES} names: too many to copy. Name a smaller one.")

    def _why_not(self, path: str, name: str, *, is_directory: bool) -> str | None:
        if self._tracked is None:
            return None
        if name.lower() in _SECRET_DIRECTORIES if is_directory else looks_secret(name):
            return _SECRET
        if is_directory:
            return _IGNORED if path not in self._wanted and _is_filled(f"{self._root}/{path}") else None
        return None if path in self._tracked else _IGNORED


def _is_filled(directory: str) -> bool:
    try:
        with os.scandir(directory) as entries:
            return next(entries, None) is not None
    except OSError:
        return True


def looks_secret(name: str) -> bool:
    """Whether files with keys or passwords usually have such a name."""
    lowered = name.lower()
    if any(fnmatch.fnmatchcase(lowered, pattern) for pattern in _NO_SECRETS):
        return False
    return any(fnmatch.fnmatchcase(lowered, pattern) for pattern in SECRET_NAMES)


def _why_without_git(root: Path) -> str | None:
    """Return why a repository cannot be copied by its parts; None if it can."""
    if os.path.lexists(root / ".git" / "objects" / "info" / "alternates"):
        return "its objects lie elsewhere"
    config = read_small(str(root), ".git/config") or ""
    if any(setting.key.startswith("extensions.") for setting in read_settings(config)):
        return "it needs extensions of its configuration"
    size = 0
    for directory, _, names in os.walk(root / ".git" / "objects"):
        for name in names:
            size += os.lstat(os.path.join(directory, name)).st_size  # noqa: PTH118 - a hot loop
    return _OVER if size > MAX_GIT_BYTES else None


def _parts_of_git(root: str) -> set[str]:
    walk = _SelectionWalk(root, None)
    with os.scandir(f"{root}/.git") as entries:
        parts = [entry for entry in entries if entry.name in _GIT_PARTS]
    for entry in parts:
        walk.paths.add(f".git/{entry.name}")
        if entry.is_dir(follow_symlinks=False):
            walk.into(f".git/{entry.name}/")
    return walk.paths
