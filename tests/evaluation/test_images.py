"""Each image once: many who want it at the same time, one that is slow, one that goes."""

from __future__ import annotations

import secrets
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from ohsandbox.errors import CallCancelledError, ImageUnavailable, UsageError
from ohsandbox.evaluation.images import Images
from ohsandbox.evaluation.task import TaskEnvironment
from ohsandbox.runtime.docker.engine.connection import connect

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from ohsandbox.runtime.results import PullProgress

pytestmark = pytest.mark.docker


@pytest.fixture
def environment(tmp_path: Path) -> Iterator[Callable[..., TaskEnvironment]]:
    """`environment(name, step)` is built from a Dockerfile with that step, which no other test has."""
    tag = secrets.token_hex(8)

    def write(name: str, step: str = "", **facts: float) -> TaskEnvironment:
        (tmp_path / name).mkdir(exist_ok=True)
        text = f"FROM ohsandbox-base:busybox\nLABEL test={tag} name={name}\n{step}\n"
        (tmp_path / name / "Dockerfile").write_text(text)
        return TaskEnvironment.model_validate({"build": tmp_path / name, **facts})

    yield write
    engine = connect()
    for image in engine.api.images(filters={"label": f"test={tag}"}):
        engine.api.remove_image(image["Id"], force=True)
    engine.close()


def test_eight_that_want_it_at_once_build_it_once(environment: Callable[..., TaskEnvironment]) -> None:
    told: list[PullProgress] = []
    images, wanted, together = Images(tell=told.append), environment("one", "RUN sleep 1"), threading.Barrier(8)

    def hold(_: int) -> str:
        together.wait(60)
        with images.held(wanted) as image:
            return image.name

    with ThreadPoolExecutor(8) as pool:
        assert len({*pool.map(hold, range(8))}) == 1
    assert sum(one.status == "done" for one in told) == 1


@pytest.mark.slow
def test_a_step_that_fails_is_told_to_all_and_tried_by_who_comes_later(
    environment: Callable[..., TaskEnvironment],
) -> None:
    images = Images()
    for _ in range(2):
        with (
            pytest.raises(UsageError, match=r"exit code:? 7|returned a non-zero code: 7|exit 7"),
            images.held(environment("bad", "RUN exit 7")),
        ):
            pytest.fail("it was built")
    with images.held(environment("bad", "RUN true")) as image:
        assert image.workdir == "/"


def test_a_build_has_the_time_that_its_task_gives_it(environment: Callable[..., TaskEnvironment]) -> None:
    wanted = environment("slow", "RUN sleep 60", build_timeout_s=1)
    with pytest.raises(ImageUnavailable, match="was not there after the 1 s"), Images().held(wanted):
        pytest.fail("it was built")


def test_close_ends_a_build(environment: Callable[..., TaskEnvironment]) -> None:
    images = Images()
    threading.Timer(1.0, images.close).start()
    with pytest.raises(CallCancelledError), images.held(environment("slow", "RUN sleep 60")):
        pytest.fail("it was built")


@pytest.mark.slow
def test_an_image_that_was_removed_for_the_budget_is_made_again(environment: Callable[..., TaskEnvironment]) -> None:
    layer = "RUN dd if=/dev/zero of=/filler-{} bs=1048576 count=4 2>/dev/null"  # one that no other image shares
    images = Images(budget_bytes=5 * 1024**2)
    first, second = environment("a", layer.format("a")), environment("b", layer.format("b"))
    with images.held(first) as image:
        name = image.name
        with images.held(second):
            assert name in tags()  # it is in use
    with images.held(environment("c", layer.format("c"))):
        assert name not in tags()
    with images.held(first):
        assert name in tags()


def tags() -> set[str]:
    engine = connect()
    try:
        return {tag for image in engine.api.images() for tag in image["RepoTags"] or []}
    finally:
        engine.close()
