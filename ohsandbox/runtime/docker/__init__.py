"""Sandboxes in containers of a Docker engine."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ohsandbox.runtime.build_options import Build
from ohsandbox.runtime.docker.config.container_config import SandboxLimits
from ohsandbox.runtime.docker.runtime import DockerRuntime
from ohsandbox.runtime.mount_text import Mount
from ohsandbox.runtime.service_options import Service

if TYPE_CHECKING:
    from ohsandbox.runtime.docker.images.build import BuiltImage, abuild_image, build_image

__all__ = ["Build", "BuiltImage", "DockerRuntime", "Mount", "SandboxLimits", "Service", "abuild_image", "build_image"]
_OF_BUILDS = {"BuiltImage", "abuild_image", "build_image"}


def __getattr__(name: str) -> Any:
    """Import the module that builds images at the first use of its names: most sandboxes use an existing image."""
    if name not in _OF_BUILDS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.images.build"), name)
