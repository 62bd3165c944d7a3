"""Working trees of our own for branches of a person's repository, so that several agents work on one repository.

A tree is a shared clone below the state directory: it borrows the repository's objects, which the sandbox gets
read-only, and has refs, index and files of its own. No link leads back: nothing in the sandbox writes the repository.
git on this machine never uses what a sandbox wrote as a repository: only the regular files of its new objects are
copied to a repository of ours, and its files are added to an index of ours.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
import stat
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from ohsandbox.errors import UsageError
from ohsandbox.paths import state_dir, subdirectory
from ohsandbox.private_files import read_regular, write_atomically
from ohsandbox.runtime.mount_text import WORKSPACE
from ohsandbox.runtime.workspace import branch_git, git, git_layout
from ohsandbox.runtime.workspace.branch_git import BRANCHES
from ohsandbox.strict_json import load_json

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_RECORD = "branch.json"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*(?:/[A-Za-z0-9][A-Za-z0-9._-]*)*")
_HASH = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")
_MAX_NAME_CHARS = 100
_STAT_COLUMNS, _STAT_FILES = 120, 200


class Branch(NamedTuple):
    """A branch with a tree of its own."""

    name: str
    repository: Path
    """The top of the person's working tree."""
    base: str
    """The commit at which it began."""
    directory: Path
    """Our directory, which contains the tree."""

    @property
    def tree(self) -> Path:
        """The working tree for the sandbox."""
        return self.directory / self.repository.name

    @property
    def objects(self) -> Path:
        """The repository's directory of objects, which the tree borrows."""
        return self.repository / ".git" / "objects"


class BranchWork(NamedTuple):
    """The work on a branch, in a repository that git on this machine may read while the block of `work_of` lasts."""

    gitdir: Path
    """Our repository with the objects."""
    committed: str
    """The commit of the branch in the tree."""
    commit: str
    """The same, or a commit of ours that adds uncommitted files, or work that was brought before."""
    commits: int
    """Number of commits from the base to committed."""

    @property
    def is_dirty(self) -> bool:
        """Whether commit is another than committed."""
        return self.commit != self.committed


def is_tree(path: Path) -> bool:
    """Whether a path is the tree of a branch, which may be bound although it lies in the state directory."""
    try:
        place = state_dir().resolve() / BRANCHES
        parts = path.relative_to(place).parts
    except (ValueError, OSError):
        return False
    return len(parts) == len(("key", "name")) and (place / parts[0] / _RECORD).is_file()


def open_branch(repository: Path, name: str) -> Branch:
    """Return the branch; a missing tree is created from the repository's branch of that name, or else from HEAD.

    Raises:
        UsageError: the name is invalid, the repository cannot be shared or has no commit, or git failed.
    """
    top = _top(repository)
    if not _NAME.fullmatch(name) or len(name) > _MAX_NAME_CHARS or ".." in name or f"{name}/".count(".lock/"):
        raise UsageError(f"{name!r} is not a name of a branch here. Use letters, digits, '.', '_', '-' and '/'.")
    key = hashlib.sha256(os.fsencode(top) + b"\0" + name.encode()).hexdigest()[:16]
    directory = subdirectory(BRANCHES) / key
    if (found := _read(directory)) is not None:
        return found
    branch_git.safe_environment(top)  # a partial clone is refused
    shutil.rmtree(directory, ignore_errors=True)  # of one that was killed while it was made
    directory.mkdir(mode=0o700)
    try:
        made = Branch(name, top, "", directory)
        base = _make_tree(made)
        record = {"name": name, "repository": str(top), "base": base}
        write_atomically(directory / _RECORD, json.dumps(record).encode())
    except BaseException:
        shutil.rmtree(directory, ignore_errors=True)
        raise
    return made._replace(base=base)


def find_branches(repository: Path | None = None) -> list[Branch]:
    """Return all branches with a tree, sorted by name; repository, a directory, limits them to those of its repository.

    Raises:
        UsageError: the directory is in no repository that can be shared.
    """
    top = None if repository is None else _top(repository)
    found = [one for path in subdirectory(BRANCHES).iterdir() if (one := _read(path)) is not None]
    return sorted(one for one in found if top is None or one.repository == top)


@contextlib.contextmanager
def work_of(branch: Branch) -> Iterator[BranchWork]:
    """Context with the work on a branch, committed or not.

    Raises:
        UsageError: its repository is gone, or the tree cannot be read.
    """
    with tempfile.TemporaryDirectory(prefix="ohsandbox-branch-") as name:
        gitdir = Path(name) / "git"
        branch_git.text(["init", "-q", "--bare", "--template=", str(gitdir)], Path(name))
        _copy_objects(branch.tree, gitdir / "objects")
        (gitdir / "objects/info").mkdir(exist_ok=True)
        (gitdir / "objects/info/alternates").write_bytes(os.fsencode(branch.objects) + b"\n")
        committed = _commit_of(branch)
        where = {"GIT_DIR": str(gitdir), "GIT_WORK_TREE": str(branch.tree), "GIT_INDEX_FILE": str(gitdir / "index")}
        tree = _tree_of_files(branch, committed, where)
        commit = _with_files(branch, committed, tree, where)
        count = branch_git.text(["rev-list", "--count", f"{branch.base}..{committed}"], Path(name), where)
        yield BranchWork(gitdir, committed, commit, int(count))


def _with_files(branch: Branch, committed: str, tree: str, where: dict[str, str]) -> str:
    """Return a commit of tree above committed and above the commit brought before; the same one for the same input."""
    above, brought = branch.directory, _fetched_commit(branch)
    parents = [brought or committed]
    if brought:
        since = branch_git.text(["rev-list", brought, f"^{branch.base}"], above, where).split()
        parents = parents if committed in {*since, branch.base} else [committed, brought]
    if len(parents) == 1 and tree == branch_git.text(["rev-parse", "--verify", f"{parents[0]}^{{tree}}"], above, where):
        return parents[0]
    facts = {
        **branch_git.OWN_AUTHOR,
        "DATE": branch_git.text(["log", "-1", "--format=%ct +0000", committed], above, where),
    }
    named = [word for one in parents for word in ("-p", one)]
    message = f"What was not committed on {branch.name}"
    return branch_git.text(["commit-tree", tree, *named, "-m", message], above, where | branch_git.authorship(facts))


def _fetched_commit(branch: Branch) -> str:
    """Return the commit of the branch in the person's repository if its author is OWN_AUTHOR; otherwise ""."""
    try:
        said = branch_git.in_repository(
            branch.repository, ["log", "-1", "--format=%H %ae", f"refs/heads/{branch.name}", "--"]
        )
    except UsageError:
        return ""
    commit, _, mail = said.partition(" ")
    return commit if mail == branch_git.OWN_AUTHOR["EMAIL"] else ""


def diff(branch: Branch, work: BranchWork, take: Callable[[bytes], bool], *, stat_only: bool = False) -> None:
    """Pass the changes since the base to take, as pieces of a patch or of a statistic, until it returns False.

    Raises:
        UsageError: git failed.
    """
    how = [f"--stat={_STAT_COLUMNS}", f"--stat-count={_STAT_FILES}"] if stat_only else ["--binary"]
    words = ["diff", "--no-ext-diff", "--no-textconv", "--no-color", *how, branch.base, work.commit, "--"]
    environment = branch_git.environment({"GIT_DIR": str(work.gitdir)})
    if git.run(words, take, directory=work.gitdir.parent, environment=environment):
        raise branch_git.failed("diff", work.gitdir.parent)


def fetch_branch(branch: Branch, work: BranchWork) -> None:
    """Put the branch, with its commits, into the person's repository; no file of its working tree is changed.

    Raises:
        UsageError: the branch there has other commits or is checked out, or git refuses an object.
    """
    branch_git.run(["update-ref", "refs/heads/work", work.commit], work.gitdir, {"GIT_DIR": str(work.gitdir)})
    head = f"refs/heads/{branch.name}"
    try:
        how = ["-q", "--no-tags", "--no-recurse-submodules", "--no-write-fetch-head"]
        branch_git.in_repository(branch.repository, ["fetch", *how, str(work.gitdir), f"refs/heads/work:{head}"])
    except UsageError as error:
        raise UsageError(
            f"Branch {branch.name!r} of {str(branch.repository)!r} has other commits, is checked out there, or the "
            f"work holds what git refuses. Look at it with `ohsandbox branches diff {branch.name}`. {error}"
        ) from error


def merge_into_checkout(branch: Branch) -> bool:
    """Merge the branch, which was brought before, into the person's checked-out branch; return whether it succeeded.

    A merge with conflicts is undone; git begins none that would overwrite uncommitted files.
    """
    try:
        branch_git.in_repository(
            branch.repository, ["merge", "-q", "--no-edit", "--no-verify", f"refs/heads/{branch.name}"]
        )
    except UsageError:
        if (branch.repository / ".git" / "MERGE_HEAD").exists():
            branch_git.in_repository(branch.repository, ["merge", "--abort"])
        return False
    return True


def is_in_repository(branch: Branch, work: BranchWork) -> bool:
    """Whether a branch of the person's repository, local or remote-tracking, contains the work."""
    try:
        listed = branch_git.in_repository(
            branch.repository, ["branch", "--all", "--format=%(refname)", "--contains", work.commit]
        )
    except UsageError:  # it does not know the commit
        return False
    return bool(listed.strip())


def remove_tree(branch: Branch) -> None:
    """Remove the tree; the person's repository stays as it is."""
    (branch.directory / _RECORD).unlink(missing_ok=True)
    shutil.rmtree(branch.directory, ignore_errors=True)


def _top(directory: Path) -> Path:
    """Return the top of the repository that contains a directory.

    Raises:
        UsageError: there is none, or it cannot be shared.
    """
    start = directory.expanduser().resolve()
    top = next((one for one in (start, *start.parents) if os.path.lexists(one / ".git")), None)
    if top is None:
        raise UsageError(f"{str(start)!r} is in no git repository. Name one with --workspace, or `git init`.")
    if top.is_relative_to(WORKSPACE) or Path(WORKSPACE).is_relative_to(top):
        raise UsageError(
            f"A branch of {str(top)!r} cannot be shared: its tree is at {WORKSPACE} in the sandbox, and its objects "
            "keep their path. Mount or move the repository elsewhere."
        )
    inner = top / ".git"
    why = ""
    if not stat.S_ISDIR(os.lstat(inner).st_mode):
        why = "its .git is not a directory (a worktree or a submodule)"
    elif not stat.S_ISDIR(os.lstat(inner / "objects").st_mode) or os.path.lexists(inner / "commondir"):
        why = "its objects lie elsewhere"
    elif (inner / "objects/info/alternates").exists():
        why = "it borrows objects of another one (`git repack -a -d` and removing objects/info/alternates ends that)"
    elif (inner / "shallow").exists():
        why = "it is a shallow clone (`git fetch --unshallow` ends that)"
    if why:
        raise UsageError(f"A branch of {str(top)!r} cannot be shared: {why}. Name the main working tree.")
    return top


def _read(directory: Path) -> Branch | None:
    try:
        said = load_json(read_regular(directory / _RECORD))
        return Branch(str(said["name"]), Path(said["repository"]), str(said["base"]), directory)
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _make_tree(branch: Branch) -> str:
    """Clone the repository into the tree; return the commit at which the branch begins.

    Raises:
        UsageError: the repository has no commit, or git failed.
    """
    url, tree = str(branch.repository), str(branch.tree)
    branch_git.text(
        ["clone", "-q", "--shared", "--no-checkout", "--template=", "--no-tags", "--", url, tree], branch.directory
    )
    names = branch_git.text(["for-each-ref", "--format=%(refname)"], branch.tree).split()
    known = f"refs/remotes/origin/{branch.name}"
    start = known if known in names else "HEAD"
    if start not in {*names, "HEAD"} or git.call(["rev-parse", "-q", "--verify", start], directory=branch.tree)[0]:
        raise UsageError(
            f"{str(branch.repository)!r} has no commit for a branch to begin with. Run `git commit` there first."
        )
    base = branch_git.text(["rev-parse", "--verify", f"{start}^{{commit}}"], branch.tree)
    branch_git.text(["checkout", "-q", "--no-track", "-B", branch.name, base], branch.tree)
    branch_git.text(["remote", "remove", "origin"], branch.tree)
    for key in ("user.name", "user.email"):
        if value := branch_git.of_person(key):
            branch_git.text(["config", key, value], branch.tree)
    return base


def _commit_of(branch: Branch) -> str:
    """Return the commit of the branch in the tree, read without git, since the sandbox may have written it.

    Raises:
        UsageError: the tree has no such branch.
    """
    tree, ref = str(branch.tree), f"refs/heads/{branch.name}"
    said = (git_layout.read_small(tree, f".git/{ref}") or "").strip()
    if not _HASH.fullmatch(said):
        packed = (line.split(" ") for line in (git_layout.read_small(tree, ".git/packed-refs") or "").splitlines())
        said = next((line[0] for line in packed if len(line) > 1 and line[1] == ref), "")
    if not _HASH.fullmatch(said):
        raise UsageError(f"The tree of branch {branch.name!r} has no such branch any more. Look at {tree!r}.")
    return said


def _copy_objects(tree: Path, target: Path) -> None:
    """Copy loose objects and packs: regular files with names that git gives them, reached through no link.

    Raises:
        UsageError: an object is larger than half of the free space.
    """
    for path, entry, _ in git_layout.walk(f"{tree}/.git/objects") if (tree / ".git/objects").is_dir() else ():
        if entry is None or not entry.is_file(follow_symlinks=False) or not _OBJECT.fullmatch(path):
            continue
        try:
            descriptor = git_layout.open_below(str(tree), f".git/objects/{path}", os.O_RDONLY)
        except OSError:
            continue
        (target / path).parent.mkdir(parents=True, exist_ok=True)
        with os.fdopen(descriptor, "rb") as source, (target / path).open("wb") as copy:
            size = os.fstat(source.fileno()).st_size
            if size > shutil.disk_usage(target).free // 2:  # one with holes takes no room in the tree
                raise UsageError(
                    f"The tree {str(tree)!r} has an object of {size} bytes, over half of what is free in "
                    f"{tempfile.gettempdir()!r}. Look at {path!r} in its .git/objects."
                )
            while size > 0 and (data := source.read(min(size, 1 << 20))):  # it may still grow
                copy.write(data)
                size -= len(data)


_OBJECT = re.compile(r"[0-9a-f]{2}/[0-9a-f]{38}(?:[0-9a-f]{24})?|pack/pack-[0-9a-f]{40}(?:[0-9a-f]{24})?\.(?:pack|idx)")


def _tree_of_files(branch: Branch, committed: str, where: dict[str, str]) -> str:
    """Return the tree object of all present files; those that git ignores are included only if they are committed.

    The index begins empty, so that git looks into no submodule.
    """
    top = branch.tree
    branch_git.run(["add", "-A", "--", "."], top, where)
    listed = branch_git.run(["ls-tree", "-r", "-z", "--full-tree", committed], top, where).split(b"\0")
    entries = [line.partition(b"\t") for line in listed if line]
    added = {*branch_git.run(["ls-files", "-z"], top, where).split(b"\0")}
    missing = [(facts, path) for facts, _, path in entries if path not in added]
    lines = [
        facts.replace(b" blob ", b" ").replace(b" commit ", b" ") + b"\t" + path
        for facts, path in missing
        if facts.startswith(b"160000")
    ]
    branch_git.run(["update-index", "-z", "--index-info"], top, where, stdin=b"".join(line + b"\0" for line in lines))
    ignored = [path for facts, path in missing if not facts.startswith(b"160000") and _is_there(top, path)]
    branch_git.run(
        ["update-index", "--add", "-z", "--stdin"], top, where, stdin=b"".join(path + b"\0" for path in ignored)
    )
    return branch_git.text(["write-tree"], top, where)


def _is_there(top: Path, path: bytes) -> bool:
    """Whether path is a file or a link, and no directory above it is a link."""
    parent, _, name = os.fsdecode(path).rpartition("/")
    with contextlib.suppress(OSError), git_layout.opened_below(str(top), parent) as directory:
        return not stat.S_ISDIR(os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode)
    return False
