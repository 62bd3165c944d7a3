"""The names of our labels, each of which is on every container of ours.

A container also has the labels of its image, which is anybody's. A label that the container has itself hides the
image's one of the same name, an empty value as well.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

LABEL = "ohsandbox"
"""Label of everything that is ours: "1"."""
LEASE_LABEL = "ohsandbox.lease"
CHECKPOINT_REPOSITORY = "ohsandbox-checkpoint"
"""Not a label: the repository of the images of all checkpoints."""
WORKSPACE_LABEL = "ohsandbox.workspace"
"""Label with the digest of each directory that is bound read-write, separated by blanks."""
USER_LABEL = "ohsandbox.user"
IMAGE_LABEL = "ohsandbox.image"
GIT_LABEL = "ohsandbox.git"
WORKDIR_LABEL = "ohsandbox.workdir"
"""Label with the working directory of processes; the container's own working directory is the root directory."""
BINDS_LABEL = "ohsandbox.binds"
"""Label with the paths of the workspaces and of the mounts in the sandbox, as JSON: {"workspaces": [...], "mounts":
[...]}."""
LABELS_LABEL = "ohsandbox.labels"
"""Label with the names of the caller's labels."""
CONVERSATION_LABEL = "ohsandbox.conversation"
CHECKPOINT_LABEL = "ohsandbox.checkpoint"
"""Label of the image of a checkpoint: "1"."""
CHECKPOINT_SERVICES_LABEL = "ohsandbox.services"
"""Label of a sandbox's checkpoint with its services, each as `name=IMAGE,VOLUME...` by the ids of images."""
SERVICE_OF_LABEL = "ohsandbox.service-of"
"""Label of a service: the id of the lease that it shares with its sandbox."""
SERVICE_LABEL = "ohsandbox.service"
"""Label with the service's description in JSON, without the values of secrets."""
OWNER_LABEL = "ohsandbox.network-of"
"""Label of an owner of a network: the id of the lease that it shares with its sandbox."""
BUILD_LABEL = "ohsandbox.build"
"""Label for a user's `docker images --filter label=...`. Which images `gc` may remove is decided by our own records."""

_NAMES = tuple(value for name, value in sorted(globals().items()) if name == "LABEL" or name.endswith("_LABEL"))


def complete(labels: Mapping[str, str]) -> dict[str, str]:
    """Return the labels of a container with those names of ours that it lacks, whose values are empty."""
    return dict(sorted((dict.fromkeys(_NAMES, "") | {**labels}).items()))


def ours(labels: Mapping[str, str] | None) -> dict[str, str]:
    """Return the value of each label of ours; empty where a container or image lacks it."""
    return {name: str((labels or {}).get(name) or "") for name in _NAMES}
