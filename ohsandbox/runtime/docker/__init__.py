"""Sandboxes in containers of a Docker engine."""

from ohsandbox.runtime.docker.build import Build
from ohsandbox.runtime.docker.container_config import SandboxLimits
from ohsandbox.runtime.docker.runtime import DockerRuntime

__all__ = ["Build", "DockerRuntime", "SandboxLimits"]
