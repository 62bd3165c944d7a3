from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING, Any

import pytest

from ohsandbox.runtime.docker.ownership import lease
from ohsandbox.runtime.docker.ownership.lease import workspace_digest
from ohsandbox.runtime.docker.ownership.tree_uses import TreeUses, find

if TYPE_CHECKING:
    from pathlib import Path

    from ohsandbox.runtime.docker.engine.connection import Engine


def test_a_directory_is_used_by_who_has_it_or_one_above_it(tmp_path: Path) -> None:
    uses = TreeUses(mounted=frozenset([workspace_digest(str(tmp_path))]))
    (tmp_path / "below").mkdir()
    for directory in (tmp_path, tmp_path / "below"):
        with pytest.raises(BlockingIOError), uses.excluded(str(directory)):
            pytest.fail("it is used")
    with uses.excluded(str(tmp_path.parent)):
        pass


def test_a_stopped_sandbox_uses_what_it_needs_to_start_again_and_no_lock(tmp_path: Path) -> None:
    uses = TreeUses(stopped=frozenset([workspace_digest(str(tmp_path))]))
    with pytest.raises(BlockingIOError), uses.excluded(str(tmp_path)):
        pytest.fail("it is used")
    with uses.excluded(str(tmp_path), mounted_only=True):
        pass


def test_a_lock_of_another_program_delays_a_start_and_keeps_removals_out(tmp_path: Path) -> None:
    script = 'exec 3<"$1"; flock 3; echo; read -r line'
    with subprocess.Popen(
        ["sh", "-c", script, "sh", tmp_path], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline()
        held = lease.acquire(container="c", engine="e", image="i", workspaces=(str(tmp_path),))
        with pytest.raises(BlockingIOError), TreeUses().excluded(str(tmp_path)):
            pytest.fail("it is locked")
        holder.communicate()
    held.release()
    with TreeUses().excluded(str(tmp_path)):
        pass


@pytest.mark.docker
@pytest.mark.parametrize("state", ["running", "paused", "exited"])
def test_only_a_container_that_has_ended_has_no_mounts(
    sandbox: Any, engine: Engine, tmp_path: Path, state: str
) -> None:
    runtime = sandbox("ohsandbox-base:busybox", workspace=tmp_path, conversation="left")
    runtime.execute("true")
    runtime.leave(at_once=True)
    digest = workspace_digest(str(tmp_path))
    if state == "paused":
        engine.api.pause(runtime.name)
    elif state == "exited":
        engine.api.kill(runtime.name)
    try:
        uses = find(engine)
    finally:
        engine.api.remove_container(runtime.name, force=True)
    assert (digest in uses.mounted, digest in uses.stopped) == (state != "exited", state == "exited")


@pytest.mark.docker
def test_a_lease_of_another_engine_is_a_use_and_one_of_this_engine_while_its_owner_lives(
    engine: Engine, tmp_path: Path
) -> None:
    other, own = (
        lease.acquire(container="c", engine=address, image="i", workspaces=(str(tmp_path / address[-1]),))
        for address in ("unix:///elsewhere/a", engine.address.url)
    )
    places = [workspace_digest(place) for held in (other, own) for place in held.record.workspaces]
    assert {*places} <= find(engine).mounted
    other.leave()
    own.leave()
    assert [place in find(engine).mounted for place in places] == [True, False]
    for held in (other, own):
        held.path.unlink()
