"""`--branch` and `ohsandbox branches`: agents on branches of one repository, each in a tree of its own."""

# ruff: noqa: T201 - a command prints
from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ohsandbox.cli.prompt import is_agreed
from ohsandbox.cli.rendering.tables import print_json, print_table
from ohsandbox.cli.rendering.text import counted, output, safe_line, say
from ohsandbox.errors import UsageError
from ohsandbox.runtime.workspace import branches

if TYPE_CHECKING:
    from ohsandbox.cli.options import SandboxOptions
    from ohsandbox.runtime.workspace.branches import Branch, BranchWork


def on_branch(where: SandboxOptions) -> SandboxOptions:
    """The options with the branch's tree as workspace, and the objects that it borrows to be read.

    Raises:
        UsageError: the repository or the name does not do.
    """
    assert where.branch is not None  # noqa: S101 - only asked then
    branch = branches.open_branch(where.workspace or Path.cwd(), where.branch)
    borrowed = f"{branch.objects}:{branch.objects}:ro"
    more = (where.workspaces or [])[1:]
    return replace(
        where,
        branch=None,
        workspace=branch.tree,
        workspaces=[str(branch.tree), *more],
        mount=[*(one for one in where.mount or () if one != borrowed), borrowed],
    )


def list_branches(directory: Path | None, *, as_json: bool) -> int:
    """Print the branches with a tree: of a repository, or all."""
    rows = []
    for branch in branches.find_branches(directory):
        try:
            with branches.work_of(branch) as work:
                state = "all in the repository" if branches.is_in_repository(branch, work) else _told(work)
        except UsageError as error:
            state = str(error)
        rows.append((branch.name, str(branch.repository), state, str(branch.tree)))
    if as_json:
        print_json({"name": name, "repository": top, "state": state, "tree": tree} for name, top, state, tree in rows)
    elif rows:
        print_table(("BRANCH", "REPOSITORY", "WORK", "TREE"), rows)
    else:
        print("No branch has a tree here. `ohsandbox run --branch NAME` makes one.")
    return 0


def show_branch(name: str, directory: Path | None, *, stat: bool) -> int:
    """Print what was changed on a branch since it began, committed or not, as a patch."""
    branch = _find(name, directory)
    with branches.work_of(branch) as work:
        patch = branches.diff(branch, work, stat_only=stat)
    if sys.stdout.isatty() or stat:
        print(output(patch.decode("utf-8", "replace")), end="")
    else:
        sys.stdout.buffer.write(patch)
    return 0


def merge_branch(name: str, directory: Path | None, *, yes: bool) -> int:
    """Bring a branch to its repository, and merge it into what is checked out there."""
    branch = _find(name, directory)
    with branches.work_of(branch) as work:
        if work.commit == branch.base:
            print(f"Nothing was done on {safe_line(branch.name)}.")
            return 0
        print(output(branches.diff(branch, work, stat_only=True).decode("utf-8", "replace")), end="")
        where = safe_line(branch.repository)
        if not is_agreed(f"Merge {_told(work)} into what is checked out in {where}?", what="A merge", yes=yes):
            print("Nothing was changed.")
            return 1
        branches.bring(branch, work)
    if not branches.merge(branch):
        say(
            f"{safe_line(branch.name)} is a branch of {where} now. It was not merged: it conflicts, or files there are "
            f"not committed. No file was changed; `git merge {safe_line(branch.name)}` there goes on."
        )
        return 1
    print(f"{safe_line(branch.name)} is merged in {where}. `ohsandbox branches drop {branch.name}` removes its tree.")
    return 0


def drop_branch(name: str, directory: Path | None, *, yes: bool) -> int:
    """Remove the tree of a branch; a person agrees where work would be lost."""
    branch = _find(name, directory)
    try:
        with branches.work_of(branch) as work:
            is_kept = work.commit == branch.base or branches.is_in_repository(branch, work)
            lost = "" if is_kept else _told(work)
    except UsageError as error:
        lost = f"work that cannot be read ({error})"
    if lost and not is_agreed(f"Remove {safe_line(branch.tree)} with {lost}?", what=f"{lost} would be lost", yes=yes):
        print("Nothing was removed.")
        return 1
    branches.drop(branch)
    print(f"The tree of {safe_line(branch.name)} is removed; {safe_line(branch.repository)} is as it was.")
    return 0


def _told(work: BranchWork) -> str:
    more = " and what is not committed" if work.is_dirty else ""
    return f"{counted(work.commits, 'commit')}{more}"


def _find(name: str, directory: Path | None) -> Branch:
    found = [one for one in branches.find_branches(directory) if one.name == name]
    if len(found) != 1:
        told = "No branch" if not found else "More than one branch"
        raise UsageError(f"{told} {name!r} has a tree. `ohsandbox branches` lists them; --dir names the repository.")
    return found[0]
