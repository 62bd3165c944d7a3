from __future__ import annotations

import shutil
import time
from typing import TYPE_CHECKING

import pytest

from ohsandbox import DockerRuntime
from ohsandbox.errors import UsageError
from ohsandbox.runtime.docker import checkpoint_retention, checkpoints
from ohsandbox.runtime.docker.engine import connect
from ohsandbox.runtime.docker.gc import gc, orphaned_checkpoints
from tests.conftest import drop_checkpoints

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from ohsandbox.runtime.docker.engine import Engine

pytestmark = pytest.mark.docker
IMAGE = "ohsandbox-base:busybox"


@pytest.fixture(autouse=True)
def _own_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("OHSANDBOX_HOME", str(tmp_path / "state"))
    yield
    drop_checkpoints(tmp_path / "state")


@pytest.fixture
def engine() -> Iterator[Engine]:
    engine = connect()
    yield engine
    engine.close()


@pytest.fixture
def owner(tmp_path: Path) -> Path:
    (tmp_path / "owner").mkdir()
    return tmp_path / "owner"


def _is_there(engine: Engine, image: str) -> bool:
    return any(image == found["Id"] for found in engine.api.images(checkpoint_retention.REPOSITORY))


def test_gc_removes_the_checkpoints_of_a_conversation_that_is_gone(engine: Engine, owner: Path) -> None:
    with DockerRuntime(IMAGE) as runtime:
        doomed = runtime.checkpoint("a", owner=owner)
        kept_one = runtime.checkpoint("b")
        assert orphaned_checkpoints(engine) == []
        shutil.rmtree(owner)
        assert [record.id for record in orphaned_checkpoints(engine)] == [doomed.id]
        reaped = [one for one in gc(engine) if one.id == doomed.id]
    assert [one.outcome for one in reaped] == ["removed"]
    assert not _is_there(engine, doomed.id)
    assert _is_there(engine, kept_one.id)
    assert [record.id for record in checkpoint_retention.records(engine)] == [kept_one.id]


def test_a_checkpoint_stays_as_long_as_one_of_its_owners(engine: Engine, owner: Path, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    with DockerRuntime(IMAGE) as runtime:
        made = runtime.checkpoint("a", owner=owner)
    checkpoint_retention.also_for(engine, made.id, owner=tmp_path / "other")
    shutil.rmtree(owner)
    gc(engine)
    assert _is_there(engine, made.id)
    shutil.rmtree(tmp_path / "other")
    gc(engine)
    assert not _is_there(engine, made.id)


def test_a_checkpoint_that_a_container_stands_on_goes_with_a_later_gc(engine: Engine, owner: Path) -> None:
    with DockerRuntime(IMAGE) as runtime:
        made = runtime.checkpoint("a", owner=owner)
        runtime.restore(made)
        shutil.rmtree(owner)
        assert [one.id for one in gc(engine) if one.id == made.id] == []
        assert runtime.run(["true"]).exit_code == 0
    gc(engine)
    assert checkpoint_retention.records(engine) == []
    assert not _is_there(engine, made.id)


def test_an_image_without_a_record_is_not_ours_whatever_its_labels(engine: Engine, owner: Path) -> None:
    with DockerRuntime(IMAGE) as runtime:
        made = runtime.checkpoint("a", owner=owner)
    (record,) = checkpoint_retention.records(engine)
    checkpoint_retention.forget(record)
    shutil.rmtree(owner)
    gc(engine)
    assert _is_there(engine, made.id)
    checkpoints.drop(engine, made.id)


def test_the_first_and_the_newest_are_kept(engine: Engine, owner: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint_retention, "MAX_EACH", 3)
    with DockerRuntime(IMAGE) as runtime:
        made = [runtime.checkpoint(str(number), owner=owner).id for number in range(5)]
    assert [record.id for record in checkpoint_retention.records(engine)] == [made[0], *made[-2:]]
    assert not _is_there(engine, made[1])


def test_the_oldest_of_all_go_where_they_take_too_much(
    engine: Engine, owner: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint_retention, "MAX_ALL_BYTES", 3_000_000)
    with DockerRuntime(IMAGE) as runtime:
        runtime.run(["dd", "if=/dev/zero", "of=/big", "bs=1M", "count=2"])
        made = [runtime.checkpoint(str(number), owner=owner).id for number in range(2)]
    assert [record.id for record in checkpoint_retention.records(engine)] == made[-1:]


def test_a_checkpoint_that_is_being_made_is_nobodys_to_remove(engine: Engine, owner: Path) -> None:
    record = checkpoint_retention.begin(engine, owner=owner)
    checkpoint_retention.prune(engine, owner=owner)
    assert not record.is_orphan
    assert checkpoint_retention.records(engine) == [record]
    assert record.model_copy(update={"made_at": time.time() - checkpoint_retention.UNFINISHED_S - 1}).is_orphan
    checkpoint_retention.forget(record)


def test_damaged_records_are_passed_over(engine: Engine, owner: Path, tmp_path: Path) -> None:
    record = checkpoint_retention.begin(engine, owner=owner)
    (tmp_path / "state" / "checkpoints" / "20260101-000000-00000000").write_text('{"tag": "../../etc"}')
    assert checkpoint_retention.records(engine) == [record]
    checkpoint_retention.forget(record)


@pytest.mark.parametrize("user", [None, "1000"])
def test_a_new_sandbox_begins_with_a_checkpoints_files_and_user(owner: Path, user: str | None) -> None:
    with DockerRuntime(IMAGE, user=user) as runtime:
        runtime.execute("echo then > f; id -u > u")
        made = runtime.checkpoint("a", owner=owner)
        runtime.execute("echo later > f")
    with DockerRuntime("no/such:image", checkpoint=made.id) as again:
        assert again.execute("cat f; id -u | diff - u && pwd").output == "then\n/workspace\n"
        assert again.run(["id"], user="65534").exit_code == 0


def test_a_fork_has_a_workspace_where_the_original_has_one(tmp_path: Path) -> None:
    (tmp_path / "w").mkdir()
    with pytest.raises(UsageError, match="workspace where the original has one"):
        DockerRuntime(IMAGE).fork("x", conversation="c", workspace=tmp_path / "w")
    with pytest.raises(UsageError, match="leave out attach"):
        DockerRuntime(IMAGE, attach="xx", checkpoint="y")
