"""The commands of `ohsandbox services`, and their arguments."""

from __future__ import annotations

from typing import Annotated

import typer

from ohsandbox.cli.completion import sandbox_names
from ohsandbox.cli.options import AsJson
from ohsandbox.cli.typer_options import Debug, command, new_app, option

services = new_app("services", help="List what runs beside the sandboxes, such as databases, or print its log.")

Sandbox = Annotated[
    str | None,
    typer.Argument(
        metavar="ID",
        help="Conversation id or sandbox name, or its beginning.  [default: all]",
        autocompletion=sandbox_names,
    ),
]


@services.callback(invoke_without_command=True)
def _services(ctx: typer.Context, *, debug: Debug = False) -> int:  # noqa: ARG001 - eager
    if ctx.invoked_subcommand is not None:
        return 0
    from ohsandbox.cli.services import list_services

    return list_services(None, as_json=False)


@command(services, "list")
def list_(sandbox: Sandbox = None, *, as_json: AsJson = False) -> int:
    """List the services of all sandboxes, or of one: image, state and ports."""
    from ohsandbox.cli.services import list_services

    return list_services(sandbox, as_json=as_json)


@command(services)
def logs(
    name: Annotated[str, typer.Argument(metavar="SERVICE", help="Its name.")],
    sandbox: Sandbox = None,
    *,
    tail: int = option("Only the last N lines; 0 prints all that is kept, 2 MB.", "N", min=0, default=200),
) -> int:
    """Print what a service has printed, the oldest line first."""
    from ohsandbox.cli.services import print_log

    return print_log(name, sandbox, tail=tail)
