"""`ohsandbox branches`: agents that work on branches of one repository, each in its own work tree."""

# ruff: noqa: T201 - a command prints
from __future__ import annotations

import codecs
import math
import sys
from functools import partial
from typing import TYPE_CHECKING

from ohsandbox.cli.prompts.prompt import is_agreed
from ohsandbox.cli.rendering.tables import print_json, print_table
from ohsandbox.cli.rendering.text import Lines, output, safe_line, say
from ohsandbox.errors import UsageError
from ohsandbox.runtime.workspace import branches
from ohsandbox.text import counted

MAX_SHOWN_LINES = 2_000
"""Longest diff, in lines, that a question shows; a longer one is read in a pager or an editor."""

if TYPE_CHECKING:
    from pathlib import Path

    from ohsandbox.runtime.workspace.branches import Branch, BranchWork


def list_branches(directory: Path | None, *, as_json: bool) -> int:
    """Print the branches that have a work tree: those of one repository, or all."""
    rows = []
    for branch in branches.find_branches(directory):
        try:
            with branches.work_of(branch) as work:
                state = "all in the repository" if branches.is_in_repository(branch, work) else _description_of(work)
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
    """Print the changes on a branch since it began, committed or not, as a patch."""
    branch = _find(name, directory)
    with branches.work_of(branch) as work:
        if sys.stdout.isatty() or stat:
            _print_diff(branch, work, stat_only=stat)
        else:
            branches.diff(branch, work, lambda piece: sys.stdout.buffer.write(piece) >= 0)
    return 0


def _print_diff(branch: Branch, work: BranchWork, *, stat_only: bool = False, limit_lines: float = math.inf) -> None:
    """Print the diff for a person; past the line limit, say where to read the rest."""
    count, decoder = 0, codecs.getincrementaldecoder("utf-8")("replace")

    def print_line(line: str) -> None:
        nonlocal count
        count += 1
        if count <= limit_lines:
            print(output(line))

    lines = Lines(print_line)

    def write_piece(piece: bytes) -> bool:
        lines.add(decoder.decode(piece))
        return count <= limit_lines

    branches.diff(branch, work, write_piece, stat_only=stat_only)
    lines.finish()
    if count > limit_lines:
        print(f"... and more: `ohsandbox branches diff {safe_line(branch.name)}` has all of it.")


def merge_branch(name: str, directory: Path | None, *, yes: bool) -> int:
    """Fetch a branch into its repository and merge it into the branch that is checked out there."""
    branch = _find(name, directory)
    with branches.work_of(branch) as work:
        if work.commit == branch.base:
            print(f"Nothing was done on {safe_line(branch.name)}.")
            return 0
        _print_diff(branch, work, stat_only=True)
        repository = safe_line(branch.repository)
        question = f"Merge {_description_of(work)} into what is checked out in {repository}?"
        show_diff = partial(_print_diff, branch, work, limit_lines=MAX_SHOWN_LINES)
        if not is_agreed(question, what="A merge", yes=yes, show_diff=show_diff):
            print("Nothing was changed.")
            return 1
        branches.fetch_branch(branch, work)
    if not branches.merge_into_checkout(branch):
        say(
            f"{safe_line(branch.name)} is a branch of {repository} now. It was not merged: it conflicts, or files "
            f"there are not committed. No file was changed; `git merge {safe_line(branch.name)}` there goes on."
        )
        return 1
    print(
        f"{safe_line(branch.name)} is merged in {repository}. `ohsandbox branches drop {branch.name}` removes its tree."
    )
    return 0


def drop_branch(name: str, directory: Path | None, *, yes: bool) -> int:
    """Remove the work tree of a branch; ask first if work would be lost."""
    branch = _find(name, directory)
    try:
        with branches.work_of(branch) as work:
            is_kept = work.commit == branch.base or branches.is_in_repository(branch, work)
            lost = "" if is_kept else _description_of(work)
    except UsageError as error:
        lost = f"work that cannot be read ({error})"
    if lost and not is_agreed(f"Remove {safe_line(branch.tree)} with {lost}?", what=f"{lost} would be lost", yes=yes):
        print("Nothing was removed.")
        return 1
    branches.remove_tree(branch)
    print(f"The tree of {safe_line(branch.name)} is removed; {safe_line(branch.repository)} is as it was.")
    return 0


def _description_of(work: BranchWork) -> str:
    more = " and what is not committed" if work.is_dirty else ""
    return f"{counted(work.commits, 'commit')}{more}"


def _find(name: str, directory: Path | None) -> Branch:
    matches = [branch for branch in branches.find_branches(directory) if branch.name == name]
    if len(matches) != 1:
        problem = "No branch" if not matches else "More than one branch"
        raise UsageError(f"{problem} {name!r} has a tree. `ohsandbox branches` lists them; --dir names the repository.")
    return matches[0]
