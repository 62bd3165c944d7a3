"""Sandboxes in containers of a Docker engine."""

from ohsandbox.runtime.docker.container_config import Limits
from ohsandbox.runtime.docker.runtime import DockerRuntime

__all__ = ["DockerRuntime", "Limits"]
