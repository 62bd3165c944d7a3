"""Sandboxes in containers of a Docker engine."""

from ohsandbox.runtime.docker.runtime import DockerRuntime
from ohsandbox.runtime.docker.spec import Limits

__all__ = ["DockerRuntime", "Limits"]
