"""The commands of `ohsandbox branches`, and their arguments."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ohsandbox.cli.option_values import path
from ohsandbox.cli.options import Yes
from ohsandbox.cli.typer_options import Debug, command, new_app, switch

branches = new_app(
    "branches",
    help="List, show, merge or drop the branches on which sandboxes work in trees of their own (--branch).",
)

Name = Annotated[str, typer.Argument(metavar="NAME", help="The branch.")]
Repository = Annotated[
    Path | None,
    typer.Option("--dir", parser=path, metavar="DIR", help="Repository of the branch.  [default: any]"),
]


@branches.callback(invoke_without_command=True)
def _list(
    ctx: typer.Context,
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print the branches as JSON.")] = False,
    directory: Repository = None,
    debug: Debug = False,  # noqa: ARG001 - eager
) -> int:
    """List the branches that have a tree, and what was done on them."""
    if ctx.invoked_subcommand is not None:
        return 0
    from ohsandbox.cli.branches import list_branches

    return list_branches(directory, as_json=as_json)


@command(branches)
def diff(name: Name, *, directory: Repository = None, stat: bool = switch("Print a summary.", "--stat")) -> int:
    """Print what was changed since the branch began, committed or not, as a patch."""
    from ohsandbox.cli.branches import show_branch

    return show_branch(name, directory, stat=stat)


@command(branches)
def merge(name: Name, *, directory: Repository = None, yes: Yes = False) -> int:
    """Bring the branch to its repository, with what is not committed as one more commit, and merge it there.

    Where files conflict, or yours are not committed, the branch is there and nothing is merged.
    """
    from ohsandbox.cli.branches import merge_branch

    return merge_branch(name, directory, yes=yes)


@command(branches)
def drop(name: Name, *, directory: Repository = None, yes: Yes = False) -> int:
    """Remove the tree of a branch; what is in no branch of the repository is told, and asked about."""
    from ohsandbox.cli.branches import drop_branch

    return drop_branch(name, directory, yes=yes)
