"""Images built from a Dockerfile: once per content, told while they are built, found again by who resumes."""

from __future__ import annotations

import os
import secrets
import time
from typing import TYPE_CHECKING, Any

import pytest

from ohsandbox import Build, DockerRuntime
from ohsandbox.cli.app import app
from ohsandbox.cli.runtime import progress_text
from ohsandbox.errors import UsageError
from ohsandbox.paths import subdirectory
from ohsandbox.runtime.docker import build as builds
from ohsandbox.runtime.docker.inventory import DockerInventory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from ohsandbox.runtime.docker.engine import Engine
    from ohsandbox.runtime.results import PullProgress

FROM = "FROM ohsandbox-base:busybox\n"


@pytest.fixture
def context(tmp_path: Path, engine: Engine) -> Iterator[Callable[..., Path]]:
    """`context(dockerfile, name=content)` is a directory whose content no other test has; its images are removed."""
    tag = secrets.token_hex(8)

    def write(dockerfile: str, **files: str) -> Path:
        root = tmp_path / "context"
        root.mkdir(exist_ok=True)
        (root / "Dockerfile").write_text(f"{FROM}LABEL test={tag}\n{dockerfile}")
        for name, content in files.items():
            (root / name).write_text(content)
        return root

    yield write
    for image in engine.api.images(filters={"label": f"test={tag}"}, all=False):
        engine.api.remove_image(image["Id"], force=True)


@pytest.mark.docker
def test_an_image_is_built_once_for_each_content(context: Callable[..., Path]) -> None:
    root = context("COPY a.txt /made/\nRUN echo built >>/made/a.txt\n", **{"a.txt": "one\n"})
    told: list[PullProgress] = []
    with DockerRuntime(build=root, progress=told.append) as runtime:
        assert runtime.read_bytes("/made/a.txt") == b"one\nbuilt\n"
        first = runtime.describe()["image"]
    assert first.startswith("ohsandbox-build:")
    assert [one.layers_done for one in told if one.status == "building"][-1] == 4
    assert progress_text(next(one for one in told if one.layers_done == 4)).endswith(
        "Dockerfile: building, step 4 of 4: RUN echo built >>/made/a.txt"
    )
    told.clear()
    os.utime(root / "a.txt", (1, 1))
    with DockerRuntime(build=str(root), progress=told.append) as runtime:
        assert (runtime.describe()["image"], told) == (first, [])
    (root / "a.txt").write_text("two\n")
    with DockerRuntime(build=Build(root)) as runtime:
        assert runtime.read_bytes("/made/a.txt") == b"two\nbuilt\n"
        assert runtime.describe()["image"] != first


@pytest.mark.docker
def test_args_target_and_ignored_files(context: Callable[..., Path]) -> None:
    root = context("COPY . /made/\n", **{".dockerignore": "# no\n*.log\n!kept.log\n", "x.log": "", "kept.log": ""})
    (root / "other").mkdir()
    text = (root / "Dockerfile").read_text()
    stages = f"{text.replace('busybox', 'busybox AS base', 1)}ARG WHO=nobody\nRUN echo $WHO >/who\n{FROM}RUN false\n"
    (root / "other" / "My.Dockerfile").write_text(stages)
    build = Build(root, "other/My.Dockerfile", args={"WHO": "me"}, target="base")
    with DockerRuntime(build=build) as runtime:
        assert runtime.read_bytes("/who") == b"me\n"
        assert sorted(entry.name for entry in runtime.list_dir("/made") if "log" in entry.name) == ["kept.log"]


@pytest.mark.docker
def test_a_step_that_fails_is_named_with_its_last_output_on_one_line(context: Callable[..., Path]) -> None:
    root = context("RUN echo before\nRUN (echo why; echo how) >&2; exit 3\n")
    with pytest.raises(UsageError) as failed:
        DockerRuntime(build=root).start()
    said = str(failed.value)
    assert "failed at step 4 of 4, 'RUN (echo why; echo how) >&2; exit 3': " in said
    assert "returned a non-zero code: 3. Its last output: why | how. Remedy: correct Dockerfile." in said
    assert "before" not in said
    assert "\n" not in said


@pytest.mark.docker
def test_a_dockerfile_that_is_none_is_told(context: Callable[..., Path]) -> None:
    with pytest.raises(UsageError, match="NONSENSE"):
        DockerRuntime(build=context("NONSENSE here\n")).start()


@pytest.mark.docker
def test_who_resumes_finds_the_sandbox_of_another_content_and_without_it_the_image(
    context: Callable[..., Path], engine: Engine
) -> None:
    root = context("COPY a /\n", a="1")
    conversation = f"build-{secrets.token_hex(4)}"
    runtime = DockerRuntime(build=root, conversation=conversation).start()
    runtime.write_bytes("/left", b"here")
    runtime.leave()
    (root / "a").write_text("2")
    again = DockerRuntime(build=root, conversation=conversation)
    report = again.resume()
    assert (report.how, report.notes, again.read_bytes("/left"), again.read_bytes("/a")) == ("same", (), b"here", b"1")
    checkpoint = again.checkpoint().id
    try:
        with again.fork(checkpoint, conversation=f"{conversation}-fork") as fork:
            assert fork.read_bytes("/left") == b"here"
    finally:
        again.close()
        engine.api.remove_image(checkpoint, force=True)
    with DockerRuntime(build=root, conversation=conversation) as new:
        assert (new.resume().how, new.read_bytes("/a")) == ("same", b"2")


@pytest.mark.docker
def test_gc_removes_an_image_that_was_not_used_for_long(context: Callable[..., Path], engine: Engine) -> None:
    root = context("COPY a /\n", a="gc")
    with DockerRuntime(build=root) as runtime:
        name = runtime.describe()["image"]
        record = subdirectory("builds") / name.partition(":")[2]
        with DockerInventory(engine) as inventory:
            assert name not in inventory.unused_images()
            os.utime(record, (time.time() - builds.UNUSED_S - 60,) * 2)
            assert name in inventory.unused_images()
            assert name not in [one.name for one in inventory.collect_garbage()]  # a container uses it
    with DockerInventory(engine) as inventory:
        assert name in [one.name for one in inventory.collect_garbage() if one.outcome == "removed"]
    assert not record.exists()
    assert engine.api.images(name) == []


@pytest.mark.docker
def test_exec_builds_runs_and_tells_the_steps(
    context: Callable[..., Path], capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    root = context("RUN echo 42 >/answer\n")
    assert app(["exec", "--build", str(root), "--", "cat", "/answer"], standalone_mode=False) == 0
    out, err = capfdbinary.readouterr()
    assert out == b"42\n"
    assert b"building, step 3 of 3: RUN echo 42 >/answer" in err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"build": "none/such"}, "does not exist"),
        ({"build": 5}, "Invalid build 5"),
        ({"build": ""}, "Invalid build ''"),
        ({"build": Build(".", "no-such-file")}, "There is no file 'no-such-file'"),
        ({"build": Build(".", "../Dockerfile")}, "is outside of"),
        ({"build": ".", "image": "debian"}, "exclude each other"),
        ({"build": Build(".", "pyproject.toml"), "attach": "some"}, "build= is for a new container"),
    ],
)
def test_a_build_that_cannot_be_is_refused_without_an_engine(
    arguments: dict[str, Any], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///nonexistent/never-asked.sock")
    with pytest.raises(UsageError, match=said):
        DockerRuntime(**arguments)
