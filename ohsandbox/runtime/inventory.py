"""`Inventory`: the stored sandboxes, checkpoints and images of a backend, independent of any running `Runtime`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping  # noqa: TC003 - as the next
from datetime import datetime  # noqa: TC003 - a NamedTuple's annotations are read by whoever prints it
from typing import TYPE_CHECKING, Literal, NamedTuple, Self

from ohsandbox.errors import SandboxUnavailable, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from ohsandbox.runtime.results import PullProgress


class SandboxInfo(NamedTuple):
    """A sandbox that ohsandbox has created, for this user or another."""

    id: str
    name: str
    image: str
    state: str
    """The engine's word for the state: created, running, paused, exited, ..."""
    created_at: datetime
    ours: bool
    """Whether a lease file in this state directory names this sandbox."""
    owner_pid: int | None
    """Id of the process that created it; None if it is not ours."""
    owner_alive: bool
    conversation: str | None
    keep: bool
    resumable: bool
    """Whether an unfinished conversation has worked in it; `collect_garbage` keeps it for three days."""
    labels: Mapping[str, str] = {}
    """The labels that its creator gave it."""


class ServiceInfo(NamedTuple):
    """A service beside a sandbox of this state directory."""

    sandbox: str
    """The sandbox's name."""
    name: str
    image: str
    state: str
    """The engine's word for the state: running, exited, ..."""
    ports: tuple[int, ...]
    conversation: str | None
    id: str
    """The id of its container."""
    detail: str = ""
    """How it ended; "" while it is running."""


class SandboxUsage(NamedTuple):
    """The resource use of a running sandbox at one time."""

    measured_at: datetime
    """Time of the measurement, by the backend's clock."""
    cpu_s: float
    """CPU time in seconds since its start."""
    memory_bytes: int
    """Memory use in bytes, without file cache that the kernel could drop."""
    memory_limit_bytes: int
    received_bytes: int
    """Bytes received over the network since its start."""
    sent_bytes: int

    def cpu_share(self, before: SandboxUsage) -> float | None:
        """Return the average number of busy CPUs between the two measurements; None if no time has passed."""
        passed = (self.measured_at - before.measured_at).total_seconds()
        return max(0.0, self.cpu_s - before.cpu_s) / passed if passed > 0 else None


class CacheInfo(NamedTuple):
    """A package cache, shared by the sandboxes of one project, image and user."""

    name: str
    scope: str
    """The project's directory, or the given name."""
    image: str
    user: str
    """The user in the sandbox whose processes fill it."""
    size_bytes: int
    used_at: datetime
    """Time when a sandbox last used it."""
    in_use: bool
    """Whether a sandbox, running or not, uses it."""


class GcResult(NamedTuple):
    """What `collect_garbage` did with a sandbox, lease or checkpoint."""

    name: str
    id: str
    """The sandbox's id; "" for a lease without a sandbox."""
    outcome: Literal["removed", "forgotten", "failed"]
    reason: str


def removal(name: str, id_: str, reason: str, remove: Callable[[], object]) -> list[GcResult]:
    """Return the result of remove() in a list; an empty list if it returns False: nothing was removed."""
    try:
        return [] if remove() is False else [GcResult(name, id_, "removed", reason)]
    except SandboxUnavailable as error:
        return [GcResult(name, id_, "failed", str(error))]


class Removal(NamedTuple):
    """What was removed for an owner, and what was not."""

    removed: tuple[str, ...] = ()
    """Names of the removed things."""
    left: tuple[str, ...] = ()
    """A sentence for each thing that was not removed, with the reason."""

    def __add__(self, other: object) -> Removal:
        """Return both results together."""
        if not isinstance(other, Removal):
            return NotImplemented
        return Removal((*self.removed, *other.removed), (*self.left, *other.left))


SHIPPED_IMAGES = ("default", "browser")
"""Images for agents whose Dockerfiles come with ohsandbox; the second is based on the first."""

ImageKind = Literal["shipped", "built", "checkpoint", "network"]


class StoredImage(NamedTuple):
    """An image that ohsandbox made."""

    name: str
    kind: ImageKind
    size_bytes: int
    """Size, including layers that other images share."""
    created_at: datetime
    in_use: bool
    """Whether there is a container of it."""
    needed: str = ""
    """What it is needed for, so that it is not removed; empty for one that may be."""
    stays: str = ""
    """Why it is removed only by its name: it belongs to another state directory, or its owner cannot be found."""


class Inventory(ABC):
    """The stored state of a backend, which outlives a process; a `with` block closes it.

    All methods raise SandboxUnavailable if the backend fails.
    """

    # --- sandboxes ---

    @abstractmethod
    def list_sandboxes(self, labels: Mapping[str, str] | None = None) -> list[SandboxInfo]:
        """Return all sandboxes that ohsandbox created, oldest first, also those of other users.

        labels: return only sandboxes that have all of these.
        """

    def list_services(self) -> list[ServiceInfo]:
        """Return the services of all sandboxes of this state directory, by sandbox and name."""
        return []

    def service_log(self, service_id: str, *, lines: int | None = None) -> str:  # noqa: ARG002 - the interface
        """Return the last lines of a service's output, or all that is kept.

        Raises:
            UsageError: there is no such service.
        """
        raise UsageError(f"Unknown service {service_id[:12]!r}. `ohsandbox services` lists those that there are.")

    def usage(self, sandbox_ids: Sequence[str], *, timeout_s: float) -> dict[str, SandboxUsage]:  # noqa: ARG002
        """Return the resource use of running sandboxes, by id.

        Sandboxes that are gone or did not answer in time are missing; a backend may not measure any.
        """
        return {}

    @abstractmethod
    def remove_sandbox(self, sandbox_id: str, *, conversation: str | None) -> Removal:
        """Remove a sandbox that this conversation owns, unless it is to be kept or a process works in it.

        conversation None: whoever owns it here, and even if it is to be kept or resumed.
        """

    @abstractmethod
    def collect_garbage(self, *, kept: bool = False, keep_networks: bool = False) -> list[GcResult]:
        """Remove sandboxes of dead owners, leases without sandbox, checkpoints without owner, and unused builds.

        kept: also remove sandboxes that are to be kept or resumed.
        keep_networks: keep the network that open sandboxes share, since new ones will be created.
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
        """Keep a checkpoint for one more owner, a directory; do nothing if it does not exist.

        Raises:
            UsageError: the state directory cannot be written.
        """

    @abstractmethod
    def drop_checkpoint(self, checkpoint_id: str) -> None:
        """Remove a checkpoint for all its owners; a missing one is not an error."""

    @abstractmethod
    def release_checkpoints(self, owner: Path) -> Removal:
        """Remove the owner's checkpoints that no other owner needs."""

    @abstractmethod
    def orphaned_checkpoints(self) -> list[str]:
        """Return the names of the checkpoints whose owner was deleted."""

    def lost_checkpoints(self) -> list[StoredImage]:
        """Return the checkpoints whose owner cannot be found, though nobody deleted it."""
        return []

    # --- images ---

    @abstractmethod
    def unused_images(self) -> list[str]:
        """Return the names of built images that `collect_garbage` removes if no container uses them."""

    # --- caches of package tools ---

    def list_caches(self) -> list[CacheInfo]:
        """Return the caches of our sandboxes, largest first; a backend may not have any."""
        return []

    def orphaned_caches(self) -> list[CacheInfo]:
        """Return the caches of this user's state directories that cannot be found."""
        return []

    def unused_caches(self) -> list[str]:
        """Return the names of the caches that `collect_garbage` removes if no sandbox uses them."""
        return []

    def remove_cache(self, name: str) -> bool:
        """Remove a cache; return False if a sandbox uses it.

        Raises:
            UsageError: there is no cache of ours with that name.
        """
        raise UsageError(f"{name!r} is not a cache. Choose one that `ohsandbox cache list` shows.")

    @abstractmethod
    def list_images(self) -> list[str]:
        """Return the names of images that need no download, without checkpoints and images built from a Dockerfile."""

    @abstractmethod
    def build_shipped_image(
        self, name: str, *, base: str | None = None, progress: Callable[[PullProgress], None] | None = None
    ) -> str:
        """Build one of SHIPPED_IMAGES, perhaps on another base; return its name for `--image`.

        Raises:
            UsageError: there is no such image.
            ImageUnavailable: the base is not available.
        """

    @abstractmethod
    def list_made_images(self) -> list[StoredImage]:
        """Return the images that ohsandbox made, for any user of the engine, newest first."""

    @abstractmethod
    def remove_image(self, name: str) -> bool:
        """Remove one of `list_made_images`; return False if a container uses it.

        Raises:
            UsageError: it is not one of these, or is needed.
        """

    # --- life ---

    @abstractmethod
    def close(self) -> None:
        """Close the connection to the backend; idempotent."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
