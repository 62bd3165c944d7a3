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
    base: str | Mapping[str, Any] | None = None
    """An image, or the fields of another `Build`, which is pulled or built first. The Dockerfile's ARG `BASE` is then
    its name, `BASE_ID` its id and `BASE_USER` its user.
    """


def checked(build: Build | str | os.PathLike[str]) -> Build:
    """Return the build with its context as an absolute path.

    Raises:
        UsageError: the directory or its Dockerfile does not exist, or the Dockerfile is not in it.
    """
    given = build if isinstance(build, Build) else Build(build)
    if not isinstance(given.context, str | os.PathLike) or not given.context:
        raise UsageError(f"Invalid build {given.context!r}: give a directory with a Dockerfile, or a Build(...)")
    expect_texts_by_name("Build(args=...)", given.args)
    expect_texts_by_name("Build(secrets=...)", given.secrets)
    for name, reference in given.secrets.items():
        if not reference.startswith(("env:", "file:")):
            raise UsageError(f"Invalid secret {name!r} of a build: expected env:NAME or file:PATH.")
    expect("Build(dockerfile=...)", given.dockerfile, str, optional=False)
    expect("Build(target=...)", given.target, str)
    root = Path(given.context).expanduser().resolve()
    if not isinstance(build, Build) and root.is_file():
        given, root = Build(root.parent, root.name), root.parent
    if not root.is_dir():
        raise UsageError(f"The build's directory {str(root)!r} does not exist. Remedy: name one with a Dockerfile.")
    name = os.path.normpath(given.dockerfile)
    if name.startswith(("/", "..")):
        raise UsageError(f"The Dockerfile {given.dockerfile!r} is outside of {str(root)!r}. Remedy: put it there.")
    if not (root / name).is_file():
        raise UsageError(
            f"Dockerfile {name!r} is missing in {str(root)!r}. Remedy: name the file, or another directory."
        )
    if isinstance(given.base, Mapping):
        checked(Build(**given.base))
    else:
        expect("Build(base=...)", given.base, str)
    return given._replace(context=str(root), dockerfile=name, args=dict(given.args), secrets=dict(given.secrets))
