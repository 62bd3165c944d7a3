from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from ohsandbox import CLIRuntime, DockerRuntime
from ohsandbox.errors import ImageUnavailable, SandboxUnavailable, UsageError
from ohsandbox.runtime.docker import checkpoints
from ohsandbox.runtime.docker.engine import connect

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from ohsandbox.runtime.docker.engine import Engine

pytestmark = pytest.mark.docker
IMAGE = "ohsandbox-base:debian"
CONVERSATION = "test-checkpoints"


@pytest.fixture
def engine() -> Iterator[Engine]:
    engine = connect()
    yield engine
    for each in checkpoints.listed(engine, conversation=CONVERSATION):
        checkpoints.drop(engine, each.id)
    engine.close()


@pytest.mark.usefixtures("engine")
def test_files_come_back_and_the_sandbox_goes_on_under_its_name() -> None:
    with DockerRuntime(IMAGE, conversation=CONVERSATION) as runtime:
        name = runtime.name
        runtime.execute("echo before > f; X=1; sleep 60 &")
        kept = runtime.checkpoint("before the change")
        runtime.execute("echo after > f; touch g; cd /")
        runtime.restore(kept)
        shown = runtime.execute("cat f; ls; echo [$X]; pwd; jobs")
        assert shown.output == "before\nf\n[]\n/workspace\n"
        assert shown.notice is None
        assert runtime.name == name
        assert runtime.run(["cat", "f"]).stdout == b"before\n"
        runtime.write_bytes("h", b"x")
        assert runtime.is_alive()
    assert kept.label == "before the change"


@pytest.mark.usefixtures("engine")
def test_files_that_would_fill_the_engine_s_disk_are_not_kept() -> None:
    """The engine writes every hole of a sparse file, and here one byte more than the free terabytes."""
    with DockerRuntime(IMAGE, conversation=CONVERSATION) as runtime:
        assert runtime.run(["sh", "-c", "for i in $(seq 1000); do truncate -s 15G big$i; done"]).exit_code == 0
        with pytest.raises(SandboxUnavailable, match=r"would write 15000\.\d GiB, sparse files at their full length"):
            runtime.checkpoint("too large")
        assert runtime.execute("rm big*; echo goes on").output == "goes on\n"
        runtime.checkpoint("small again")


def test_checkpoints_are_listed_by_conversation_and_removed(engine: Engine) -> None:
    with DockerRuntime(IMAGE, conversation=CONVERSATION) as runtime:
        first = runtime.checkpoint("a")
        runtime.write_bytes("big", bytes(3_000_000))
        second = runtime.checkpoint("b")
        assert checkpoints.listed(engine, conversation=CONVERSATION) == [first, second]
        assert second.size_bytes >= 3_000_000 > first.size_bytes
        checkpoints.drop(engine, first.id)
        checkpoints.drop(engine, first.id)
        assert checkpoints.listed(engine, conversation=CONVERSATION) == [second]
        with pytest.raises(ImageUnavailable, match="does not exist any more"):
            runtime.restore(first)
        assert runtime.read_bytes("big") == bytes(3_000_000)


def test_an_image_of_somebody_elses_is_no_checkpoint(engine: Engine) -> None:
    with DockerRuntime(IMAGE) as runtime, pytest.raises(ImageUnavailable, match="is not a checkpoint"):
        runtime.restore(engine.api.inspect_image(IMAGE)["Id"])


def test_workspace_of_the_host_is_no_part_of_it(engine: Engine, tmp_path: Path) -> None:
    assert engine
    project = tmp_path / "project"
    project.mkdir()
    with DockerRuntime(IMAGE, workspace=project, conversation=CONVERSATION) as runtime:
        runtime.execute("echo a > f; echo a > ~/f")
        kept = runtime.checkpoint()
        runtime.execute("echo b > f; echo b > ~/f")
        runtime.restore(kept)
        assert runtime.execute("cat f ~/f; touch ~/g g").output == "b\na\n"


def test_others_say_that_they_keep_none(tmp_path: Path) -> None:
    with (
        CLIRuntime(tmp_path, bubblewrap=False, quiet=True) as runtime,
        pytest.raises(UsageError, match="CLIRuntime does not support checkpoints"),
    ):
        runtime.checkpoint()


def test_label_is_one_line() -> None:
    with DockerRuntime(IMAGE) as runtime, pytest.raises(UsageError, match="one line"):
        runtime.checkpoint("a\nb")


@pytest.mark.usefixtures("engine")
def test_checkpoints_and_processes_that_start_meanwhile_do_not_hang_the_engine() -> None:
    place = DockerRuntime(IMAGE).start()
    over = threading.Event()

    def start_processes() -> None:
        while not over.is_set():
            place.open_channel(["true"]).close()

    threads = [threading.Thread(target=start_processes, daemon=True) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        kept = [place.checkpoint(f"number {number}") for number in range(8)]
    finally:
        over.set()
        for thread in threads:
            thread.join(60)
        place.close()
    assert len({one.id for one in kept}) == 8
    assert not any(thread.is_alive() for thread in threads)
