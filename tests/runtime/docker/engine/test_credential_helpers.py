"""The helper that knows a registry's password is a program of this machine, and none of a clone."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import docker
import pytest
from docker.errors import DockerException

from ohsandbox.runtime.docker.engine.credential_helpers import use_host_programs

if TYPE_CHECKING:
    from pathlib import Path


def test_a_helper_is_taken_from_an_absolute_directory_of_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"credHelpers": {"r.example": "planted"}}))
    for place, user in (("clone/bin", "clone"), ("own", "own")):
        helper = tmp_path / place / "docker-credential-planted"
        helper.parent.mkdir(parents=True)
        helper.write_text(f"#!/bin/sh\necho '{json.dumps({'Username': user, 'Secret': 's'})}'\n")
        helper.chmod(0o755)
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    monkeypatch.chdir(tmp_path / "clone")
    monkeypatch.setenv("PATH", f"./bin:{tmp_path}/own:/usr/bin:/bin")
    api = docker.APIClient(base_url="http://127.0.0.1:1", version="1.41")
    use_host_programs(api)
    assert api._auth_configs.resolve_authconfig("r.example")["Username"] == "own"
    monkeypatch.setenv("PATH", "./bin:/usr/bin:/bin")
    use_host_programs(api)
    with pytest.raises(DockerException, match="docker-credential-planted not installed"):
        api._auth_configs.resolve_authconfig("r.example")
    api.close()
