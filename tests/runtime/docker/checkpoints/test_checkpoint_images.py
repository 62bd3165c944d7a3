from __future__ import annotations

import contextlib
import json
import shutil
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest
from docker.errors import NotFound

from ohsandbox import CLIRuntime, DockerRuntime
from ohsandbox.errors import ImageUnavailable, SandboxUnavailable, UsageError
from ohsandbox.paths import subdirectory
from ohsandbox.runtime import owners
from ohsandbox.runtime.docker.checkpoints import checkpoint_images
from ohsandbox.runtime.docker.inventory.docker_inventory import DockerInventory

if TYPE_CHECKING:
    from pathlib import Path

    from ohsandbox.runtime.docker.engine.connection import Engine

pytestmark = pytest.mark.docker
IMAGE = "ohsandbox-base:debian"
BUSYBOX = "ohsandbox-base:busybox"
CONVERSATION = "test-checkpoints"


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
def test_files_that_would_fill_the_engine_s_disk_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine writes every hole of a sparse file, and here one byte more than the free terabytes.

    From another machine, or from a container, its disk is not seen.
    """
    with DockerRuntime(IMAGE, conversation=CONVERSATION) as runtime:
        assert runtime.run(["sh", "-c", "for i in $(seq 1000); do truncate -s 15G big$i; done"]).exit_code == 0
        with pytest.raises(SandboxUnavailable, match=r"would write 15000\.\d GiB, sparse files at their full length"):
            runtime.checkpoint("too large")
        monkeypatch.setattr("ohsandbox.runtime.docker.monitoring.disk.reachable", lambda _: None)
        with pytest.raises(SandboxUnavailable, match=r"would write 15000\.\d GiB, sparse files at their full length"):
            runtime.checkpoint("too large, asked of the sandbox")
        assert runtime.execute("rm big*; echo goes on").output == "goes on\n"
        runtime.checkpoint("small again")


def test_checkpoints_are_recorded_and_removed(engine: Engine) -> None:
    with DockerRuntime(IMAGE, conversation=CONVERSATION) as runtime:
        first = runtime.checkpoint("a")
        runtime.write_bytes("big", bytes(3_000_000))
        second = runtime.checkpoint("b")
        assert [record.id for record in checkpoint_images.records(engine)] == [first.id, second.id]
        assert second.size_bytes >= 3_000_000 > first.size_bytes
        checkpoint_images.drop(engine, first.id)
        checkpoint_images.drop(engine, first.id)
        assert [record.id for record in checkpoint_images.records(engine)] == [second.id]
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


@pytest.mark.slow
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


@pytest.fixture
def owner(tmp_path: Path) -> Path:
    (tmp_path / "owner").mkdir()
    return tmp_path / "owner"


def _is_there(engine: Engine, image: str) -> bool:
    return any(image == found["Id"] for found in engine.api.images(checkpoint_images.REPOSITORY))


def _orphans(engine: Engine) -> list[str]:
    return [record.id for record in checkpoint_images.records(engine) if record.is_orphan]


def _delete(owner: Path) -> None:
    """Delete a conversation's directory, as a command that says so does."""
    shutil.rmtree(owner)
    owners.note_deletion(owner)


def test_gc_removes_the_checkpoints_of_a_conversation_that_was_deleted(engine: Engine, owner: Path) -> None:
    with DockerRuntime(BUSYBOX) as runtime:
        doomed = runtime.checkpoint("a", owner=owner)
        kept_one = runtime.checkpoint("b")
        assert _orphans(engine) == []
        _delete(owner)
        assert _orphans(engine) == [doomed.id]
        reaped = [one for one in DockerInventory(engine).collect_garbage() if one.id == doomed.id]
    assert [one.outcome for one in reaped] == ["removed"]
    assert not _is_there(engine, doomed.id)
    assert _is_there(engine, kept_one.id)
    assert [record.id for record in checkpoint_images.records(engine)] == [kept_one.id]


@pytest.mark.slow
@pytest.mark.parametrize("how", ["moved", "a dangling link", "a file in its place"])
def test_gc_keeps_and_lists_the_checkpoints_of_a_conversation_that_cannot_be_found(
    engine: Engine, owner: Path, how: str
) -> None:
    with DockerRuntime(BUSYBOX) as runtime:
        kept = runtime.checkpoint("a", owner=owner)
    away = owner.with_name("away")
    owner.rename(away)
    if how == "a dangling link":
        owner.symlink_to("nowhere")
    elif how == "a file in its place":
        owner.touch()
    inventory = DockerInventory(engine)
    assert not [one for one in inventory.collect_garbage() if one.id == kept.id]
    [lost] = inventory.lost_checkpoints()
    assert f"its owner {str(owner)!r} cannot be found" in lost.stays
    assert _is_there(engine, kept.id)
    if how != "moved":
        owner.unlink()
    away.rename(owner)
    assert inventory.lost_checkpoints() == []
    owner.rename(away)
    assert inventory.remove_image(lost.name)
    assert not _is_there(engine, kept.id)


def test_a_state_directory_that_moves_takes_its_checkpoints_along(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    conversation = tmp_path / "state" / "conversations" / "one"
    conversation.mkdir(parents=True)
    with DockerRuntime(BUSYBOX) as runtime:
        kept = runtime.checkpoint("a", owner=conversation)
    (tmp_path / "state").rename(tmp_path / "moved")
    monkeypatch.setenv("OHSANDBOX_HOME", str(tmp_path / "moved"))
    inventory = DockerInventory(engine)
    inventory.collect_garbage()
    assert inventory.lost_checkpoints() == []
    assert inventory.release_checkpoints(tmp_path / "moved" / "conversations" / "one").removed
    assert not _is_there(engine, kept.id)


def test_a_deletion_that_was_undone_from_a_backup_is_none(engine: Engine, owner: Path) -> None:
    record = checkpoint_images.begin(engine, owner=owner)
    _delete(owner)
    assert record.is_orphan
    owner.mkdir()
    DockerInventory(engine).collect_garbage()
    owner.rename(owner.with_name("away"))
    assert not record.is_orphan
    assert record.is_lost
    checkpoint_images.forget(record)


def test_a_checkpoint_stays_as_long_as_one_of_its_owners(engine: Engine, owner: Path, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    with DockerRuntime(BUSYBOX) as runtime:
        made = runtime.checkpoint("a", owner=owner)
    checkpoint_images.also_for(engine, made.id, owner=tmp_path / "other")
    _delete(owner)
    DockerInventory(engine).collect_garbage()
    assert _is_there(engine, made.id)
    _delete(tmp_path / "other")
    DockerInventory(engine).collect_garbage()
    assert not _is_there(engine, made.id)


def test_a_checkpoint_that_a_container_stands_on_goes_with_a_later_gc(engine: Engine, owner: Path) -> None:
    with DockerRuntime(BUSYBOX) as runtime:
        made = runtime.checkpoint("a", owner=owner)
        runtime.restore(made)
        _delete(owner)
        assert [one.id for one in DockerInventory(engine).collect_garbage() if one.id == made.id] == []
        assert runtime.run(["true"]).exit_code == 0
    DockerInventory(engine).collect_garbage()
    assert checkpoint_images.records(engine) == []
    assert not _is_there(engine, made.id)


def test_an_image_without_a_record_is_not_ours_whatever_its_labels(engine: Engine, owner: Path) -> None:
    with DockerRuntime(BUSYBOX) as runtime:
        made = runtime.checkpoint("a", owner=owner)
    (record,) = checkpoint_images.records(engine)
    checkpoint_images.forget(record)
    _delete(owner)
    DockerInventory(engine).collect_garbage()
    assert _is_there(engine, made.id)
    checkpoint_images.drop(engine, made.id)


def test_the_first_and_the_newest_are_kept(engine: Engine, owner: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint_images, "MAX_EACH", 3)
    with DockerRuntime(BUSYBOX) as runtime:
        made = [runtime.checkpoint(str(number), owner=owner).id for number in range(5)]
    assert [record.id for record in checkpoint_images.records(engine)] == [made[0], *made[-2:]]
    assert not _is_there(engine, made[1])


def test_the_newest_is_kept_though_the_clock_was_set_back(
    engine: Engine, owner: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint_images, "MAX_EACH", 3)
    real, made = time.time, []
    with DockerRuntime(BUSYBOX) as runtime:
        for days in range(5):
            monkeypatch.setattr(time, "time", lambda days=days: real() - 86400 * days)
            made.append(runtime.checkpoint(str(days), owner=owner).id)
    assert [record.id for record in checkpoint_images.records(engine)] == [made[0], *made[-2:]]
    assert _is_there(engine, made[-1])


def test_the_oldest_of_all_go_where_they_take_too_much(
    engine: Engine, owner: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint_images, "MAX_ALL_BYTES", 3_000_000)
    with DockerRuntime(BUSYBOX) as runtime:
        runtime.run(["dd", "if=/dev/zero", "of=/big", "bs=1M", "count=2"])
        made = [runtime.checkpoint(str(number), owner=owner).id for number in range(2)]
    assert [record.id for record in checkpoint_images.records(engine)] == made[-1:]


def test_a_checkpoint_that_is_being_made_is_nobodys_to_remove(engine: Engine, owner: Path) -> None:
    record = checkpoint_images.begin(engine, owner=owner)
    checkpoint_images.prune(engine, owner=owner)
    assert not record.is_orphan
    assert checkpoint_images.records(engine) == [record]
    assert record.model_copy(update={"made_at": time.time() - checkpoint_images.UNFINISHED_S - 1}).is_orphan
    checkpoint_images.forget(record)


def test_damaged_records_are_passed_over(engine: Engine, owner: Path, tmp_path: Path) -> None:
    record = checkpoint_images.begin(engine, owner=owner)
    (tmp_path / "state" / "checkpoints" / "20260101-000000-00000000").write_text('{"tag": "../../etc"}')
    assert checkpoint_images.records(engine) == [record]
    checkpoint_images.forget(record)


def _write_record(**fields: object) -> Path:
    """A record that somebody else has written."""
    path = subdirectory("checkpoints") / str(fields["tag"])
    path.write_text(json.dumps(fields))
    return path


TAG = "20260101-000000-00000000"
ID = f"sha256:{'0' * 64}"


def test_a_record_that_names_a_path_removes_no_container(engine: Engine) -> None:
    """The path of a request is made of the tag, and `..` in it leads to everything that the engine has."""
    victim = engine.api.create_container_from_config({"Image": IMAGE, "Cmd": ["true"]})["Id"]
    try:
        services = [f"{TAG}-x/../../containers/{victim}"]
        _write_record(tag=TAG, engine=engine.address.url, made_at=1.0, number=1, id=ID, services=services)
        for record in checkpoint_images.records(engine):
            if record.tag == TAG:
                checkpoint_images.release(engine, record)
        assert engine.api.inspect_container(victim)["Id"] == victim
    finally:
        with contextlib.suppress(NotFound):
            engine.api.remove_container(victim, force=True)


@pytest.mark.parametrize(
    "fault",
    [
        {"size_bytes": 10**30}, {"size_bytes": -(10**15)}, {"made_at": 1e300}, {"made_at": "NaN"}, {"number": 10**30},
        {"number": -1}, {"id": "debian:latest"}, {"id": "../containers/x"}, {"services": ["debian"]},
        {"services": [f"{TAG}-x/../../containers/y"]}, {"services": ["20250101-000000-00000000-db"]},
    ],
)  # fmt: skip
def test_a_record_with_values_that_no_checkpoint_has_counts_as_damaged(engine: Engine, fault: dict[str, Any]) -> None:
    whole = {
        "tag": TAG,
        "engine": engine.address.url,
        "made_at": 1.0,
        "number": 1,
        "id": ID,
        "services": [f"{TAG}-db.0"],
    }
    path = _write_record(**whole)
    assert TAG in [record.tag for record in checkpoint_images.all_records()]
    _write_record(**whole | fault)
    assert TAG not in [record.tag for record in checkpoint_images.all_records()]
    path.unlink()


@pytest.mark.parametrize("user", [None, "1000"])
def test_a_new_sandbox_begins_with_a_checkpoints_files_and_user(owner: Path, user: str | None) -> None:
    with DockerRuntime(BUSYBOX, user=user) as runtime:
        runtime.execute("echo then > f; id -u > u")
        made = runtime.checkpoint("a", owner=owner)
        runtime.execute("echo later > f")
    with DockerRuntime("no/such:image", checkpoint=made.id) as again:
        assert again.execute("cat f; id -u | diff - u && pwd").output == "then\n/workspace\n"
        assert again.run(["id"], user="65534").exit_code == 0


def test_a_fork_has_a_workspace_where_the_original_has_one(tmp_path: Path) -> None:
    (tmp_path / "w").mkdir()
    with pytest.raises(UsageError, match="if, and only if, the original has one"):
        DockerRuntime(BUSYBOX).fork("x", conversation="c", workspace=tmp_path / "w")
    with pytest.raises(UsageError, match="Leave out attach"):
        DockerRuntime(BUSYBOX, attach="xx", checkpoint="y")
