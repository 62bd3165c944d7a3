"""`Build`: the inputs of an image's build, checked without an engine."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ohsandbox.arguments import expect, expect_texts_by_name
from ohsandbox.errors import UsageError


class Build(NamedTuple):
    """The inputs from which an image is built."""

    context: str | os.PathLike[str]
    """A directory of this machine; its `.dockerignore` is honoured."""
    dockerfile: str = "Dockerfile"
    """Path of the Dockerfile in the context."""
    args: Mapping[str, str] = {}
    """Values of the Dockerfile's ARG. They are recorded in the image's history, so do not put secrets in them."""
    target: str | None = None
    """The stage to build; None means the last one."""
    secrets: Mapping[str, str] = {}
    """Secrets for `RUN --mount=type=secret,id=...`: `env:NAME` or `file:PATH` by id. They need BuildKit and are stored
    in no layer. They do not enter the image's tag, so the built files must not depend on their values.
    """
    base: str | Build | Mapping[str, Any] | None = None
    """An image, or another `Build` or its fields, which is pulled or built first. The Dockerfile's ARG `BASE` is then
    its name, `BASE_ID` its id and `BASE_USER` its user.
    """


def resolved_build(build: Build | str | os.PathLike[str]) -> Build:
    """Return the build with its context as an absolute path.

    Raises:
        UsageError: the directory or its Dockerfile does not exist, or the Dockerfile is not in it.
    """
    checked_options = build if isinstance(build, Build) else Build(build)
    if not isinstance(checked_options.context, str | os.PathLike) or not checked_options.context:
        raise UsageError(
            f"Invalid build {checked_options.context!r}. Give a directory with a Dockerfile, or a Build(...)."
        )
    expect_texts_by_name("Build(args=...)", checked_options.args)
    expect_texts_by_name("Build(secrets=...)", checked_options.secrets)
    for name, reference in checked_options.secrets.items():
        if not reference.startswith(("env:", "file:")):
            raise UsageError(f"Invalid secret {name!r} of a build: expected env:NAME or file:PATH.")
    expect("Build(dockerfile=...)", checked_options.dockerfile, str, optional=False)
    expect("Build(target=...)", checked_options.target, str)
    root = Path(checked_options.context).expanduser().resolve()
    if not isinstance(build, Build) and root.is_file():
        checked_options, root = Build(root.parent, root.name), root.parent
    if not root.is_dir():
        raise UsageError(f"The build's directory {str(root)!r} does not exist. Name one with a Dockerfile.")
    name = os.path.normpath(checked_options.dockerfile)
    if name.startswith(("/", "..")):
        raise UsageError(f"The Dockerfile {checked_options.dockerfile!r} is outside of {str(root)!r}. Put it there.")
    if not (root / name).is_file():
        raise UsageError(f"Dockerfile {name!r} is missing in {str(root)!r}. Name the file, or another directory.")
    return checked_options._replace(
        context=str(root), dockerfile=name, args=dict(checked_options.args), secrets=dict(checked_options.secrets),
        base=checked_base(checked_options.base),
    )  # fmt: skip


def checked_base(base: str | Build | Mapping[str, Any] | None) -> str | Build | None:
    """Return the base of a build, an image's name or a checked build.

    Raises:
        UsageError: as `resolved_build`.
    """
    if isinstance(base, Mapping):
        base = Build(**base)
    if isinstance(base, Build):
        return resolved_build(base)
    expect("Build(base=...)", base, str)
    return base
