"""The programs `docker-credential-NAME`, from which docker-py takes a registry's password."""

from __future__ import annotations

from typing import Any

from docker.auth import AuthConfig
from docker.credentials import PROGRAM_PREFIX, Store

from ohsandbox import host_programs


class _HostStore(Store):  # type: ignore[misc] # docker-py has no types
    def __init__(self, name: str) -> None:
        self.program = PROGRAM_PREFIX + name
        self.exe = host_programs.find_program(self.program)
        self.environment = {"PATH": host_programs.trusted_path()}


class _HostAuthConfig(AuthConfig):  # type: ignore[misc] # docker-py has no types
    def _get_store_instance(self, name: str) -> Store:
        return self._stores.setdefault(name, _HostStore(name))


def use_host_programs(api: Any) -> None:
    """Have a client of docker-py find its helpers as we find programs; docker-py itself takes the first on PATH."""
    api._auth_configs = _HostAuthConfig(api._auth_configs)  # noqa: SLF001 - docker-py has no option for it
