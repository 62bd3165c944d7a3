from __future__ import annotations

from typing import Any

import pytest

from ohsandbox.errors import UsageError
from ohsandbox.runtime.docker.config import options, resolve
from ohsandbox.runtime.docker.mounts.mount_policy import is_root
from ohsandbox.runtime.docker.runtime import DockerRuntime


@pytest.mark.parametrize(
    "name",
    ["python:3.12", "ghcr.io/owner/name:tag", "localhost:5000/a/b", "a@sha256:" + "f" * 64, "a__b/c-d.e", "0" * 12],
)
def test_image_names_pass(name: str) -> None:
    assert options.validated_options(image=name).image == name


@pytest.mark.parametrize(
    "name", ["UPPER/x", "a b", "", "--help", "a" * 300, "../etc", "a:", "a\n", "http://a/b", "a//b"]
)
def test_a_bad_image_name_is_refused_without_an_engine(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///nonexistent/never-asked.sock")
    with pytest.raises(UsageError, match="is not an image name"):
        DockerRuntime(name)


@pytest.mark.parametrize(
    "arguments",
    [
        {"name": "-x"},
        {"name": "a/b"},
        {"attach": "a b"},
        {"workdir": "/proc/self/fd/8"},
        {"workdir": "relative"},
        {"workdir": "/a/../proc"},
        {"network": "host"},
        {"allow": "packages"},
        {"credentials": "github"},
        {"profile": "mapped"},
        {"ca_bundle": "/nonexistent.pem"},
        {"env": {"A": 1}},
        {"limits": {"memory_bytes": 1}},
    ],
)
def test_a_bad_argument_is_refused_without_an_engine(arguments: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        DockerRuntime(**arguments)


@pytest.mark.parametrize("arguments", [{}, {"copy": True}], ids=["bound", "copied"])
def test_an_empty_workspace_is_vetted_as_the_current_directory(
    arguments: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir("/")
    with pytest.raises(UsageError, match="The workspace '/' is refused"):
        DockerRuntime(workspace="", **arguments)


@pytest.mark.parametrize(
    ("workdir", "sane"),
    [
        ("/app", "/app"),
        ("/app/./x//", "/app/x"),
        ("/proc/self/fd/8", None),
        ("/sys", None),
        ("/dev/shm", None),
        ("/process", "/process"),
        ("rel", None),
        ("", None),
        (None, None),
    ],
)
def test_a_workdir_in_a_kernel_file_system_is_not_sane(workdir: str | None, sane: str | None) -> None:
    assert options.sane_workdir(workdir) == sane


def test_hostile_variables_of_an_image_are_named() -> None:
    env = [
        "PATH=/bin",
        "LD_PRELOAD=/x.so",
        "BASH_FUNC_ls%%=() { :; }",
        "ENV=/x",
        "PS1=$(x)",
        "JAVA_HOME=/jdk",
        "LANG=C",
        "LD_LIBRARY_PATH=/usr/local/cuda/lib64",
        "BASH_ENV=/root/.bash_env",
        "MALLOC_ARENA_MAX=2",
        "TZDIR=/opt/zoneinfo",
    ]
    assert resolve.hostile_names(env) == ("BASH_FUNC_ls%%", "ENV", "LD_PRELOAD", "PS1")


@pytest.mark.parametrize(
    ("image_env", "env"),
    [
        ([f"V{number}=x" for number in range(4000)], {f"W{number}": "x" for number in range(97)}),
        (["A=" + "é" * 130_000], {"B": "x" * 130_000, "C": "x" * 135_000}),
    ],
    ids=["number", "bytes"],
)
def test_an_environment_that_shells_cannot_carry_is_refused(image_env: list[str], env: dict[str, str]) -> None:
    with pytest.raises(UsageError, match=r"Image 'x' has .* environment variables of .* at most 4,096 of .* Put them"):
        options.check_environment(image_env, env, whose="Image 'x'")
    options.check_environment(image_env, dict.fromkeys([*env][1:], ""), whose="Image 'x'")


def test_root_by_any_name_is_root() -> None:
    assert all(is_root(user) for user in ("", "0", "root", "0:0", "root:staff", "0:1000"))
    assert not any(is_root(user) for user in ("1000", "app", "10", "rooty"))


def test_an_empty_user_is_the_image_s() -> None:
    assert DockerRuntime("busybox", user="").describe()["user"] == "root"
