"""The images of a run's tasks: each pulled or built once, however many trials want it at the same time."""

from __future__ import annotations

import contextlib
import os
import threading
from collections import Counter
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from pydantic import ValidationError

from ohsandbox import SandboxLimits
from ohsandbox.errors import CallCancelledError, ImageUnavailable, UsageError
from ohsandbox.evaluation.processors import of_this_machine
from ohsandbox.runtime import build_options
from ohsandbox.runtime.docker.config import options
from ohsandbox.runtime.docker.engine.connection import connect
from ohsandbox.runtime.docker.engine.error_mapping import engine_errors
from ohsandbox.runtime.docker.images import build, engine_images
from ohsandbox.runtime.docker.network.network_pool import NetworkPool
from ohsandbox.runtime.process import invocation

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from ohsandbox.evaluation.task import TaskEnvironment
    from ohsandbox.runtime.docker.engine.connection import Engine
    from ohsandbox.runtime.results import PullProgress


ASK_S = 15.0
"""Time that a registry gets to say whether it has an image: a run does not wait longer for a slow one."""
_DEFAULT_BUDGET_BYTES = 40 * 1024**3
"""Disk space for all images that we built or pulled, without layers that they share with others."""


class Image(NamedTuple):
    """An image that is on the engine."""

    name: str
    digest: str
    """The repository's digest, or the image's id where it was built here."""
    workdir: str | None
    """The directory where commands run; None is the image's own."""


def check_options(**asked: object) -> None:
    """Check options of a sandbox, by their names in `DockerRuntime` and `SandboxLimits`, without an engine.

    Raises:
        UsageError: one of them would be refused.
    """
    limits = {name: asked.pop(name) for name in asked.keys() & SandboxLimits.model_fields.keys()}
    checked = {name: value for name, value in limits.items() if value is not None}
    try:
        SandboxLimits.model_validate(checked)
    except ValidationError as error:
        raise UsageError(error.errors()[0]["msg"].removeprefix("Value error, ")) from None
    options.validated_options(**{"image": "scratch", **asked})
    env = asked.get("env")
    invocation.check_env(env if isinstance(env, dict) else None)


class Images:
    """Pulls and builds images, each once: a second caller waits for the first. Keeps their size within a budget."""

    def __init__(self, *, tell: Callable[[PullProgress], None] | None = None, budget_bytes: int | None = None) -> None:
        """Create the store; budget_bytes None is DEFAULT_BUDGET_BYTES."""
        self._tell, self._budget_bytes = tell, budget_bytes or _DEFAULT_BUDGET_BYTES
        self._lock = threading.Lock()
        self._known: dict[tuple[str, str], Future[Image]] = {}
        self.lacks_utf8: dict[str, bool] = {}
        """Whether an image lacks the locale C.UTF-8, by image, once a sandbox of it has reported that."""
        self._users = Counter[str]()
        """The trials that use an image, by its name: an image in use is not removed."""
        self._making: set[threading.Event] = set()
        self.networks = NetworkPool()
        """Of the trials whose network is open at some time."""

    def processors(self) -> tuple[int, ...]:
        """Return the processors of the engine's machine that trials may be pinned to.

        Empty where that is another machine.

        Raises:
            EngineUnavailable: no engine answers.
        """
        with contextlib.closing(connect()) as engine, engine_errors("asking the engine for its processors"):
            info = engine.api.info()
        is_here = (info.get("KernelVersion"), info.get("NCPU")) == (os.uname().release, os.cpu_count())
        can_pin = is_here and engine.address.is_local and info.get("CPUSet", True)  # a rootless engine may be denied it
        return of_this_machine() if can_pin else ()

    def absent(self, environments: Iterable[TaskEnvironment]) -> dict[str, str]:
        """Return the names of images that no trial can get, each with the reason: see `find_absent`.

        Raises:
            EngineUnavailable: no engine answers.
        """
        names = sorted({environment.image for environment in environments if environment.image is not None})
        with contextlib.closing(connect()) as engine:
            engine.api.timeout = ASK_S
            return engine_images.find_absent(engine, names)

    @contextlib.contextmanager
    def held(self, environment: TaskEnvironment) -> Iterator[Image]:
        """Pull or build the environment's image if it is missing, and keep it until the end of the context.

        Raises:
            ImageUnavailable: it cannot be pulled or built, or was not built in the task's time for it.
            UsageError: a step of its Dockerfile fails.
            EngineUnavailable: no engine answers.
            CallCancelledError: `close` was called.
        """
        while True:
            image = self.get(environment)
            with self._lock:
                if _key(environment) in self._known:  # else it was removed in this moment
                    self._users[image.name] += 1
                    break
        try:
            yield image
        finally:
            with self._lock:
                self._users[image.name] -= 1

    def close(self) -> None:
        """Cancel the pulls and builds in progress."""
        with self._lock:
            for cancel in self._making:
                cancel.set()

    def get(self, environment: TaskEnvironment) -> Image:
        """Return the environment's image for a caller that is inside `held` already."""
        key = _key(environment)
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
        cancel, limit_s = threading.Event(), environment.build_timeout_s
        timer = threading.Timer(limit_s, cancel.set)
        with self._lock:
            self._making.add(cancel)
        timer.start()
        engine = connect()
        try:
            statuses = list[str]()
            if (name := environment.image) is None:
                checked_options = build_options.resolved_build(
                    build_options.Build(
                        str(environment.build), environment.dockerfile, environment.build_args, environment.build_target
                    )
                )
                name = build.ensure(
                    engine, checked_options, progress=partial(self._on_progress, statuses), cancel=cancel
                )
            elif engine_images.inspect(engine, name) is None:
                build.note_pulled(engine, name)
            image_facts = engine_images.ensure(
                engine, name, progress=partial(self._on_progress, statuses), cancel=cancel
            )
            build.note_used(engine, name)
            if "done" in statuses:  # it is new here
                self._trim(engine, name)
        except CallCancelledError:
            if timer.is_alive():
                raise
            source = environment.image or environment.build
            raise ImageUnavailable(f"{source} was not there after the {limit_s:g} s that its task gives it.") from None
        finally:
            timer.cancel()
            engine.close()
            with self._lock:
                self._making.discard(cancel)
        # `COPY file .` of a Dockerfile without WORKDIR puts the file into the root directory
        return Image(
            name, image_facts.digest or image_facts.id, None if environment.image else image_facts.workdir or "/"
        )

    def _on_progress(self, statuses: list[str], progress: PullProgress) -> None:
        statuses.append(progress.status)
        if self._tell is not None:
            self._tell(progress)

    def _trim(self, engine: Engine, newest: str) -> None:
        """Remove our images, the least recently used first, until the rest fit in the budget."""
        with self._lock:
            busy = {newest, *(name for name, count in self._users.items() if count)}
            removed = build.trim(engine, self._budget_bytes, keep=busy)
            self._known = {
                key: future for key, future in self._known.items()
                if not (future.done() and not future.exception() and future.result().name in removed)
            }  # fmt: skip


def engine_facts() -> dict[str, str]:
    """Return the facts of an engine that can change a result: versions, kernel, storage and control groups.

    Raises:
        EngineUnavailable: no engine answers.
    """
    with contextlib.closing(connect()) as engine, engine_errors("asking the engine for its version"):
        version, info = dict(engine.api.version()), dict(engine.api.info())
    parts = [f"{component.get('Name')} {component.get('Version')}" for component in version.get("Components") or ()]
    facts = {
        "engine": ", ".join(parts) or version.get("Version"), "kernel": version.get("KernelVersion"),
        "architecture": version.get("Arch"), "storage": info.get("Driver"), "cgroup": info.get("CgroupVersion"),
        "oci_runtime": info.get("DefaultRuntime"),
    }  # fmt: skip
    return {name: str(value) for name, value in facts.items() if value}


def _key(environment: TaskEnvironment) -> tuple[str, str]:
    if environment.image:
        return "image", environment.image
    details = environment.dockerfile, sorted(environment.build_args.items()), environment.build_target
    return "build", f"{environment.build}\0{details}"
