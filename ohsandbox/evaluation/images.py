"""The images of a run's tasks: each pulled or built once, however many trials want it at the same time."""

from __future__ import annotations

import os
import threading
from concurrent.futures import Future
from typing import TYPE_CHECKING, NamedTuple

from pydantic import ValidationError

from ohsandbox import SandboxLimits
from ohsandbox.errors import UsageError
from ohsandbox.evaluation.processors import of_this_machine
from ohsandbox.runtime.docker import build, images, options
from ohsandbox.runtime.docker.engine import connect
from ohsandbox.runtime.docker.error_mapping import engine_errors
from ohsandbox.runtime.process import invocation

if TYPE_CHECKING:
    from collections.abc import Callable

    from ohsandbox.evaluation.task import TaskEnvironment
    from ohsandbox.runtime.results import PullProgress


class Image(NamedTuple):
    """An image that is here."""

    name: str
    digest: str
    """The repository's digest, or the id where it was built here."""
    workdir: str | None
    """Where commands run; None: the image's own."""


def check_options(**asked: object) -> None:
    """Check options of a sandbox, by their names in `DockerRuntime` and `SandboxLimits`, without an engine.

    Raises:
        UsageError: one of them would be refused.
    """
    limits = {name: asked.pop(name) for name in asked.keys() & SandboxLimits.model_fields.keys()}
    given = {name: value for name, value in limits.items() if value is not None}
    try:
        SandboxLimits.model_validate(given)
    except ValidationError as error:
        raise UsageError(error.errors()[0]["msg"].removeprefix("Value error, ")) from None
    options.checked(**{"image": "scratch", **asked})
    env = asked.get("env")
    invocation.check_env(env if isinstance(env, dict) else None)


class Images:
    """Pulls and builds; a second caller of the same image waits for the first."""

    def __init__(self, *, tell: Callable[[PullProgress], None] | None = None) -> None:
        self._tell = tell
        self._lock = threading.Lock()
        self._known: dict[tuple[str, str], Future[Image]] = {}
        self.lacks_utf8: dict[str, bool] = {}
        """By image: whether it lacks the locale C.UTF-8, once a sandbox has told."""

    def processors(self) -> tuple[int, ...]:
        """The processors of the engine's machine that trials may be pinned to; empty where that is another machine.

        Raises:
            EngineUnavailable: no engine answers.
        """
        engine = connect()
        try:
            with engine_errors("asking the engine for its processors"):
                told = engine.api.info()
        finally:
            engine.close()
        is_here = (told.get("KernelVersion"), told.get("NCPU")) == (os.uname().release, os.cpu_count())
        return of_this_machine() if is_here and engine.address.is_local else ()

    def get(self, environment: TaskEnvironment) -> Image:
        """Return the environment's image, pulled or built if missing.

        Raises:
            ImageUnavailable: it cannot be pulled or built.
            EngineUnavailable: no engine answers.
        """
        built = ("build", f"{environment.build}\0{environment.dockerfile}")
        key = ("image", environment.image) if environment.image else built
        with self._lock:
            is_first = key not in self._known
            future = self._known.setdefault(key, Future())
        if is_first:
            try:
                future.set_result(self._make(environment))
            except BaseException as error:  # noqa: BLE001 - told to all who wait
                with self._lock:
                    del self._known[key]  # the next trial tries again
                future.set_exception(error)
        return future.result()

    def _make(self, environment: TaskEnvironment) -> Image:
        engine = connect()
        try:
            if (name := environment.image) is None:
                asked = build.checked(build.Build(str(environment.build), environment.dockerfile))
                name = build.ensure(engine, asked, progress=self._tell)
            facts = images.ensure(engine, name, progress=self._tell)
        finally:
            engine.close()
        # `COPY file .` of a Dockerfile without WORKDIR puts the file into the root directory
        return Image(name, facts.digest or facts.id, None if environment.image else facts.workdir or "/")


def engine_facts() -> dict[str, str]:
    """What of an engine can change a result: its version, that of its parts, kernel, storage and control groups.

    Raises:
        EngineUnavailable: no engine answers.
    """
    engine = connect()
    try:
        with engine_errors("asking the engine for its version"):
            told, info = dict(engine.api.version()), dict(engine.api.info())
    finally:
        engine.close()
    parts = [f"{one.get('Name')} {one.get('Version')}" for one in told.get("Components") or ()]
    found = {
        "engine": ", ".join(parts) or told.get("Version"), "kernel": told.get("KernelVersion"),
        "architecture": told.get("Arch"), "storage": info.get("Driver"), "cgroup": info.get("CgroupVersion"),
        "oci_runtime": info.get("DefaultRuntime"),
    }  # fmt: skip
    return {name: str(value) for name, value in found.items() if value}
