"""`Inventory`: the sandboxes, checkpoints and images that a backend stores, independent of any running `Runtime`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping  # noqa: TC003 - as the next
from datetime import datetime  # noqa: TC003 - a NamedTuple's annotations are read by whoever prints it
from typing import TYPE_CHECKING, Literal, NamedTuple, Self

from ohsandbox.errors import SandboxUnavailable, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from ohsandbox.runtime.results import PullProgress


class SandboxInfo(NamedTuple):
    """One sandbox that ohsandbox has created, for this user or another."""

    id: str
    name: str
    image: str
    state: str
    """The engine's word for its state: created, running, paused, exited, ..."""
    created_at: datetime
    ours: bool
    """Whether its lease file is in this state directory and names this sandbox."""
    owner_pid: int | None
    """The id of the process that created it; None where it is not ours."""
    owner_alive: bool
    conversation: str | None
    keep: bool
    resumable: bool
    """Whether an unfinished conversation worked in it; `collect_garbage` leaves it for three days."""
    labels: Mapping[str, str] = {}
    """The labels that its creator gave it."""


class ServiceInfo(NamedTuple):
    """One service beside a sandbox of this state directory."""

    sandbox: str
    """The sandbox's name."""
    name: str
    image: str
    state: str
    """The engine's word for its state: running, exited, ..."""
    ports: tuple[int, ...]
    conversation: str | None
    id: str
    """The id of its container."""
    detail: str = ""
    """How it ended, where it does not run."""


class SandboxUsage(NamedTuple):
    """The resource use of a running sandbox at one moment."""

    measured_at: datetime
    """The time of the measurement, by the backend's clock."""
    cpu_s: float
    """Processor seconds since its start."""
    memory_bytes: int
    """Memory use, without file cache that the kernel could drop."""
    memory_limit_bytes: int
    received_bytes: int
    """Bytes received over its network since its start."""
    sent_bytes: int

    def cpu_share(self, before: SandboxUsage) -> float | None:
        """Return the processors that it kept busy between the two moments, 1.0 for one.

        None where no time has passed.
        """
        passed = (self.measured_at - before.measured_at).total_seconds()
        return max(0.0, self.cpu_s - before.cpu_s) / passed if passed > 0 else None


class CacheInfo(NamedTuple):
    """A package cache, shared by the sandboxes of one project, image and user."""

    name: str
    scope: str
    """The project's directory, or the name that was given."""
    image: str
    user: str
    """The user in the sandbox whose processes fill it."""
    size_bytes: int
    used_at: datetime
    """When a sandbox last used it."""
    in_use: bool
    """Whether a sandbox, running or not, uses it."""


class GcResult(NamedTuple):
    """What `collect_garbage` did with one sandbox, lease or checkpoint."""

    name: str
    id: str
    """The sandbox's id; empty for a lease whose sandbox was gone already."""
    outcome: Literal["removed", "forgotten", "failed"]
    reason: str


def removal(name: str, id_: str, reason: str, remove: Callable[[], object]) -> list[GcResult]:
    """Return the result of remove() in a list; an empty list where it returns False, since the thing stays for now."""
    try:
        return [] if remove() is False else [GcResult(name, id_, "removed", reason)]
    except SandboxUnavailable as error:
        return [GcResult(name, id_, "failed", str(error))]


class Removal(NamedTuple):
    """The things that were removed for one owner, and those that were not."""

    removed: tuple[str, ...] = ()
    """The names of the removed things."""
    left: tuple[str, ...] = ()
    """A sentence for each thing that was not removed, with the reason."""

    def __add__(self, other: object) -> Removal:
        """Combine both results."""
        if not isinstance(other, Removal):
            return NotImplemented
        return Removal((*self.removed, *other.removed), (*self.left, *other.left))


SHIPPED_IMAGES = ("default", "browser")
"""The images for agents whose Dockerfiles ohsandbox ships; the second is built on the first."""

ImageKind = Literal["shipped", "built", "checkpoint", "network"]


class StoredImage(NamedTuple):
    """An image that ohsandbox made."""

    name: str
    kind: ImageKind
    size_bytes: int
    """The size, including layers that it shares with other images."""
    created_at: datetime
    in_use: bool
    """Whether a container of it exists."""


class Inventory(ABC):
    """The stored state of a backend, which outlasts a process. A `with` block closes it.

    Every method raises SandboxUnavailable where the backend fails.
    """

    # --- sandboxes ---

    @abstractmethod
    def list_sandboxes(self, labels: Mapping[str, str] | None = None) -> list[SandboxInfo]:
        """Return all sandboxes that ohsandbox created, oldest first; other users' too, which nothing here removes.

        labels: only those that have all of these.
        """

    def list_services(self) -> list[ServiceInfo]:
        """Return the services of all sandboxes of this state directory, by sandbox and name.

        Empty where there are none.
        """
        return []

    def service_log(self, service_id: str, *, lines: int | None = None) -> str:
        """Return a service's output: its last lines, or all that is kept.

        Raises:
            UsageError: there is no such service.
        """
        raise UsageError(f"There is no service {service_id[:12]!r} (last {lines} lines). Remedy: list them.")

    def usage(self, sandbox_ids: Sequence[str], *, timeout_s: float) -> dict[str, SandboxUsage]:  # noqa: ARG002
        """Return what running sandboxes use, by id; those that are gone, or did not answer in time, are missing.

        A backend that measures nothing has none.
        """
        return {}

    @abstractmethod
    def remove_sandbox(self, sandbox_id: str, *, conversation: str | None) -> Removal:
        """Remove a sandbox that this conversation owns, unless it is to be kept or a process works in it.

        conversation None: whoever owns it here, also where it is to be kept or resumed.
        """

    @abstractmethod
    def collect_garbage(self, *, kept: bool = False, keep_networks: bool = False) -> list[GcResult]:
        """Remove sandboxes whose owner is dead, leases without a sandbox, checkpoints without an owner, unused builds.

        kept: also the sandboxes that are to be kept or to be resumed.
        keep_networks: not the network that open sandboxes share, since new ones are about to be made.
        """

    # --- checkpoints ---

    @abstractmethod
    def require_checkpoint(self, checkpoint_id: str) -> None:
        """Check that a checkpoint exists.

        Raises:
            ImageUnavailable: it does not exist, or is not a checkpoint of ours.
        """

    @abstractmethod
    def retain_checkpoint(self, checkpoint_id: str, *, owner: Path) -> None:
        """Keep a checkpoint for one more owner, a directory; nothing happens where it does not exist.

        Raises:
            UsageError: the state directory cannot be written.
        """

    @abstractmethod
    def drop_checkpoint(self, checkpoint_id: str) -> None:
        """Remove a checkpoint for all its owners; a missing one is fine."""

    @abstractmethod
    def release_checkpoints(self, owner: Path) -> Removal:
        """Remove the checkpoints that no other owner needs."""

    @abstractmethod
    def orphaned_checkpoints(self) -> list[str]:
        """Return the names of the checkpoints whose owner is gone."""

    # --- images ---

    @abstractmethod
    def unused_images(self) -> list[str]:
        """Return the names of built images that `collect_garbage` removes unless a container uses them."""

    # --- caches of package tools ---

    def list_caches(self) -> list[CacheInfo]:
        """Return the caches that sandboxes of ours were given, the largest first; a backend without caches has none."""
        return []

    def orphaned_caches(self) -> list[CacheInfo]:
        """Return the caches made for state directories of this user that no longer exist."""
        return []

    def unused_caches(self) -> list[str]:
        """Return the names of the caches that `collect_garbage` removes unless a sandbox uses them."""
        return []

    def remove_cache(self, name: str) -> bool:
        """Remove a cache; False if a sandbox has it.

        Raises:
            UsageError: there is none of ours of that name.
        """
        raise UsageError(f"{name!r} is not a cache. Remedy: choose one that `ohsandbox cache list` shows.")

    @abstractmethod
    def list_images(self) -> list[str]:
        """Return the names of images that need no download, without checkpoints and images built from a Dockerfile."""

    @abstractmethod
    def build_shipped_image(
        self, name: str, *, base: str | None = None, progress: Callable[[PullProgress], None] | None = None
    ) -> str:
        """Build one of SHIPPED_IMAGES, on another base where one is named, and return what `--image` takes.

        Raises:
            UsageError: there is no such image.
            ImageUnavailable: the base cannot be had.
        """

    @abstractmethod
    def list_made_images(self) -> list[StoredImage]:
        """Return the images that ohsandbox made, for any user of the engine, the newest first."""

    @abstractmethod
    def prune_images(self) -> Iterator[GcResult]:
        """Remove images that were built for `--build` and that no sandbox uses."""

    # --- life ---

    @abstractmethod
    def close(self) -> None:
        """Close the connection to the backend. Twice is fine."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
