"""Setup checkpoints: found again where all is the same, and nowhere else."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

import pytest

from ohsandbox import DockerRuntime, Mount
from ohsandbox.errors import ImageUnavailable
from ohsandbox.runtime.docker.checkpoints import checkpoint_images, setups
from ohsandbox.runtime.docker.config import options
from ohsandbox.runtime.docker.images import engine_images
from ohsandbox.runtime.docker.inventory.docker_inventory import DockerInventory

if TYPE_CHECKING:
    from pathlib import Path

    from ohsandbox.runtime.docker.engine.connection import Engine

IMAGE = "ohsandbox-base:debian"


def found(engine: Engine, *, workspace: str | None = None, **asked: Any) -> str | None:
    """The id of the checkpoint that a sandbox with these options would begin with."""
    if workspace is not None:
        asked["workspaces"] = [Mount(source=workspace, target="/workspace")]
    wanted = options.validated_options(**({"image": IMAGE, "setup_key": "k"} | asked))
    return setups.find(engine, wanted, engine_images.ensure(engine, wanted.image)).checkpoint


@pytest.mark.docker
@pytest.mark.one_engine
def test_a_setup_is_kept_for_the_same_image_options_user_and_key(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    tag = "ohsandbox-test-setup:latest"
    engine.api.tag(IMAGE, *tag.split(":"))
    try:
        with DockerRuntime(tag, setup_key="k", labels={"a": "b"}) as first:
            assert first.has_setup is False
            assert first.execute("echo done >/opt/marker; setsid tail -f /dev/null &").exit_code == 0
            assert first.keep_setup("k") == "it left tail running, which no checkpoint holds"
            first.execute("kill $(pidof tail); while pidof tail; do :; done")
            assert first.keep_setup("other") == "a file that it reads changed meanwhile"
            assert found(engine) is None
            assert first.keep_setup("k") == ""
        with DockerRuntime(tag, setup_key="k") as second:
            assert second.has_setup
            assert second.read_bytes("/opt/marker") == b"done\n"
            assert second.keep_setup("k") == "it did not begin with a setup to keep"
            [info] = [one for one in DockerInventory(engine).list_sandboxes() if one.id == second.id]
            assert info.labels == {}
        assert found(engine) == found(engine, image=tag, limits={"pids": 100}) is not None
        for other in ({"setup_key": "l"}, {"env": {"A": "b"}}, {"user": "1000"}, {"network": "open"}, {"runtime": "x"}):
            assert found(engine, **other) is None, other
        engine.api.tag("ohsandbox-base:busybox", *tag.split(":"))
        assert found(engine, image=tag) is None
        with monkeypatch.context() as changed:
            changed.setattr(os, "getuid", lambda: 4242)
            assert found(engine) is None
        with monkeypatch.context() as changed:
            then = time.time() + setups.MAX_AGE_S + 1
            changed.setattr(time, "time", lambda: then)
            assert found(engine) is None
            DockerInventory(engine).collect_garbage()
        assert checkpoint_images.records(engine) == []
        assert found(engine) is None
    finally:
        engine.api.remove_image(tag)


@pytest.mark.slow
@pytest.mark.docker
@pytest.mark.one_engine
def test_what_setup_left_in_a_workspace_must_be_there_and_a_copy_must_be_the_same(
    engine: Engine, tmp_path: Path
) -> None:
    place, other = tmp_path / "a", tmp_path / "b"
    for directory in (place, other):
        directory.mkdir()
        (directory / "old").write_text("1")
    data = tmp_path / "data"
    data.mkdir()
    with DockerRuntime(IMAGE, workspace=place, mounts=[f"{data}:/data"], setup_key="k") as runtime:
        assert "can write other directories" in runtime.keep_setup("k"), "what it did there is in no checkpoint"
    with DockerRuntime(IMAGE, workspace=place, mounts=[f"{data}:/data:ro"], setup_key="k") as runtime:
        assert runtime.keep_setup("k") == ""
    with DockerRuntime(IMAGE, workspace=place, setup_key="k") as runtime:
        assert not runtime.has_setup, "the mount is missing"
        runtime.execute("mkdir -p made/deep; echo x >made/deep/file; rm old; echo y >~/mine")
        assert runtime.keep_setup("k") == ""
    assert found(engine, workspace=str(other)) is None
    checkpoint = found(engine, workspace=str(place))
    assert checkpoint is not None
    (place / "mine").write_text("is nothing that setup did")
    (place / "made" / "deep" / "more").write_text("below what it made")
    assert found(engine, workspace=str(place)) == checkpoint
    (place / "old").write_text("back again")
    assert found(engine, workspace=str(place)) is None
    (place / "old").unlink()
    assert found(engine, workspace=str(place)) == checkpoint
    (place / "made").rename(place / "elsewhere")
    assert found(engine, workspace=str(place)) is None
    with DockerRuntime(IMAGE, workspace=other, copy=True, setup_key="k") as runtime:
        runtime.execute("echo x >made")
        assert runtime.keep_setup("k") == ""
    with DockerRuntime(IMAGE, workspace=other, copy=True, setup_key="k") as runtime:
        assert runtime.execute("cat made old").output == "x\n1"
    (other / "old").write_text("2")
    assert found(engine, copy_of=str(other)) is None
    checkpoint_images.drop(engine, checkpoint)
    with pytest.raises(ImageUnavailable):
        checkpoint_images.require(engine, checkpoint)
