"""What `make images` builds, and what the tests' own images are."""

import json
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BUILD_LIMIT_S = 600
# 65 s here with nothing cached: 14 s of packages, 25 s of dependencies, 2 s a layer; a public base is pulled first

pytestmark = [pytest.mark.docker, pytest.mark.timeout(BUILD_LIMIT_S)]


def run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=BUILD_LIMIT_S, check=False)


@pytest.fixture(scope="module")
def images() -> None:
    built = run("make", "images")
    assert built.returncode == 0, built.stdout + built.stderr


@pytest.mark.usefixtures("images")
@pytest.mark.parametrize("tool", ["bash", "curl", "git", "jq", "less", "patch", "pip", "ps", "python", "rg", "tar"])
def test_the_default_image_has_what_an_agent_reaches_for(tool: str) -> None:
    found = run("docker", "run", "--rm", "ohsandbox-default", tool, "-V" if tool == "ps" else "--version")

    assert (found.returncode, found.stderr) == (0, "")


@pytest.mark.usefixtures("images")
def test_the_default_image_lets_an_agent_install_and_commit() -> None:
    script = """
        python -m venv /tmp/venv && /tmp/venv/bin/pip --version
        pip uninstall --yes no-such-package
        chown 1000 /workspace && git init --quiet && git status --short
    """
    assert run("docker", "run", "--rm", "ohsandbox-default", "sh", "-ec", script).returncode == 0


@pytest.mark.usefixtures("images")
@pytest.mark.parametrize("image", ["ohsandbox-browser", "ohsandbox-default", "ohsandbox"])
def test_no_image_keeps_the_certificates_or_packages_of_its_build(image: str) -> None:
    left = "find /run/secrets /var/lib/apt/lists /var/cache/apt /root/.cache /dev/shm -type f -size +0 2>/dev/null"

    assert run("docker", "run", "--rm", "--entrypoint", "sh", image, "-c", left).stdout == ""


@pytest.mark.usefixtures("images")
def test_the_command_runs_from_its_image() -> None:
    helped = run("docker", "run", "--rm", "ohsandbox", "--help")

    assert helped.returncode == 0, helped.stderr
    assert "Usage" in helped.stdout


def test_base_images_are_made_once() -> None:
    run("images/base/build")

    assert run("images/base/build").stdout == ""


def test_the_hostile_image_is_hostile_in_every_setting() -> None:
    inspected = run("docker", "image", "inspect", "ohsandbox-base:hostile", "--format", "{{json .Config}}")
    config = json.loads(inspected.stdout)

    assert config["Entrypoint"] == ["/bin/false"]
    assert config["Healthcheck"]["Test"] == ["CMD-SHELL", "exit 1"]
    assert config["Volumes"] == {"/data": {}}
    assert config["WorkingDir"] == "/proc/self/fd/8"
    assert config["User"] == "12345"
    assert {"LD_PRELOAD=/nonexistent/bad.so", "PS1=HOSTILE$ "} < set(config["Env"])


def test_the_nonroot_image_runs_as_agent_in_its_home() -> None:
    answer = run("docker", "run", "--rm", "ohsandbox-base:nonroot", "sh", "-c", "id -un; id -u; pwd; touch mine")

    assert answer.stdout.split() == ["agent", "1000", "/home/agent"]


def test_the_busybox_image_has_a_shell_that_is_not_bash() -> None:
    answer = run("docker", "run", "--rm", "ohsandbox-base:busybox", "sh", "-c", "command -v bash || echo none")

    assert answer.stdout == "none\n"
