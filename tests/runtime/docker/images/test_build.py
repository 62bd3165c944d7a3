"""Images built from a Dockerfile: once per content, told while they are built, found again by who resumes."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import secrets
import socket
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ohsandbox import Build, DockerRuntime, build_image
from ohsandbox.cli.app import app
from ohsandbox.cli.rendering.text import progress_text
from ohsandbox.errors import CallCancelledError, ImageUnavailable, UsageError
from ohsandbox.paths import subdirectory
from ohsandbox.runtime.build_options import resolved_build
from ohsandbox.runtime.docker.images import build as builds
from ohsandbox.runtime.docker.images import builders
from ohsandbox.runtime.docker.images.build_context import MAX_IGNORE_BYTES, BuildContext
from ohsandbox.runtime.docker.images.build_ignore import kept_paths
from ohsandbox.runtime.docker.images.builders import buildkit_command
from ohsandbox.runtime.docker.inventory.docker_inventory import DockerInventory
from ohsandbox.runtime.docker.labels import BUILD_LABEL

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ohsandbox.runtime.docker.engine.connection import Engine
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


@pytest.fixture(params=["buildkit", pytest.param("classic", marks=pytest.mark.slow)])
def builder(request: pytest.FixtureRequest, engine: Engine, monkeypatch: pytest.MonkeyPatch) -> str:
    """BuildKit, and the engine's own as where there is no docker client."""
    if request.param == "classic":
        monkeypatch.setattr(builders, "buildkit_command", lambda _: None)
    elif buildkit_command(engine) is None:
        pytest.skip("no docker client with buildx, or an engine without BuildKit")
    return str(request.param)


@pytest.mark.docker
@pytest.mark.usefixtures("builder")
def test_an_image_is_built_once_for_each_content(
    context: Callable[..., Path], engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "ohsandbox")
    root = context("COPY a.txt /made/\nRUN echo built >>/made/a.txt\n", **{"a.txt": "one\n"})
    told: list[PullProgress] = []
    with DockerRuntime(build=root, progress=told.append) as runtime:
        assert runtime.read_bytes("/made/a.txt") == b"one\nbuilt\n"
        first = runtime.describe()["image"]
    assert first.startswith("ohsandbox-build:")
    last = next(one for one in told if one.detail.startswith("RUN"))
    assert last.layers_done == last.layers_total > 2
    assert re.search(r"Dockerfile: building, step (\d) of \1: RUN echo built >>/made/a.txt$", progress_text(last))
    assert told[-1].status == "done"
    assert [line for line in caplog.messages if line.endswith(": RUN echo built >>/made/a.txt")]
    assert engine.api.images(first, filters={"label": f"{BUILD_LABEL}=1"})
    told.clear()
    os.utime(root / "a.txt", (1, 1))
    with DockerRuntime(build=str(root), progress=told.append) as runtime:
        assert (runtime.describe()["image"], told) == (first, [])
    (root / "a.txt").write_text("two\n")
    with DockerRuntime(build=Build(root)) as runtime:
        assert runtime.read_bytes("/made/a.txt") == b"two\nbuilt\n"
        assert runtime.describe()["image"] != first


@pytest.mark.docker
@pytest.mark.usefixtures("builder")
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
@pytest.mark.usefixtures("builder")
def test_a_step_that_fails_is_named_with_its_last_output_on_one_line(context: Callable[..., Path]) -> None:
    root = context("RUN echo before\nRUN (echo why; echo how) >&2; exit 3\n")
    with pytest.raises(UsageError) as failed:
        DockerRuntime(build=root).start()
    said = str(failed.value)
    assert re.search(r"failed at step (\d) of \1, 'RUN \(echo why; echo how\) >&2; exit 3': ", said)
    assert re.search(r"code: 3\. Its last output: why \| how\. Correct Dockerfile\.$", said)
    assert "before" not in said
    assert "\n" not in said


@pytest.mark.docker
@pytest.mark.usefixtures("builder")
def test_a_dockerfile_that_is_none_is_told(context: Callable[..., Path]) -> None:
    with pytest.raises(UsageError, match="NONSENSE"):
        DockerRuntime(build=context("NONSENSE here\n")).start()


@pytest.mark.docker
@pytest.mark.usefixtures("builder")
def test_a_base_image_that_cannot_be_had_is_no_fault_of_a_step(context: Callable[..., Path]) -> None:
    root = context("")
    (root / "Dockerfile").write_text("FROM 127.0.0.1:9/no/such:1\n")
    with pytest.raises(ImageUnavailable, match=r"an image of a FROM cannot be had: .*127\.0\.0\.1:9") as failed:
        build_image(root)
    assert "\n" not in str(failed.value)


@pytest.mark.parametrize(
    ("said", "error"),
    [
        ("Err:1 http://a.example.org trixie InRelease Temporary failure resolving 'a.example.org'", ImageUnavailable),
        ("curl: (6) Could not resolve host: example.org", ImageUnavailable),
        ("Failed to establish a new connection: [Errno -3] Temporary failure in name resolution", ImageUnavailable),
        ("connect (101: Network is unreachable)", ImageUnavailable),
        ("E: Version '3.12.3-1' for 'python3' was not found", UsageError),
    ],
)
def test_a_step_that_reaches_no_host_is_no_fault_of_the_dockerfile(said: str, error: type[Exception]) -> None:
    report = builders.BuildReport(Build("/context"), lambda _: None)
    report.begin("#4", 2, 3, "RUN apt-get update")
    report.add_line("#4", said)
    report.fail("#4", "process did not complete successfully: exit code: 100")
    with pytest.raises(error, match=r"failed at step 2 of 3, 'RUN apt-get update'.*Its last output: .*\. [A-Z]"):
        report.check()


@pytest.mark.docker
@pytest.mark.usefixtures("builder")
def test_threads_that_ask_at_once_build_once(context: Callable[..., Path]) -> None:
    root = context("WORKDIR /work\nRUN sleep 1; head -c 16 /dev/urandom >/made\n")
    told: list[PullProgress] = []
    with ThreadPoolExecutor(8) as pool:
        built = list(pool.map(lambda _: build_image(root / "Dockerfile", progress=told.append), range(8)))
    assert len(set(built)) == 1
    assert built[0].workdir == "/work"
    assert sum(one.status == "done" for one in told) == 1


@pytest.mark.docker
def test_processes_that_ask_at_once_build_once(context: Callable[..., Path]) -> None:
    root = context("RUN sleep 1; head -c 16 /dev/urandom >/made\n")
    code = "import sys, ohsandbox; print(ohsandbox.build_image(sys.argv[1], progress=lambda one: print(one.status)))"
    words = [sys.executable, "-c", code, str(root)]
    running = [subprocess.Popen(words, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    said = [process.communicate(timeout=100)[0].splitlines() for process in running]
    assert len({lines[-1] for lines in said}) == 1
    assert sum("done" in lines for lines in said) == 1


@pytest.mark.docker
@pytest.mark.usefixtures("builder")
def test_a_build_that_is_cancelled_ends_with_its_step(context: Callable[..., Path]) -> None:
    seconds, cancel = f"600.{secrets.randbelow(10**9)}", threading.Event()
    root = context(f"RUN echo begun; sleep {seconds}\n")

    def stop(progress: PullProgress) -> None:
        if progress.detail == "begun":
            cancel.set()

    with pytest.raises(CallCancelledError, match=r"^Building .* was cancelled"):
        build_image(root, progress=stop, cancel=cancel)
    deadline = time.monotonic() + 60
    while (found := _processes_with(seconds)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert found == []
    assert build_image(context("")).name  # nothing is locked


def _processes_with(word: str) -> list[Path]:
    """Of this machine, which is the engine's."""
    found = []
    for place in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if word.encode() in place.read_bytes():
                found.append(place)
    return found


@pytest.mark.docker
async def test_an_astart_that_is_cancelled_does_not_wait_for_the_build(context: Callable[..., Path]) -> None:
    begun = asyncio.Event()
    loop = asyncio.get_running_loop()
    root = context(f"RUN echo begun; sleep 600.{secrets.randbelow(10**9)}\n")

    def tell(progress: PullProgress) -> None:
        if progress.detail == "begun":
            loop.call_soon_threadsafe(begun.set)

    runtime = DockerRuntime(build=root, progress=tell)
    starting = asyncio.create_task(runtime.astart())
    await begun.wait()
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert not runtime.is_alive()


@pytest.mark.slow
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
    assert re.search(rb"building, step (\d) of \1: RUN echo 42 >/answer", err)


@pytest.fixture
def plain(tmp_path: Path) -> Build:
    """A context of this machine, for which no engine is asked."""
    (tmp_path / "below").mkdir()
    (tmp_path / "below" / "a").write_text("one")
    (tmp_path / "Dockerfile").write_text(FROM)
    return resolved_build(tmp_path)


@pytest.mark.parametrize("made", [os.mkfifo, Path.mkdir, lambda path: path.symlink_to("/etc/passwd")])
@pytest.mark.parametrize("name", [".dockerignore", "Dockerfile.dockerignore"])
def test_a_dockerignore_that_is_no_file_is_refused_and_not_waited_for(
    plain: Build, made: Callable[[Path], None], name: str
) -> None:
    made(Path(plain.context, name))
    with pytest.raises(UsageError, match=rf"{name}' cannot be read: .*\. Make it a regular file, and no link"):
        BuildContext(plain)


def test_a_dockerignore_without_end_is_refused(plain: Build) -> None:
    with Path(plain.context, ".dockerignore").open("wb") as opened:
        opened.truncate(MAX_IGNORE_BYTES + 1)
    with pytest.raises(UsageError, match="more than 65536"):
        BuildContext(plain)


@pytest.mark.parametrize(
    ("lines", "kept"),
    [
        ([], "a a/x.log a/y b b/a b/a/y"),
        (["# no", "", "."], "a a/x.log a/y b b/a b/a/y"),
        (["/a/"], "b b/a b/a/y"),
        (["*.log", "b/.."], "a a/x.log a/y b b/a b/a/y"),
        (["**/*.log"], "a a/y b b/a b/a/y"),
        (["**/y"], "a a/x.log b b/a"),
        (["a/**"], "a b b/a b/a/y"),
        (["?/../b/a"], "a a/x.log a/y b"),
        (["**", "!b/*/[!x]"], "b/a/y"),
        (["a", "!a/y", "!**/*.log"], "a/x.log a/y b b/a b/a/y"),
        (["!a/y", "a"], "b b/a b/a/y"),
    ],
)
def test_the_last_pattern_that_names_a_path_or_a_directory_above_it_decides(
    tmp_path: Path, lines: list[str], kept: str
) -> None:
    for path in ("a/x.log", "a/y", "b/a/y"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).touch()
    assert sorted(kept_paths(tmp_path, [line for line in lines if not line.startswith("#")])) == kept.split()


@pytest.mark.slow
@pytest.mark.parametrize("hostile", ["a*" * 30_000 + "b", "**/a/" * 12_000 + "x", "[a-z]*" * 10_000 + "/"])
def test_no_pattern_takes_long(tmp_path: Path, hostile: str) -> None:
    with contextlib.chdir(tmp_path):
        Path("a" * 250).touch()
        for _ in range(200):
            os.mkdir("a")  # noqa: PTH102 - a path of Path would be too long to keep
            os.chdir("a")
    assert len([*kept_paths(tmp_path, [hostile])]) == 201


def test_fifos_and_sockets_are_left_out_and_links_are_sent_as_links(plain: Build, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "link").symlink_to("/etc/passwd")
    with socket.socket(socket.AF_UNIX) as server, tempfile.TemporaryFile() as archive:
        server.bind(os.path.relpath(tmp_path / "socket"))
        context = BuildContext(plain)
        assert context.archive(archive) == context.digest()
        archive.seek(0)
        with tarfile.open(fileobj=archive) as opened:
            entries = {one.name: one for one in opened}
    assert entries.keys() == {".", "Dockerfile", "below", "below/a", "link"}
    assert (entries["link"].linkname, entries["below/a"].size) == ("/etc/passwd", 3)


def test_a_directory_or_file_that_becomes_a_link_is_not_followed(plain: Build, tmp_path: Path) -> None:
    context = BuildContext(plain)
    (tmp_path / "below").rename(tmp_path / "elsewhere")
    (tmp_path / "below").symlink_to("elsewhere")
    with pytest.raises(OSError, match=r"below|a"):
        context.digest()


def test_another_content_is_another_digest_and_another_time_is_not(plain: Build, tmp_path: Path) -> None:
    before = BuildContext(plain).digest()
    os.utime(tmp_path / "below" / "a", (1, 1))
    assert BuildContext(plain).digest() == before
    (tmp_path / "below" / "a").write_text("two")
    assert BuildContext(plain).digest() != before


def test_a_context_over_the_limit_is_told_before_it_is_read(
    plain: Build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ohsandbox.runtime.docker.images.build_context.MAX_CONTEXT_BYTES", 1 << 30)
    with (tmp_path / "large").open("wb") as opened:
        opened.truncate((1 << 30) + 1)
    with pytest.raises(UsageError, match=r"over 1 GiB \(at 'large'\)"):
        BuildContext(plain).digest()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"build": "none/such"}, "does not exist"),
        ({"build": 5}, "Invalid build 5"),
        ({"build": ""}, "Invalid build ''"),
        ({"build": Build(".", "no-such-file")}, "Dockerfile 'no-such-file' is missing"),
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


LAYER = "RUN dd if=/dev/zero of=/filler-{0} bs=1048576 count=4 2>/dev/null\n"


@pytest.mark.slow
def test_images_of_ours_are_kept_under_a_budget_the_least_recently_used_goes(
    context: Callable[..., Path], engine: Engine
) -> None:
    names = []
    for age, which in enumerate("abc"):
        names.append(builds.ensure(engine, resolved_build(context(LAYER.format(which)))))
        [record] = [path for path, name in builds.records(engine) if name == names[-1]]
        os.utime(record, (1000.0 + age, 1000.0 + age))
    builds.note_used(engine, names[0])
    assert builds.trim(engine, 14 * 1024**2, keep=()) == set()
    with DockerRuntime(names[1]):  # in use
        assert builds.trim(engine, 9 * 1024**2, keep=()) == {names[2]}
    assert builds.trim(engine, 5 * 1024**2, keep={names[1]}) == {names[0]}
    here = {tag for image in engine.api.images() for tag in image["RepoTags"] or []}
    assert names[1] in here
    assert not {names[0], names[2]} & here
