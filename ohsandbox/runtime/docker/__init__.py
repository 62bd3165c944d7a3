"""Sandboxes in containers of a Docker engine."""

from ohsandbox.runtime.docker.config.container_config import SandboxLimits
from ohsandbox.runtime.docker.images.build import Build, BuiltImage, abuild_image, build_image
from ohsandbox.runtime.docker.runtime import DockerRuntime
from ohsandbox.runtime.docker.services.service_options import Service
from ohsandbox.runtime.mount_text import Mount

__all__ = ["Build", "BuiltImage", "DockerRuntime", "Mount", "SandboxLimits", "Service", "abuild_image", "build_image"]
