"""The development environment of compose.yaml."""

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BUILD_LIMIT_S = 600
# 48 s here with nothing cached
IMAGE = os.environ.get("OHSANDBOX_TEST_IMAGE", "ohsandbox-base:debian")
TESTS = "tests/test_text.py"
# of this process: `down` of one run would end the engine of another
PROJECT = f"ohsandbox-test-{os.getpid()}"
VOLUME = f"{PROJECT}-state"
HOST_BUNDLE = Path("/etc/ssl/certs/ca-certificates.crt")

pytestmark = [pytest.mark.docker, pytest.mark.timeout(BUILD_LIMIT_S)]


def compose(*arguments: str, given: bytes | None = None, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {"BASE_IMAGE": IMAGE}
    if HOST_BUNDLE.exists():
        environment["SSL_CERT_FILE"] = str(HOST_BUNDLE)
    done = subprocess.run(
        ["docker", "compose", *arguments],
        cwd=ROOT,
        env=environment | os.environ | {"PWD": str(ROOT)} | variables,
        input=given,
        capture_output=True,
        timeout=BUILD_LIMIT_S,
        check=False,
    )
    return subprocess.CompletedProcess(done.args, done.returncode, done.stdout.decode(), done.stderr.decode())


def in_dev(*command: str) -> str:
    answer = compose("run", "--rm", "--no-TTY", "dev", *command)
    assert answer.returncode == 0, answer.stderr
    return answer.stdout


@pytest.fixture(scope="module")
def dev() -> None:
    built = compose("build", "dev")
    assert built.returncode == 0, built.stderr


def test_compose_file_is_valid() -> None:
    checked = compose("config", "--quiet")

    assert (checked.returncode, checked.stdout, checked.stderr) == (0, "", "")


@pytest.mark.usefixtures("dev")
def test_dev_imports_the_mounted_source() -> None:
    where = in_dev("python", "-c", "import ohsandbox; print(ohsandbox.__file__)")

    assert where == "/src/ohsandbox/__init__.py\n"


@pytest.mark.usefixtures("dev")
def test_dev_reaches_the_engine_by_client_and_by_library() -> None:
    engine_id = subprocess.check_output(["docker", "info", "--format", "{{.ID}}"], text=True)

    assert in_dev("docker", "info", "--format", "{{.ID}}") == engine_id
    assert in_dev("python", "-c", "import docker; print(docker.from_env().info()['ID'])") == engine_id


@pytest.mark.usefixtures("dev")
def test_dev_has_the_tools_of_make_already() -> None:
    assert in_dev("make", "setup") == ""
    assert in_dev("sh", "-c", "ruff --version && mypy --version && pytest --version") != ""


@pytest.mark.usefixtures("dev")
def test_dev_is_whoever_owns_the_source(tmp_path: Path) -> None:
    if os.geteuid() == 0:
        os.chown(tmp_path, 1234, 1235)
    owner = tmp_path.stat()

    ids = in_dev_of(tmp_path, "id -u; id -g; touch made-inside")

    made = (tmp_path / "made-inside").stat()
    assert ids.split() == [str(owner.st_uid), str(owner.st_gid)]
    assert (made.st_uid, made.st_gid) == (owner.st_uid, owner.st_gid)


@pytest.fixture
def dind() -> Iterator[list[str]]:
    """The words of compose for a project whose own engine runs and has one image."""
    project = ["--project-name", f"{PROJECT}-dind", "--profile", "dind"]
    built = compose(*project, "build", "dind")
    assert built.returncode == 0, built.stderr
    try:
        started = compose(*project, "up", "--detach", "--wait", "dind", OHSANDBOX_VOLUME=VOLUME)
        assert started.returncode == 0, started.stderr
        image = subprocess.check_output(["docker", "save", "ohsandbox-base:busybox"])
        loaded = compose(*project, "exec", "--no-TTY", "dind", "docker", "load", given=image)
        assert loaded.returncode == 0, loaded.stderr
        yield project
    finally:
        compose(*project, "down", "--volumes", "--timeout", "2", OHSANDBOX_VOLUME=VOLUME)


@pytest.mark.slow
@pytest.mark.usefixtures("dev")
def test_the_service_test_has_an_engine_of_its_own_that_sees_its_files(dind: list[str]) -> None:
    script = f"""
        docker images --format '{{{{.Repository}}}}:{{{{.Tag}}}}'; docker ps --all --quiet
        mkdir /tmp/given /var/tmp/unseen; echo text >/tmp/given/file
        exec 2>&1
        ohsandbox exec --image ohsandbox-base:busybox --workspace /tmp/given -- sh -c 'cat file; echo new >made'
        cat /tmp/given/made
        ohsandbox exec --image ohsandbox-base:busybox --workspace /var/tmp/unseen -- true || true
        OHSANDBOX_TEST_IMAGE=ohsandbox-base:busybox python -m pytest -q -p no:cacheprovider {TESTS}
    """
    ran = compose(*dind, "run", "--rm", "--no-TTY", "test", "sh", "-euc", script)
    service = json.loads(compose(*dind, "config", "--format", "json").stdout)["services"]

    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert ran.stdout.splitlines()[:3] == ["ohsandbox-base:busybox", "text", "new"]
    assert "Name a directory that the engine has under the same name" in ran.stdout
    assert " passed" in ran.stdout
    assert "privileged" not in service["dind"]
    assert "/var/run/docker.sock" not in {one["target"] for one in service["test"]["volumes"]}


@pytest.mark.slow
def test_the_service_ohsandbox_works_as_the_workspaces_owner_and_keeps_its_state(tmp_path: Path) -> None:
    built = compose("build", "ohsandbox")
    assert built.returncode == 0, built.stderr
    if os.geteuid() == 0:
        os.chown(tmp_path, 1234, 1235)
    command = ["exec", "--image", IMAGE, "--workspace", ".", "--", "sh", "-ec", "touch made; id -u"]
    project = ["--project-name", PROJECT]
    try:
        worked = compose(
            *project, "run", "--rm", "--no-TTY", "ohsandbox", *command, WORKSPACE=str(tmp_path), OHSANDBOX_VOLUME=VOLUME
        )
        listed = compose(
            *project,
            "run",
            "--rm",
            "--no-TTY",
            "--entrypoint",
            "ls",
            "ohsandbox",
            "-A",
            "/home/ohsandbox",
            OHSANDBOX_VOLUME=VOLUME,
        )
    finally:
        subprocess.run(["docker", "volume", "rm", VOLUME], capture_output=True, check=False)

    assert (worked.returncode, worked.stdout) == (0, f"{tmp_path.stat().st_uid}\n"), worked.stderr
    assert (tmp_path / "made").stat().st_uid == tmp_path.stat().st_uid
    assert ".ohsandbox" in listed.stdout.split()


def in_dev_of(source: Path, script: str) -> str:
    command = ["docker", "run", "--rm", "--volume", f"{source}:/src", "ohsandbox-dev", "sh", "-c", script]
    return subprocess.check_output(command, text=True)
