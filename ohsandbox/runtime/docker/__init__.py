"""Sandboxes in containers of a Docker engine."""

from typing import TYPE_CHECKING

from ohsandbox.lazy_names import lazy_names
from ohsandbox.runtime.build_options import Build
from ohsandbox.runtime.docker.config.container_config import SandboxLimits
from ohsandbox.runtime.docker.runtime import DockerRuntime
from ohsandbox.runtime.mount_text import Mount
from ohsandbox.runtime.service_options import Service

if TYPE_CHECKING:
    from ohsandbox.runtime.docker.images.build import BuiltImage, abuild_image, build_image

__all__ = ["Build", "BuiltImage", "DockerRuntime", "Mount", "SandboxLimits", "Service", "abuild_image", "build_image"]

if not TYPE_CHECKING:  # most sandboxes use an existing image
    __getattr__, __dir__ = lazy_names(__name__, {".images.build": "BuiltImage abuild_image build_image"})
