"""What `make images` builds, and what the tests' own images are."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.runtime.docker.lax import ENGINE

ROOT = Path(__file__).parents[2]
BUILD_LIMIT_S = 600
IMAGE = os.environ.get("OHSANDBOX_TEST_IMAGE", "ohsandbox-base:debian")
# 65 s here with nothing cached: 14 s of packages, 25 s of dependencies, 2 s a layer; a public base is pulled first

pytestmark = [pytest.mark.docker, pytest.mark.timeout(BUILD_LIMIT_S)]


def run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=BUILD_LIMIT_S, check=False)


@pytest.fixture(scope="module")
def images() -> None:
    built = run("make", "images")
    assert built.returncode == 0, built.stdout + built.stderr


TOOLS = """bash cc curl gcc git jq less make nano node npm npx patch pip ps python rg sqlite3 tar unzip:-v uv uvx ssh:-V
file ps:-V"""


@pytest.mark.slow
@pytest.mark.usefixtures("images")
def test_the_default_image_has_what_an_agent_reaches_for() -> None:
    script = "\n".join(
        f"{name} {flag or '--version'} >/dev/null 2>&1 || echo {name}"
        for name, _, flag in (word.partition(":") for word in TOOLS.split())
    )
    found = run("docker", "run", "--rm", "ohsandbox-default", "sh", "-c", script)

    assert (found.returncode, found.stdout) == (0, "")


@pytest.mark.slow
@pytest.mark.usefixtures("images")
def test_the_default_images_user_can_install_compile_and_commit() -> None:
    script = """
        [ "$(id -un) $HOME $PWD" = "agent /home/agent /workspace" ]
        python -m venv /tmp/venv && /tmp/venv/bin/pip --version
        pip uninstall --yes no-such-package
        uv venv --quiet /tmp/uv
        echo 'int main(void) { return 0; }' >a.c && gcc a.c && ./a.out
        npm init --yes >/dev/null && npm prefix --global | grep -q /home/agent
        sqlite3 a.db 'create table t(x)'
        git init --quiet && git add a.c && git -c user.name=a -c user.email=a@b commit --quiet --message first
    """
    found = run("docker", "run", "--rm", "ohsandbox-default", "sh", "-euc", script)

    assert found.returncode == 0, found.stdout + found.stderr


@pytest.mark.usefixtures("images")
def test_the_browser_image_is_the_default_one_and_a_browser() -> None:
    found = run(
        "docker",
        "run",
        "--rm",
        "ohsandbox-browser",
        "sh",
        "-euc",
        "id -un; git --version; rg --version; pip --version; chromium --version",
    )

    assert found.returncode == 0, found.stdout + found.stderr
    assert found.stdout.startswith("root\n")


DOCKERFILES = ["Dockerfile", "images/default/Dockerfile", "images/browser/Dockerfile", "images/dind/Dockerfile"]


def test_one_base_is_pinned_by_version_and_digest() -> None:
    bases = {path: re.findall(r"^ARG BASE_IMAGE=(.*)", (ROOT / path).read_text(), re.MULTILINE) for path in DOCKERFILES}
    assert bases.pop("images/browser/Dockerfile") == ["ohsandbox-default"]

    (pinned,) = {base for (base,) in bases.values()}
    assert re.fullmatch(r"python:3\.\d+\.\d+-slim-\w+@sha256:[0-9a-f]{64}", pinned)


@pytest.mark.parametrize("path", DOCKERFILES)
def test_a_dockerfile_passes_the_linter(path: str) -> None:
    """Versions of Debian's packages are those of the base image's release."""
    checked = run(str(Path(sys.executable).parent / "hadolint"), path)

    assert checked.returncode == 0, checked.stdout


@pytest.mark.usefixtures("images")
def test_images_are_built_listed_and_kept_by_the_command(tmp_path: Path) -> None:
    base = os.environ.get("OHSANDBOX_TEST_IMAGE", "ohsandbox-base:debian")
    env = os.environ | {"OHSANDBOX_HOME": str(tmp_path)}
    command = [sys.executable, "-m", "ohsandbox", "images"]
    built = subprocess.run(
        [*command, "build", "default", "--base", base], env=env, capture_output=True, text=True, check=False
    )
    assert built.returncode == 0, built.stderr
    assert "ohsandbox-default is ready" in built.stdout
    listed = subprocess.run([*command, "list", "--json"], env=env, capture_output=True, text=True, check=False)
    kinds = {one["name"]: one["kind"] for one in json.loads(listed.stdout)}
    assert kinds["ohsandbox-default:latest"] == "shipped"


@pytest.mark.usefixtures("images")
@pytest.mark.parametrize("image", ["ohsandbox-browser", "ohsandbox-default", "ohsandbox"])
def test_no_image_keeps_the_certificates_or_packages_of_its_build(image: str) -> None:
    left = "find /run/secrets /var/lib/apt/lists /var/cache/apt /root/.cache /dev/shm -type f -size +0 2>/dev/null"

    assert run("docker", "run", "--rm", "--entrypoint", "sh", image, "-c", left).stdout == ""


INSIDE = "/var/run/docker.sock"
SOCKET = Path(ENGINE)


def ohsandbox(*arguments: str, options: Sequence[str] = ()) -> subprocess.CompletedProcess[str]:
    return run("docker", "run", "--rm", *options, "ohsandbox", *arguments)


@pytest.mark.slow
@pytest.mark.usefixtures("images")
def test_our_image_without_an_engine_says_how_to_give_it_one() -> None:
    bind = f"--volume={SOCKET}:{INSIDE}"
    group = SOCKET.stat().st_gid

    none = ohsandbox("exec", "--image", IMAGE, "--", "true")
    refused = ohsandbox("exec", "--image", IMAGE, "--", "true", options=[bind, "--user=12345"])

    assert none.returncode == refused.returncode == 4
    assert "the socket does not exist" in none.stderr
    assert f"Start this container with `-v {INSIDE}:{INSIDE}`" in none.stderr
    assert f"Start this container with `--group-add {group}`" in refused.stderr
    assert none.stderr.count("\n") == refused.stderr.count("\n") == 1


@pytest.mark.slow
@pytest.mark.usefixtures("images")
def test_our_image_works_on_a_directory_that_is_mounted_and_keeps_its_state(tmp_path: Path) -> None:
    """As an ordinary user of another uid than the image's."""
    workspace, state = tmp_path / "workspace", tmp_path / "state"
    for directory in (workspace, state):
        directory.mkdir()
        if os.geteuid() == 0:
            os.chown(directory, 1234, 1234)
    (workspace / "given").write_text("text")
    options = [
        f"--user={workspace.stat().st_uid}",
        f"--group-add={SOCKET.stat().st_gid}",
        f"--volume={SOCKET}:{INSIDE}",
        f"--volume={state}:/home/ohsandbox",
    ]
    mounted = [*options, f"--volume={workspace}:/workspace"]

    worked = ohsandbox(
        *("exec", "--image", IMAGE, "--workspace", "/workspace", "--", "sh", "-ec", "cat given; echo new >made"),
        options=mounted,
    )
    assert (worked.returncode, worked.stdout) == (0, "text"), worked.stderr
    assert (workspace / "made").read_text() == "new\n"
    assert (state / ".ohsandbox").is_dir()
    alone = ohsandbox("exec", "--image", IMAGE, "--workspace", "/workspace", "--", "true", options=options)
    assert alone.returncode == 2
    assert "'/workspace' is in this container only" in alone.stderr
    healthy = run("docker", "run", "--rm", *mounted, "ohsandbox", "doctor", "--json")
    assert healthy.returncode == 0, healthy.stdout


@pytest.mark.slow
@pytest.mark.usefixtures("images")
def test_a_branch_in_our_image_has_its_tree_in_the_volume(tmp_path: Path) -> None:
    author = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
    for command in (["init", "-q"], [*author, "commit", "-q", "--allow-empty", "-m", "first"]):
        assert run("git", "-C", str(tmp_path), *command).returncode == 0
    volume = f"ohsandbox-test-{os.getpid()}-branch"
    options = [f"--volume={SOCKET}:{INSIDE}", f"--volume={volume}:/home/ohsandbox", f"--volume={tmp_path}:{tmp_path}"]
    options += [f"--user={tmp_path.stat().st_uid}", f"--group-add={SOCKET.stat().st_gid}", f"--workdir={tmp_path}"]
    task = ["--image", IMAGE, "--workspace", ".", "--branch", "fix", "--", "sh", "-c", "echo new >made"]
    try:
        worked = ohsandbox("exec", *task, options=options)
        changed = ohsandbox("branches", "diff", "fix", options=options)
    finally:
        run("docker", "volume", "rm", volume)

    assert worked.returncode == 0, worked.stderr
    assert "+new" in changed.stdout
    assert not (tmp_path / "made").exists()


@pytest.mark.usefixtures("images")
def test_our_image_has_an_ordinary_user_and_a_health_check() -> None:
    config = json.loads(run("docker", "image", "inspect", "ohsandbox", "--format", "{{json .Config}}").stdout)

    assert config["User"] == "1000"
    assert config["Healthcheck"]["Test"] == ["CMD", "ohsandbox", "doctor", "--json"]


@pytest.mark.slow
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
