"""The commands of `ohsandbox images`, and their arguments."""

from __future__ import annotations

from typing import Annotated

import typer

from ohsandbox.cli.options import AsJson
from ohsandbox.cli.typer_options import command, new_app, option

images = new_app("images", help="Build the images that ohsandbox ships, list those that it made, remove unused ones.")


@images.callback(invoke_without_command=True)
def _images(ctx: typer.Context) -> None:
    if ctx.invoked_subcommand is None:
        typer.echo(ctx.get_help())


@command(images)
def build(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME...]", help="default, browser.  [default: both]")
    ] = None,
    *,
    base: str | None = option("Debian image to build on.  [default: python:3.12-slim; browser: default]", "IMAGE"),
) -> int:
    """Build the images that ohsandbox ships, with this machine's certificates and package index."""
    from ohsandbox.cli.images import build_images

    return build_images(names or [], base=base)


@command(images, "list")
def list_(*, as_json: AsJson = False) -> int:
    """List the images that ohsandbox made: shipped ones, builds of --build, checkpoints."""
    from ohsandbox.cli.images import list_images

    return list_images(as_json=as_json)


@command(images)
def prune() -> int:
    """Remove the images that were built for --build and that no sandbox uses."""
    from ohsandbox.cli.images import prune_images

    return prune_images()
